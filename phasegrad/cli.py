"""The command line: verbs over the same config fields as Python, errors of one sentence, exit code 2 for bad input.

Heavy imports happen inside the verbs, so that help and errors come at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import typing
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from phasegrad.errors import ConfigError, PhasegradError, PhasegradWarning, nearest
from phasegrad.processors import let_waiting_threads_sleep

NAMES = ("ppo", "ppg", "a2c", "vpg", "trpo", "acer")
ALLOW_IMPORT = "import the module that the run's environment id module:Id-v0 names: only for files you trust"
EXAMPLES = {
    "train": (
        "phasegrad train ppo --env CartPole-v1 --total-steps 1e5 --seed 1 --run-dir runs/cartpole",
        "phasegrad train ppo --env procgen/coinrun --env.distribution hard --env.num-levels 500 --total-steps 25e6",
    ),
    "resume": ("phasegrad resume runs/cartpole", "phasegrad resume runs/cartpole --total-steps 2e5"),
    "eval": (
        "phasegrad eval runs/cartpole --episodes 20 --deterministic",
        "phasegrad eval runs/coinrun --levels test --json",
    ),
    "plot": (
        "phasegrad plot runs/cartpole --out curve.png",
        "phasegrad plot runs/seed1 runs/seed2 runs/seed3 --out curve.png",
    ),
    "video": (
        "phasegrad video runs/cartpole",
        "phasegrad video runs/coinrun --grid --episodes 9 --levels test --out grid.mp4",
    ),
    "export": (
        "phasegrad export runs/cartpole --onnx cartpole.onnx",
        "phasegrad export runs/cartpole --onnx cartpole.onnx --with-log-prob --with-value --checkpoint 50176",
    ),
    "tune": (
        "phasegrad tune --env CartPole-v1 --trials 20 --steps 50_000",
        "phasegrad tune --env Pendulum-v1 --algorithm ppg --trials 50 --steps 1e5 --dir tuning/pendulum",
    ),
    "study": (
        "phasegrad study control --jobs 2",
        "phasegrad study ppo-objectives --envs Hopper-v5,Reacher-v5 --variants none,clip-0.2 --steps 3e5 --seeds 3",
    ),
    "report": (
        "phasegrad report runs/cartpole",
        "phasegrad report runs/seed1 runs/seed2 runs/seed3 --out comparison.html",
    ),
    "watch": ("phasegrad watch runs/cartpole", "phasegrad watch runs/cartpole --once"),
    "envs": ("phasegrad envs", "phasegrad envs procgen"),
    "presets": ("phasegrad presets", "phasegrad presets mujoco"),
    "bench": ("phasegrad bench", "phasegrad bench halfcheetah-8 cartpole-4 --seconds 10 --out bench.json"),
    "doctor": ("phasegrad doctor", "phasegrad doctor --json"),
    "completion": (
        'eval "$(phasegrad completion bash)"    # in ~/.bashrc; with zsh the same in ~/.zshrc',
        "phasegrad completion fish > ~/.config/fish/completions/phasegrad.fish",
    ),
}


class Parser(argparse.ArgumentParser):
    """argparse with one-sentence errors and no guessing of abbreviations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message[0].upper() + message[1:].rstrip(".") + f"; `{self.prog} --help` lists the options.")


