"""What is known of a run while it is shown, told by its training or read from its files (cli/watch.py).

Drawing it (panel.py, and plain lines here) needs no torch.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phasegrad.runs.below import CHECKPOINTS, names_in
from phasegrad.runs.formats import duration, number, printable, score, whole
from phasegrad.runs.reading import METRICS, MetricsReader

RATE_SECONDS = 10.0  # of training, over which the speed is told
PACE_SECONDS = 900.0  # of training, from which the time that is left is told
SHARES = ("environment", "inference", "update", "auxiliary", "compile")
BESIDE = ("evaluation", "checkpoint")  # what lies between iterations, in shares of them
TRAINING_RETURN = "training return, last 100 episodes"
ACTIVITIES = {
    "environment": "stepping environments",
    "inference": "choosing actions",
    "update": "updating policy and value",
    "auxiliary": "auxiliary phase",
    "compile": "compiling, once",
    "evaluation": "evaluating",
}


def finite(value: Any) -> float | None:
    """A number that can be reckoned with, or None."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


class Pace:
    """How fast a run goes, from its rows.

    A row counts with the seconds of its iteration, without compiling. So what happens before the first iteration (imports,
    making environments, playing back) is left out, and the first iteration itself as soon as there is another.
    """

    def __init__(self, step: int = 0, one_session: bool = False) -> None:
        """`one_session` where all rows come from one: what lies between two of them, such as a callback, then counts too."""
        self.step, self.one_session = step, one_session
        self.seconds: float | None = None  # of the run, at the last row
        self.warm = False  # whether the first iteration is behind us, which is slower than all others
        self.recent = Window(RATE_SECONDS)
        self.longer = Window(PACE_SECONDS)  # with evaluations and checkpoints

    def take(self, row: Mapping[str, Any]) -> None:
        steps, before = whole(row.get("step")) - self.step, self.seconds
        self.step, self.seconds = self.step + steps, finite(row.get("seconds"))
        speed = finite(row.get("sps"))
        if steps <= 0:
            return
        between = self.seconds - before if self.seconds is not None and before is not None else None
        if speed is not None and speed > 0:
            whole_seconds = steps / speed
        elif between is not None:
            whole_seconds = between
        else:
            return
        seconds = whole_seconds * (1.0 - min(finite(row.get("time_compile")) or 0.0, 1.0))
        if not self.warm and self.recent.rows:
            self.recent, self.longer, self.warm = Window(RATE_SECONDS), Window(PACE_SECONDS), True
        beside = whole_seconds * sum(finite(row.get(f"time_{name}")) or 0.0 for name in BESIDE)
        if self.one_session and between is not None:
            beside = max(beside, between - whole_seconds)
        shares = {name.removeprefix("time_"): finite(row[name]) for name in row if name.startswith("time_")}
        shares = {name: share for name, share in shares.items() if name not in BESIDE}
        self.recent.take(steps, seconds, {name: share for name, share in shares.items() if share is not None})
        self.longer.take(steps, seconds + max(beside, 0.0), {})

    def rate(self) -> float | None:
        """Environment steps a second over the last seconds of training; evaluations and checkpoints are no part of it."""
        return self.recent.steps / self.recent.seconds if self.recent.steps else None

    def seconds_left(self, steps: int) -> float | None:
        """What so many more steps take, with evaluations and checkpoints as they were of late."""
        return self.longer.seconds / self.longer.steps * max(steps, 0) if self.longer.steps else None

    def shares(self) -> dict[str, float]:
        """Where the last seconds went: the library's sections first, then those an outside algorithm has added."""
        spent: dict[str, float] = dict.fromkeys(SHARES, 0.0)
        for _, seconds, shares in self.recent.rows:
            for name, share in shares.items():
                spent[name] = spent.get(name, 0.0) + share * seconds
        return {name: min(total / self.recent.seconds, 1.0) for name, total in spent.items() if total > 0}


class Window:
    """The last rows that make up so many seconds: their steps, seconds and shares, and the sums."""

    def __init__(self, length: float) -> None:
        self.length = length
        self.rows: deque[tuple[int, float, dict[str, float]]] = deque()
        self.steps, self.seconds = 0, 0.0

    def take(self, steps: int, seconds: float, shares: dict[str, float]) -> None:
        seconds = max(seconds, 1e-9)
        self.rows.append((steps, seconds, shares))
        self.steps, self.seconds = self.steps + steps, self.seconds + seconds
        while self.seconds - self.rows[0][1] >= self.length:
            steps, seconds, _ = self.rows.popleft()
            self.steps, self.seconds = self.steps - steps, self.seconds - seconds


