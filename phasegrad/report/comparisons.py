"""Tables for papers: aggregates on a common scale, and variants against each other in pairs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from phasegrad.report.grouping import RunGroup
from phasegrad.report.scales import ScaledScores, scaled_scores
from phasegrad.report.scoring import FEWEST_FOR_INTERVAL, group_score
from phasegrad.report.statistics import (
    Estimate,
    Strata,
    difference_of,
    estimate,
    estimate_comparison,
    interquartile_mean,
    mean,
    mean_improvement,
    optimality_gap,
)
from phasegrad.report.study import StudyFolder
from phasegrad.report.tables import number, table

ALL_PAIRS = 5  # variants; of more each is compared with the first alone
MOST_PAIRS = 300
EVERYWHERE = "all environments, normalised"


def shown_interval(found: Estimate, *strata: Strata) -> str:
    """The interval, where every stratum has seeds enough for one."""
    seeds = min(len(stratum) for side in strata for stratum in side)
    if found.low is None or found.high is None or seeds < FEWEST_FOR_INTERVAL:
        return "–"
    return f"{number(found.low, 3)} to {number(found.high, 3)}"


def aggregate_tables(groups: Sequence[RunGroup], study: StudyFolder | None) -> str:
    """Normalised scores over all environments by variant; a study's measures one after the other."""
    measures: Sequence[str | None] = study.measures if study is not None else (None,)
    parts = [_aggregate(scaled_scores(groups, study, measure, always=True), study, measure) for measure in measures]
    return "".join(dict.fromkeys(parts))  # without a scale of the study's its measures come to the same


def _aggregate(scores: ScaledScores, study: StudyFolder | None, measure: str | None) -> str:
    if not scores.scaled or not scores.strata:
        return ""
    figures = {}
    if study is not None:
        figures = {name.lower(): found.get(measure or "") for name, found in study.published.items()}
    published = any(figure is not None for figure in figures.values())
    rows = []
    for variant, envs in scores.strata.items():
        strata = list(envs.values())
        row = [escape(variant)]
        for statistic in (interquartile_mean, mean, *([optimality_gap] if scores.absolute else [])):
            found = estimate(strata, statistic, 2000)
            row += [number(found.value, 3), shown_interval(found, strata)]
        row += [str(len(strata)), str(sum(map(len, strata)))]
        rows.append([*row, *([number(figures.get(variant.lower()), 3)] if published else [])])
    head = ["variant", "IQM", "95 %", "mean", "95 %", *(["optimality gap", "95 %"] if scores.absolute else [])]
    head += ["environments", "runs", *(["published"] if published else [])]
    left = f" Left out, because they have no scale: {escape(', '.join(scores.left_out))}." if scores.left_out else ""
    source = f" Published: {escape(study.published_from)}." if published and study is not None else ""
    gap = (
        " The optimality gap is the mean distance to 1 of the runs below it: lower is better."
        if scores.absolute
        else ""
    )
    return table(f"Normalised scores: {scores.scale}", head, rows) + f'<p class="quiet">{gap}{left}{source}</p>'


def pair_table(groups: Sequence[RunGroup], study: StudyFolder | None) -> str:
    """Each two variants: the difference of their interquartile means and the probability that one improves on the other."""
    rows = []
    by_env: dict[str, list[RunGroup]] = {}
    for group in groups:
        by_env.setdefault(group.env, []).append(group)
    for env, members in by_env.items():
        kinds: dict[str, dict[str, list[Sequence[float]]]] = {}
        for group in members:
            score = group_score(group)
            if score.values:
                kinds.setdefault(score.kind, {})[group.variant] = [score.values]
        for variants in kinds.values():
            rows += [[escape(env), *cells] for cells in _pairs(variants)]
    scaled = scaled_scores(groups, study)
    if scaled.scaled and len(by_env) > 1:
        rows += [[EVERYWHERE, *cells] for cells in _shared_pairs(scaled)]
    if not rows:
        return ""
    head = ["environment", "first", "second", "IQM, first minus second", "95 %", "P(first above second)", "95 %"]
    note = (
        "P is the probability of improvement: that a run of the first scores above a run of the second, equal scores counting half; over "
        "several environments its mean. An interval of the difference that contains 0, or of P that contains 0.5, shows no difference."
    )
    few = f" Intervals need {FEWEST_FOR_INTERVAL} seeds of each." if any("–" in row for row in rows) else ""
    return table("Differences in pairs", head, rows[:MOST_PAIRS], numeric=3) + f'<p class="quiet">{note}{few}</p>'


def _shared_pairs(scaled: ScaledScores) -> list[list[str]]:
    """Pairs over the environments that every variant has."""
    shared = set.intersection(*(set(envs) for envs in scaled.strata.values())) if scaled.strata else set()
    order = [env for env in next(iter(scaled.strata.values()), {}) if env in shared]
    if not order:
        return []
    return _pairs({variant: [envs[env] for env in order] for variant, envs in scaled.strata.items()})


def _pairs(variants: dict[str, list[Sequence[float]]]) -> list[list[str]]:
    names = list(variants)
    pairs = list(itertools.combinations(names, 2))
    if len(names) > ALL_PAIRS:
        pairs = [(name, names[0]) for name in names[1:]]
    rows = []
    for first, second in pairs:
        ours, theirs = variants[first], variants[second]
        less = estimate_comparison(ours, theirs, difference_of(interquartile_mean))
        chance = estimate_comparison(ours, theirs, mean_improvement)
        row = [escape(first), escape(second), number(less.value), shown_interval(less, ours, theirs)]
        rows.append([*row, f"{chance.value:.2f}", shown_interval(chance, ours, theirs)])
    return rows
