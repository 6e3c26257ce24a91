"""Each variant of a study against its first one: paired differences, the probability of improvement, the cost in seconds.

Runs are paired by environment and seed. Knows scores, not where they come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from phasegrad.report.statistics import RESAMPLES, estimate_comparison, estimate_paired, mean_improvement
from phasegrad.studies.definition import Study
from phasegrad.studies.scores import Scored

LEAST_PAIRS = 3  # below, two variants are not compared
TITLE = "Against {against}, paired by environment and seed"
Runs = dict[str, dict[int, Scored]]  # by environment and seed


def comparisons(study: Study, scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """One row for each variant but the first and each measure, over the environments where both have scores on a scale."""
    if len(study.variants) < 2:
        return []
    first, *others = (variant.name for variant in study.variants)
    rows = []
    for measure in study.measures:
        base = _normalised(scored, first, measure)
        for name in others:
            row = _comparison(_normalised(scored, name, measure), base)
            if row is not None:
                rows.append({"variant": name, "against": first, "measure": measure, **row})
    return rows


def _normalised(scored: Sequence[Scored], variant: str, measure: str) -> Runs:
    found: Runs = {}
    for entry in scored:
        if entry.run.variant.name == variant and entry.measure == measure and entry.normalised is not None:
            found.setdefault(entry.run.environment.name, {})[entry.run.seed] = entry
    return found


def _comparison(own: Runs, others: Runs) -> dict[str, Any] | None:
    pairs = {
        env: [(own[env][seed], others[env][seed]) for seed in own[env] if seed in others[env]]
        for env in own
        if env in others
    }
    pairs = {env: found for env, found in pairs.items() if found}
    if not pairs:
        return None
    scores = [[(float(a.normalised or 0.0), float(b.normalised or 0.0)) for a, b in found] for found in pairs.values()]
    if sum(map(len, scores)) < LEAST_PAIRS:
        return None
    less = estimate_paired([[a - b for a, b in found] for found in scores])
    left, right = ([[pair[side] for pair in found] for found in scores] for side in (0, 1))
    chance = estimate_comparison(left, right, mean_improvement)
    times = [(a.seconds or 0.0, b.seconds or 0.0) for found in pairs.values() for a, b in found]
    logs = [math.log(ours / theirs) for ours, theirs in times if ours > 0 and theirs > 0]
    return {
        "environments": len(pairs),
        "pairs": sum(map(len, scores)),
        **{"difference": less.value, "difference_low": less.low, "difference_high": less.high},
        **{"improvement": chance.value, "improvement_low": chance.low, "improvement_high": chance.high},
        "cost": math.exp(sum(logs) / len(logs)) if logs else None,
    }


def shown_pairs(rows: Sequence[Mapping[str, Any]], several: bool) -> tuple[str, list[str], list[list[str]]]:
    """Title, header and cells of the table that is shown; `several` measures want a column of their own."""
    header = [
        "variant",
        *(["measure"] if several else []),
        "difference",
        "95 %",
        "P(above)",
        "95 %",
        "time",
        "environments",
        "pairs",
    ]
    cells = []
    for row in rows:
        line = [row["variant"], *([row["measure"]] if several else []), f"{row['difference']:+.3f}"]
        line += [
            _interval(row, "difference", "{:+.3f}"),
            f"{row['improvement']:.2f}",
            _interval(row, "improvement", "{:.2f}"),
        ]
        line += ["-" if row["cost"] is None else f"{row['cost']:.2f} x", str(row["environments"]), str(row["pairs"])]
        cells.append(line)
    return TITLE.format(against=rows[0]["against"]), header, cells


def _interval(row: Mapping[str, Any], name: str, form: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "-" if low is None else f"{form.format(low)} to {form.format(high)}"


def note() -> str:
    """How to read it."""
    return (
        f"Difference: of normalised scores, the mean over environments of the mean over seeds; {RESAMPLES:,} resamples of environments, "
        "then of seeds. P(above): that a run scores above one of the other variant in the same environment, mean over environments. "
        "Time: seconds of training relative to the other variant, geometric mean; it means little where the machine did other work."
    )
