"""What the command line takes: its verbs with their options and examples, an option for every setting of an algorithm.

cli.py does what is asked for. Heavy imports happen where settings are listed, so that help and errors come at once.
"""

from __future__ import annotations

import argparse
import json
import typing
from collections.abc import Sequence
from typing import Any, NoReturn

from phasegrad.errors import ConfigError, nearest

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
    "doctor": ("phasegrad doctor", "phasegrad doctor --json", "phasegrad doctor --clear-cache"),
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

    def verb(name: str, help: str) -> Parser:
        epilog = "examples:\n" + "\n".join(f"  {example}" for example in EXAMPLES[name])
        sub: Parser = verbs.add_parser(name, help=help, description=help, epilog=epilog)
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return sub

    train = verb("train", "train an agent")
    train.add_argument("algorithm", choices=NAMES, help="what to train with")
    train.add_argument("--run-dir", help="where checkpoints and metrics go (default: runs/ENV-ALGORITHM-sSEED)")
    train.add_argument("--overwrite", action="store_true", help="replace the run that the directory holds")
    train.add_argument(
        "--resume", action="store_true", help="continue the run that the directory holds, if there is one"
    )
    train.add_argument("--quiet", action="store_true", help="no progress display")
    resume = verb("resume", "continue a run to its configured total, exactly as if it had never stopped")
    resume.add_argument("dir", help="run directory")
    resume.add_argument("--total-steps", help="a larger total than the configured one")
    resume.add_argument("--quiet", action="store_true", help="no progress display")
    resume.add_argument("--allow-import", action="store_true", help=ALLOW_IMPORT)
    evaluate = verb("eval", "play episodes with a trained agent")
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
    evaluate.add_argument(
        "--max-steps", help="cut longer episodes (default: the environment's own time limit, else 10,000)"
    )
    evaluate.add_argument("--json", action="store_true", help="one JSON object on stdout")
    evaluate.add_argument(
        "--record",
        nargs="?",
        const="best,median,worst",
        metavar="WHICH",
        help="film the best, median and worst episode, or those named, into DIR/videos",
    )
    plot = verb("plot", "draw learning curves as a picture")
    plot.add_argument("dir", nargs="+", help="run directories; more than one are drawn as their mean and range")
    plot.add_argument("--out", default="curve.png", help="PNG file to write (default curve.png)")
    video = verb("video", "film the agent as an mp4, with the running return")
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
    video.add_argument(
        "--max-steps", help="cut longer episodes (default: the environment's own time limit, else 10,000)"
    )
    export = verb("export", "write the policy as an ONNX file, checked against predict")
    export.add_argument("dir", help="run directory or saved agent")
    export.add_argument("--onnx", metavar="FILE", required=True, help="the file to write")
    export.add_argument("--with-value", action="store_true", help="a second output: V(s), in units of the raw reward")
    export.add_argument("--with-log-prob", action="store_true", help="a further output: the log-probability")
    export.add_argument("--stochastic", action="store_true", help="sample the action, from noise given as an input")
    export.add_argument("--checkpoint", metavar="STEP", help="the checkpoint of a step (default: the latest)")
    tune = verb("tune", "search for good settings and write them as a preset file")
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
    add_options(verb("study", "run a grid of variants, environments and seeds, with statistics"))
    report = verb("report", "write one self-contained HTML page about runs")
    report.add_argument("dir", nargs="+", help="run directories, or folders that hold some, such as a study's")
    report.add_argument(
        "--out", metavar="FILE", help="the file (default: DIR/report.html; report.html here for several directories)"
    )
    report.add_argument("--title", help="the page's heading (default: what was trained on what)")
    watch = verb("watch", "show a running or finished run from its files")
    watch.add_argument("dir", help="run directory")
    watch.add_argument("--once", action="store_true", help="show it as it is now and end")
    listing = verb("envs", "list the environments that can be trained on")
    listing.add_argument("family", nargs="?", help="only this family")
    presets = verb("presets", "list the presets, or show one")
    presets.add_argument("name", nargs="?", help="show this preset's settings")
    benchmark = verb("bench", "measure how fast this machine trains, against its own limits")
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
    doctor = verb("doctor", "check this installation")
    doctor.add_argument("--json", action="store_true", help="one JSON object on stdout")
    doctor.add_argument(
        "--clear-cache", action="store_true", help="remove the compiled programs that are kept, and end"
    )
    completion = verb("completion", "print a script that completes commands and options in your shell")
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
