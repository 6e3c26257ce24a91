"""What the runs came to, in words: what was trained, its score and what that means, how long it took, and its health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from phasegrad.envs.figures import PROCGEN_FROM, SOLVED_FROM, procgen_scale, random_figure, solved_at
from phasegrad.report.catalogue import HEALTHY
from phasegrad.report.collect import RecordedRun
from phasegrad.report.grouping import RunGroup
from phasegrad.report.health import STATES, Finding, findings
from phasegrad.report.score_tables import source_of
from phasegrad.report.scoring import EVALUATION, FEWEST_FOR_INTERVAL, TRAINING, GroupScore, group_score
from phasegrad.report.statistics import summarise
from phasegrad.report.study import StudyFolder
from phasegrad.report.tables import duration, interval, number, table
from phasegrad.runs.reading import number_or_none

MOST_CARDS = 12
MARKS = {"green": "✓", "amber": "!", "red": "✕"}


@dataclass(frozen=True)
class Target:
    """A score to reach and who says so."""

    value: float
    name: str  # such as "solved"
    source: str


@dataclass(frozen=True)
class Verdict:
    """The verdict on one group."""

    group: RunGroup
    score: GroupScore
    target: Target | None
    met: int  # seeds whose score reaches the target
    sentences: list[str] = field(default_factory=list)
    health: list[Finding] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def state(self) -> str | None:
        """green: every seed reaches the target; amber: some; red: none; None where there is no target."""
        if self.target is None or not self.score.values or self.score.kind != EVALUATION:
            return None
        return "green" if self.met == len(self.score.values) else "amber" if self.met else "red"


def options_of(run: RecordedRun) -> Mapping[str, Any]:
    found = run.config.get("env_options")
    return found if isinstance(found, Mapping) else {}


def target_of(group: RunGroup, study: StudyFolder | None) -> Target | None:
    """The study's aim, otherwise the threshold that gymnasium has for the environment."""
    run = group.runs[0]
    entry = study.environment_of(run) if study is not None else None
    if entry is not None and entry.aim is not None:
        return Target(entry.aim, "the study's aim", "the study's aim")
    threshold = solved_at(run.env, options_of(run))
    return None if threshold is None else Target(threshold, "solved", SOLVED_FROM)


def first_reached(run: RecordedRun, target: float) -> tuple[float, float] | None:
    """Steps and seconds of the first evaluation at or above the target."""
    rows, values = run.column("eval_return_mean")
    at = rows[values >= target]
    return (float(run.steps[at[0]]), float(run.seconds[at[0]])) if len(at) else None


def judge(group: RunGroup, study: StudyFolder | None = None) -> Verdict:
    """The verdict on one group, from its files alone."""
    score, target = group_score(group), target_of(group, study)
    met = sum(value >= target.value for value in score.values) if target is not None else 0
    verdict = Verdict(group, score, target, met, health=findings(group))
    verdict.sentences.extend(_meaning(verdict))
    verdict.advice.extend(_advice(verdict))
    return verdict


def _meaning(verdict: Verdict) -> list[str]:
    """What the score means: the target, how long it took, random actions, the published scale."""
    group, score, target = verdict.group, verdict.score, verdict.target
    run, sentences = group.runs[0], []
    if not score.values:
        return ["No episode has finished yet."]
    middle = summarise([score.values], 100).iqm.value
    if score.kind == TRAINING:
        sentences.append("Not evaluated: this is the mean of the last 100 training episodes, with sampled actions.")
    elif target is not None:
        sentences += _against_target(verdict, target)
    stops = {number_or_none(each.result.get("reached")) for each in group.runs if each.status == "stopped"} - {None}
    if stops:
        sentences.append(
            f"Stopped when an evaluation reached {' or '.join(map(number, sorted(stops, key=str)))}, as asked (stop_at)."
        )
    random = random_figure(run.env, options_of(run))
    if random is not None:
        sentences.append(f"Random actions score {number(random)}.")
    scale = procgen_scale(run.env, options_of(run))
    if scale is not None:
        share = (middle - scale[0]) / (scale[1] - scale[0])
        sentences.append(
            f"{share:.2f} on the scale where {number(scale[0])} is 0 and {number(scale[1])} is 1 ({PROCGEN_FROM})."
        )
    if target is None and score.kind == EVALUATION:
        sentences.append(_time_to_own_score(group))
    return [sentence for sentence in sentences if sentence]


