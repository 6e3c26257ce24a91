"""The learning curves of a study's runs as one small table, curves.csv, for others to draw again."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phasegrad.report.cells import csv_cell
from phasegrad.report.collect import RecordedRun, read_runs
from phasegrad.runs.files import write_atomically
from phasegrad.runs.reading import METRICS
from phasegrad.studies.csv_rows import csv_rows, number_in
from phasegrad.studies.grid import PlannedRun

CURVES, PUBLISHED = "curves.csv", "published.csv"
COLUMNS = ("environment", "variant", "seed", "step", "seconds", "training_return", "score")
PUBLISHED_COLUMNS = ("environment", "label", "step", "value")
MOST_POINTS = 60  # of a run
CurveKey = tuple[str, str, str]  # environment, variant, seed, as the file spells them


@dataclass(frozen=True)
class Curve:
    """A run's training return (last 100 episodes) and score by step; nan where there is none."""

    environment: str
    variant: str
    seed: str
    steps: np.ndarray
    training: np.ndarray
    score: np.ndarray


def write_curves(runs: Sequence[PlannedRun], root: Path) -> bool:
    """curves.csv of the runs that have metrics; False where none has."""
    readable = [run for run in runs if (run.folder / METRICS).exists()]
    if readable:
        write_curve_rows([row for run in readable for row in curve_rows(run)], root)
    return bool(readable)


def curve_rows(run: PlannedRun) -> list[list[str]]:
    """The curve of a run that has metrics, as rows of the table."""
    found, _ = read_runs([run.folder])
    names = [str(csv_cell(name)) for name in (run.environment.name, run.variant.name, run.seed)]
    return [[*names, *row] for recorded in found for row in _points(recorded)]


def recorded_curve_rows(path: Path) -> dict[CurveKey, list[list[str]]]:
    """The rows of a curves.csv by environment, variant and seed, as they stand there."""
    found: dict[CurveKey, list[list[str]]] = {}
    for row in csv_rows(path, COLUMNS):
        found.setdefault((row["environment"], row["variant"], row["seed"]), []).append([row[name] for name in COLUMNS])
    return found


def write_curve_rows(rows: Iterable[Sequence[str]], root: Path) -> None:
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerows([COLUMNS, *rows])
    write_atomically(root / CURVES, output.getvalue().encode(), "start the study again")


def _points(run: RecordedRun) -> list[tuple[str, ...]]:
    """Rows evenly over the run, the last among them, and all that have a score."""
    count = len(run.steps)
    columns = [np.full(count, np.nan) for _ in range(2)]
    for column, name in zip(columns, ("return_mean", "eval_return_mean"), strict=True):
        rows, values = run.column(name)
        column[rows] = values
    even = np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int) if count else np.zeros(0, dtype=int)
    kept = np.union1d(even, np.flatnonzero(np.isfinite(columns[1])))
    return [
        (
            f"{run.steps[row]:.0f}",
            f"{run.seconds[row]:.1f}",
            *("" if np.isnan(c[row]) else f"{c[row]:.6g}" for c in columns),
        )
        for row in kept
    ]


def read_curves(path: Path) -> list[Curve]:
    """What `write_curves` wrote."""
    groups: dict[tuple[str, str, str], list[tuple[float, float, float]]] = {}
    for row in csv_rows(path, COLUMNS):
        step, training, score = (_number(row, name, path) for name in ("step", "training_return", "score"))
        groups.setdefault((row["environment"], row["variant"], row["seed"]), []).append((step, training, score))
    return [Curve(*key, *np.array(points).T) for key, points in groups.items()]


def read_published(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """published.csv: by environment and label, [points, 2] of step and value."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in csv_rows(path, PUBLISHED_COLUMNS):
        lines = found.setdefault(row["environment"], {})
        lines.setdefault(row["label"], []).append((_number(row, "step", path), _number(row, "value", path)))
    return {env: {label: np.array(points) for label, points in lines.items()} for env, lines in found.items()}


def _number(row: Mapping[str, str], name: str, path: Path) -> float:
    value = number_in(row, name, path)
    return np.nan if value is None else value
