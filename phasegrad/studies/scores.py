"""From finished runs to scores, raw and on the common scale where 0 and 1 mean the same in every environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phasegrad.config import Config
from phasegrad.envs.figures import procgen_scale
from phasegrad.runs.files import read_json_object, write_json
from phasegrad.runs.reading import number_or_none
from phasegrad.studies.definition import Environment, Study
from phasegrad.studies.grid import PlannedRun
from phasegrad.studies.random_policy import random_return

RANDOM = "random.json"
WINDOW = 100  # training episodes that a run's return is the mean of


@dataclass(frozen=True)
class Scored:
    """A run with what it scored; None where there is no score."""

    run: PlannedRun
    status: str
    measure: str
    score: float | None
    normalised: float | None
    seconds: float | None
    episodes: int | None = None  # that the score is the mean of
    episodes_cut: int = 0  # of them, so many were ended at the most steps allowed
    success_rate: float | None = None  # of them, where the environment speaks of successes


def measured(study: Study, run: PlannedRun, measure: str) -> dict[str, Any]:
    """What a finished run came to by one measure: return_mean, episodes, episodes_cut."""
    if study.score == "levels":
        return dict(run.levels().get(measure, {}))
    if study.score == "eval":
        return run.evaluation()
    result = run.result()
    ended = number_or_none(result.get("episodes"))
    found = {"return_mean": result.get("return_mean"), "success_rate": result.get("success_rate")}
    return found | {"episodes": None if ended is None else min(ended, WINDOW)}


def raw_score(study: Study, run: PlannedRun, measure: str) -> float | None:
    """The score of a finished run by one measure."""
    return number_or_none(measured(study, run, measure).get("return_mean"))


def score_runs(
    study: Study, runs: Sequence[PlannedRun], failed: Mapping[Path, str], root: Path, recorded: Sequence[Scored] = ()
) -> list[Scored]:
    """Every run by every measure; those that are not done have no score. `recorded`: of runs whose folders are elsewhere."""
    kept = {(entry.run.folder, entry.measure): entry for entry in recorded}
    states = {run.folder: "failed" if run.folder in failed else run.state() for run in runs}
    results = {
        (run.folder, measure): measured(study, run, measure) if states[run.folder] == "finished" else {}
        for run in runs
        for measure in study.measures
    }
    found = {key: number_or_none(result.get("return_mean")) for key, result in results.items()}
    found |= {key: entry.score for key, entry in kept.items()}
    scales = scales_of(study, runs, found, root)
    scored = []
    for run in runs:
        seconds = run.result().get("seconds") if states[run.folder] == "finished" else None
        for measure in study.measures:
            score, scale = found[run.folder, measure], scales.get(_scale_key(run))
            normalised = None if score is None or scale is None else (score - scale[0]) / (scale[1] - scale[0])
            if (run.folder, measure) in kept:
                entry = kept[run.folder, measure]
                scored.append(replace(entry, normalised=entry.normalised if scale is None else normalised))
                continue
            episodes, cut = (
                number_or_none(results[run.folder, measure].get(name)) for name in ("episodes", "episodes_cut")
            )
            counted = None if score is None or episodes is None else int(episodes)
            rate = None if score is None else number_or_none(results[run.folder, measure].get("success_rate"))
            told = (counted, int(cut or 0), rate)
            scored.append(Scored(run, states[run.folder], measure, score, normalised, seconds, *told))
    return scored


def _scale_key(run: PlannedRun) -> tuple[str, str]:
    """Scales differ by environment and, for Procgen, by the levels' difficulty."""
    return run.environment.name, str(run.config.env_options.get("distribution", "easy"))


def scales_of(
    study: Study, runs: Sequence[PlannedRun], found: Mapping[tuple[Path, str], float | None], root: Path | None
) -> dict[tuple[str, str], tuple[float, float]]:
    """The scores that count as 0 and 1, where they are known."""
    scales: dict[tuple[str, str], tuple[float, float]] = {}
    if study.normalise == "none":
        return scales
    for run in runs:
        key = _scale_key(run)
        if key in scales:
            continue
        if study.normalise == "constants":
            constants = environment_constants(run.environment, run.config)
            if constants is not None:
                scales[key] = constants
            continue
        same = [found.get((other.folder, m)) for other in runs if _scale_key(other) == key for m in study.measures]
        reached = [score for score in same if score is not None]
        if reached and root is not None:
            low, high = random_score(run, root), max(reached)
            if high > low:  # otherwise nothing beat random actions, and there is no scale
                scales[key] = (low, high)
    return scales


def environment_constants(environment: Environment, config: Config) -> tuple[float, float] | None:
    """The study's constants, or the built-in ones of Procgen."""
    if environment.low is not None and environment.high is not None:
        return environment.low, environment.high
    return procgen_scale(environment.env, config.env_options)


def random_score(run: PlannedRun, root: Path) -> float:
    """What random actions score: the study's constant, or measured once and kept in the study's folder."""
    if run.environment.random is not None:
        return run.environment.random
    known: dict[str, Any] = read_json_object(root / RANDOM)
    value = known.get(run.environment.name)
    if not isinstance(value, (int, float)):
        value = random_return(run.environment.env, run.config.env_options, run.config.backend)
        write_json(root / RANDOM, {**known, run.environment.name: value}, "start the study again")
    return float(value)
