"""The verbs that show something: runs, what there is to choose from, this machine. Heavy imports happen inside them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from phasegrad.cli.messages import say
from phasegrad.cli.values import coerced
from phasegrad.errors import ConfigError, nearest
from phasegrad.machine.paths import as_path


def run_plot(options: argparse.Namespace) -> int:
    from phasegrad.report.plot import plot_runs

    plot_runs(options.dir, options.out)
    print(f"wrote {options.out}")
    return 0


def run_report(options: argparse.Namespace) -> int:
    from phasegrad.report import write_report

    default = as_path(options.dir[0]) / "report.html" if len(options.dir) == 1 else Path("report.html")
    path = write_report(options.dir, default if options.out is None else options.out, title=options.title)
    print(f"wrote {path}: open it in a browser")
    return 0


def run_watch(options: argparse.Namespace) -> int:
    from phasegrad.cli.watch import watch
    from phasegrad.studies.watching import is_study, watch_study

    (watch_study if is_study(options.dir) else watch)(options.dir, once=options.once)
    return 0


def run_envs(options: argparse.Namespace) -> int:
    from phasegrad.envs import list_envs

    families = list_envs()
    if options.family is not None and options.family not in families:
        raise ConfigError(
            f"Unknown family {options.family!r}; there are {', '.join(families)}.{nearest(options.family, families)}"
        )
    for family, ids in families.items():
        if options.family in (None, family):
            shown = ids if options.family else ids[:8]
            more = "" if len(shown) == len(ids) else f" ... ({len(ids)} in all: phasegrad envs {family})"
            print(f"{family}: {', '.join(shown)}{more}")
    return 0


def run_presets(options: argparse.Namespace) -> int:
    from phasegrad.presets import PRESETS

    if options.name is None:
        for name, preset in PRESETS.items():
            print(f"{name:20} {preset.about}")
        return 0
    if options.name not in PRESETS:
        raise ConfigError(
            f"Unknown preset {options.name!r}.{nearest(options.name, PRESETS)} `phasegrad presets` lists all."
        )
    preset = PRESETS[options.name]
    print(
        json.dumps(
            {
                "about": preset.about,
                "common": dict(preset.common),
                **{k: dict(v) for k, v in preset.by_algorithm.items()},
            },
            indent=1,
        )
    )
    return 0


def run_bench(options: argparse.Namespace) -> int:
    from phasegrad.bench import TASKS, bench, fallen_behind, read_recorded, table
    from phasegrad.runs.files import write_json

    recorded = read_recorded("--check", options.check) if options.check else {}
    out = as_path(options.out) if options.out else None
    if out is not None and out.exists():
        read_recorded("--out", options.out)  # anything else is not ours to replace
    seconds = coerced("seconds", options.seconds, float, 0.1)
    repeats = coerced("repeats", options.repeats, int, 1)
    results = bench(options.task or list(TASKS), seconds, repeats, options.set)
    if out is not None:
        write_json(out, results)
    print(json.dumps(results) if options.json else table(results))
    behind = fallen_behind(results, recorded)
    for sentence in behind:
        say(sentence)
    return 1 if behind else 0


def run_doctor(options: argparse.Namespace) -> int:
    from phasegrad.cli.doctor import clear_cache, examine

    if options.clear_cache:
        sentence = clear_cache()
        print(json.dumps({"cleared": sentence}) if options.json else sentence)
        return 0
    checks = examine()
    if options.json:
        print(json.dumps([check.__dict__ for check in checks]))
    else:
        for check in checks:
            print(
                f"{'ok  ' if check.ok else 'MISS' if check.optional else 'FAIL'}  {check.name}: {check.found}"
                + ("" if check.ok or not check.fix else f" -> {check.fix}")
            )
    return 0 if all(check.ok or check.optional for check in checks) else 1


def run_completion(options: argparse.Namespace) -> int:
    from phasegrad.cli.completion import script

    print(script(options.shell), end="")
    return 0
