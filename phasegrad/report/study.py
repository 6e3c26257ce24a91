"""What a study's folder says about the runs below it: its variants, its aims, how it scores and on which scale.

`study.json` is data from anyone, like every other file: what is not of the right type is as if it were not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phasegrad.envs.figures import procgen_scale
from phasegrad.machine.paths import folder_name
from phasegrad.report.collect import RecordedRun, text
from phasegrad.report.grouping import RunGroup, make_distinct
from phasegrad.runs.files import MOST_JSON_BYTES, read_json_object
from phasegrad.runs.reading import number_or_none

DEFINITION, RANDOM = "study.json", "random.json"
MEASURES = {"last100": ("return",), "eval": ("return",), "levels": ("train", "test")}
SCORED_BY = {
    "last100": "the mean return of the last 100 training episodes, with sampled actions",
    "eval": "the mean return of the evaluation after training, with greedy actions",
    "levels": "the mean return of episodes after training, with sampled actions, on training levels and on all levels",
}
SCALED_BY = {
    "constants": "0 and 1 are the study's constants of each environment",
    "random-best": "in each environment 0 is what random actions score and 1 the best run",
}


@dataclass(frozen=True)
class StudyEnvironment:
    """One environment of the study, with its constants where it has them."""

    env: str
    name: str
    low: float | None
    high: float | None
    random: float | None
    aim: float | None


@dataclass(frozen=True)
class StudyFolder:
    """A study as its folder has it."""

    root: Path
    title: str
    score: str
    normalise: str
    published_from: str
    environments: tuple[StudyEnvironment, ...]
    published: Mapping[str, Mapping[str, float]]  # by variant and measure
    random: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measures(self) -> tuple[str, ...]:
        return MEASURES[self.score]

    def environment_of(self, run: RecordedRun) -> StudyEnvironment | None:
        """The entry that a run belongs to: by its environment, and by its folder where several have the same."""
        same = [entry for entry in self.environments if entry.env == run.config.get("env")]
        if len(same) > 1:
            same = [entry for entry in same if folder_name(entry.name) == run.path.resolve().parts[-3]]
        return same[0] if len(same) == 1 else None

    def variant_of(self, run: RecordedRun) -> str | None:
        folder = run.path.resolve().parts[-2]
        return next((name for name in self.published if folder_name(name) == folder), None)

    def score_of(self, run: RecordedRun, measure: str) -> float | None:
        """What the study's own table counts: the score of a finished run by its measure."""
        if run.result.get("status") not in ("finished", "stopped"):
            return None
        if self.score == "last100":
            return number_or_none(run.result.get("return_mean"))
        found = run.levels.get(measure) if self.score == "levels" else run.result.get("eval")
        return number_or_none(found.get("return_mean")) if isinstance(found, Mapping) else None

    def scales(self, runs: Sequence[RecordedRun]) -> dict[str, tuple[float, float]]:
        """The scores that count as 0 and 1 by environment, where there is a scale; as `phasegrad study` has it."""
        found: dict[str, tuple[float, float]] = {}
        for run in runs:
            entry = self.environment_of(run)
            if entry is None or entry.name in found:
                continue
            if self.normalise == "constants":
                scale = _constants(entry, run)
            else:
                scale = self._random_best(entry, runs) if self.normalise == "random-best" else None
            if scale is not None and scale[1] > scale[0]:
                found[entry.name] = scale
        return found

    def _random_best(self, entry: StudyEnvironment, runs: Sequence[RecordedRun]) -> tuple[float, float] | None:
        low = number_or_none(self.random.get(entry.name)) if entry.random is None else entry.random
        members = [run for run in runs if self.environment_of(run) == entry]
        reached = [score for run in members for m in self.measures if (score := self.score_of(run, m)) is not None]
        return None if low is None or not reached else (low, max(reached))


def _constants(entry: StudyEnvironment, run: RecordedRun) -> tuple[float, float] | None:
    if entry.low is not None and entry.high is not None:
        return entry.low, entry.high
    options = run.config.get("env_options")
    return procgen_scale(entry.env, options if isinstance(options, Mapping) else {})


def study_of(runs: Sequence[RecordedRun]) -> StudyFolder | None:
    """The study whose folder holds all of the runs, at the places where a study puts them."""
    roots = {_root(run.path.resolve()) for run in runs}
    root = roots.pop() if len(roots) == 1 else None
    return None if root is None else read_study(root)


def _root(path: Path) -> Path | None:
    """The study's folder over ROOT/runs/ENVIRONMENT/VARIANT/sSEED."""
    fits = len(path.parts) > 4 and path.parts[-4] == "runs"
    return path.parents[3] if fits and (path.parents[3] / DEFINITION).is_file() else None


def read_study(root: Path) -> StudyFolder | None:
    """The study in a folder; None where its file is not one."""
    data = read_json_object(root / DEFINITION, MOST_JSON_BYTES)
    listed, variants = data.get("environments"), data.get("variants")
    if not isinstance(listed, list) or not isinstance(variants, list) or data.get("score") not in MEASURES:
        return None
    environments = []
    for entry in listed:
        if isinstance(entry, Mapping) and isinstance(entry.get("env"), str):
            name = entry.get("name") if isinstance(entry.get("name"), str) else entry["env"]
            low, high, random, aim = (number_or_none(entry.get(key)) for key in ("low", "high", "random", "aim"))
            environments.append(StudyEnvironment(entry["env"], str(name), low, high, random, aim))
    published = {}
    for variant in variants:
        if isinstance(variant, Mapping) and isinstance(variant.get("name"), str):
            figures = variant.get("published")
            figures = figures if isinstance(figures, Mapping) else {}
            numbers = {str(key): number_or_none(value) for key, value in figures.items()}
            published[variant["name"]] = {key: value for key, value in numbers.items() if value is not None}
    return StudyFolder(
        root,
        text(data.get("title", root.name)),
        data["score"],
        str(data.get("normalise")),
        text(data.get("published_from") or ""),
        tuple(environments),
        published,
        read_json_object(root / RANDOM),
    )


def name_by_study(groups: list[RunGroup], study: StudyFolder | None) -> None:
    """Groups by the names and in the order that the study's own table has."""
    if study is None:
        return
    entries, variants = list(study.environments), list(study.published)

    def place(group: RunGroup) -> tuple[int, int]:
        entry, variant = study.environment_of(group.runs[0]), study.variant_of(group.runs[0])
        return (
            entries.index(entry) if entry is not None else len(entries),
            variants.index(variant) if variant is not None else len(variants),
        )

    groups.sort(key=place)
    for group in groups:
        entry, variant = study.environment_of(group.runs[0]), study.variant_of(group.runs[0])
        if entry is not None and variant is not None:
            algorithm = group.runs[0].algorithm
            group.env = text(entry.name)
            group.variant = variant.upper() if variant.lower() == algorithm.lower() else text(variant)
            group.label = f"{group.variant} on {group.env}"
    make_distinct(groups)
