"""The table of a study as data: every run, cell and variant with mean, interquartile mean and intervals.

The same finished runs give the same table. How it is shown is in `table_views.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phasegrad.report.statistics import summarise
from phasegrad.studies.definition import Study
from phasegrad.studies.pairs import comparisons
from phasegrad.studies.scores import Scored

LEAST_FOR_INTERVAL = 3  # seeds
LEAST_FOR_WINNER = 5
STATISTICS = ("mean", "mean_low", "mean_high", "iqm", "iqm_low", "iqm_high")
SCALE_NAMES = {
    "constants": "normalised with the constants of each environment (0 and 1 are its low and high)",
    "random-best": "normalised so that in each environment random actions are 0 and the best run of this study is 1",
    "none": "not normalised",
}


def build_table(study: Study, scored: Sequence[Scored]) -> dict[str, Any]:
    """Everything the table says, as JSON data."""
    return {
        "study": study.name,
        "title": study.title,
        "score": study.score_name,
        "scale": SCALE_NAMES[study.normalise],
        "steps": study.steps,
        "seeds": list(study.seeds),
        "published_from": study.published_from,
        "runs": [_run_row(entry) for entry in scored],
        "cells": _cells(study, scored),
        "aggregates": _aggregates(study, scored),
        "comparisons": comparisons(study, scored),
    }


def _run_row(entry: Scored) -> dict[str, Any]:
    run = entry.run
    return {
        "environment": run.environment.name,
        "variant": run.variant.name,
        "measure": entry.measure,
        "seed": run.seed,
        "status": entry.status,
        "steps": run.config.total_steps,
        "score": entry.score,
        "normalised": entry.normalised,
        "seconds": entry.seconds,
        "episodes": entry.episodes,
        "episodes_cut": entry.episodes_cut,
        "success_rate": entry.success_rate,
    }


def _cells(study: Study, scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """One row for each environment, variant and measure."""
    by_cell: dict[tuple[str, str, str], list[Scored]] = {}
    for entry in scored:
        if entry.score is not None:
            key = (entry.run.environment.name, entry.run.variant.name, entry.measure)
            by_cell.setdefault(key, []).append(entry)
    rows = []
    for environment in study.environments:
        for variant in study.variants:
            for measure in study.measures:
                entries = by_cell.get((environment.name, variant.name, measure), [])
                scores = [entry.score for entry in entries if entry.score is not None]
                row: dict[str, Any] = {"environment": environment.name, "variant": variant.name, "measure": measure}
                row |= {"runs": len(scores), **_statistics([scores])}
                met = None if environment.aim is None else sum(score >= environment.aim for score in scores)
                rows.append(row | {"aim": environment.aim, "met": met, **_episodes(entries)})
    return rows


def _episodes(entries: Sequence[Scored]) -> dict[str, Any]:
    """Episodes that each seed's score is the mean of, as text: one number where all agree; the seeds' mean of the share
    of successes among them.
    """
    counts = [entry.episodes for entry in entries if entry.episodes is not None]
    low, high = (min(counts), max(counts)) if counts else (0, 0)
    shown = "" if not counts else str(low) if low == high else f"{low} to {high}"
    rates = [entry.success_rate for entry in entries if entry.success_rate is not None]
    cut, rate = sum(entry.episodes_cut for entry in entries), sum(rates) / len(rates) if rates else None
    return {"episodes": shown, "episodes_cut": cut, "success_rate": rate}


def _aggregates(study: Study, scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """One row for each variant and measure: normalised scores over all environments that have a scale."""
    rows = []
    for variant in study.variants:
        for measure in study.measures:
            strata: dict[str, list[float]] = {}
            for entry in scored:
                if entry.run.variant == variant and entry.measure == measure and entry.normalised is not None:
                    strata.setdefault(entry.run.environment.name, []).append(entry.normalised)
            row = {"variant": variant.name, "measure": measure, "environments": len(strata)}
            counts = [len(stratum) for stratum in strata.values()]
            row |= {"runs": sum(counts), "seeds": min(counts, default=0), **_statistics(list(strata.values()))}
            rows.append(row | {"published": variant.published.get(measure)})
    return rows if any(row["runs"] for row in rows) else []


def _statistics(strata: Sequence[Sequence[float]]) -> dict[str, float | None]:
    if not any(len(stratum) for stratum in strata):
        return dict.fromkeys(STATISTICS)
    found = summarise(strata)
    enough = all(len(stratum) >= LEAST_FOR_INTERVAL for stratum in strata)
    values: dict[str, float | None] = {}
    for name, part in (("mean", found.mean), ("iqm", found.iqm)):
        low, high = (part.low, part.high) if enough else (None, None)
        values |= {name: part.value, f"{name}_low": low, f"{name}_high": high}
    return values


def winners(rows: Sequence[Mapping[str, Any]]) -> set[int]:
    """Which rows of one comparison to set in bold: the best, where every row has the seeds to say so and its interval
    lies above all others."""
    if len(rows) < 2 or any(row["iqm"] is None or _seeds(row) < LEAST_FOR_WINNER for row in rows):
        return set()
    best = max(range(len(rows)), key=lambda index: rows[index]["iqm"])
    others = [row["iqm_high"] for index, row in enumerate(rows) if index != best]
    return {best} if rows[best]["iqm_low"] > max(others) else set()


def _seeds(row: Mapping[str, Any]) -> int:
    """Seeds behind a row: of all its environments the least."""
    return int(row.get("seeds", row["runs"]))


def missing(table: Mapping[str, Any]) -> int:
    """Runs without a score."""
    return len({(r["environment"], r["variant"], r["seed"]) for r in table["runs"] if r["score"] is None})
