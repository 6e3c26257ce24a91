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
Rows = dict[Key, dict[str, str]]


def is_record(root: Path) -> bool:
    """Whether the folder has a study's table and none of its runs."""
    return not (root / RUNS).exists() and (root / TABLE).is_file()


def recorded_scores(study: Study, runs: Sequence[PlannedRun], root: Path) -> list[Scored]:
    """Every run of the study by every measure; those that the table lacks have no score."""
    return scored_from(recorded_rows(root / TABLE), study, runs, root / TABLE)


def scored_from(rows: Rows, study: Study, runs: Sequence[PlannedRun], path: Path) -> list[Scored]:
    """The runs with what the rows of the table `path` say of them."""
    scored = []
    for run in runs:
        for measure in study.measures:
            row = rows.get(key_of(run, measure), {})
            score, normalised, seconds, rate, episodes, cut = (number_in(row, name, path) for name in FIGURES)
            counts = (None if episodes is None else int(episodes), int(cut or 0))
            scored.append(Scored(run, row.get("status", "new"), measure, score, normalised, seconds, *counts, rate))
    return scored


def key_of(run: PlannedRun, measure: str) -> Key:
    """How a run and measure are spelt in the table."""
    names = (run.environment.name, run.variant.name, measure, run.seed)
    environment, variant, kind, seed = (str(csv_cell(name)) for name in names)
    return environment, variant, kind, seed


def recorded_rows(path: Path) -> Rows:
    """The rows of the runs in a table.csv."""
    rows = [row for row in csv_rows(path, CSV_COLUMNS[:8]) if row["kind"] == "run"]
    return {(row["environment"], row["variant"], row["measure"], row["seed"]): row for row in rows}
