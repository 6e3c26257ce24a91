"""The verbs that show something: runs, what there is to choose from, this machine. Heavy imports happen inside them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from phasegrad.cli.formatting import terminal_width
from phasegrad.cli.messages import note, say
from phasegrad.cli.values import coerced
from phasegrad.errors import ConfigError, unknown
from phasegrad.machine.paths import as_path


def run_plot(options: argparse.Namespace) -> int:
    from phasegrad.report.plot import plot_runs

    smooth = 0.0 if options.smooth is None else coerced("smooth", options.smooth, float, 0)
    for sentence in plot_runs(options.dir, options.out, smooth=smooth, table=options.csv):
        say(sentence)
    print(f"wrote {options.out}" + (f" and {options.csv}" if options.csv else ""))
    return 0


def run_report(options: argparse.Namespace) -> int:
    from phasegrad.report import write_report

    default = as_path(options.dir[0]) / "report.html" if len(options.dir) == 1 else Path("report.html")
    given = options.out is not None
    more = _policy_to_try(options) if options.try_it else {}
    if options.runtime is not None and not options.try_it:
        raise ConfigError("--runtime is for a report with --try: add --try, or leave it out.")
    path = write_report(options.dir, options.out if given else default, title=options.title, links=given, **more)
    print(f"wrote {path}: open it in a browser")
    return 0


def _policy_to_try(options: argparse.Namespace) -> dict[str, Any]:
    """The latest policy of the one run that the page is about, and what runs it there."""
    from phasegrad.report.trying import read_runtime

    if len(options.dir) != 1:
        raise ConfigError("--try shows the agent of one run: give one run directory.")
    runtime = read_runtime(options.runtime)  # before the seconds that exporting takes
    from phasegrad.algorithms.loading import load
    from phasegrad.export.browser import playable

    return {"policy": playable(load(options.dir[0], device="cpu")), "runtime": runtime}


def run_watch(options: argparse.Namespace) -> int:
    from phasegrad.cli.watch import watch
    from phasegrad.studies.watching import is_study, watch_study

    (watch_study if is_study(options.dir) else watch)(options.dir, once=options.once)
    return 0


def run_envs(options: argparse.Namespace) -> int:
    from phasegrad.envs import all_envs

    families: dict[str, dict[str, list[str]]] = {}  # by family, then by the reason not to be trained on; '' for none
    for entry in all_envs():
        families.setdefault(entry.family, {}).setdefault(entry.reason, []).append(entry.id)
    if options.family is not None and options.family not in families:
        raise ConfigError(unknown("family", options.family, families, f"there are {', '.join(families)}"))
    for family, by_reason in families.items():
        if options.family not in (None, family):
            continue
        for reason, ids in sorted(by_reason.items()):
            shown = ids if options.family else ids[:8]
            more = "" if len(shown) == len(ids) else f" ... ({len(ids)} in all: phasegrad envs {family})"
            mark = f" (cannot be trained on: {reason})" if reason else ""
            print(f"{family}{mark}: {', '.join(shown)}{more}")
    return 0


def run_presets(options: argparse.Namespace) -> int:
    from phasegrad.presets import PRESETS, no_such_preset

    if options.name is None:
        width = max(map(len, PRESETS))
        for name, preset in PRESETS.items():
            print(f"{name:{width}} {preset.about}")
        return 0
    if options.name not in PRESETS:
        raise no_such_preset(options.name)
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
    from phasegrad.bench import TASKS, bench, fallen_behind, read_recorded, require_tasks, table
    from phasegrad.cli.bench_display import BenchProgress, terminal_table
    from phasegrad.runs.below import named_output
    from phasegrad.runs.files import write_json

    recorded = read_recorded("--check", options.check) if options.check else {}
    out = named_output(as_path(options.out), "--out") if options.out else None
    if out is not None and out.exists():
        read_recorded("--out", options.out)  # anything else is not ours to replace
    seconds = coerced("seconds", options.seconds, float, 0.1)
    repeats = coerced("repeats", options.repeats, int, 1)
    tasks = options.task or list(TASKS)
    require_tasks(tasks)
    results = bench(tasks, seconds, repeats, options.set, BenchProgress(tasks, repeats, seconds, note))
    if out is not None:
        write_json(out, results, "try again")
    print(json.dumps(results) if options.json else table(results) if options.markdown else terminal_table(results))
    behind = fallen_behind(results, recorded)
    for sentence in behind:
        say(sentence)
    return 1 if behind else 0


def run_doctor(options: argparse.Namespace) -> int:
    from phasegrad.cli.doctor import clear_cache, examine, verdict

    if options.clear_cache:
        sentence = clear_cache()
        print(json.dumps({"cleared": sentence}) if options.json else sentence)
        return 0
    checks = []
    width = terminal_width() if sys.stdout.isatty() else None
    for check in examine():
        checks.append(check)
        if not options.json:
            print(check.lines(width), flush=True)
    print(json.dumps([check.__dict__ for check in checks]) if options.json else f"\n{verdict(checks)}")
    return 0 if all(check.ok or check.optional for check in checks) else 1


def run_completion(options: argparse.Namespace) -> int:
    from phasegrad.cli.completion import script

    print(script(options.shell), end="")
    return 0
