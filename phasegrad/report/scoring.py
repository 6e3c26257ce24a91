"""What a run scored: its evaluation, and training returns only where there was none at all.

The mean of the last 100 training episodes is of sampled actions and of agents that were still learning. It is shown as
what it is and never beside an evaluation as if it were one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from phasegrad.report.collect import RecordedRun
from phasegrad.report.grouping import RunGroup
from phasegrad.runs.reading import number_or_none

EVALUATION, TRAINING = "evaluation", "training return, last 100 episodes"
FEWEST_FOR_INTERVAL = 3  # seeds: the interval of two is their distance
FEWEST_FOR_WINNER = 5  # seeds of each that is compared


@dataclass(frozen=True)
class RunScore:
    """One run's score and what it is made of."""

    value: float
    kind: str
    step: float
    episodes: int | None = None


@dataclass(frozen=True)
class GroupScore:
    """The scores of a group's seeds, all of one kind; `left_out` seeds have none of that kind."""

    values: list[float] = field(default_factory=list)
    kind: str = EVALUATION
    left_out: int = 0
    episodes: int | None = None  # of each evaluation, where they agree
    test: list[float] = field(default_factory=list)  # on levels not trained on


def run_score(run: RecordedRun) -> RunScore | None:
    """The final evaluation; while the run goes on its last one; then what `phasegrad eval` found; then training."""
    return evaluated_score(run) or _training_score(run)


def evaluated_score(run: RecordedRun, prefix: str = "eval") -> RunScore | None:
    """The score by evaluation; with prefix eval_test on the levels that were not trained on."""
    return _own_evaluation(run, prefix) or _later_evaluation(run, prefix) or _study_evaluation(run, prefix)


def _own_evaluation(run: RecordedRun, prefix: str) -> RunScore | None:
    rows, values = run.column(f"{prefix}_return_mean")
    last = None
    if len(values):
        at, episodes = run.column(f"{prefix}_episodes")
        count = {int(row): int(found) for row, found in zip(at, episodes)}.get(int(rows[-1]))
        last = RunScore(float(values[-1]), EVALUATION, float(run.steps[rows[-1]]), count)
    found = run.result.get(prefix)
    value = number_or_none(found.get("return_mean")) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or value is None:
        return last
    step = number_or_none(found.get("step"))
    final = RunScore(value, EVALUATION, float(run.steps[-1]) if step is None else step, _count(found))
    return last if last is not None and last.step > final.step else final  # a run that was taken up again


def _later_evaluation(run: RecordedRun, prefix: str) -> RunScore | None:
    """The latest greedy line of evaluations.jsonl at the run's last step, of the kind of levels asked for."""
    wanted = ("test",) if prefix == "eval_test" else (None, "", "train")
    for line in reversed(run.evaluations):
        at_end = number_or_none(line.get("step")) == run.steps[-1]
        if at_end and line.get("deterministic") is True and line.get("levels") in wanted:
            return RunScore(float(line["return_mean"]), EVALUATION, float(run.steps[-1]), _count(line))
    return None


def _study_evaluation(run: RecordedRun, prefix: str) -> RunScore | None:
    found = run.levels.get("test" if prefix == "eval_test" else "train")
    value = number_or_none(found.get("return_mean")) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or value is None:
        return None
    return RunScore(value, EVALUATION, float(run.steps[-1]), _count(found))


def _training_score(run: RecordedRun) -> RunScore | None:
    rows, values = run.column("return_mean")
    return RunScore(float(values[-1]), TRAINING, float(run.steps[rows[-1]])) if len(values) else None


def _count(found: Mapping[str, Any]) -> int | None:
    episodes = number_or_none(found.get("episodes"))
    return None if episodes is None or abs(episodes) > 1e12 else int(episodes)


def group_score(group: RunGroup) -> GroupScore:
    """The evaluations of its seeds; where no seed has one, their training returns."""
    scores = [run_score(run) for run in group.runs]
    kind = EVALUATION if any(score and score.kind == EVALUATION for score in scores) else TRAINING
    kept = [score for score in scores if score is not None and score.kind == kind]
    counts = {score.episodes for score in kept}
    test = [score.value for run in group.runs if (score := evaluated_score(run, "eval_test")) is not None]
    return GroupScore(
        [score.value for score in kept],
        kind,
        len(group.runs) - len(kept),
        counts.pop() if len(counts) == 1 else None,
        test,
    )


def final_scores(group: RunGroup) -> list[float]:
    return group_score(group).values


def is_evaluated(group: RunGroup) -> bool:
    """Whether some run of the group has an evaluation curve."""
    return any(len(run.column("eval_return_mean")[1]) for run in group.runs)


def winner(groups: Sequence[RunGroup]) -> RunGroup | None:
    """The group with the highest interquartile mean, where all have seeds enough and were scored alike."""
    from phasegrad.report.statistics import interquartile_mean

    scores = [group_score(group) for group in groups]
    if len(groups) < 2 or len({score.kind for score in scores}) > 1:
        return None
    if any(len(score.values) < FEWEST_FOR_WINNER for score in scores):
        return None
    middles = [float(interquartile_mean(np.asarray(score.values))) for score in scores]
    best = max(middles)
    return groups[middles.index(best)] if middles.count(best) == 1 else None
