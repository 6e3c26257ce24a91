"""Scores as tables: each group's, and the evaluations that were made later."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from phasegrad.report.collect import text
from phasegrad.report.grouping import RunGroup
from phasegrad.report.scoring import FEWEST_FOR_WINNER, TRAINING, GroupScore, group_score, winner
from phasegrad.report.statistics import summarise
from phasegrad.report.study import StudyFolder
from phasegrad.report.tables import interval, number, share, table

LEVELS, AIM = "levels", "aim: seeds that meet it"
SCORE_COLUMNS = ("environment", "variant", LEVELS, "seeds", "IQM", "95 % interval", "mean", "each seed", AIM, "made of")


def source_of(score: GroupScore) -> str:
    """What a group's score is made of, in words."""
    if score.kind == TRAINING:
        return TRAINING
    return "evaluation" if score.episodes is None else f"evaluation, {score.episodes:,} episodes"


def aim_of(group: RunGroup, study: StudyFolder | None) -> float | None:
    entry = study.environment_of(group.runs[0]) if study is not None else None
    return None if entry is None else entry.aim


def score_table(groups: Sequence[RunGroup], study: StudyFolder | None = None) -> str:
    """Final scores by group: interquartile mean and mean with their intervals, and each seed's score."""
    by_env: dict[str, list[RunGroup]] = {}
    for group in groups:
        by_env.setdefault(group.env, []).append(group)
    best = {id(found) for members in by_env.values() if (found := winner(members)) is not None}
    aimed = any(aim_of(group, study) is not None for group in groups)
    tested = any(group_score(group).test for group in groups)
    rows = [row for group in groups for row in _score_rows(group, id(group) in best, aim_of(group, study))]
    left = [*([] if tested else [LEVELS]), *([] if aimed else [AIM])]
    head = [name for name in SCORE_COLUMNS if name not in left]
    cells = [[row[name] for name in head] for row in rows]
    note = f"Bold: the highest interquartile mean of an environment, where every variant has {FEWEST_FOR_WINNER} seeds or more."
    explained = f'<p class="quiet">{note}</p>' if best else ""
    return table("Scores", head, cells, numeric=head.index("seeds"), words=("each seed", AIM, "made of")) + explained


def _score_rows(group: RunGroup, best: bool, aim: float | None) -> list[dict[str, str]]:
    """A group's row by column; with test levels one more."""
    score = group_score(group)
    row = dict.fromkeys(SCORE_COLUMNS, "–") | {"environment": escape(group.env), "variant": escape(group.variant)}
    if not score.values:
        return [row | {"seeds": str(len(group.runs)), "each seed": "no finished episode"}]
    source = source_of(score)
    if score.left_out:
        source += f"; {score.left_out} of {len(group.runs)} seeds without"
    rows = []
    for levels, values in (("training levels" if score.test else "–", score.values), ("test levels", score.test)):
        if not values:
            continue
        found = summarise([values])
        middle = number(found.iqm.value)
        cells = {LEVELS: levels, "seeds": str(found.count), "95 % interval": interval(found.iqm, found.count)}
        cells |= {"IQM": f"<strong>{middle}</strong>" if best and levels != "test levels" else middle}
        cells |= {"mean": number(found.mean.value), "made of": escape(source)}
        cells["each seed"] = ", ".join(map(number, values[:20])) + (", …" if len(values) > 20 else "")
        if aim is not None:
            cells[AIM] = f"{number(aim)}: {sum(value >= aim for value in values)} of {found.count}"
        rows.append(row | cells)
    return rows


def evaluations_table(groups: Sequence[RunGroup]) -> str:
    """What `phasegrad eval` found later, beside the runs' own scores."""
    rows = []
    told = any("success_rate" in line for group in groups for run in group.runs for line in run.evaluations[-20:])
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
                        *([share(line.get("success_rate"))] if told else []),
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
        *(["successes"] if told else []),
    ]
    return table("Evaluations made later, by phasegrad eval", head, rows[:500], numeric=5)
