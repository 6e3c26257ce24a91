"""Reads run directories for the report: config, result, metrics as columns, evaluations made later.

The files are data from anyone: what cannot be read is passed over and said, never executed or trusted.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from phasegrad.errors import RunError, visible
from phasegrad.machine.paths import as_path
from phasegrad.runs.below import require_file
from phasegrad.runs.files import read_json_object, require_within_reach
from phasegrad.runs.gaps import between, named
from phasegrad.runs.noting import read_evaluations
from phasegrad.runs.reading import CONFIG, METRICS, RESULT, MetricsReader, number_or_none

DEEPEST = 4  # folders below a given one that are searched for runs
MOST_RUNS = 1000
MOST_EVALUATIONS = 500  # of a run, the last ones
LEVELS = "levels.json"  # a study's evaluations on training and test levels, with sampled actions
LONGEST_TEXT = 200  # characters of a name or value from a file


@dataclass
class RecordedRun:
    """One run's files as columns: values[name][i] belongs to row rows[name][i]."""

    path: Path
    name: str
    config: dict[str, Any]
    result: dict[str, Any]
    steps: np.ndarray  # [rows]
    seconds: np.ndarray  # [rows]
    values: dict[str, np.ndarray]
    rows: dict[str, np.ndarray]
    by_epoch: dict[str, list[tuple[int, list[float | None]]]]  # (row, value of each epoch)
    ignored_lines: int = 0
    gaps: str = ""  # a sentence on the rows that are missing
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # made later, by `phasegrad eval`
    levels: dict[str, Any] = field(default_factory=dict)  # a study's evaluations on training and test levels

    @property
    def env(self) -> str:
        return text(self.config.get("env", "unknown environment"))

    @property
    def algorithm(self) -> str:
        return text(self.config.get("algorithm", "unknown"))

    @property
    def seed(self) -> str:
        return text(self.config.get("seed", "?"))

    @property
    def status(self) -> str:
        return text(self.result.get("status", "unfinished"))

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(rows, values) of a metric where it is a number."""
        values = self.values.get(name, np.zeros(0))
        finite = np.isfinite(values)
        return self.rows.get(name, np.zeros(0, dtype=int))[finite], values[finite]


def text(value: Any) -> str:
    """A value from a file as a short line of text."""
    shown = visible(" ".join(str(value).split()))
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run directories among the given ones and below them, each once, in the order given."""
    found: dict[Path, Path] = {}
    for given in paths:
        path = as_path(given)
        if not path.is_dir():
            raise RunError(f"{path} is not a directory: give run directories, or a folder that holds some.")
        below = [path] if os.path.lexists(path / CONFIG) else sorted(_below(path, DEEPEST))
        if not below:
            raise RunError(f"{path} holds no run: no {CONFIG} there or in the folders below it.")
        for run in below:
            found.setdefault(run.resolve(), run)
    if len(found) > MOST_RUNS:
        raise RunError(f"{len(found)} runs are more than the {MOST_RUNS} that fit one report: give fewer directories.")
    return list(found.values())


def _below(path: Path, depth: int) -> Iterable[Path]:
    if depth == 0:
        return
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            if (entry / CONFIG).is_file() and (entry / METRICS).is_file():
                yield entry
            else:
                yield from _below(entry, depth - 1)


