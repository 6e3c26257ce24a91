"""What `phasegrad` says when it is called with nothing: what one can do next, in the order one does it."""

from __future__ import annotations

from pathlib import Path

from phasegrad.runs.files import read_json_object
from phasegrad.runs.formats import score
from phasegrad.runs.reading import RESULT, number_or_none

STEPS = (
    ("Train, about 20 seconds", "phasegrad train ppo --env CartPole-v1 --total-steps 1e5 --run-dir runs/cartpole"),
    ("See it play: its mean return over 20 episodes", "phasegrad eval runs/cartpole --episodes 20 --deterministic"),
    ("Look at it: one page with curves, time and settings", "phasegrad report runs/cartpole"),
    ("Compare with PPG", "phasegrad train ppg --env CartPole-v1 --total-steps 1e5 --run-dir runs/cartpole-ppg"),
)
MORE = (
    ("phasegrad envs", "list the environments; your own Gymnasium ids work too: module:Id-v0"),
    ("phasegrad presets", "settings that are known to work"),
    ("phasegrad resume DIR", "continue a run that was stopped"),
    ("phasegrad watch DIR", "follow a run from another terminal: its score, speed, time left"),
    ("phasegrad doctor", "what is wrong with this installation"),
    ("phasegrad --help", "every command; each has --help with two examples"),
)


def guide(runs: Path = Path("runs")) -> str:
    """The text; it names the newest run of the folder `runs`, if there is one."""
    lines = ["phasegrad: on-policy reinforcement learning in phases.", "", "Start here:"]
    for number, (what, command) in enumerate(STEPS, 1):
        lines += [f"  {number}. {what}", f"       {command}"]
    newest = newest_run(runs)
    if newest is not None:
        lines += ["", f"Your latest run is {newest}{said_of(newest)}:"]
        lines += [f"  phasegrad {verb} {newest}" for verb in ("watch", "report", "eval", "video")]
    lines += ["", "More:"]
    lines += [f"  {command:22}{what}" for command, what in MORE]
    return "\n".join(lines)


def said_of(run: Path) -> str:
    """How a run that has ended did."""
    result = read_json_object(run / RESULT)
    evaluation = result.get("eval")
    value = number_or_none(evaluation.get("return_mean")) if isinstance(evaluation, dict) else None
    return "" if value is None else f" (score {score(value)})"


def newest_run(folder: Path) -> Path | None:
    """The run directory below `folder` that was written last."""
    try:
        found = [(entry.parent.stat().st_mtime, entry.parent) for entry in folder.glob("*/config.json")]
    except OSError:
        return None
    return max(found)[1] if found else None