def _against_target(verdict: Verdict, target: Target) -> list[str]:
    count = len(verdict.score.values)
    whose = f"{number(target.value)}, {target.source}"
    every = "its seed" if count == 1 else f"all {count} seeds" if count > 2 else "both seeds"
    if verdict.met == count:
        word = "Solved" if target.name == "solved" else "Aim met"
        sentence = f"{word}: {every} score{'s' if count == 1 else ''} at or above {whose}."
    else:
        word = "Not solved" if target.name == "solved" else "Aim not met"
        some = f"{verdict.met} of {count} seeds reach" if count > 1 else "the seed does not reach"
        sentence = f"{word}: {some} {whose}."
    reached = [found for run in verdict.group.runs if (found := first_reached(run, target.value)) is not None]
    if not reached:
        return [sentence]
    steps, seconds = (float(np.median([found[i] for found in reached])) for i in (0, 1))
    who = "" if len(verdict.group.runs) == 1 else f", median of the {len(reached)} seeds that did"
    return [sentence, f"First reached after {number(steps)} steps and {duration(seconds)}{who}."]


def _time_to_own_score(group: RunGroup) -> str:
    """Where there is no target: when the run came within 5 % of the way to its own best evaluation."""
    found = []
    for run in group.runs:
        _, values = run.column("eval_return_mean")
        if len(values) >= 3 and values.max() > values.min():
            reached = first_reached(run, float(values.max() - 0.05 * (values.max() - values.min())))
            found += [reached] if reached else []
    if not found:
        return ""
    steps, seconds = (float(np.median([entry[i] for entry in found])) for i in (0, 1))
    return f"Within 5 % of its best evaluation after {number(steps)} steps and {duration(seconds)}."


def _advice(verdict: Verdict) -> list[str]:
    """What to do next, a sentence each."""
    said = []
    for finding in verdict.health:
        if finding.advice:
            where = f" in {finding.seeds} of {finding.of} seeds" if finding.of > 1 else ""
            said.append(f"{_capital(finding.name)} {number(finding.value, 2)}{where}: {finding.advice}.")
    if verdict.score.kind == TRAINING and verdict.score.values:
        said.append("Evaluate it: phasegrad eval DIR.")
    elif verdict.target is not None and verdict.state != "green":
        said.append(_how_to_go_on(verdict.group, verdict.target.value))
    if len(verdict.group.runs) < FEWEST_FOR_INTERVAL:
        said.append("Train at least three seeds before you compare: single runs vary widely by chance.")
    return said


def _how_to_go_on(group: RunGroup, target: float) -> str:
    """Longer, or otherwise: whether the seeds that fall short score more in the last third than in the one before it."""
    rising = []
    for run in group.runs:
        rows, values = run.column("eval_return_mean")
        if not len(values) or values[-1] >= target:
            continue
        places = run.steps[rows] / run.steps[-1]
        late, before = values[places > 2 / 3], values[(places > 1 / 3) & (places <= 2 / 3)]
        before = before if len(before) else values[places <= 2 / 3]
        if len(late) and len(before):
            rising.append(bool(late.mean() - before.mean() > 0.05 * np.ptp(values)))
    if not rising:
        return "One evaluation does not show whether the score still rises: evaluate more often (eval_every)."
    if sum(rising) * 2 > len(rising):
        return "The score still rises: train longer."
    return "The score has stopped rising: other settings will do more than more steps (phasegrad tune)."


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def health_marks(health: Sequence[Finding]) -> str:
    """The findings as marks with their words, so that colour is not all that tells them apart."""
    shown = []
    for finding in health:
        healthy = HEALTHY[finding.metric]
        limits = str(healthy) if np.isfinite(healthy.high) else f"{healthy.low:g} or more"
        title = f"{finding.name}: {finding.state}, {number(finding.value, 2)} ({finding.meaning}); healthy: {limits}"
        shown.append(
            f'<li class="mark mark-{finding.state}" title="{escape(title)}"><span aria-hidden="true">{MARKS[finding.state]}</span>'
            f'<span class="hidden-text">{finding.state}: </span>{escape(finding.name)} {number(finding.value, 2)}</li>'
        )
    return f'<ul class="marks">{"".join(shown)}</ul>' if shown else ""


