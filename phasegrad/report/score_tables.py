"""Scores as tables: each group's, and the evaluations that were made later."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from phasegrad.report.collect import text
from phasegrad.report.grouping import RunGroup
from phasegrad.report.scoring import FEWEST_FOR_WINNER, TRAINING, GroupScore, group_score, winner
from phasegrad.report.statistics import summarise
from phasegrad.report.tables import interval, number, table


def source_of(score: GroupScore) -> str:
    """What a group's score is made of, in words."""
    if score.kind == TRAINING:
        return TRAINING
    return "evaluation" if score.episodes is None else f"evaluation, {score.episodes:,} episodes"


def score_table(groups: Sequence[RunGroup]) -> str:
    """Final scores by group: interquartile mean and mean with their intervals, and each seed's score."""
    rows = []
    by_env: dict[str, list[RunGroup]] = {}
    for group in groups:
        by_env.setdefault(group.env, []).append(group)
    best = {id(winner(members)) for members in by_env.values()}
    tested = any(group_score(group).test for group in groups)
    for group in groups:
        score = group_score(group)
        cells = [escape(group.env), escape(group.variant)]
        if not score.values:
            rows.append(
                [*cells, *(["–"] if tested else []), str(len(group.runs)), "–", "–", "–", "no finished episode", "–"]
            )
            continue
        source = source_of(score)
        if score.left_out:
            source += f"; {score.left_out} of {len(group.runs)} seeds without"
        sets = [("training levels" if score.test else "–", score.values, source)]
        if score.test:
            sets.append(("test levels", score.test, source))
        for levels, values, made_of in sets:
            found = summarise([values])
            shown = number(found.iqm.value)
            if id(group) in best and levels != "test levels":
                shown = f"<strong>{shown}</strong>"
            each = ", ".join(number(value) for value in values[:20]) + (", …" if len(values) > 20 else "")
            row = [*cells, *([levels] if tested else []), str(found.count), shown, interval(found.iqm, found.count)]
            rows.append([*row, number(found.mean.value), each, made_of])
    head = [
        "environment",
        "variant",
        *(["levels"] if tested else []),
        "seeds",
        "IQM",
        "95 % interval",
        "mean",
        "each seed",
        "made of",
    ]
    note = f"Bold: the highest interquartile mean of an environment, where every variant has {FEWEST_FOR_WINNER} seeds or more."
    explained = f'<p class="quiet">{note}</p>' if best - {id(None)} else ""
    return table("Scores", head, rows, numeric=3 if tested else 2) + explained


def evaluations_table(groups: Sequence[RunGroup]) -> str:
    """What `phasegrad eval` found later, beside the runs' own scores."""
    rows = []
    for group in groups:
        for run in group.runs:
            for line in run.evaluations[-20:]:
                greedy = line.get("deterministic")
                rows.append(
                    [
                        escape(run.name),
                        number(line.get("step")),
                        "greedy" if greedy is True else "sampled" if greedy is False else "–",
                        escape(text(line.get("levels") or "–")),
                        escape(text(line.get("seed", "–"))),
                        number(line.get("episodes")),
                        number(line.get("return_mean")),
                        number(line.get("return_std")),
                        f"{number(line.get('return_min'))} to {number(line.get('return_max'))}",
                        number(line.get("length_mean")),
                        number(line.get("episodes_cut")),
                    ]
                )
    if not rows:
        return ""
    head = [
        "run",
        "step",
        "actions",
        "levels",
        "seed",
        "episodes",
        "mean",
        "deviation",
        "lowest to highest",
        "length",
        "cut",
    ]
    return table("Evaluations made later, by phasegrad eval", head, rows[:500], numeric=5)
