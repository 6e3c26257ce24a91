"""A run directory as an object to look at in Python: settings, result, metrics as arrays, evaluations, its curve.

Only reads: it takes no lock and writes nothing, so a run that is training can be looked at. The files are data from anyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasegrad.errors import RunError
from phasegrad.machine.paths import as_path
from phasegrad.runs.below import require_file
from phasegrad.runs.curves import lines_of_run
from phasegrad.runs.files import read_json_object, require_within_reach
from phasegrad.runs.formats import duration, number, score
from phasegrad.runs.history import History
from phasegrad.runs.hooks import evaluation_of
from phasegrad.runs.notebook_card import card, plain
from phasegrad.runs.noting import read_evaluations
from phasegrad.runs.reading import CONFIG, METRICS, RESULT, MetricsReader, number_or_none

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_EVALUATIONS = 10_000  # the last ones


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """What is on disk of a run, as it was when it was read; read it again for what came since."""

    path: Path
    config: dict[str, Any]  # its settings, the algorithm and the versions it began with
    result: dict[str, Any]  # how it ended; {} while it has not
    metrics: History  # arrays by name
    evaluations: list[dict[str, Any]]  # made while training, then those of `phasegrad eval`, each with its step
    ignored_lines: int = 0  # of the metrics file, that were no row

    @property
    def env(self) -> str:
        return plain(self.config.get("env", "unknown environment"))

    @property
    def algorithm(self) -> str:
        return plain(self.config.get("algorithm", "unknown"))

    @property
    def seed(self) -> str:
        return plain(self.config.get("seed", "?"))

    @property
    def status(self) -> str:
        """finished or stopped, as the result says; unfinished where it has none."""
        return plain(self.result.get("status", "unfinished"))

    @property
    def step(self) -> int:
        """Environment steps so far."""
        found = self.metrics.last("step")
        return int(found if found is not None else number_or_none(self.result.get("step")) or 0)

    @property
    def score(self) -> float | None:
        """Mean return of the last evaluation made while training, or at its end; None where there was none."""
        evaluated = self.result.get("eval")
        found = number_or_none(evaluated.get("return_mean")) if isinstance(evaluated, dict) else None
        return self.metrics.last("eval_return_mean") if found is None else found

    def to_pandas(self) -> Any:
        """The metrics as a pandas DataFrame, a row an iteration."""
        return self.metrics.to_pandas()

    def plot(self, *, title: str | None = None, smooth: float = 0.0) -> Figure:
        """Return against steps, as `phasegrad plot` draws it: a matplotlib figure. `smooth` averages over so many steps."""
        lines = lines_of_run(self.metrics, self.result, f"{self.algorithm.upper()} on {self.env}", smooth)
        if not lines:
            raise RunError(f"{self.path} has no evaluation and no finished episode in its metrics yet.")
        from phasegrad.runs.drawing import drawn

        return drawn(lines, title, smooth)

    def __repr__(self) -> str:
        scored = f", score {score(self.score)}" if self.score is not None else ""
        return (
            f"Run({self.algorithm.upper()} on {self.env}, seed {self.seed}, {self.status}, {self.step:,} steps{scored})"
        )

    def _repr_html_(self) -> str:
        return card(f"{self.algorithm.upper()} on {self.env}, seed {self.seed}", self._rows())

    def _rows(self) -> list[tuple[str, Any]]:
        total = number_or_none(self.config.get("total_steps"))
        seconds = number_or_none(self.result.get("seconds")) or self.metrics.last("seconds")
        rows: list[tuple[str, Any]] = [
            ("folder", self.path),
            ("status", self.status),
            ("steps", f"{self.step:,}" + (f" of {number(total)}" if total and total > self.step else "")),
        ]
        if self.score is not None:
            rows.append(("score", f"{score(self.score)}, mean return of the last evaluation"))
        if (trained := self.metrics.last("return_mean")) is not None:
            rows.append(("training return", f"{score(trained)}, last 100 episodes"))
        if seconds is not None:
            rows.append(("time", duration(seconds)))
        return [*rows, ("metrics", f"{len(self.metrics)} arrays of {self.metrics.num_rows:,} iterations")]


def read_run(path: str | Path) -> Run:
    """A run directory: `config`, `result`, `metrics` as numpy arrays by name, `evaluations`, `plot()`, `to_pandas()`.

    Nothing is written or locked, so it may be training. RunError where the folder holds no run.
    """
    path = as_path(path)
    if not path.is_dir():
        raise RunError(f"{path} is not a directory: give the folder of a run, such as runs/lander.")
    require_file(path / CONFIG)
    config = read_json_object(path / CONFIG)
    if not config:
        require_within_reach(path / CONFIG)
        raise RunError(
            f"{path} is not a run directory: its {CONFIG} is missing, damaged or too large; phasegrad.plot takes a folder "
            "of runs."
        )
    reader, metrics, evaluations = MetricsReader(path / METRICS), History(), []
    for row in reader.new_rows():
        metrics.add(row)
        if row.get("eval_return_mean") is not None:
            evaluations.append(evaluation_of(row) or {})
    result = read_json_object(path / RESULT)
    last = result.get("eval")
    if isinstance(last, dict) and number_or_none(last.get("return_mean")) is not None:
        step = number_or_none(last.get("step", result.get("step")))
        if step is not None and step not in [each["step"] for each in evaluations[-1:]]:
            evaluations.append({**last, "step": int(step)})
    later = [{**each, "step": int(each["step"])} for each in read_evaluations(path)]
    return Run(path, config, result, metrics, [*evaluations, *later][-MOST_EVALUATIONS:], reader.ignored)
