"""Numbers for the report's charts: curves thinned so that no extreme is lost, bands over seeds, time and epochs.

Everything here is arithmetic on a run's columns; how it looks is decided in the page.
"""

from __future__ import annotations

import base64
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from phasegrad.report.collect import RecordedRun
from phasegrad.report.grouping import RunGroup
from phasegrad.report.scoring import FEWEST_FOR_INTERVAL
from phasegrad.report.statistics import CONFIDENCE, interquartile_mean
from phasegrad.runs.reading import number_or_none

GRID_POINTS = 200  # of a band over seeds
BAND_RESAMPLES = 2000
CURVE_BYTES = 4_500_000  # for all curves of a page, so that it stays under 10 MB with its axes and a video
BETWEEN_ITERATIONS = {"evaluation": "time_evaluation", "checkpoints": "time_checkpoint"}  # by section
BYTES_A_POINT = 8  # a float32 and an index, in base64
FEWEST_POINTS, MOST_POINTS = 100, 2000


def points_a_curve(runs: Sequence[RecordedRun]) -> int:
    """How many points of each curve fit the page."""
    curves = max(1, sum(len(run.values) for run in runs))
    return int(np.clip(CURVE_BYTES // (BYTES_A_POINT * curves), FEWEST_POINTS, MOST_POINTS)) // 4 * 4


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Positions of at most `most` points: the ends and, of each stretch, its lowest, its highest and one that is no number.

    values: [rows]. Every extreme of a stretch is a real point at its real place; nothing is averaged.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    stretches = (most - 2) // 2
    edges = np.linspace(0, count, stretches + 1).astype(int)
    kept = [0, count - 1]
    missing = ~np.isfinite(values)
    low, high = np.where(missing, np.inf, values), np.where(missing, -np.inf, values)
    for start, end in itertools.pairwise(edges):
        gap = missing[start:end]
        if gap.any():  # a gap is drawn; it takes the place of the lowest where there are both
            kept.append(start + int(gap.argmax()))
            if gap.all():
                continue
        else:
            kept.append(start + int(low[start:end].argmin()))
        kept.append(start + int(high[start:end].argmax()))
    return np.unique(kept)


def encoded(values: np.ndarray, kind: str) -> list[str]:
    """[kind, base64] of an array, which the page reads as a typed array."""
    little_endian = {"f32": "<f4", "f64": "<f8", "u16": "<u2", "u32": "<u4"}[kind]
    return [kind, base64.b64encode(values.astype(little_endian).tobytes()).decode()]


def run_curves(run: RecordedRun, most: int) -> dict[str, Any]:
    """A run's curves for the page: its axes (steps, seconds) at the kept rows, and each metric as (index, value)."""
    kept: dict[str, np.ndarray] = {name: thinned(values, most) for name, values in run.values.items()}
    rows = [run.rows[name][positions] for name, positions in kept.items()]
    used = np.unique(np.concatenate(rows)) if rows else np.arange(0)
    index_kind = "u16" if len(used) < 1 << 16 else "u32"
    whole = bool(len(used)) and run.steps[used].max() < 1 << 32 and bool((run.steps[used] % 1 == 0).all())
    return {
        "steps": encoded(run.steps[used], "u32" if whole else "f64"),
        "seconds": encoded(run.seconds[used], "f32"),
        "curves": {
            name: [
                encoded(np.searchsorted(used, run.rows[name][positions]), index_kind),
                encoded(np.clip(run.values[name][positions], -3.4e38, 3.4e38), "f32"),
            ]
            for name, positions in kept.items()
            if np.isfinite(run.values[name]).any()
        },
    }


def band(group: RunGroup, axis: str, metric: str = "return_mean") -> dict[str, Any] | None:
    """Interquartile mean over a group's seeds, from where all of them have a value; from three seeds on with its 95 % interval.

    Seeds without a value of the metric are left out.
    """
    lines = []
    for run in group.runs:
        rows, values = run.column(metric)
        places = (run.steps if axis == "steps" else run.seconds)[rows]
        if not len(values):
            continue
        if len(values) < 2 or places[-1] <= places[0]:
            return None
        lines.append((places, values))
    if len(lines) < 2:
        return None
    start = max(x[0] for x, _ in lines)
    # in time a run that has ended still has its last return, which np.interp holds; in steps there is no such run
    end = (min if axis == "steps" else max)(x[-1] for x, _ in lines)
    if end <= start:
        return None
    grid = _grid([x for x, _ in lines], start, end)
    scores = np.stack([np.interp(grid, x, y) for x, y in lines], axis=-1)  # [points, seeds]
    middle = interquartile_mean(scores)
    found = {"grid": [rounded(x, 7) for x in grid], "middle": [rounded(y) for y in middle], "seeds": len(lines)}
    if len(lines) >= FEWEST_FOR_INTERVAL:
        found |= _band_edges(scores, middle)
    return found


def _grid(places: Sequence[np.ndarray], start: float, end: float) -> np.ndarray:
    """Where the seeds have their values, as long as those are few; otherwise equal distances."""
    known = np.unique(np.concatenate(places))
    known = known[(known >= start) & (known <= end)]
    return known if 2 <= len(known) <= GRID_POINTS else np.linspace(start, end, GRID_POINTS)


def _band_edges(scores: np.ndarray, middle: np.ndarray) -> dict[str, list[float | None]]:
    """The interval at each point; scores: [points, seeds]."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seeds that agree to the last digit have no spread: their interval is a point
        found = stats.bootstrap(
            (scores,),
            lambda drawn, axis: interquartile_mean(drawn),  # of whole runs: one draw of seeds serves all points
            axis=-1,
            n_resamples=BAND_RESAMPLES,
            confidence_level=CONFIDENCE,
            method="percentile",
            vectorized=True,
            rng=np.random.default_rng(0),  # the same runs give the same page
        )
    low, high = (np.where(np.isfinite(edge), edge, middle) for edge in found.confidence_interval)
    return {"low": [rounded(y) for y in low], "high": [rounded(y) for y in high]}


def bands(group: RunGroup) -> dict[str, dict[str, Any]]:
    """Bands of the curves over seeds that the page draws, by metric and axis."""
    found: dict[str, dict[str, Any]] = {}
    for metric in ("eval_return_mean", "eval_test_return_mean", "return_mean"):
        drawn = {axis: made for axis in ("steps", "seconds") if (made := band(group, axis, metric)) is not None}
        if drawn:
            found[metric] = drawn
    return found


def time_spent(run: RecordedRun) -> dict[str, float]:
    """Seconds by section over the run: each iteration's length (its steps by its steps/s) times its shares, evaluations and
    checkpoints, which lie between iterations, and what is left of the wall-clock time."""
    rows, speeds = run.column("sps")
    steps = np.diff(run.steps, prepend=0.0)
    seconds = np.zeros(len(run.steps))
    seconds[rows] = np.where(speeds > 0, steps[rows] / np.where(speeds > 0, speeds, 1.0), 0.0)
    spent = {}
    for name in run.values:
        if name.startswith("time_") and name not in BETWEEN_ITERATIONS.values():
            at, shares = run.column(name)
            spent[name.removeprefix("time_")] = float((seconds[at] * np.clip(shares, 0.0, 1.0)).sum())
    iterations = max(float(seconds.sum()), sum(spent.values()))
    for name, metric in BETWEEN_ITERATIONS.items():
        at, shares = run.column(metric)
        spent[name] = float((seconds[at] * np.clip(shares, 0.0, None)).sum())
        iterations += spent[name]
    whole = max(number_or_none(run.result.get("seconds")) or 0.0, float(run.seconds[-1]), iterations)
    rest = whole - sum(spent.values())
    return {name: taken for name, taken in {**spent, "other": max(0.0, rest)}.items() if taken > 1e-9}


def epoch_profiles(group: RunGroup) -> dict[str, dict[str, list[float | None]]]:
    """Mean of each epoch's value over the updates or auxiliary phases in the first and the last third of the group's runs."""
    profiles: dict[str, dict[str, list[float | None]]] = {}
    for name in {name for run in group.runs for name in run.by_epoch}:
        parts: dict[str, list[list[float | None]]] = {"first third": [], "last third": []}
        for run in group.runs:
            for row, values in run.by_epoch.get(name, []):
                position = run.steps[row] / run.steps[-1] if run.steps[-1] else 1.0
                if position <= 1 / 3 or position > 2 / 3:
                    parts["first third" if position <= 1 / 3 else "last third"].append(values)
        profiles[name] = {part: _column_means(lists) for part, lists in parts.items() if lists}
    return {name: parts for name, parts in sorted(profiles.items()) if parts}


def _column_means(lists: Sequence[Sequence[float | None]]) -> list[float | None]:
    longest = max(map(len, lists))
    means: list[float | None] = []
    for epoch in range(longest):
        values = [entry[epoch] for entry in lists if len(entry) > epoch]
        numbers = [value for value in values if value is not None]
        means.append(rounded(float(np.mean(numbers))) if numbers else None)
    return means


def add_epoch_ends(run: RecordedRun) -> None:
    """From the *_by_epoch lists: what the first epoch of each auxiliary phase measured, beside the last's own metric."""
    for name, phases in run.by_epoch.items():
        first = [(row, values[0]) for row, values in phases if values]
        if name.endswith("_by_epoch") and first:
            key = name.removesuffix("_by_epoch") + "_first_epoch"
            run.rows[key] = np.array([row for row, _ in first])
            run.values[key] = np.array([np.nan if value is None else value for _, value in first])


def constant_value(runs: Sequence[RecordedRun], metric: str) -> float | None:
    """The metric's value where it is one and the same in all rows of all runs."""
    values = [run.values[metric] for run in runs if metric in run.values]
    found = {float(end) for column in values for end in (column.min(), column.max())}
    return found.pop() if len(found) == 1 else None  # NaN is unlike itself, so a column with one is not constant


def rounded(value: float, digits: int = 5) -> float | None:
    """Fewer digits for the page, None where it is no number."""
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None
