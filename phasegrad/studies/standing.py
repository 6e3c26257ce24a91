"""How a run of a study stands, from its files alone: its state, how far it is, what it has scored so far.

Needs no torch, writes nothing and keeps no lock, so that any number of displays can look at a run of another process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasegrad.runs.below import open_own, read_start
from phasegrad.runs.files import read_json_object
from phasegrad.runs.lock import LOCK, is_held
from phasegrad.runs.noting import is_greedy_at, read_evaluations
from phasegrad.runs.reading import CONFIG, METRICS, RESULT, MetricsReader, Row, number_or_none

DEFINITION = "study.json"  # in a study's folder
LEVEL_SCORES = "levels.json"  # as in runs/contents.py, which needs torch
FAILED = ".failed"  # beside a run's log: why it failed
MOST_BYTES = 1 << 25  # of a metrics file that are read at once
SILENT_SECONDS = 60.0  # a run whose process is not on this machine and that writes nothing for so long has ended
SILENT_ON_CLUSTER = 600.0
ELSEWHERE = b"$ # on "  # in the log of a run that a cluster's node works on

EVAL, TRAINING, ON_LEVELS = "eval", "training", "levels"  # where a score so far comes from
ENDED = ("finished", "failed")


class MetricsTail:
    """The last row of a metrics file, and the last one with an evaluation; reads only what was appended since."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0
        self.row: Row = {}
        self.evaluated: Row = {}

    def look(self) -> None:
        try:
            with open(open_own(self.path), "rb") as file:
                size = file.seek(0, 2)
                if size < self.offset:  # a resumed run went back to its checkpoint
                    self.__init__(self.path)  # type: ignore[misc]
                start = file.seek(max(self.offset, size - MOST_BYTES))
                whole, _, _ = file.read(MOST_BYTES).rpartition(b"\n")  # the last line may be in the making
        except OSError:
            return
        self.offset = start + len(whole) + bool(whole)
        lines = whole.splitlines()
        self.row = next(filter(None, map(self._parsed, reversed(lines))), self.row)
        with_evaluation = (line for line in reversed(lines) if b'"eval_return_mean"' in line)
        found = (row for row in map(self._parsed, with_evaluation) if row.get("eval_return_mean") is not None)
        self.evaluated = next(found, self.evaluated)

    def _parsed(self, line: bytes) -> Row:
        return MetricsReader(self.path).parse(line) or {}


@dataclass(frozen=True)
class RunPlace:
    """Which run of the study it is, and where its files are."""

    environment: str
    variant: str
    seed: int
    folder: Path
    log: Path
    total: int  # steps

    @property
    def label(self) -> str:
        return f"{self.environment} {self.variant} seed {self.seed}"


class Standing:
    """A run of a study, looked at again and again."""

    def __init__(self, place: RunPlace, score: str) -> None:
        """`score`: the study's measure, last100, eval or levels."""
        self.place, self.measure = place, score
        self.tail = MetricsTail(place.folder / METRICS)
        self.state, self.message = "waiting", ""
        self.step, self.total = 0, place.total
        self.seconds: float | None = None  # of training so far
        self.score: float | None = None
        self.test_score: float | None = None  # on all levels, where the measure tells them apart
        self.source = ""  # of the score: eval, training or levels

    def look(self) -> Standing:
        """Read what is new."""
        self.tail.look()
        folder = self.place.folder
        row, result = self.tail.row, read_json_object(folder / RESULT)
        self.step = int(number_or_none(row.get("step")) or 0)
        self.seconds = number_or_none(row.get("seconds"))
        total = number_or_none(read_json_object(folder / CONFIG).get("total_steps"))
        self.total = int(total) if total else self.place.total
        reached = number_or_none(result.get("step")) or 0
        over = reached >= max(self.step, 1) and (
            (result.get("status") == "finished" and reached >= self.total) or result.get("reached") is not None
        )
        if over:
            self.step, self.seconds = int(reached), number_or_none(result.get("seconds"))
        self.state, self.message = self._state(over)
        self._take_score(row, result if over else {})
        return self

    def _state(self, over: bool) -> tuple[str, str]:
        failure = self.place.log.with_suffix(FAILED)
        try:
            return "failed", " ".join(read_start(failure, 1200).decode(errors="replace").split())[:300]
        except OSError:
            pass
        if over:
            unscored = self.measure == "levels" and not (self.place.folder / LEVEL_SCORES).is_file()
            return ("scoring" if unscored else "finished"), ""
        if (self.place.folder / CONFIG).is_file():
            return ("running" if self._alive() else "stopped"), ""
        # Before its config there is only the log, which begins with the command.
        return ("starting" if _silence(self.place.log) < SILENT_SECONDS else "waiting"), ""

    def _alive(self) -> bool:
        """Whether a process holds it, or its files were written of late."""
        if is_held(self.place.folder):
            return True
        patience = SILENT_ON_CLUSTER if self._elsewhere() else SILENT_SECONDS
        there = (self.place.folder / LOCK).exists()  # a run that ends in order removes it
        return there and _silence(self.tail.path) < patience

    def _elsewhere(self) -> bool:
        try:
            return ELSEWHERE in read_start(self.place.log, 1000)
        except OSError:
            return False

    def _take_score(self, row: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """The study's measure where it is known, otherwise what comes next to it, by its name."""
        self.test_score = None
        if self.measure == "levels" and result:
            levels = read_json_object(self.place.folder / LEVEL_SCORES)
            train, test = (_return_mean(levels.get(name)) for name in ("train", "test"))
            if train is not None:
                self.score, self.test_score, self.source = train, test, ON_LEVELS
                return
        if self.measure != "last100":
            score = number_or_none(self.tail.evaluated.get("eval_return_mean"))
            if result:
                recorded = recorded_evaluations(self.place.folder, result.get("step"))
                found = [_return_mean(entry) for entry in (result.get("eval"), *reversed(recorded))]
                score = next((value for value in found if value is not None), score)
            if score is not None:
                self.score, self.source = score, EVAL
                return
        self.score = number_or_none((result or row).get("return_mean"))
        self.source = TRAINING if self.score is not None else ""

    def seconds_left(self) -> float | None:
        """At the mean speed of the run so far; None where it is not known or does not matter."""
        if self.state not in ("running", "stopped") or not self.seconds or not self.step:
            return None
        return self.seconds / self.step * max(self.total - self.step, 0)


def recorded_evaluations(folder: Path, step: Any) -> list[dict[str, Any]]:
    """Greedy evaluations by `phasegrad eval` on the training levels at that step, the latest last."""
    return [found for found in read_evaluations(folder) if is_greedy_at(found, step)]


def _return_mean(entry: Any) -> float | None:
    return number_or_none(entry.get("return_mean")) if isinstance(entry, dict) else None


def _silence(path: Path) -> float:
    """Seconds since a file was last written; endless where there is none."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return float("inf")
