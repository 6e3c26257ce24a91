"""Learning curves as numbers: the scores and training returns of a run against its steps. How they look is drawing.py's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from phasegrad.runs.reading import number_or_none

SCORE, TEST_SCORE, TRAINING = "score", "score on test levels", "training"
COLUMNS = {SCORE: "eval_return_mean", TEST_SCORE: "eval_test_return_mean", TRAINING: "return_mean"}
RESULTS = {SCORE: "eval", TEST_SCORE: "eval_test"}


class Columns(Protocol):
    """Metrics of a run: the steps of its rows, and a metric where it is a number."""

    @property
    def steps(self) -> np.ndarray: ...

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]: ...


@dataclass(frozen=True)
class Line:
    """One drawn line: of a run, or the mean of several with the lowest and the highest."""

    group: str
    curve: str  # SCORE, TEST_SCORE or TRAINING
    name: str  # of the run, or how many it is the mean of
    steps: np.ndarray  # [points]
    values: np.ndarray
    lowest: np.ndarray | None = None
    highest: np.ndarray | None = None
    levels: str = ""  # training, where the group has scores on test levels too


def curve_of(metrics: Columns, result: Mapping[str, Any], curve: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) in rising order; a score that only result.json has is a point of its own."""
    rows, values = metrics.column(COLUMNS[curve])
    steps = metrics.steps[rows]
    evaluated = result.get(RESULTS.get(curve, ""))
    if isinstance(evaluated, Mapping):
        score = number_or_none(evaluated.get("return_mean"))
        step = number_or_none(evaluated.get("step", result.get("step")))
        if step is None and len(metrics.steps):
            step = float(metrics.steps[-1])
        if score is not None and step is not None and (not len(steps) or step > steps[-1]):
            return np.append(steps, step), np.append(values, score)
    return steps, values


def lines_of_run(metrics: Columns, result: Mapping[str, Any], label: str, smooth: float = 0.0) -> list[Line]:
    """The lines of one run; none where there is neither an evaluation nor a finished episode."""
    curves = {curve: curve_of(metrics, result, curve) for curve in COLUMNS}
    levels = {SCORE: "training"} if len(curves[TEST_SCORE][0]) else {}
    return [
        Line(label, curve, "", steps, smoothed(steps, values, smooth), levels=levels.get(curve, ""))
        for curve, (steps, values) in curves.items()
        if len(steps)
    ]


def smoothed(steps: np.ndarray, values: np.ndarray, window: float) -> np.ndarray:
    """Each value as the mean of those within `window` steps around it, half before and half after."""
    if window <= 0 or len(values) < 2:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.searchsorted(steps, steps - window / 2, side="left")
    last = np.searchsorted(steps, steps + window / 2, side="right")
    return (sums[last] - sums[first]) / (last - first)


def steps_text(steps: float) -> str:
    """1.2M, 50k, 800."""
    return f"{steps / 1e6:.3g}M" if steps >= 1e6 else f"{steps / 1e3:.4g}k" if steps >= 1e3 else f"{steps:.0f}"
