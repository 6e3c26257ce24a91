"""Is the training healthy? Green, amber or red for a few metrics of each run, by the ranges of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phasegrad.report.catalogue import HEALTHY
from phasegrad.report.collect import RecordedRun
from phasegrad.report.grouping import RunGroup

STATES = ("green", "amber", "red")  # from good to bad
WARM_UP = 0.1  # share of the run that is not judged: a beginning is seldom healthy
FEWEST_ROWS = 5


@dataclass(frozen=True)
class Finding:
    """What one metric says about a group: the state of its worst seed, how many are in it, and what to do."""

    metric: str
    name: str
    state: str
    value: float  # of the worst seed
    seeds: int  # of the group's runs that are in that state
    of: int
    meaning: str  # what the value is
    advice: str


def _after(run: RecordedRun, metric: str, share: float) -> np.ndarray:
    """The metric's values after a share of the run's steps."""
    rows, values = run.column(metric)
    return values[run.steps[rows] > share * run.steps[-1]]


def _median_after_warm_up(run: RecordedRun, metric: str) -> float | None:
    values = _after(run, metric, WARM_UP)
    return float(np.median(values)) if len(values) >= FEWEST_ROWS else None


def _median_at_the_end(run: RecordedRun, metric: str) -> float | None:
    values = _after(run, metric, 2 / 3)
    return float(np.median(values)) if len(values) >= FEWEST_ROWS else None


def _share_left_early(run: RecordedRun, metric: str) -> float | None:
    """Of the first value, what is left after a tenth of the run; None where it goes below 0 and so has no floor."""
    rows, values = run.column(metric)
    early = values[run.steps[rows] <= WARM_UP * run.steps[-1]]
    if len(values) < 2 * FEWEST_ROWS or len(early) < 2 or values.min() < 0 or values[0] <= 0:
        return None
    return float(early[-1] / values[0])


def _spread(run: RecordedRun, metric: str) -> float | None:
    """The 95th over the 5th percentile after the warm-up."""
    values = _after(run, metric, WARM_UP)
    if len(values) < FEWEST_ROWS:
        return None
    low, high = np.percentile(np.abs(values), (5, 95))
    return float(high / low) if low > 0 else None


Measure = Callable[[RecordedRun, str], float | None]
JUDGED: dict[str, tuple[str, str, Measure]] = {
    "kl": ("KL", "median after the first tenth", _median_after_warm_up),
    "clip_fraction": ("clip fraction", "median after the first tenth", _median_after_warm_up),
    "entropy": ("entropy", "share of the first entropy left after a tenth of the run", _share_left_early),
    "explained_variance": ("explained variance", "median of the last third", _median_at_the_end),
    "policy_grad_norm": ("gradient norm", "95th over 5th percentile after the first tenth", _spread),
}


def findings(group: RunGroup) -> list[Finding]:
    """One finding for each metric that the group's runs have enough values of."""
    found = []
    for metric, (name, meaning, measure) in JUDGED.items():
        values = [value for run in group.runs if (value := measure(run, metric)) is not None]
        if not values:
            continue
        healthy = HEALTHY[metric]
        states = [healthy.state(value) for value in values]
        worst = max(states, key=STATES.index)
        of_worst = [value for value, state in zip(values, states) if state == worst]
        value = max(of_worst, key=lambda each: max(healthy.low - each, each - healthy.high))
        advice = "" if worst == "green" else healthy.too_low if value < healthy.low else healthy.too_high
        found.append(Finding(metric, name, worst, value, len(of_worst), len(group.runs), meaning, advice))
    return found
