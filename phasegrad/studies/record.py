"""What a study keeps for good, in a small folder of its own: scores, curves and settings of every finished run.

Run directories are large, and belong to the machine they were made on. A record is a few files that a repository can hold, and
that a study can go on from on another day or another machine: runs whose scores it has count as done (`--record DIR`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phasegrad.errors import RunError
from phasegrad.runs.files import MOST_JSON_BYTES, read_json_object, write_json, writing
from phasegrad.runs.reading import METRICS
from phasegrad.studies.curves import CURVES, curve_rows, recorded_curve_rows, write_curve_rows
from phasegrad.studies.definition import Study
from phasegrad.studies.figure import draw_study
from phasegrad.studies.grid import PlannedRun, build_grid
from phasegrad.studies.pages import definition_data
from phasegrad.studies.recorded import TABLE, Key, Rows, key_of, recorded_rows, scored_from
from phasegrad.studies.runner import Outcome
from phasegrad.studies.scores import Scored, score_runs
from phasegrad.studies.standing import DEFINITION
from phasegrad.studies.table import build_table
from phasegrad.studies.table_views import write_table

SETTINGS = "settings.json"  # of a record: by environment and variant, every setting of the runs whose scores it has
OF_ONE_RUN = ("seed",)
Cells = dict[tuple[str, str], dict[str, Any]]  # by environment and variant
AGAIN = "start the study again"


class Record:
    """The folder of a study's record."""

    def __init__(
        self, root: Path, study: Study, selected: Study, overrides: Mapping[str, Any], runs_root: Path
    ) -> None:
        """`study` is the whole one, `selected` what is run of it now, with its folders below `runs_root`."""
        self.root = root
        self.rows = self._read()
        self.study = _both(study, selected, self.rows)
        self.runs = build_grid(self.study, runs_root, overrides)
        known = {key_of(run, measure) for run in self.runs for measure in self.study.measures}
        for key in self.rows:
            if key not in known:
                environment, variant, _, seed = key
                added = all(environment != own for own, *_ in known)
                raise RunError(
                    f"{root} has a score of {environment} {variant} seed {seed}, which this study does not have: "
                    + (f"name {environment} in --envs too, or " if added else "")
                    + "choose another --record."
                )
        self.settings = _expanded(read_json_object(root / SETTINGS, MOST_JSON_BYTES))
        for run in self.runs:
            if self.has(run):
                self._require_same(run)

    def _read(self) -> Rows:
        """What the folder has now: another process may have added to it."""
        table = self.root / TABLE
        rows = recorded_rows(table) if table.is_file() else {}
        return {key: row for key, row in rows.items() if row.get("score")}

    def has(self, run: PlannedRun) -> bool:
        """Whether the record has the run's score, by every measure."""
        return all(key_of(run, measure) in self.rows for measure in self.study.measures)

    def _require_same(self, run: PlannedRun) -> None:
        """Scores of different settings must never stand in one table."""
        found = self.settings.get(_cell(run))
        if found is None:
            raise RunError(
                f"{self.root} has a score of {run.label} and no settings for it in {SETTINGS}: choose another --record."
            )
        differs = run.difference(found, OF_ONE_RUN)
        if differs:
            name, there, value = differs
            raise RunError(
                f"{self.root} has a score of {run.label} with {name} {there!r}, and this study wants {value!r}: "
                "choose another --record."
            )

    def scored(self) -> list[Scored]:
        """Every run of the whole study: from its folder where it has finished there, else from the record."""
        there = {run.folder: run.state() == "finished" for run in self.runs}
        kept = [run for run in self.runs if not there[run.folder] and self.has(run)]
        found = scored_from(self.rows, self.study, kept, self.root / TABLE)
        return score_runs(self.study, self.runs, {}, self.root, found)

    def update(self, figure: bool = False) -> None:
        """Write the record with everything that has finished by now; the picture, which takes a second, where asked."""
        self.rows = self._read()
        self.settings |= _expanded(read_json_object(self.root / SETTINGS, MOST_JSON_BYTES))
        scored = self.scored()
        done = {entry.run.folder for entry in scored if entry.score is not None}
        finished = [run for run in self.runs if run.folder in done]
        for run in finished:
            if run.state() == "finished":
                self.settings[_cell(run)] = cell_settings(run)
        with writing(self.root, AGAIN):
            self.root.mkdir(parents=True, exist_ok=True)
        write_json(self.root / DEFINITION, definition_data(self.study, self.runs), AGAIN)
        write_json(self.root / SETTINGS, _factored(self.settings), AGAIN)
        self._write_curves(finished)
        write_table(build_table(self.study, scored), self.root)
        if figure:
            draw_study(self.root, self.study.title, self.study.score == "last100")

    def noticing(self, outcome: Outcome) -> None:
        """A run is over: what it scored is kept at once, since nobody knows how long the others take."""
        if outcome.status == "finished":
            self.update()

    def _write_curves(self, finished: Sequence[PlannedRun]) -> None:
        """curves.csv: of runs that are here anew, of the others as they were recorded."""
        recorded = recorded_curve_rows(self.root / CURVES) if (self.root / CURVES).is_file() else {}
        rows: list[list[str]] = []
        for run in finished:
            environment, variant, _, seed = key_of(run, "")
            here = run.state() == "finished" and (run.folder / METRICS).exists()
            rows += curve_rows(run) if here else recorded.get((environment, variant, seed), [])
        write_curve_rows(rows, self.root)


def cell_settings(run: PlannedRun) -> dict[str, Any]:
    """Every setting that the runs of an environment and variant share."""
    return {name: value for name, value in run.settings().items() if name not in OF_ONE_RUN}


def _cell(run: PlannedRun) -> tuple[str, str]:
    return run.environment.name, run.variant.name


def _factored(cells: Cells) -> dict[str, Any]:
    """For the file: what all cells agree in once, then what is each one's own."""
    first = next(iter(cells.values()), {})
    common = {
        name: value
        for name, value in first.items()
        if all(name in cell and cell[name] == value for cell in cells.values())
    }
    own: dict[str, dict[str, Any]] = {}
    for (environment, variant), cell in sorted(cells.items()):
        differing = {name: value for name, value in cell.items() if name not in common}
        own.setdefault(environment, {})[variant] = differing
    return {"all": common, "own": own}


def _expanded(data: Mapping[str, Any]) -> Cells:
    """The inverse of `_factored`, of a file that anyone may have written."""
    common, own = (found if isinstance(found := data.get(name), dict) else {} for name in ("all", "own"))
    variants = [(environment, cells) for environment, cells in own.items() if isinstance(cells, dict)]
    return {
        (environment, variant): common | cell
        for environment, cells in variants
        for variant, cell in cells.items()
        if isinstance(cell, dict)
    }


def _both(study: Study, selected: Study, recorded: Iterable[Key]) -> Study:
    """The whole study, with the environments that the command line adds, and the seeds that it adds or added before."""
    names = {entry.name for entry in study.environments}
    added = tuple(entry for entry in selected.environments if entry.name not in names)
    seeds = dict.fromkeys((*study.seeds, *selected.seeds, *(int(seed) for *_, seed in recorded if seed.isdecimal())))
    return dataclasses.replace(
        selected, environments=(*study.environments, *added), variants=study.variants, seeds=tuple(sorted(seeds))
    )
