"""Numbers for the report's charts: curves thinned so that no extreme is lost, bands over seeds, time and epochs.

Everything here is arithmetic on a run's columns; how it looks is decided in the page.
"""

from __future__ import annotations

import base64
import itertools
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from phasegrad.report.collect import RecordedRun, RunGroup
from phasegrad.report.statistics import CONFIDENCE, estimate, interquartile_mean

GRID_POINTS = 200  # of a band over seeds
BAND_RESAMPLES = 2000
PROFILE_POINTS, PROFILE_RESAMPLES = 121, 1000
FEWEST_RUNS_OF_A_PROFILE = 8
FEWEST_FOR_INTERVAL = 5  # runs of a variant: below that the interval of a fraction says nothing
CURVE_BYTES = 4_500_000  # for all curves of a page, so that it stays under 10 MB with its axes and a video
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
    """Interquartile mean and 95 % interval over a group's seeds, from where all of them have a value."""
    lines = []
    for run in group.runs:
        rows, values = run.column(metric)
        places = (run.steps if axis == "steps" else run.seconds)[rows]
        if len(values) < 2 or places[-1] <= places[0]:
            return None
        lines.append((places, values))
    start = max(x[0] for x, _ in lines)
    # in time a run that has ended still has its last return, which np.interp holds; in steps there is no such run
    end = (min if axis == "steps" else max)(x[-1] for x, _ in lines)
    if len(lines) < 2 or end <= start:
        return None
    grid = np.linspace(start, end, GRID_POINTS)
    scores = np.stack([np.interp(grid, x, y) for x, y in lines], axis=-1)  # [points, seeds]
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
    middle = interquartile_mean(scores)
    low, high = (np.where(np.isfinite(end), end, middle) for end in found.confidence_interval)
    return {
        "grid": [rounded(x, 7) for x in grid],
        **{name: [rounded(y) for y in line] for name, line in (("middle", middle), ("low", low), ("high", high))},
    }


def performance_profile(groups: Sequence[RunGroup]) -> dict[str, Any] | None:
    """Fraction of runs above each score, by variant over all environments, with its stratified bootstrap interval.

    With several environments scores are scaled to each one's lowest (0) and highest (1) final score among these runs.
    """
    by_env: dict[str, list[float]] = {}
    for group in groups:
        by_env.setdefault(group.env, []).extend(final_scores(group))
    variants: dict[str, dict[str, list[float]]] = {}
    for group in groups:
        if not by_env[group.env]:
            continue
        low, high = (min(by_env[group.env]), max(by_env[group.env])) if len(by_env) > 1 else (0.0, 1.0)
        stratum = variants.setdefault(group.variant, {}).setdefault(group.env, [])
        stratum.extend((score - low) / ((high - low) or 1.0) for score in final_scores(group))
    strata = {variant: [scores for scores in envs.values() if scores] for variant, envs in variants.items()}
    strata = {variant: scores for variant, scores in strata.items() if scores}
    everything = [score for scores in strata.values() for stratum in scores for score in stratum]
    if len(everything) < FEWEST_RUNS_OF_A_PROFILE:
        return None
    low, high = min(everything), max(everything)
    margin = (high - low) * 0.02 or 1.0
    thresholds = np.linspace(low - margin, high + margin, PROFILE_POINTS)
    lines = {}
    for variant, scores in strata.items():
        found = [estimate(scores, partial(fraction_above, tau), PROFILE_RESAMPLES) for tau in thresholds]
        lines[variant] = {"middle": [rounded(point.value) for point in found]}
        if sum(map(len, scores)) >= FEWEST_FOR_INTERVAL:
            lines[variant]["low"] = [rounded(point.value if point.low is None else point.low) for point in found]
            lines[variant]["high"] = [rounded(point.value if point.high is None else point.high) for point in found]
    return {"thresholds": [rounded(x) for x in thresholds], "variants": lines, "scaled": len(by_env) > 1}


def fraction_above(threshold: float, scores: np.ndarray) -> np.ndarray:
    return (scores > threshold).mean(-1)


def final_scores(group: RunGroup) -> list[float]:
    return [score for run in group.runs if (score := run.final_score()) is not None]


def time_spent(run: RecordedRun) -> dict[str, float]:
    """Seconds by section over the run: each iteration's length (its steps by its steps/s) times its shares."""
    rows, speeds = run.column("sps")
    steps = np.diff(run.steps, prepend=0.0)
    seconds = np.zeros(len(run.steps))
    seconds[rows] = np.where(speeds > 0, steps[rows] / np.where(speeds > 0, speeds, 1.0), 0.0)
    spent = {}
    for name in run.values:
        if name.startswith("time_"):
            at, shares = run.column(name)
            spent[name.removeprefix("time_")] = float((seconds[at] * np.clip(shares, 0.0, 1.0)).sum())
    rest = float(seconds.sum()) - sum(spent.values())
    return {name: taken for name, taken in {**spent, "other": max(0.0, rest)}.items() if taken > 0}


def epoch_profiles(group: RunGroup) -> dict[str, dict[str, list[float | None]]]:
    """Mean of each epoch's value over the auxiliary phases in the first and the last third of the group's runs."""
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
