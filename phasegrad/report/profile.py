"""Performance profiles: the fraction of runs above each score, by variant over all environments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from phasegrad.report.curves import rounded
from phasegrad.report.grouping import RunGroup
from phasegrad.report.scales import scaled_scores
from phasegrad.report.scoring import FEWEST_FOR_INTERVAL
from phasegrad.report.statistics import estimate
from phasegrad.report.study import StudyFolder

PROFILE_POINTS, PROFILE_RESAMPLES = 121, 1000
FEWEST_RUNS_OF_A_PROFILE = 8


def performance_profile(groups: Sequence[RunGroup], study: StudyFolder | None = None) -> dict[str, Any] | None:
    """Fraction of runs above each score, by variant over all environments, with its stratified bootstrap interval."""
    scores = scaled_scores(groups, study)
    strata = {variant: list(envs.values()) for variant, envs in scores.strata.items()}
    everything = [score for envs in strata.values() for stratum in envs for score in stratum]
    if len(everything) < FEWEST_RUNS_OF_A_PROFILE:
        return None
    low, high = min(everything), max(everything)
    margin = (high - low) * 0.02 or 1.0
    thresholds = np.linspace(low - margin, high + margin, PROFILE_POINTS)
    lines = {}
    for variant, stratified in strata.items():
        found = [estimate(stratified, partial(fraction_above, tau), PROFILE_RESAMPLES) for tau in thresholds]
        lines[variant] = {"middle": [rounded(point.value) for point in found]}
        if min(map(len, stratified)) >= FEWEST_FOR_INTERVAL:
            lines[variant]["low"] = [rounded(point.value if point.low is None else point.low) for point in found]
            lines[variant]["high"] = [rounded(point.value if point.high is None else point.high) for point in found]
    return {
        "thresholds": [rounded(x) for x in thresholds],
        "variants": lines,
        "scaled": scores.scaled,
        "scale": scores.scale,
        "left_out": scores.left_out,
    }


def fraction_above(threshold: float, scores: np.ndarray) -> np.ndarray:
    return (scores > threshold).mean(-1)
