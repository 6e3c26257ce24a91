"""The card of a saved agent: README.md, for people and for the Hugging Face Hub, with its learning curve beside it.

Made from what the agent and its run directory know: the task, the score and how it was found, the settings, the versions.
Whoever saves a loaded agent again may have no run directory, so what the card was made from is kept in the save.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phasegrad.runs.card_curve import draw_curve
from phasegrad.runs.card_text import readme
from phasegrad.runs.contract import Trainer
from phasegrad.runs.noting import is_greedy_at, read_evaluations
from phasegrad.runs.reading import METRICS, MetricsReader, number_or_none
from phasegrad.runs.replacing import CURVE, README

MOST_POINTS = 200  # of a curve
NUMBERS = (
    "step", "episodes", "episodes_cut", "seed", "return_mean", "return_std", "return_min", "return_max", "length_mean",
    "success_rate",
)  # fmt: skip
LEVELS = ("train", "test")
GREEDY, TRAINING = "mean return of greedy evaluations", "mean return of the last 100 training episodes"


@dataclass(frozen=True)
class Card:
    """The files, and what they were made from as plain JSON."""

    files: Mapping[str, bytes]
    record: Mapping[str, Any]


def card_of(trainer: Trainer, evaluation: Mapping[str, Any] | None = None) -> Card:
    """The card of an agent as it is now; `evaluation` is what it has just been found to score."""
    scored = dict(evaluation) if evaluation is not None else known_score(trainer)
    curve, what = known_curve(trainer)
    files: dict[str, bytes] = {}
    if len(curve) > 1:
        title = f"{trainer.name.upper()} on {trainer.config.env}"
        files[CURVE] = draw_curve(curve, title, what)
    files[README] = readme(trainer, scored, CURVE if CURVE in files else "", what).encode("utf-8", "replace")
    record: dict[str, Any] = {"curve": {"what": what, "points": [list(point) for point in curve]}}
    return Card(files, record | ({"evaluation": scored} if scored else {}))


def card_record(data: Any) -> dict[str, Any]:
    """What a save says its card was made from, in a form that is safe to use; {} where there is nothing of the kind."""
    data = data if isinstance(data, dict) else {}
    curve = data.get("curve") if isinstance(data.get("curve"), dict) else {}
    rows = curve.get("points")
    pairs = [(number_or_none(row[0]), number_or_none(row[1])) for row in _rows(rows)]
    points = [(step, value) for step, value in pairs if step is not None and value is not None]
    found: dict[str, Any] = {}
    if points:
        found["curve"] = {"what": TRAINING if curve.get("what") == TRAINING else GREEDY, "points": points}
    evaluation = sound_evaluation(data.get("evaluation"))
    return found | ({} if evaluation is None else {"evaluation": evaluation})


def sound_evaluation(data: Any) -> dict[str, Any] | None:
    """What a card says of an evaluation, from a file of anyone's; None where it lacks the numbers that a score needs."""
    data = data if isinstance(data, dict) else {}
    found = {name: data[name] for name in NUMBERS if number_or_none(data.get(name)) is not None}
    found |= {"deterministic": data["deterministic"]} if isinstance(data.get("deterministic"), bool) else {}
    found |= {"levels": data["levels"]} if data.get("levels") in LEVELS else {}
    return found if {"step", "return_mean", "episodes"} <= found.keys() else None


def _rows(rows: Any) -> list[Any]:
    rows = rows if isinstance(rows, list) else []
    return [row for row in rows[: 4 * MOST_POINTS] if isinstance(row, list) and len(row) == 2]


def known_score(trainer: Trainer) -> dict[str, Any] | None:
    """The evaluation of most episodes that is of this very step, by `phasegrad eval` or by the run; else the run's last."""
    run, step = trainer.run, trainer.run.progress.step
    of_run = [dict(run.evaluations.last, deterministic=True)] if run.evaluations.last else []
    kept = [dict(run.card["evaluation"])] if "evaluation" in run.card else []
    noted = read_evaluations(run.place) if run.place is not None and run.takes_over else []
    sound = [found for found in map(sound_evaluation, (*noted, *kept, *of_run)) if found is not None]
    here = [found for found in sound if is_greedy_at(found, step)]
    if here:
        return max(reversed(here), key=lambda found: found["episodes"])
    return next(iter([*of_run, *kept]), None)


def known_curve(trainer: Trainer) -> tuple[list[tuple[float, float]], str]:
    """(steps, return) of the run so far, of its evaluations where it had some, and which of the two it is."""
    run = trainer.run
    before = run.card.get("curve", {"what": GREEDY, "points": []})
    scores = dict(before["points"]) if before["what"] == GREEDY else {}
    returns = dict(before["points"]) if before["what"] == TRAINING else {}
    for row in run.history:
        if (score := number_or_none(row.get("return_mean"))) is not None:
            scores[float(row["step"])] = score
    if run.place is not None and run.takes_over:
        for found in MetricsReader(run.place / METRICS).new_rows():
            for name, curve in (("eval_return_mean", scores), ("return_mean", returns)):
                value, step = found.get(name), found.get("step")
                if isinstance(value, float) and isinstance(step, float):
                    curve[step] = value
    scores, returns = (_so_far(curve, run.progress.step) for curve in (scores, returns))
    return (_thinned(scores), GREEDY) if len(scores) > 1 else (_thinned(returns), TRAINING)


def _so_far(curve: Mapping[float, float], step: int) -> dict[float, float]:
    return {at: value for at, value in sorted(curve.items()) if 0 <= at <= step and math.isfinite(value)}


def _thinned(curve: Mapping[float, float]) -> list[tuple[float, float]]:
    points = list(curve.items())
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(index * (len(points) - 1) / (MOST_POINTS - 1))] for index in range(MOST_POINTS)]
