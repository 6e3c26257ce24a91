"""The verbs of the command line with their options and examples; parsing.py adds an option for every setting.

Imports nothing heavy, so that help comes at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from phasegrad.algorithms.known import ABOUT, algorithm_names
from phasegrad.bench import TASKS
from phasegrad.cli.cloning import SETTINGS as CLONING
from phasegrad.cli.formatting import Parser, example_lines, filled
from phasegrad.cli.groups import TRAIN_EXAMPLES
from phasegrad.cli.sharing import AGENT, add_sharing
from phasegrad.cli.sharing import EXAMPLES as SHARING_EXAMPLES
from phasegrad.studies.options import add_cluster_options, add_options
from phasegrad.tune.search_spaces import SPACES

BUILTIN = tuple(ABOUT)
SHELLS = ("bash", "zsh", "fish")
ALLOW_IMPORT = (
    "allow the run's environment id to import a module (module:Id-v0) and its options to name files, if you trust them"
)
CHECKPOINT = "the checkpoint of a step, or best by evaluation (default: the latest)"
SEED = "seed of the environments (default: the run's)"
MAX_STEPS = "cut longer episodes (default: the environment's own time limit, else 10,000)"
LEVELS = "Procgen: train or test levels"
QUIET, JSON = "no progress display", "as JSON on stdout"
EXAMPLES = {
    "train": (TRAIN_EXAMPLES["ppo"][0], TRAIN_EXAMPLES["ppg"][0]),
    "resume": (
        "phasegrad resume runs/cartpole",
        "phasegrad resume runs/cartpole --total-steps 2e5 --set learning_rate=1e-4",
    ),
    "clone": (
        "phasegrad clone ppo --env LunarLander-v3 --data demo.npz --run-dir runs/cloned --total-steps 300_000",
        "phasegrad clone ppo --env Hopper-v5 --data minari:mujoco/hopper/expert-v0 --total-steps 1e6 --leash 0.3",
    ),
    "eval": (
        "phasegrad eval runs/lander --episodes 20 --deterministic --save-steps demo.npz",
        "phasegrad eval runs/coinrun --levels test --json",
    ),
    "plot": (
        "phasegrad plot runs/cartpole --out curve.png",
        "phasegrad plot runs/seed1 runs/seed2 runs/seed3 --smooth 50_000 --out curve.pdf --csv curve.csv",
    ),
    "video": (
        "phasegrad video runs/cartpole --checkpoints first,last --out before-and-after.gif",
        "phasegrad video runs/coinrun --grid --episodes 9 --levels test --out grid.mp4",
    ),
    "export": (
        "phasegrad export runs/cartpole --onnx cartpole.onnx --with-log-prob --with-value --checkpoint 50176",
        "phasegrad export runs/cartpole --c cartpole.c",
    ),
    **SHARING_EXAMPLES,
    "tune": (
        "phasegrad tune ppo --env CartPole-v1 --trials 20 --total-steps 50_000",
        "phasegrad tune ppg --env Pendulum-v1 --trials 50 --total-steps 1e5 --dir tuning/pendulum",
    ),
    "study": (
        "phasegrad study control --jobs 2",
        "phasegrad study ppo-objectives --envs Hopper-v5,Reacher-v5 --variants none,clip-0.2 --total-steps 3e5 --seeds 3",
    ),
    "report": (
        "phasegrad report runs/cartpole",
        "phasegrad report runs/seed1 runs/seed2 runs/seed3 --out comparison.html",
    ),
    "watch": ("phasegrad watch runs/cartpole", "phasegrad watch runs/cartpole --once"),
    "envs": ("phasegrad envs", "phasegrad envs procgen"),
    "presets": ("phasegrad presets", "phasegrad presets mujoco"),
    "bench": ("phasegrad bench", "phasegrad bench halfcheetah-8 cartpole-4 --seconds 10 --out bench.json"),
    "doctor": ("phasegrad doctor", "phasegrad doctor --clear-cache"),
    "completion": (
        'eval "$(phasegrad completion bash)"  # in ~/.bashrc; zsh: in ~/.zshrc',
        "phasegrad completion fish > ~/.config/fish/completions/phasegrad.fish",
    ),
}


AddVerb = Callable[[str, str], Parser]  # name and help


def build_parser() -> Parser:
    more = "`phasegrad COMMAND --help` shows its options and examples; `phasegrad` alone shows where to start."
    parser = Parser(prog="phasegrad", description="On-policy reinforcement learning in phases.", epilog=filled(more))
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(title="commands", dest="verb", metavar="COMMAND")

    def verb(name: str, help: str) -> Parser:
        sub: Parser = verbs.add_parser(name, help=help, description=help, epilog=example_lines(EXAMPLES[name]))
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error, and compiler messages")
        return sub

    _add_training(verb)
    _add_clone(verb)
    _add_evaluation(verb)
    _add_plot_video_and_export(verb)
    add_sharing(verb)
    _add_tune_and_study(verb)
    _add_report_watch_and_lists(verb)
    _add_bench_doctor_and_completion(verb)
    return parser


def _add_training(verb: AddVerb) -> None:
    train = verb("train", "train an agent")
    train.add_argument(
        "algorithm", choices=algorithm_names(), metavar="ALGORITHM", help=argparse.SUPPRESS
    )  # fields.py writes what there is into the description
    train.add_argument("--help-all", action="help", help="show every setting, in groups, and exit")
    train.add_argument(
        "--run-dir", metavar="DIR", help="where checkpoints and metrics go (default: runs/ENV-ALGORITHM-sSEED)"
    )
    train.add_argument("--overwrite", action="store_true", help="replace the run that the directory holds")
    train.add_argument(
        "--resume", action="store_true", help="continue the run that the directory holds, if there is one"
    )
    train.add_argument("--quiet", action="store_true", help=QUIET)
    resume = verb("resume", "continue a run to its configured total, exactly as if it had never stopped")
    resume.add_argument("dir", metavar="DIR", help="run directory")
    resume.add_argument("--total-steps", metavar="N", help="a larger total than the configured one")
    resume.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a setting from here on, such as learning_rate=1e-4; repeat for more",
    )
    resume.add_argument("--quiet", action="store_true", help=QUIET)
    resume.add_argument("--allow-import", action="store_true", help=ALLOW_IMPORT)


def _add_clone(verb: AddVerb) -> None:
    clone = verb("clone", "begin a run with a policy fitted to demonstrations")
    clone.add_argument("algorithm", choices=algorithm_names(), metavar="ALGORITHM", help=argparse.SUPPRESS)
    clone.add_argument("--help-all", action="help", help="show every setting, in groups, and exit")
    clone.add_argument(
        "--data", metavar="FILE", help="a demonstrator's steps: an .npz, as `eval --save-steps` writes it, or minari:ID"
    )
    clone.add_argument(
        "--run-dir",
        metavar="DIR",
        help="directory of the new run (default: runs/ENV-ALGORITHM-sSEED); resume trains it",
    )
    for name, (_, _, about) in CLONING.items():
        clone.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=about)
    clone.add_argument("--overwrite", action="store_true", help="replace the run that the directory holds")
    clone.add_argument("--quiet", action="store_true", help="print nothing")


def _add_evaluation(verb: AddVerb) -> None:
    evaluate = verb("eval", "play episodes with a trained agent")
    evaluate.add_argument("dir", metavar="DIR", help=AGENT)
    evaluate.add_argument("--episodes", metavar="N", default="20", help="how many (default 20)")
    evaluate.add_argument(
        "--deterministic", action="store_true", help="take the most likely action instead of sampling one"
    )
    evaluate.add_argument("--levels", default="train", metavar="{train,test}", help=LEVELS)
    evaluate.add_argument("--checkpoint", metavar="STEP", help=CHECKPOINT)
    evaluate.add_argument("--allow-import", action="store_true", help=ALLOW_IMPORT)
    evaluate.add_argument("--seed", metavar="N", help=SEED)
    evaluate.add_argument("--max-steps", metavar="N", help=MAX_STEPS)
    evaluate.add_argument("--json", action="store_true", help=JSON)
    evaluate.add_argument(
        "--save-steps", metavar="FILE", help="write every step to an .npz, which `phasegrad clone` reads"
    )
    evaluate.add_argument(
        "--record",
        nargs="?",
        const="best,median,worst",
        metavar="WHICH",
        help="film the best, median and worst episode, or those named, into DIR/videos",
    )


def _add_plot_video_and_export(verb: AddVerb) -> None:
    plot = verb("plot", "draw learning curves as a picture")
    plot.add_argument(
        "dir",
        metavar="DIR",
        nargs="+",
        help="run directories; three or more seeds are drawn as their mean and range, fewer as single curves",
    )
    plot.add_argument(
        "--out", metavar="FILE", default="curve.png", help=".png, .svg, .pdf or .csv to write (default curve.png)"
    )
    plot.add_argument(
        "--smooth", metavar="STEPS", help="average each curve over this many environment steps (default: no smoothing)"
    )
    plot.add_argument("--csv", metavar="FILE", help="also write the plotted numbers as a table")
    video = verb("video", "film the agent as an mp4, GIF or WebP")
    video.add_argument("dir", metavar="DIR", help=AGENT)
    video.add_argument("--episodes", metavar="N", help="how many (default 1; 4 in a grid)")
    video.add_argument("--grid", action="store_true", help="all episodes at once, side by side")
    video.add_argument("--checkpoint", metavar="STEP", help=CHECKPOINT)
    video.add_argument("--allow-import", action="store_true", help=ALLOW_IMPORT)
    video.add_argument(
        "--checkpoints",
        metavar="STEPS",
        help="several checkpoints side by side on one seed, such as first,last (first: the first that keep_checkpoints kept)",
    )
    video.add_argument(
        "--out", metavar="FILE", help="the file, .mp4, .gif or .webp (default: DIR/videos/step-STEP.mp4)"
    )
    video.add_argument(
        "--fps", metavar="N", help="frames a second (default: the environment's; a GIF or WebP shows at most 20)"
    )
    video.add_argument(
        "--size", metavar="PIXELS", help="approximate longest side of a picture (default 512; 400 in a GIF or WebP)"
    )
    video.add_argument("--full", action="store_true", help="keep filming even if nothing has changed for 10 seconds")
    video.add_argument("--seed", metavar="N", help=SEED)
    video.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the most likely one")
    video.add_argument("--levels", default="train", metavar="{train,test}", help=LEVELS)
    video.add_argument("--max-steps", metavar="N", help=MAX_STEPS)
    export = verb("export", "write the policy as an ONNX file or as one C file, checked against predict")
    export.add_argument("dir", metavar="DIR", help=AGENT)
    export.add_argument("--onnx", metavar="FILE", help="the ONNX file to write")
    export.add_argument("--c", metavar="FILE", help="the C file to write: C99, needs libm and nothing else")
    export.add_argument("--with-value", action="store_true", help="ONNX: also output V(s), in units of the raw reward")
    export.add_argument("--with-log-prob", action="store_true", help="ONNX: also output the log-probability")
    export.add_argument(
        "--stochastic", action="store_true", help="ONNX: sample the action, from noise given as an input"
    )
    export.add_argument("--checkpoint", metavar="STEP", help="the checkpoint of a step (default: the latest)")


def _add_tune_and_study(verb: AddVerb) -> None:
    tune = verb("tune", "search for good settings and write them as a preset file")
    tune.usage = "phasegrad tune [ALGORITHM] --env ID [options]"
    tune.add_argument(
        "algorithm_name",
        nargs="?",
        metavar="ALGORITHM",
        help=f"{' or '.join(SPACES)} (default ppo)",
    )
    tune.add_argument("--env", metavar="ID", help="environment id")
    tune.add_argument("--trials", default="20", metavar="N", help="how many settings to try in all (default 20)")
    tune.add_argument(
        "--total-steps", dest="steps", default="100_000", metavar="N", help="steps of a trial (default 100_000)"
    )
    for old, dest in (("--algorithm", "algorithm"), ("--steps", "steps")):  # what these were called before
        tune.add_argument(old, dest=dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    tune.add_argument("--dir", metavar="DIR", help="where trials and result are kept (default: tuning/ENV-ALGORITHM)")
    tune.add_argument("--seed", metavar="N", default="1", help="seed of the search and of its first trial (default 1)")
    tune.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a fixed setting for all trials, such as memory=gru",
    )
    tune.add_argument("--quiet", action="store_true", help="print nothing but the result")
    add_cluster_options(tune)
    tune.add_argument(
        "--jobs", metavar="N", help="with --cluster: trials at a time (default: what the cluster has room for)"
    )
    add_options(verb("study", "run a grid of variants, environments and seeds, with statistics"))


def _add_report_watch_and_lists(verb: AddVerb) -> None:
    report = verb("report", "write one self-contained HTML page about runs")
    report.add_argument(
        "dir", metavar="DIR", nargs="+", help="run directories, or folders that hold some, such as a study's"
    )
    report.add_argument(
        "--out", metavar="FILE", help="the file (default: DIR/report.html; report.html here for several directories)"
    )
    report.add_argument("--title", metavar="TEXT", help="the page's heading (default: what was trained on what)")
    report.add_argument(
        "--try",
        dest="try_it",
        action="store_true",
        help="a last section that runs the agent of one run in the browser, by the npm package onnxruntime-web (page: 5 MB more)",
    )
    report.add_argument(
        "--runtime", metavar="PATH", help="that package's folder or .tgz (default: node_modules/onnxruntime-web)"
    )
    watch = verb("watch", "show a running or finished run, or a study, from its files")
    watch.add_argument("dir", metavar="DIR", help="run directory, or the folder of a study")
    watch.add_argument("--once", action="store_true", help="show the current state once and exit")
    listing = verb("envs", "list the environments that can be trained on, and mark those that cannot")
    listing.add_argument("family", metavar="FAMILY", nargs="?", help="only this family")
    presets = verb("presets", "list the presets, or show one")
    presets.add_argument("name", metavar="NAME", nargs="?", help="show this preset's settings")


def _add_bench_doctor_and_completion(verb: AddVerb) -> None:
    benchmark = verb("bench", "measure how fast this machine trains, against its own limits")
    benchmark.add_argument("task", metavar="TASK", nargs="*", help=f"one of {', '.join(TASKS)} (default: all)")
    benchmark.add_argument("--seconds", metavar="N", default="15", help="length of each measurement (default 15)")
    benchmark.add_argument(
        "--repeats",
        metavar="N",
        default="3",
        help="measurements of each task, of which the median is reported (default 3)",
    )
    benchmark.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a setting for all tasks, such as compile=replay",
    )
    benchmark.add_argument(
        "--check",
        metavar="FILE",
        help="fail if a task's share of the limit is below half of that in FILE, which --out wrote",
    )
    benchmark.add_argument("--out", metavar="FILE", help="JSON file to write")
    benchmark.add_argument("--json", action="store_true", help=JSON)
    benchmark.add_argument(
        "--markdown", action="store_true", help="the table as Markdown, with the size of a stored step"
    )
    doctor = verb("doctor", "check this installation")
    doctor.add_argument("--json", action="store_true", help=JSON)
    doctor.add_argument("--clear-cache", action="store_true", help="delete the cached compiled programs and exit")
    completion = verb("completion", "print a script that completes commands and options in your shell")
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
