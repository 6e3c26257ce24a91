"""Reads run directories for the report and sorts them: which runs are seeds of one configuration, and what differs.

The files are data from anyone: what cannot be read is passed over and said, never executed or trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from phasegrad.errors import RunError
from phasegrad.machine.paths import as_path
from phasegrad.runs.files import read_json_object
from phasegrad.runs.reading import CONFIG, METRICS, RESULT, MetricsReader, number_or_none

# Fields that say how a run was computed, not what was trained: runs that differ in these alone are seeds of one group.
MEANS_ONLY = {
    "seed",
    "device",
    "compile",
    "torch_threads",
    "env_threads",
    "checkpoint_every",
    "keep_checkpoints",
    "eval_episodes",
    "eval_checkpoints",
    "track",
    "env_timeout",
    "vectorization",
    "preset",
}
DEEPEST = 4  # folders below a given one that are searched for runs
MOST_RUNS = 1000
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

    def final_score(self) -> float | None:
        """The evaluation's mean return if there was one, otherwise the last training return."""
        evaluated = self.result.get("eval")
        if isinstance(evaluated, Mapping):
            score = number_or_none(evaluated.get("return_mean"))
            if score is not None:
                return score
        _, values = self.column("return_mean")
        return float(values[-1]) if len(values) else None

    def evaluated(self) -> bool:
        found = self.result.get("eval")
        return isinstance(found, Mapping) and number_or_none(found.get("return_mean")) is not None


@dataclass
class RunGroup:
    """Runs of one configuration that differ in their seed."""

    label: str
    env: str
    variant: str  # the label without the environment: what a profile over environments compares
    runs: list[RecordedRun] = field(default_factory=list)


def text(value: Any) -> str:
    """A value from a file as a short line of text."""
    shown = " ".join(str(value).split())
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run directories among the given ones and below them, each once, in the order given."""
    found: dict[Path, Path] = {}
    for given in paths:
        path = as_path(given)
        if not path.is_dir():
            raise RunError(f"{path} is not a directory: give run directories, or a folder that holds some.")
        below = [path] if (path / CONFIG).is_file() else sorted(_below(path, DEEPEST))
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
    config = read_json_object(path / CONFIG)
    if not config:
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
    if not steps:
        raise RunError(f"{path} has no row in its {METRICS} yet.")
    return RecordedRun(
        path=path,
        name=text(path.resolve().name),
        config=config,
        result=read_json_object(path / RESULT),
        steps=np.array(steps),
        seconds=_rising(np.array(seconds)),
        values={name: np.array(values) for name, (_, values) in columns.items()},
        rows={name: np.array(indices) for name, (indices, _) in columns.items()},
        by_epoch=by_epoch,
        ignored_lines=reader.ignored,
    )


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


def differing_fields(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Fields that all configs have with unlike values, in the config's order."""
    shared = [name for name in configs[0] if name != "versions" and all(name in config for config in configs)]
    return [name for name in shared if len({_key(config[name]) for config in configs}) > 1]


def _key(value: Any) -> str:
    return repr(float(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else repr(value)


def group_runs(runs: Sequence[RecordedRun]) -> list[RunGroup]:
    """Runs whose configs agree in all that matters, together; named by what tells the groups apart."""
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        trained = {k: _key(v) for k, v in sorted(run.config.items()) if k not in MEANS_ONLY | {"versions"}}
        groups.setdefault(repr(trained), []).append(run)
    found = []
    for members in groups.values():
        first = members[0]
        siblings = [other[0] for other in groups.values() if other[0].algorithm == first.algorithm]
        in_env = [other for other in siblings if other.env == first.env]
        # a field that only follows from the environment (its preset's sizes, say) is no variant of the algorithm
        fields = [
            name
            for name in differing_fields([run.config for run in in_env])
            if name not in MEANS_ONLY | {"env", "algorithm"}
        ]
        variant = first.algorithm.upper()
        shown = [f"{name}={_short(first.config[name])}" for name in fields[:4]]
        if len(fields) > 4:
            shown.append(f"and {len(fields) - 4} more")
        if shown:
            variant += " " + ", ".join(shown)
        found.append(RunGroup(f"{variant} on {first.env}", first.env, variant, list(members)))
    taken: set[str] = set()
    for group in found:
        name, count = group.label, 2
        while group.label in taken:
            group.label, count = f"{name} ({count})", count + 1
        taken.add(group.label)
    return sorted(found, key=lambda group: (group.env, _natural(group.variant)))


def _natural(label: str) -> list[tuple[int, float, str]]:
    """A sort key that puts 2 before 10 and 1e-4 before 1e-3."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", label)
    return [(1, float(part[:300]), "") if index % 2 else (0, 0.0, part) for index, part in enumerate(parts)]


def _short(value: Any) -> str:
    return text(f"{value:g}" if isinstance(value, float) else value)[:40]