def build_parser() -> Parser:
    parser = Parser(prog="phasegrad", description="On-policy reinforcement learning in phases.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")

    def verb(name: str, help: str, run: Callable[[argparse.Namespace], int]) -> Parser:
        epilog = "examples:\n" + "\n".join(f"  {example}" for example in EXAMPLES[name])
        sub: Parser = verbs.add_parser(name, help=help, description=help, epilog=epilog)
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        sub.set_defaults(run=run)
        return sub

    train = verb("train", "train an agent", run_train)
    train.add_argument("algorithm", choices=NAMES, help="what to train with")
    train.add_argument("--run-dir", help="where checkpoints and metrics go (default: runs/ENV-ALGORITHM-sSEED)")
    train.add_argument("--overwrite", action="store_true", help="replace the run that the directory holds")
    train.add_argument(
        "--resume", action="store_true", help="continue the run that the directory holds, if there is one"
    )
    train.add_argument("--quiet", action="store_true", help="no progress display")
    resume = verb("resume", "continue a run to its configured total, exactly as if it had never stopped", run_resume)
    resume.add_argument("dir", help="run directory")
    resume.add_argument("--total-steps", help="a larger total than the configured one")
    resume.add_argument("--quiet", action="store_true", help="no progress display")
    resume.add_argument("--allow-import", action="store_true", help=ALLOW_IMPORT)
    evaluate = verb("eval", "play episodes with a trained agent", run_eval)
    evaluate.add_argument("dir", help="run directory or saved agent")
    evaluate.add_argument("--episodes", default="20", help="how many (default 20)")
    evaluate.add_argument(
        "--deterministic", action="store_true", help="the most likely action in place of a sampled one"
    )
    evaluate.add_argument("--levels", default="train", help="Procgen: train or test levels")
    evaluate.add_argument(
        "--checkpoint", metavar="STEP", help="the checkpoint of a step, or best by evaluation (default: the latest)"
    )
    evaluate.add_argument("--allow-import", action="store_true", help=ALLOW_IMPORT)
    evaluate.add_argument("--seed", help="seed of the environments (default: the run's)")
    evaluate.add_argument("--json", action="store_true", help="one JSON object on stdout")
    evaluate.add_argument(
        "--record",
        nargs="?",
        const="best,median,worst",
        metavar="WHICH",
        help="film the best, median and worst episode, or those named, into DIR/videos",
    )
    plot = verb("plot", "draw learning curves as a picture", run_plot)
    plot.add_argument("dir", nargs="+", help="run directories; more than one are drawn as their mean and range")
    plot.add_argument("--out", default="curve.png", help="PNG file to write (default curve.png)")
    video = verb("video", "film the agent as an mp4, with the running return", run_video)
    video.add_argument("dir", help="run directory or saved agent")
    video.add_argument("--episodes", help="how many (default 1; 4 in a grid)")
    video.add_argument("--grid", action="store_true", help="all episodes at once, side by side")
    video.add_argument(
        "--checkpoint", metavar="STEP", help="the checkpoint of a step, or best by evaluation (default: the latest)"
    )
    video.add_argument("--allow-import", action="store_true", help=ALLOW_IMPORT)
    video.add_argument("--out", metavar="FILE", help="the file (default: DIR/videos/step-STEP.mp4)")
    video.add_argument("--fps", help="frames a second (default: the environment's)")
    video.add_argument("--seed", help="seed of the environments (default: the run's)")
    video.add_argument("--stochastic", action="store_true", help="sampled actions in place of the most likely one")
    video.add_argument("--levels", default="train", help="Procgen: train or test levels")
    video.add_argument("--max-steps", help="cut longer episodes (default: never)")
    export = verb("export", "write the policy as an ONNX file, checked against predict", run_export)
    export.add_argument("dir", help="run directory or saved agent")
    export.add_argument("--onnx", metavar="FILE", required=True, help="the file to write")
    export.add_argument("--with-value", action="store_true", help="a second output: V(s), in units of the raw reward")
    export.add_argument("--with-log-prob", action="store_true", help="a further output: the log-probability")
    export.add_argument("--stochastic", action="store_true", help="sample the action, from noise given as an input")
    export.add_argument("--checkpoint", metavar="STEP", help="the checkpoint of a step (default: the latest)")
    tune = verb("tune", "search for good settings and write them as a preset file", run_tune)
    tune.add_argument("--env", help="environment id")
    tune.add_argument("--algorithm", default="ppo", help="ppo or ppg (default ppo)")
    tune.add_argument("--trials", default="20", help="how many settings to try in all (default 20)")
    tune.add_argument("--steps", default="100_000", help="environment steps of a trial (default 100,000)")
    tune.add_argument("--dir", help="where trials and result are kept (default: tuning/ENV-ALGORITHM)")
    tune.add_argument("--seed", default="1", help="seed of the search and of its first trial (default 1)")
    tune.add_argument("--quiet", action="store_true", help="print nothing but the result")
    from phasegrad.studies.options import add_cluster_options, add_options

    add_cluster_options(tune)
    tune.add_argument("--jobs", help="with --cluster: trials at a time (default: what the cluster has room for)")
    add_options(verb("study", "run a grid of variants, environments and seeds, with statistics", run_study))
    report = verb("report", "write one self-contained HTML page about runs", run_report)
    report.add_argument("dir", nargs="+", help="run directories, or folders that hold some, such as a study's")
    report.add_argument(
        "--out", metavar="FILE", help="the file (default: DIR/report.html; report.html here for several directories)"
    )
    report.add_argument("--title", help="the page's heading (default: what was trained on what)")
    watch = verb("watch", "show a running or finished run from its files", run_watch)
    watch.add_argument("dir", help="run directory")
    watch.add_argument("--once", action="store_true", help="show it as it is now and end")
    listing = verb("envs", "list the environments that can be trained on", run_envs)
    listing.add_argument("family", nargs="?", help="only this family")
    presets = verb("presets", "list the presets, or show one", run_presets)
    presets.add_argument("name", nargs="?", help="show this preset's settings")
    benchmark = verb("bench", "measure how fast this machine trains, against its own limits", run_bench)
    benchmark.add_argument("task", nargs="*", help="what to measure (default: everything)")
    benchmark.add_argument("--seconds", default="15", help="of each measurement (default 15)")
    benchmark.add_argument(
        "--repeats", default="3", help="measurements of each task, of which the median counts (default 3)"
    )
    benchmark.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a setting of all tasks, such as compile=replay",
    )
    benchmark.add_argument(
        "--check", metavar="FILE", help="fail where a share of the limit is below half of that in a file --out wrote"
    )
    benchmark.add_argument("--out", help="JSON file to write")
    benchmark.add_argument("--json", action="store_true", help="one JSON object on stdout")
    doctor = verb("doctor", "check this installation", run_doctor)
    doctor.add_argument("--json", action="store_true", help="one JSON object on stdout")
    completion = verb("completion", "print a script that completes commands and options in your shell", run_completion)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    return parser


