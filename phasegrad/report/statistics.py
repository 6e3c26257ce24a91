"""Means, interquartile means, optimality gaps, paired differences, probabilities of improvement and bootstrap intervals:
pure functions of numbers.

Scores come as strata, one an environment: a sequence of the scores of its seeds. The bootstrap resamples seeds within
each stratum and never across, since environments are chosen and seeds are drawn (Agarwal et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

RESAMPLES = 10_000
CONFIDENCE = 0.95
Strata = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Estimate:
    """A statistic and its interval; no interval where no stratum has two scores."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Summary:
    """What the scores of one variant come to."""

    count: int
    mean: Estimate
    iqm: Estimate


def mean(scores: np.ndarray) -> np.ndarray:
    """Mean along the last axis."""
    return np.mean(scores, axis=-1)


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half along the last axis: of n scores the int(n / 4) lowest and highest are left out."""
    return np.asarray(stats.trim_mean(scores, 0.25, axis=-1))


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> np.ndarray:
    """How far scores fall short of the target, mean along the last axis; what lies above it counts as reached."""
    return np.mean(np.maximum(0.0, target - scores), axis=-1)


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """P(a run of ours scores above a run of theirs), equal scores counting half: [..., n], [..., m] -> [...]."""
    above = ours[..., :, None] > theirs[..., None, :]
    equal = ours[..., :, None] == theirs[..., None, :]
    return np.mean(above + 0.5 * equal, axis=(-2, -1))


def summarise(strata: Strata, resamples: int = RESAMPLES) -> Summary:
    """Mean and interquartile mean over all strata, with their 95 % intervals."""
    return Summary(
        sum(len(stratum) for stratum in strata),
        estimate(strata, mean, resamples),
        estimate(strata, interquartile_mean, resamples),
    )


def estimate(strata: Strata, statistic: Callable[[np.ndarray], np.ndarray], resamples: int = RESAMPLES) -> Estimate:
    """The statistic of the pooled scores, with the percentile interval of the stratified bootstrap."""
    samples = [np.asarray(stratum, dtype=np.float64) for stratum in strata if len(stratum)]
    if not samples:
        raise ValueError("no scores")
    value = float(statistic(np.concatenate(samples)))
    drawn = [sample for sample in samples if len(sample) > 1]
    if not drawn:
        return Estimate(value, None, None)
    fixed = [sample for sample in samples if len(sample) == 1]  # one seed: nothing to resample
    if all(np.ptp(sample) == 0 for sample in drawn):
        return Estimate(value, value, value)

    def pooled(*resampled: np.ndarray, axis: int = -1) -> np.ndarray:
        shape = np.broadcast_shapes(*(part.shape[:-1] for part in resampled))
        constant = [np.broadcast_to(sample, (*shape, 1)) for sample in fixed]
        return statistic(np.concatenate([*resampled, *constant], axis=-1))

    found = stats.bootstrap(
        drawn,
        pooled,
        n_resamples=resamples,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),  # the same scores give the same table
    )
    low, high = found.confidence_interval
    return Estimate(value, float(low), float(high))


Comparison = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], np.ndarray]  # of strata [..., n], [..., m] to [...]


def difference_of(statistic: Callable[[np.ndarray], np.ndarray]) -> Comparison:
    """The statistic of one side's pooled scores less that of the other's."""

    def compare(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> np.ndarray:
        return statistic(np.concatenate(ours, axis=-1)) - statistic(np.concatenate(theirs, axis=-1))

    return compare


def mean_improvement(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> np.ndarray:
    """The probability of improvement within each stratum, mean over the strata."""
    return np.mean([probability_of_improvement(a, b) for a, b in zip(ours, theirs, strict=True)], axis=0)


def estimate_comparison(ours: Strata, theirs: Strata, compare: Comparison, resamples: int = 2000) -> Estimate:
    """A comparison of two variants over the same strata, with the percentile interval of the stratified bootstrap.

    Both sides are resampled, each within its strata; no interval where no stratum has two scores on a side.
    """
    sides = [[np.asarray(stratum, dtype=np.float64) for stratum in side] for side in (ours, theirs)]
    if not sides[0] or any(not len(stratum) for side in sides for stratum in side):
        raise ValueError("no scores")
    value = float(compare(*sides))
    if max(len(stratum) for side in sides for stratum in side) < 2:
        return Estimate(value, None, None)
    rng = np.random.default_rng(0)  # the same scores give the same table
    drawn = [[s[rng.integers(len(s), size=(resamples, len(s)))] for s in side] for side in sides]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(compare(*drawn), (tail, 100 - tail))
    return Estimate(value, float(low), float(high))


def estimate_paired(differences: Strata, resamples: int = RESAMPLES) -> Estimate:
    """The mean over strata of each one's mean difference of pairs, with the percentile interval of a two-stage bootstrap.

    Strata are drawn first and then pairs within each drawn one, so the interval speaks of other environments too; a single
    stratum leaves its pairs alone to be drawn. No interval where there is neither a second stratum nor a second pair.
    """
    samples = [np.asarray(stratum, dtype=np.float64) for stratum in differences if len(stratum)]
    if not samples:
        raise ValueError("no pairs")
    value = float(np.mean([sample.mean() for sample in samples]))
    if len(samples) == 1 and len(samples[0]) < 2:
        return Estimate(value, None, None)
    rng = np.random.default_rng(0)  # the same scores give the same table
    count = len(samples)
    drawn = [s[rng.integers(len(s), size=(resamples, count, len(s)))].mean(axis=-1) for s in samples]
    chosen = rng.integers(count, size=(resamples, count))
    means = np.take_along_axis(np.stack(drawn, axis=-1), chosen[..., None], axis=-1)[..., 0].mean(axis=-1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(means, (tail, 100 - tail))
    return Estimate(value, float(low), float(high))
