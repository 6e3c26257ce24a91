"""Performance profiles: the fraction of runs above each score, by variant over all environments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from phasegrad.report.curves import rounded
from phasegrad.report.grouping import RunGroup
from phasegrad.report.scoring import FEWEST_FOR_INTERVAL, final_scores
from phasegrad.report.statistics import estimate

PROFILE_POINTS, PROFILE_RESAMPLES = 121, 1000
FEWEST_RUNS_OF_A_PROFILE = 8


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
        if min(map(len, scores)) >= FEWEST_FOR_INTERVAL:
            lines[variant]["low"] = [rounded(point.value if point.low is None else point.low) for point in found]
            lines[variant]["high"] = [rounded(point.value if point.high is None else point.high) for point in found]
    return {"thresholds": [rounded(x) for x in thresholds], "variants": lines, "scaled": len(by_env) > 1}


def fraction_above(threshold: float, scores: np.ndarray) -> np.ndarray:
    return (scores > threshold).mean(-1)
