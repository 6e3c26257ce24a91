"""The command line: verbs over the same config fields as Python, errors of one sentence, exit code 2 for bad input.

parsing.py knows the options. Heavy imports happen inside the verbs, so that help and errors come at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasegrad.cli.parsing import parse
from phasegrad.errors import ConfigError, PhasegradError, PhasegradWarning, RunError, nearest
from phasegrad.machine.paths import as_path
from phasegrad.machine.processors import let_waiting_threads_sleep

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm
    from phasegrad.runs.directory import RunDirectory


def run_train(options: argparse.Namespace) -> int:
    from phasegrad.algorithms import ALGORITHMS
    from phasegrad.config import documented_fields
    from phasegrad.distributed import joining as parallel
    from phasegrad.runs.directory import RunDirectory

    algorithm = ALGORITHMS[options.algorithm]
    fields = {name: value for name, value in vars(options).items() if name in documented_fields(algorithm.config_class)}
    fields["env_options"] = options.env_options
    if not fields.get("env"):
        raise ConfigError("--env is missing: give an environment id such as CartPole-v1; `phasegrad envs` lists them.")
    seed = fields.get("seed", 1)
    path = options.run_dir or f"runs/{fields['env'].replace('/', '-').replace(':', '-')}-{options.algorithm}-s{seed}"
    directory = RunDirectory(path)

    def is_to_continue(restarted: bool) -> bool:
        """Whether the directory's run goes on: asked for, or begun by this torchrun, which has restarted since."""
        if restarted and directory.begun_by(parallel.launch_id()):
            return True
        if options.resume and directory.exists():
            require_same_run(directory, algorithm, fields)
            return True
        directory.require_free(options.overwrite)
        return False

    with parallel.joined() as ranks:
        restarted = ranks.any(parallel.restarted())  # not every machine's torchrun counts another's restart
        if ranks.from_first(lambda: is_to_continue(restarted)):
            named = (
                str(directory.read_config().get("env")) == fields["env"]
            )  # then the user asks for its module, not the file
            return continue_run(path, None, options.quiet, allow_import=named)
        agent = algorithm(run_dir=path, overwrite=options.overwrite, **fields)
        try:
            agent.learn(progress=not options.quiet)
        finally:
            agent.close()
    return 0


def require_same_run(directory: RunDirectory, algorithm: type[Algorithm], fields: Mapping[str, Any]) -> None:
    """Refuse to continue a run that is not the one whose settings are given; a total may have grown since."""
    from phasegrad.config import coerce_fields, first_difference

    found = directory.read_config()
    given = coerce_fields(algorithm.config_class, {name: v for name, v in fields.items() if name != "total_steps"})
    given["env_options"] = {**found.get("env_options", {}), **given["env_options"]}  # a preset may have added some
    differs = first_difference({"algorithm": algorithm.name, **given}, found)
    if differs:
        name, there, value = differs
        raise ConfigError(
            f"Run directory {directory.path} holds a run with {name} {there!r}, not {value!r}: use another --run-dir, or "
            f"`phasegrad resume {directory.path}` to continue that run."
        )


def continue_run(path: str, total_steps: str | None, quiet: bool, allow_import: bool = False) -> int:
    from phasegrad.algorithms.loading import load, restart
    from phasegrad.runs.directory import RunDirectory

    wanted = whole("total_steps", total_steps, 1)
    directory = RunDirectory(path)
    directory.read_config()  # says so where this is no run
    if directory.checkpoints():
        agent = load(path, allow_import=allow_import)
    else:  # killed before its first checkpoint: the run starts again from its config
        if directory.is_finished():
            raise RunError(
                f"{path} is finished and its checkpoints are gone, so it cannot go on: `phasegrad train` with --overwrite "
                "starts it again."
            )
        agent = restart(path, allow_import=allow_import)
    step, configured = agent.progress.step, agent.config.total_steps
    total = configured if wanted is None else wanted
    if total < step:
        raise ConfigError(f"--total-steps {total} is below the {step} steps that {path} has taken: give a larger one.")
    if step == total:
        if step >= configured and not agent.ranks.from_first(lambda: directory.has_result(step)):
            from phasegrad.runs.session import record_result

            record_result(agent)
        if not quiet and agent.ranks.is_first:
            print(f"{path} has reached its {total:,} steps already; --total-steps N goes further.")
        return 0
    try:
        agent.learn(total, progress=not quiet)
    finally:
        agent.close()
    return 0


