"""The metrics of a run as arrays: one entry an iteration, nan where a metric has no number.

Kept are the numbers that there are; an array is made when it is asked for, so that a file with many rows and many names
takes no more memory than it has numbers. Knows nothing of training, nor of torch.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phasegrad.errors import ConfigError, RunError, nearest
from phasegrad.runs.formats import number
from phasegrad.runs.notebook_card import card
from phasegrad.runs.reading import METRICS, MetricsReader, number_or_none

if TYPE_CHECKING:
    from phasegrad.runs.contract import Trainer

KEPT = 20_000  # rows of an agent without a run directory; of more, every second one goes
MOST_CELLS = 1 << 26  # of a table
SHOWN = ("return_mean", "eval_return_mean", "length_mean", "kl", "entropy", "explained_variance", "sps")


class History(Mapping[str, np.ndarray]):
    """Metrics by name, an array [iterations] each; `history["return_mean"]`. `by_epoch` has those that are lists."""

    def __init__(self, most_rows: int | None = None) -> None:
        self.num_rows = 0
        self.by_epoch: dict[str, list[tuple[int, list[float | None]]]] = {}  # (row, value of each epoch)
        self._rows: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}
        self._most = most_rows

    def add(self, row: Mapping[str, Any]) -> None:
        """The metrics of an iteration; what is no number has no entry."""
        if self._most is not None and self.num_rows >= self._most:
            self._thin()
        for name, value in row.items():
            if isinstance(value, list):
                self.by_epoch.setdefault(name, []).append((self.num_rows, [number_or_none(each) for each in value]))
                continue
            found = number_or_none(value.item() if isinstance(value, np.generic) else value)
            if name not in self._rows:
                self._rows[name], self._values[name] = array("q"), array("d")
            if found is not None:
                self._rows[name].append(self.num_rows)
                self._values[name].append(found)
        self.num_rows += 1

    def _thin(self) -> None:
        """Every second row goes, except those with an evaluation: of these too where they are many."""
        evaluated = np.zeros(self.num_rows, bool)
        for name, rows in self._rows.items():
            if name.startswith("eval_"):
                evaluated[rows] = True
        stays = evaluated & bool(4 * evaluated.sum() <= self.num_rows)
        for kind in (evaluated, ~evaluated):
            stays[np.flatnonzero(kind)[::-2]] = True  # the latest too
        place = np.cumsum(stays) - 1
        for name, rows in self._rows.items():
            where, values = np.array(rows, dtype=np.int64), np.array(self._values[name])
            kept = stays[where]
            self._rows[name] = array("q", place[where[kept]].tolist())
            self._values[name] = array("d", values[kept].tolist())
        for name, entries in self.by_epoch.items():
            self.by_epoch[name] = [(int(place[row]), values) for row, values in entries if stays[row]]
        self.num_rows = int(stays.sum())

    def copy(self) -> History:
        """The same as it is now."""
        found = History()
        found.num_rows = self.num_rows
        found.by_epoch = {name: list(entries) for name, entries in self.by_epoch.items()}
        found._rows = {name: rows[:] for name, rows in self._rows.items()}
        found._values = {name: values[:] for name, values in self._values.items()}
        return found

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(rows, values) of a metric where it is a number; nothing of one that there is not."""
        rows, values = self._rows.get(name, array("q")), self._values.get(name, array("d"))
        return np.array(rows, dtype=np.int64), np.array(values)

    @property
    def steps(self) -> np.ndarray:
        """Environment steps at the end of each iteration."""
        return self["step"] if "step" in self._rows else np.full(self.num_rows, np.nan)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._rows:
            raise KeyError(f"There is no metric {name!r} here.{nearest(str(name), self._rows)}")
        rows, values = self.column(name)
        found = np.full(self.num_rows, np.nan)
        found[rows] = values
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def last(self, name: str) -> float | None:
        """The last number of a metric; None where there is none."""
        values = self._values.get(name)
        return float(values[-1]) if values else None

    def to_pandas(self) -> Any:
        """A pandas DataFrame, a row an iteration and a column a metric."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("to_pandas needs the package pandas: pip install pandas.") from None
        if self.num_rows * len(self) > MOST_CELLS:
            raise RunError(
                f"A table of {self.num_rows:,} rows and {len(self)} columns is larger than fits one: take the arrays by name."
            )
        return pandas.DataFrame({name: self[name] for name in self})

    def __repr__(self) -> str:
        steps = number(self.last("step"))
        return f"History({self.num_rows:,} iterations, {steps} steps, {len(self)} metrics)"

    def _repr_html_(self) -> str:
        rows = [(name, number(self.last(name))) for name in SHOWN if self.last(name) is not None]
        more = [name for name in self if name not in SHOWN]
        rows.append(("also", ", ".join(more[:60]) + (f" and {len(more) - 60} more" if len(more) > 60 else "")))
        return card(f"{self.num_rows:,} iterations, {number(self.last('step'))} steps: the last values", rows)


def read_history(path: Path, most_step: float = math.inf) -> History:
    """The rows of a metrics file, which is data from anyone, up to a step."""
    found = History()
    for row in MetricsReader(path).new_rows():
        if float(row["step"]) <= most_step:  # type: ignore[arg-type]  # the reader has checked it
            found.add(row)
    return found


def history_of(trainer: Trainer) -> History:
    """The metrics of an agent's training: all that its run directory has, or what it has learnt in this process."""
    run = trainer.run
    if run.place is not None and run.takes_over:
        return read_history(run.place / METRICS, run.progress.step)
    return run.metrics.copy()