@dataclass
class RunView:
    """The state of a run as it is shown."""

    title: str
    total: int
    interval: int = 0  # iterations between auxiliary phases; 0 where there are none
    details: str = ""  # network, device, how it is computed
    row: Mapping[str, Any] = field(default_factory=dict)
    returns: list[float] = field(default_factory=list)  # of training
    scores: list[tuple[int, float]] = field(default_factory=list)  # steps and mean returns of evaluations
    test_score: float | None = None  # of the last evaluation on levels not trained on
    eval_episodes: int = 0  # of the last evaluation
    checkpoint: str = "none yet"
    status: str = ""  # how it ended, or how files say it stands
    run_dir: str = ""  # as it was given, or by default; "" without one
    memory: int | None = None  # bytes
    seconds_before: float = 0.0  # of sessions before this one
    pace: Pace = field(default_factory=Pace)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)  # drawn by one thread, told by another

    def take(self, row: Mapping[str, Any]) -> None:
        """A new iteration's metrics."""
        with self.lock:
            self.row = row
            self.pace.take(row)
            mean = finite(row.get("return_mean"))
            if mean is not None:
                self.returns.append(mean)
            if row.get("eval_return_mean") is not None:
                self.evaluated(self.step, row["eval_return_mean"], row.get("eval_test_return_mean"))
                self.eval_episodes = whole(row.get("eval_episodes"))

    def ended(self, result: Mapping[str, Any]) -> None:
        """How the run ended, as result.json says it."""
        with self.lock:
            self.status = str(result["status"])
            self.row = {**self.row, "seconds": result["seconds"]}
            last, test = result.get("eval") or {}, result.get("eval_test") or {}
            if last.get("return_mean") is not None:
                self.evaluated(whole(last.get("step")) or self.step, last["return_mean"], test.get("return_mean"))

    def evaluated(self, step: int, mean: Any, test: Any = None) -> None:
        """An evaluation at a step; the same one may be told twice, by a row and by the result."""
        if finite(mean) is not None and (step, mean) not in self.scores[-1:]:
            self.scores.append((step, float(mean)))
        self.test_score = finite(test) if test is not None else self.test_score

    def read(self, run_dir: str | Path) -> None:
        """What the files of a run tell of it: its rows and its last checkpoint."""
        for row in MetricsReader(Path(run_dir) / METRICS).new_rows():
            self.take({name: value for name, value in row.items() if not isinstance(value, list)})
        self.checkpoint = latest_checkpoint(run_dir)

    def scored(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """A result with the last evaluation that rows have told of, where it has none of its own."""
        if result.get("eval") or not self.scores:
            return result
        step, mean = self.scores[-1]
        return {**result, "eval": {"return_mean": mean, "step": step, "episodes": self.eval_episodes or "?"}}

    def went_back(self) -> None:
        """The rows begin anew: the run was cut back to a checkpoint."""
        self.returns.clear()
        self.scores.clear()
        self.pace = Pace()

    @property
    def step(self) -> int:
        return whole(self.row.get("step")) or self.pace.step

    @property
    def best(self) -> tuple[int, float] | None:
        """The best evaluation; of equal ones the first."""
        return max(self.scores, key=lambda each: each[1], default=None)

    @property
    def share_done(self) -> float:
        return min(max(self.step / self.total, 0.0), 1.0) if self.total > 0 else 0.0

    def elapsed(self, since: float = 0.0) -> float:
        """Seconds of the run so far, `since` seconds after its last row or its start."""
        seconds = finite(self.row.get("seconds"))
        return (self.seconds_before if seconds is None else seconds) + since

    def seconds_left(self, since: float = 0.0) -> float | None:
        """What remains, without what starting took; None before the first iteration."""
        left = self.pace.seconds_left(self.total - self.step)
        return None if left is None else max(left - since, 0.0) if self.step < self.total else 0.0

    def phase(self, underway: bool = False) -> str:
        """Where in PPG's phases the last iteration was, or the one underway is; the iteration elsewhere."""
        iteration = max(whole(self.row.get("iteration")) + underway, 1)
        if not self.interval:
            return f"iteration {iteration:,}"
        number_, place = (iteration - 1) // self.interval + 1, (iteration - 1) % self.interval + 1
        return f"phase {number_:,}, policy iteration {place} of {self.interval}"


def latest_checkpoint(run_dir: str | Path) -> str:
    """The name of the latest one."""
    try:
        saved = [name for name in names_in(Path(run_dir), CHECKPOINTS) if name.startswith("step-")]
    except OSError:
        saved = []
    return printable(saved[-1]) if saved else "none yet"


def activity(section: str, begun: bool) -> str:
    """What the section that runs now does; one that is not known here by its own name."""
    return ACTIVITIES.get(section, section) or ("training" if begun else "starting")


def playback(done: int, total: int, what: str = "") -> str:
    """What a resumed run does before it goes on."""
    return f"playing back {what}{done / max(total, 1):.0%} of {total:,} steps"


def plain_line(view: RunView, since: float = 0.0) -> str:
    """How a run stands, in one line without control characters."""
    row, shares = view.row, view.pace.shares()
    parts = [
        f"{view.step:>11,} / {view.total:,} steps",
        view.phase().replace("policy iteration ", "").replace(" of ", "/"),
        f"score {score(view.scores[-1][1])} at step {view.scores[-1][0]:,}" if view.scores else "",
        f"{TRAINING_RETURN} {score(row.get('return_mean'))}",
        f"{number(rounded(view.pace.rate()))} steps/s",
        " ".join(f"{name} {share:.0%}" for name, share in shares.items()),
        f"elapsed {duration(view.elapsed(since))}",
        f"ETA {duration(view.seconds_left(since))}",
        f"checkpoint {view.checkpoint}",
    ]
    return "  ".join(part for part in parts if part)


def rounded(value: float | None) -> float | None:
    """Whole steps a second, where there are many."""
    return value if value is None or value < 100 else float(round(value))