def read_run(path: Path) -> RecordedRun:
    """One run directory; RunError where it holds no config or not one row of metrics."""
    require_file(path / CONFIG)
    config = read_json_object(path / CONFIG)
    if not config:
        require_within_reach(path / CONFIG)
        raise RunError(f"{path} is not a run directory: its {CONFIG} is missing, damaged or too large.")
    reader = MetricsReader(path / METRICS)
    steps: list[float] = []
    seconds: list[float] = []
    columns: dict[str, tuple[list[int], list[float]]] = {}
    by_epoch: dict[str, list[tuple[int, list[float | None]]]] = {}
    for index, row in enumerate(reader.new_rows()):
        steps.append(float(row.pop("step")))  # type: ignore[arg-type]  # the reader has checked it
        for name, value in row.items():
            if isinstance(value, list):
                by_epoch.setdefault(name, []).append((index, value))
                continue
            column = columns.get(name)
            if column is None:
                column = columns[name] = ([], [])
            column[0].append(index)
            column[1].append(np.nan if value is None else value)
        taken = row.get("seconds")
        seconds.append(taken if isinstance(taken, float) else np.nan)
    result = read_json_object(path / RESULT)
    if not steps:
        begun = (path / METRICS).exists() and not result
        raise RunError(
            f"{path} has no row in its {METRICS} yet."
            if begun
            else f"{path} has no row of its iterations: its {METRICS} is {'empty' if (path / METRICS).exists() else 'missing'}."
        )
    for prefix in ("eval", "eval_test"):
        _add_final_evaluation(columns, result, prefix, steps)
    return RecordedRun(
        path=path,
        name=text(path.resolve().name),
        config=config,
        result=result,
        steps=np.array(steps),
        seconds=_rising(np.array(seconds)),
        values={name: np.array(values) for name, (_, values) in columns.items()},
        rows={name: np.array(indices) for name, (indices, _) in columns.items()},
        by_epoch=by_epoch,
        ignored_lines=reader.ignored,
        gaps=missing_rows(columns, steps, result),
        evaluations=read_evaluations(path)[-MOST_EVALUATIONS:],
        levels=read_json_object(path / LEVELS),
    )


def missing_rows(
    columns: Mapping[str, tuple[list[int], list[float]]], steps: Sequence[float], result: Mapping[str, Any]
) -> str:
    """What a metrics file lacks, as far as its rows and the run's result tell; '' where it lacks nothing."""
    counts = [int(value) for value in columns.get("iteration", ([], []))[1] if np.isfinite(value)]
    told = []
    if counts and counts[0] > 1:
        told.append(f"begins at iteration {counts[0]:,}")
    if gaps := between(counts):
        told.append(f"lacks {named(gaps)}")
    reached = number_or_none(result.get("step"))
    if reached is not None and reached > steps[-1]:
        told.append(f"ends at step {steps[-1]:,.0f} of a run that reached {reached:,.0f}")
    return f"{METRICS} {' and '.join(told)}" if told else ""


def _add_final_evaluation(
    columns: dict[str, tuple[list[int], list[float]]], result: Mapping[str, Any], prefix: str, steps: Sequence[float]
) -> None:
    """The evaluation at the end belongs to the curve too, where the last row does not have it already."""
    found = result.get(prefix)
    value = number_or_none(found.get("return_mean")) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or value is None:
        return
    step = number_or_none(found.get("step"))
    at = len(steps) - 1 if step is None else max(0, bisect.bisect_right(steps, step) - 1)
    column = columns.setdefault(f"{prefix}_return_mean", ([], []))
    if not column[0] or column[0][-1] < at:
        column[0].append(at)
        column[1].append(value)


def _rising(seconds: np.ndarray) -> np.ndarray:
    """Wall-clock that never falls, as an axis needs it; where it is missing, the last known one holds."""
    return np.maximum.accumulate(np.where(np.isfinite(seconds), seconds, 0.0))


def read_runs(paths: Sequence[str | Path]) -> tuple[list[RecordedRun], list[str]]:
    """Every run that can be read, and a sentence for each that cannot."""
    runs, problems = [], []
    for path in find_runs(paths):
        try:
            runs.append(read_run(path))
        except RunError as error:
            problems.append(str(error))
    if not runs:
        raise RunError(problems[0])
    _distinguish(runs)
    return runs, problems


def _distinguish(runs: list[RecordedRun]) -> None:
    """Names that differ: folders of one name get their parent's in front."""
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = text("/".join(run.path.resolve().parts[-2:]))
