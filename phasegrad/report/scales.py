"""Scores of several environments on one scale: the study's where there is one, otherwise known constants, otherwise the runs' own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phasegrad.envs.figures import procgen_scale, random_figure, solved_at
from phasegrad.report.grouping import RunGroup
from phasegrad.report.scoring import EVALUATION, TRAINING, group_score
from phasegrad.report.study import SCALED_BY, SCORED_BY, StudyEnvironment, StudyFolder
from phasegrad.runs.reading import number_or_none

KNOWN = "0 is what random actions get and 1 what counts as solved (Procgen: its authors' constants)"
Strata = dict[str, dict[str, list[float]]]  # scores by variant and environment


@dataclass(frozen=True)
class ScaledScores:
    """Scores by variant and environment, what the scale is, and the environments that have none."""

    strata: Strata
    scale: str
    scaled: bool = True
    absolute: bool = True  # whether 1 means the same in another report: not where it is the best run here
    left_out: list[str] = field(default_factory=list)


def scaled_scores(
    groups: Sequence[RunGroup], study: StudyFolder | None, measure: str | None = None, *, always: bool = False
) -> ScaledScores:
    """The groups' scores on one scale; for one environment alone, and no study, the returns as they are.

    `always`: for one environment too, where its constants are known.
    """
    if study is not None and (found := _by_study(groups, study, measure or study.measures[-1])) is not None:
        return found
    scores = {id(group): group_score(group) for group in groups}
    kinds = {score.kind for score in scores.values() if score.values}
    kind = EVALUATION if EVALUATION in kinds else TRAINING  # never both in one picture
    members = [group for group in groups if scores[id(group)].values and scores[id(group)].kind == kind]
    raw = [(group, scores[id(group)].values) for group in members]
    envs = list(dict.fromkeys(group.env for group in members))
    called = "score in evaluation" if kind == EVALUATION else TRAINING
    if len(envs) < 2 and not (always and members and _known(members[0])):
        return ScaledScores(_strata(raw, dict.fromkeys(envs, (0.0, 1.0))), called, scaled=False)
    scales = {env: _known(next(group for group in members if group.env == env)) for env in envs}
    known = {env: scale for env, scale in scales.items() if scale is not None}
    if len(known) == len(envs):
        return ScaledScores(_strata(raw, known), f"{called}; {KNOWN}")
    ends: dict[str, tuple[float, float]] = {}
    for env in envs:
        every = [value for group, values in raw if group.env == env for value in values]
        if max(every) > min(every):
            ends[env] = (min(every), max(every))
    words = f"{called}; 0 and 1 are each environment's lowest and highest run here"
    return ScaledScores(_strata(raw, ends), words, absolute=False, left_out=[env for env in envs if env not in ends])


def _by_study(groups: Sequence[RunGroup], study: StudyFolder, measure: str) -> ScaledScores | None:
    """As the study's own table has it, to the digit."""
    runs = [run for group in groups for run in group.runs]
    scales = study.scales(runs)
    if not scales:
        return None
    strata: Strata = {}
    seen: set[str] = set()
    # in the study's own order, since the bootstrap draws in it: the same runs give the same interval as in the table
    places: dict[StudyEnvironment | None, int] = {entry: index for index, entry in enumerate(study.environments)}
    for group in sorted(groups, key=lambda group: places.get(study.environment_of(group.runs[0]), -1)):
        entry = study.environment_of(group.runs[0])
        members = sorted(group.runs, key=lambda run: number_or_none(run.config.get("seed")) or 0.0)
        scores = [score for run in members if (score := study.score_of(run, measure)) is not None]
        if entry is None or not scores:
            continue
        seen.add(entry.name)
        if entry.name in scales:
            low, high = scales[entry.name]
            stratum = strata.setdefault(group.variant, {}).setdefault(entry.name, [])
            stratum += [(score - low) / (high - low) for score in scores]
    if not strata:
        return None
    on = f" ({measure} levels)" if len(study.measures) > 1 else ""
    words = f"{SCORED_BY[study.score]}{on}; {SCALED_BY[study.normalise]}"
    return ScaledScores(strata, words, absolute=study.normalise == "constants", left_out=sorted(seen - set(scales)))


def _known(group: RunGroup) -> tuple[float, float] | None:
    """Constants of an environment: Procgen's, or random actions and solved."""
    run = group.runs[0]
    found = run.config.get("env_options")
    options = found if isinstance(found, Mapping) else {}
    low, high = random_figure(run.env, options), solved_at(run.env, options)
    if low is not None and high is not None and high > low:
        return low, high
    return procgen_scale(run.env, options)


def _strata(raw: Sequence[tuple[RunGroup, list[float]]], scales: Mapping[str, tuple[float, float]]) -> Strata:
    strata: Strata = {}
    for group, values in raw:
        if group.env in scales:
            low, high = scales[group.env]
            stratum = strata.setdefault(group.variant, {}).setdefault(group.env, [])
            stratum += [(value - low) / (high - low) for value in values]
    return strata