def card(verdict: Verdict) -> str:
    """One group's verdict as a tile."""
    score, group = verdict.score, verdict.group
    value, note = "–", ""
    if score.values:
        found = summarise([score.values])
        value = number(found.iqm.value)
        seeds = (
            "seed " + escape(group.runs[0].seed)
            if found.count == 1
            else f"{'IQM' if found.count > 3 else 'mean'} of {found.count} seeds"
        )
        spread = f", 95&nbsp;%: {interval(found.iqm, found.count)}" if found.count >= FEWEST_FOR_INTERVAL else ""
        test = f"<br>test levels: {number(summarise([score.test]).iqm.value)}" if score.test else ""
        note = f'<div class="card-note">{escape(source_of(score))}<br>{seeds}{spread}{test}</div>'
    steps = {float(run.steps[-1]) for run in group.runs}
    most = max(float(run.seconds[-1]) for run in group.runs)
    trained = f"{number(max(steps))} steps{' at most' if len(steps) > 1 else ''} in {duration(most)}"
    meaning = "".join(f"<p>{escape(sentence)}</p>" for sentence in verdict.sentences)
    advice = "".join(f"<li>{escape(sentence)}</li>" for sentence in verdict.advice) or "<li>Nothing to fix.</li>"
    state = f" card-{verdict.state}" if verdict.state else ""
    return (
        f'<article class="card{state}"><h3 class="card-label">{escape(group.label)}</h3><div class="card-value">{value}</div>{note}'
        f'<div class="card-text"><p>Trained for {trained}.</p>{meaning}</div>{health_marks(verdict.health)}'
        f'<div class="card-next"><b>Next</b><ul>{advice}</ul></div></article>'
    )


def verdict_block(groups: Sequence[RunGroup], study: StudyFolder | None) -> str:
    """The top of the page: a line over all groups, then a tile each; of many groups a table."""
    verdicts = [judge(group, study) for group in groups]
    lead = f'<p class="lead">{escape(_lead(verdicts))}</p>'
    ranges = '<p class="quiet">The health checks are rules of thumb, shaded in the charts below: a run that learns is healthy whatever they say.</p>'
    if len(verdicts) <= MOST_CARDS:
        return f'{lead}<div class="cards">{"".join(map(card, verdicts))}</div>{ranges}'
    rows = [
        [
            escape(verdict.group.label),
            number(summarise([verdict.score.values]).iqm.value) if verdict.score.values else "–",
            escape(source_of(verdict.score)),
            escape(" ".join(verdict.sentences)),
            health_marks(verdict.health),
            escape(" ".join(verdict.advice)),
        ]
        for verdict in verdicts
    ]
    return (
        lead
        + table("Verdicts", ["runs", "score", "made of", "what it means", "health", "next"], rows, numeric=99)
        + ranges
    )


def _lead(verdicts: Sequence[Verdict]) -> str:
    """One line over everything."""
    aimed = [verdict for verdict in verdicts if verdict.state is not None]
    parts = []
    if aimed:
        done = sum(verdict.state == "green" for verdict in aimed)
        many = len(aimed) > 1
        what = "configurations reach" if many else "configuration reaches"
        parts.append(f"{done} of {len(aimed)} {what} the target with every seed")
    states = [finding.state for verdict in verdicts for finding in verdict.health]
    if states:
        found = [f"{states.count(state)} {state}" for state in STATES if state in states]
        parts.append(f"health: {', '.join(found)}" if len(found) > 1 or "green" not in states else "health: all green")
    return _capital("; ".join(parts) or "no target is known for these environments") + "."