def add_fields(parser: Parser, algorithm: str) -> None:
    """An option for every field of the algorithm's config."""
    from phasegrad.algorithms import ALGORITHMS
    from phasegrad.config import documented_fields

    config_class = ALGORITHMS[algorithm].config_class
    hints = typing.get_type_hints(config_class)
    group = parser.add_argument_group(f"settings of {algorithm} (a preset may set other defaults)")
    for name, field in documented_fields(config_class).items():
        if name == "env_options":
            group.add_argument("--env.NAME", dest="_env_option", metavar="VALUE", help=field.metadata["help"])
            continue
        option = f"--{name.replace('_', '-')}"
        text = f"{field.metadata['help']} (default {field.default})".replace("%", "%%")
        if hints[name] is bool:
            group.add_argument(option, nargs="?", const="true", default=argparse.SUPPRESS, metavar="BOOL", help=text)
            group.add_argument(
                f"--no-{name.replace('_', '-')}",
                dest=name,
                action="store_const",
                const="false",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
        else:
            group.add_argument(option, default=argparse.SUPPRESS, metavar="VALUE", help=text)


def split_env_options(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes --env.NAME VALUE (or =VALUE) out of the arguments; values as JSON where they are, else as text."""
    rest: list[str] = []
    options: dict[str, Any] = {}
    pending = list(arguments)
    while pending:
        argument = pending.pop(0)
        if not argument.startswith("--env."):
            rest.append(argument)
            continue
        name, equals, value = argument.removeprefix("--env.").partition("=")
        if not equals:
            if not pending:
                raise ConfigError(f"--env.{name} needs a value.")
            value = pending.pop(0)
        try:
            options[name.replace("-", "_")] = json.loads(value.lower() if value.lower() in ("true", "false") else value)
        except json.JSONDecodeError:
            options[name.replace("-", "_")] = value
    return rest, options


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    rest, env_options = split_env_options(arguments)
    parser = build_parser()
    if rest[:1] == ["train"] and len(rest) > 1 and rest[1] in NAMES:
        train = typing.cast(Any, parser)._subparsers._group_actions[0].choices["train"]
        add_fields(train, rest[1])
    found, unknown = parser.parse_known_args(rest)
    if unknown:
        verb = typing.cast(Any, parser)._subparsers._group_actions[0].choices.get(found.verb, parser)
        known = [option for option in verb._option_string_actions if option.startswith("--")]
        bad = next((argument for argument in unknown if argument.startswith("-")), unknown[0])
        raise ConfigError(
            f"Unknown option {bad!r}.{nearest(bad.partition('=')[0], known)} `phasegrad {found.verb} --help` lists all."
        )
    found.env_options = env_options
    return found


def run_train(options: argparse.Namespace) -> int:
    from phasegrad import parallel
    from phasegrad.algorithms import ALGORITHMS
    from phasegrad.config import documented_fields
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
        again = restarted and directory.begun_by(parallel.launch_id())
        if again or (options.resume and directory.exists()):
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
        agent = algorithm(run_dir=path, **fields)
        try:
            agent.learn(progress=not options.quiet)
        finally:
            agent.close()
    return 0


def continue_run(path: str, total_steps: str | None, quiet: bool, allow_import: bool = False) -> int:
    from phasegrad.config import to_int
    from phasegrad.runs.directory import RunDirectory
    from phasegrad.runs.load import load, restart

    directory = RunDirectory(path)
    directory.read_config()  # says so where this is no run
    if directory.checkpoints():
        agent = load(path, allow_import=allow_import)
    else:  # killed before its first checkpoint: the run starts again from its config
        agent = restart(path, allow_import=allow_import)
    total = agent.config.total_steps if total_steps is None else to_int(total_steps)
    if agent.progress.step >= total:
        if not agent.ranks.from_first(lambda: directory.has_result(agent.progress.step)):
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
    from phasegrad import parallel

    with parallel.joined():
        return continue_run(options.dir, options.total_steps, options.quiet, options.allow_import)


def run_eval(options: argparse.Namespace) -> int:
    from phasegrad.runs.load import load

    episodes = whole("episodes", options.episodes, 1) or 20
    agent = load(options.dir, checkpoint=chosen_checkpoint(options.checkpoint), allow_import=options.allow_import)
    how = {
        "deterministic": options.deterministic,
        "seed": whole("seed", options.seed, 0),
        "levels": options.levels,
    }
    videos: dict[str, Any] = {}
    if options.record is None:
        result = agent.evaluate(episodes, **how)
    else:
        from phasegrad.runs.video import evaluate_and_record

        picks = [pick.strip() for pick in options.record.split(",") if pick.strip()]
        result, videos = evaluate_and_record(agent, episodes, picks, Path(options.dir) / "videos", **how)
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
    from phasegrad.runs.load import load
    from phasegrad.runs.video import default_path, record_video

    how = {
        "episodes": whole("episodes", options.episodes, 1),
        "seed": whole("seed", options.seed, 0),
        "fps": None if options.fps is None else coerced("fps", options.fps, float, 0),
        "max_steps": whole("max_steps", options.max_steps, 1),
    }
    agent = load(options.dir, checkpoint=chosen_checkpoint(options.checkpoint), allow_import=options.allow_import)
    agent.run_dir = Path(options.dir)
    path = options.out or default_path(agent, options.grid)
    video = record_video(
        agent, path, grid=options.grid, deterministic=not options.stochastic, levels=options.levels, **how
    )
    returns = ", ".join(f"{value:,.2f}" for value in video.returns)
    print(f"wrote {video.path}: {video.frames} frames, return {returns}")
    return 0


def run_export(options: argparse.Namespace) -> int:
    from phasegrad.export import export_onnx
    from phasegrad.runs.load import load

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
    from phasegrad.tune import tune

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
    from phasegrad.runs.plot import plot_runs

    plot_runs(options.dir, options.out)
    print(f"wrote {options.out}")
    return 0


def run_study(options: argparse.Namespace) -> int:
    from phasegrad.studies.command import run_study as run

    return run(options)


def run_report(options: argparse.Namespace) -> int:
    from phasegrad.report import write_report

    default = Path(options.dir[0], "report.html") if len(options.dir) == 1 else Path("report.html")
    path = write_report(options.dir, default if options.out is None else options.out, title=options.title)
    print(f"wrote {path}: open it in a browser")
    return 0


def run_watch(options: argparse.Namespace) -> int:
    from phasegrad.runs.watch import watch

    watch(options.dir, once=options.once)
    return 0


def run_completion(options: argparse.Namespace) -> int:
    from phasegrad.completion import script

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

    recorded = read_recorded(options.check) if options.check else {}
    seconds = coerce("seconds", options.seconds, float, {"low": 0.1})
    repeats = coerce("repeats", options.repeats, int, {"low": 1})
    results = bench(options.task or list(TASKS), seconds, repeats, options.set)
    if options.out:
        Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results) if options.json else table(results))
    behind = fallen_behind(results, recorded)
    for sentence in behind:
        say(sentence)
    return 1 if behind else 0


def run_doctor(options: argparse.Namespace) -> int:
    from phasegrad.doctor import examine

    checks = examine()
    if options.json:
        print(json.dumps([check.__dict__ for check in checks]))
    else:
        for check in checks:
            print(
                f"{'ok  ' if check.ok else 'MISS' if check.optional else 'FAIL'}  {check.name}: {check.found}"
                + ("" if check.ok else f" -> {check.fix}")
            )
    return 0 if all(check.ok or check.optional for check in checks) else 1


def say(sentence: str) -> None:
    """A sentence on stderr; where several processes have the same to say, once."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        from phasegrad.parallel import first_to_say

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
            from phasegrad.guide import guide

            print(guide())
            return 0
        result: int = options.run(options)
        return result
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
