"""A study's scores from the table that was kept of it, where the runs themselves are gone: `--table-only` on such a folder.

What a run scored, and on which scale, is taken from the rows of table.csv; everything reckoned from those is reckoned anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phasegrad.report.cells import csv_cell
from phasegrad.studies.csv_rows import csv_rows, number_in
from phasegrad.studies.definition import Study
from phasegrad.studies.grid import PlannedRun
from phasegrad.studies.scores import Scored
from phasegrad.studies.table_views import CSV_COLUMNS

RUNS, TABLE = "runs", "table.csv"
FIGURES = ("score", "normalised", "seconds", "success_rate", "episodes", "episodes_cut")
Key = tuple[str, str, str, str]  # environment, variant, measure, seed, as the file spells them


def is_record(root: Path) -> bool:
    """Whether the folder has a study's table and none of its runs."""
    return not (root / RUNS).exists() and (root / TABLE).is_file()


def recorded_scores(study: Study, runs: Sequence[PlannedRun], root: Path) -> list[Scored]:
    """Every run of the study by every measure; those that the table lacks have no score."""
    rows = _rows(root / TABLE)
    scored = []
    for run in runs:
        for measure in study.measures:
            names = (run.environment.name, run.variant.name, measure, run.seed)
            environment, variant, kind, seed = (str(csv_cell(name)) for name in names)
            row = rows.get((environment, variant, kind, seed), {})
            score, normalised, seconds, rate, episodes, cut = (number_in(row, name, root / TABLE) for name in FIGURES)
            counts = (None if episodes is None else int(episodes), int(cut or 0))
            scored.append(Scored(run, row.get("status", "new"), measure, score, normalised, seconds, *counts, rate))
    return scored


def _rows(path: Path) -> dict[Key, dict[str, str]]:
    rows = [row for row in csv_rows(path, CSV_COLUMNS[:8]) if row["kind"] == "run"]
    return {(row["environment"], row["variant"], row["measure"], row["seed"]): row for row in rows}