def run_resume(options: argparse.Namespace) -> int:
    from phasegrad.distributed import joining as parallel

    with parallel.joined():
        return continue_run(options.dir, options.total_steps, options.quiet, options.allow_import)


def run_eval(options: argparse.Namespace) -> int:
    from phasegrad.algorithms.loading import load

    episodes = whole("episodes", options.episodes, 1) or 20
    agent = load(options.dir, checkpoint=chosen_checkpoint(options.checkpoint), allow_import=options.allow_import)
    how = {
        "deterministic": options.deterministic,
        "seed": whole("seed", options.seed, 0),
        "levels": options.levels,
        "max_steps": whole("max_steps", options.max_steps, 1),
    }
    videos: dict[str, Any] = {}
    if options.record is None:
        result = agent.evaluate(episodes, **how)
    else:
        from phasegrad.video.recording import evaluate_and_record

        picks = [pick.strip() for pick in options.record.split(",") if pick.strip()]
        result, videos = evaluate_and_record(agent, episodes, picks, as_path(options.dir) / "videos", **how)
    if options.json:
        shown = {pick: {"path": str(video.path), "return": video.returns[0]} for pick, video in videos.items()}
        print(json.dumps(result.summary() | ({"videos": shown} if shown else {})))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{agent.config.env}, {agent.progress.step:,} steps, {'deterministic' if options.deterministic else 'sampled'} actions"
    )
    for name in result.summary():
        table.add_column(name.replace("_", " "), justify="right")
    table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in result.summary().values()))
    Console().print(table)
    for pick, video in videos.items():
        print(f"{pick}: return {video.returns[0]:,.2f}, {video.path}")
    return 0


def chosen_checkpoint(value: str | None) -> int | str | None:
    """A step, or the word best."""
    return value if value == "best" else whole("checkpoint", value, 0)


def whole(name: str, value: str | None, low: int) -> int | None:
    """An option as a whole number of at least `low`, or None where it was not given."""
    return None if value is None else coerced(name, value, int, low)


def coerced(name: str, value: str, kind: type, low: float) -> Any:
    from phasegrad.config import coerce

    return coerce(name, value, kind, {"low": low})


def run_video(options: argparse.Namespace) -> int:
    from phasegrad.algorithms.loading import load
    from phasegrad.video.recording import default_path, record_video

    how = {
        "episodes": whole("episodes", options.episodes, 1),
        "seed": whole("seed", options.seed, 0),
        "fps": None if options.fps is None else coerced("fps", options.fps, float, 0),
        "max_steps": whole("max_steps", options.max_steps, 1),
    }
    agent = load(options.dir, checkpoint=chosen_checkpoint(options.checkpoint), allow_import=options.allow_import)
    agent.run_dir = as_path(options.dir)
    path = options.out or default_path(agent, options.grid)
    video = record_video(
        agent, path, grid=options.grid, deterministic=not options.stochastic, levels=options.levels, **how
    )
    returns = ", ".join(f"{value:,.2f}" for value in video.returns)
    print(f"wrote {video.path}: {video.frames} frames, return {returns}")
    return 0


def run_export(options: argparse.Namespace) -> int:
    from phasegrad.algorithms.loading import load
    from phasegrad.export.onnx import export_onnx

    agent = load(options.dir, checkpoint=chosen_checkpoint(options.checkpoint), device="cpu")
    report = export_onnx(
        agent,
        options.onnx,
        with_value=options.with_value,
        with_log_prob=options.with_log_prob,
        deterministic=not options.stochastic,
    )
    print(f"wrote {report.path}: {report.describe()}")
    return 0


