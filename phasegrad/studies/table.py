"""The table of a study: every cell and variant with mean, interquartile mean and intervals; on screen, as Markdown,
JSON and CSV. The same finished runs give the same bytes.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phasegrad.report.statistics import RESAMPLES, summarise
from phasegrad.runs.files import write_atomically
from phasegrad.studies.definition import Study
from phasegrad.studies.scores import Scored

STATISTICS = ("mean", "mean_low", "mean_high", "iqm", "iqm_low", "iqm_high")
CSV_COLUMNS = (
    "kind", "environment", "variant", "measure", "seed", "status", "score", "normalised", "seconds", "environments",
    "runs", *STATISTICS, "aim", "met", "published",
)  # fmt: skip
SCORE_NAMES = {
    "last100": "mean return of the last 100 training episodes",
    "eval": "mean return of {episodes} episodes after training, deterministic actions",
    "levels": "mean return of {episodes} episodes after training, sampled actions, on training levels and on all levels",
}
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
        "score": SCORE_NAMES[study.score].format(episodes=study.eval_episodes),
        "scale": SCALE_NAMES[study.normalise],
        "steps": study.steps,
        "seeds": list(study.seeds),
        "published_from": study.published_from,
        "runs": [_run_row(entry) for entry in scored],
        "cells": _cells(study, scored),
        "aggregates": _aggregates(study, scored),
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
    }


def _cells(study: Study, scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """One row for each environment, variant and measure."""
    by_cell: dict[tuple[str, str, str], list[float]] = {}
    for entry in scored:
        if entry.score is not None:
            key = (entry.run.environment.name, entry.run.variant.name, entry.measure)
            by_cell.setdefault(key, []).append(entry.score)
    rows = []
    for environment in study.environments:
        for variant in study.variants:
            for measure in study.measures:
                scores = by_cell.get((environment.name, variant.name, measure), [])
                row: dict[str, Any] = {"environment": environment.name, "variant": variant.name, "measure": measure}
                row |= {"runs": len(scores), **_statistics([scores])}
                met = None if environment.aim is None else sum(score >= environment.aim for score in scores)
                rows.append(row | {"aim": environment.aim, "met": met})
    return rows


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
            row |= {"runs": sum(map(len, strata.values())), **_statistics(list(strata.values()))}
            rows.append(row | {"published": variant.published.get(measure)})
    return rows if any(row["runs"] for row in rows) else []


def _statistics(strata: Sequence[Sequence[float]]) -> dict[str, float | None]:
    if not any(len(stratum) for stratum in strata):
        return dict.fromkeys(STATISTICS)
    found = summarise(strata)
    values: dict[str, float | None] = {}
    for name, part in (("mean", found.mean), ("iqm", found.iqm)):
        values |= {name: part.value, f"{name}_low": part.low, f"{name}_high": part.high}
    return values


def missing(table: Mapping[str, Any]) -> int:
    """Runs without a score."""
    return len({(r["environment"], r["variant"], r["seed"]) for r in table["runs"] if r["score"] is None})


def shown_tables(table: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, header and rows of the tables that are shown: the aggregate first, then the environments."""
    several = len({row["measure"] for row in table["cells"]}) > 1
    tables = []
    if table["aggregates"]:
        published = any(row["published"] is not None for row in table["aggregates"])
        header = ["variant", *(["measure"] if several else []), "mean", "95 %", "IQM", "95 %", "environments", "runs"]
        rows = [
            [row["variant"], *([row["measure"]] if several else []), *_estimates(row, "{:.3f}")]
            + [str(row["environments"]), str(row["runs"])]
            + ([_number(row["published"], "{:.2f}")] if published else [])
            for row in table["aggregates"]
        ]
        tables.append((f"All environments, {table['scale']}", header + (["published"] if published else []), rows))
    aims = any(row["aim"] is not None for row in table["cells"])
    header = ["environment", "variant", *(["measure"] if several else []), "mean", "95 %", "IQM", "95 %", "seeds"]
    rows = []
    for row in table["cells"]:
        line = [row["environment"], row["variant"], *([row["measure"]] if several else [])]
        line += [*_estimates(row, "{:,.4g}"), str(row["runs"])]
        if aims:
            line += ["-", "-"] if row["aim"] is None else [f"{row['aim']:g}", f"{row['met']}/{row['runs']}"]
        rows.append(line)
    tables.append((f"Scores: {table['score']}", header + (["aim", "met"] if aims else []), rows))
    return tables


def _estimates(row: Mapping[str, Any], form: str) -> list[str]:
    cells = []
    for name in ("mean", "iqm"):
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        cells += [_number(row[name], form), "-" if low is None else f"{_number(low, form)} to {_number(high, form)}"]
    return cells


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def footnotes(table: Mapping[str, Any]) -> list[str]:
    lines = [
        f"Intervals: percentile bootstrap, {RESAMPLES:,} resamples of the seeds within each environment; "
        "IQM is the mean of the middle half of the runs.",
    ]
    if table["aggregates"] and any(row["published"] is not None for row in table["aggregates"]):
        lines.append(f"Published: {table['published_from'] or 'as given in the study'}.")
    absent = missing(table)
    if absent:
        lines.append(f"{absent} of the study's runs have no score yet and are not in the table.")
    return lines


def as_markdown(table: Mapping[str, Any]) -> str:
    lines = [f"# {table['title']}", "", f"{table['steps']:,} steps, seeds {', '.join(map(str, table['seeds']))}.", ""]
    for title, header, rows in shown_tables(table):
        left = sum(name in ("environment", "variant", "measure") for name in header)
        lines += [f"**{title}**", "", _markdown_row(header)]
        lines.append("|" + "---|" * left + "---:|" * (len(header) - left))
        lines += [*map(_markdown_row, rows), ""]
    return "\n".join([*lines, *footnotes(table), ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def as_csv(table: Mapping[str, Any]) -> str:
    """One row a run, one a cell, one an aggregate; `kind` says which."""
    output = io.StringIO()
    writer = csv.DictWriter(output, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for kind in ("run", "cell", "aggregate"):
        writer.writerows({"kind": kind, **row} for row in table[f"{kind}s"])
    return output.getvalue()


TABLES = ("table.md", "table.json", "table.csv")


def write_table(table: Mapping[str, Any], root: Path) -> None:
    """table.md, table.json and table.csv."""
    texts = (as_markdown(table), json.dumps(table, indent=1) + "\n", as_csv(table))
    for name, text in zip(TABLES, texts, strict=True):
        write_atomically(root / name, text.encode())


def print_table(table: Mapping[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    for title, header, rows in shown_tables(table):
        shown = Table(title=escape(title), title_justify="left", box=box.SIMPLE)
        for name in header:
            shown.add_column(name, justify="left" if name in ("environment", "variant", "measure") else "right")
        for row in rows:
            shown.add_row(*map(escape, row))
        console.print(shown)
    for line in footnotes(table):
        console.print(line, markup=False, highlight=False, style="dim")