def run_tune(options: argparse.Namespace) -> int:
    from phasegrad.tune.tuning import tune

    if not options.env:
        raise ConfigError("--env is missing: give an environment id such as CartPole-v1; `phasegrad envs` lists them.")
    result = tune(
        options.env,
        algorithm=options.algorithm,
        trials=coerced("trials", options.trials, int, 1),
        steps=coerced("steps", options.steps, int, 1),
        folder=options.dir,
        seed=coerced("seed", options.seed, int, 0),
        env_options=options.env_options,
        report=None if options.quiet else print,
        cluster=options.cluster,
        jobs=whole("jobs", options.jobs, 1),
        cpus_per_run=options.cpus_per_run,
        gpus_per_run=options.gpus_per_run,
    )
    print(result.describe())
    return 0


def run_plot(options: argparse.Namespace) -> int:
    from phasegrad.report.plot import plot_runs

    plot_runs(options.dir, options.out)
    print(f"wrote {options.out}")
    return 0


def run_study(options: argparse.Namespace) -> int:
    from phasegrad.studies.command import run_study as run

    return run(options)


def run_report(options: argparse.Namespace) -> int:
    from phasegrad.report import write_report

    default = as_path(options.dir[0]) / "report.html" if len(options.dir) == 1 else Path("report.html")
    path = write_report(options.dir, default if options.out is None else options.out, title=options.title)
    print(f"wrote {path}: open it in a browser")
    return 0


def run_watch(options: argparse.Namespace) -> int:
    from phasegrad.cli.watch import watch

    watch(options.dir, once=options.once)
    return 0


def run_completion(options: argparse.Namespace) -> int:
    from phasegrad.cli.completion import script

    print(script(options.shell), end="")
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
    from phasegrad.config import coerce
    from phasegrad.runs.files import write_json

    recorded = read_recorded("--check", options.check) if options.check else {}
    out = as_path(options.out) if options.out else None
    if out is not None and out.exists():
        read_recorded("--out", options.out)  # anything else is not ours to replace
    seconds = coerce("seconds", options.seconds, float, {"low": 0.1})
    repeats = coerce("repeats", options.repeats, int, {"low": 1})
    results = bench(options.task or list(TASKS), seconds, repeats, options.set)
    if out is not None:
        write_json(out, results)
    print(json.dumps(results) if options.json else table(results))
    behind = fallen_behind(results, recorded)
    for sentence in behind:
        say(sentence)
    return 1 if behind else 0


def run_doctor(options: argparse.Namespace) -> int:
    from phasegrad.cli.doctor import examine

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


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": run_train,
    "resume": run_resume,
    "eval": run_eval,
    "plot": run_plot,
    "video": run_video,
    "export": run_export,
    "tune": run_tune,
    "study": run_study,
    "report": run_report,
    "watch": run_watch,
    "envs": run_envs,
    "presets": run_presets,
    "bench": run_bench,
    "doctor": run_doctor,
    "completion": run_completion,
}


def say(sentence: str) -> None:
    """A sentence on stderr; where several processes have the same to say, once."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        from phasegrad.distributed.joining import first_to_say

        if not first_to_say(sentence):
            return
    print(f"phasegrad: {sentence}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    let_waiting_threads_sleep()
    with warnings.catch_warnings():
        plainly = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, PhasegradWarning):
                say(str(message))
            else:
                plainly(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    try:
        options = parse(arguments)
        if options.version:
            from phasegrad.versions import __version__

            print(f"phasegrad {__version__}")
            return 0
        if options.verb is None:
            from phasegrad.cli.guide import guide

            print(guide())
            return 0
        return VERBS[options.verb](options)
    except PhasegradError as error:
        if debug:
            raise
        say(str(error))
        return error.exit_code
    except (KeyboardInterrupt, SystemExit) as error:
        sentence = getattr(error, "sentence", "")
        if isinstance(error, SystemExit) and not sentence:
            raise
        say(sentence or "stopped before there was anything to save.")
        return int(getattr(error, "exit_code", 130))
    except BrokenPipeError:
        return 141
