"""What a search has tried, as plain data: a row for each trial, the line that tells of it, and how much each setting matters.

Takes Optuna's trials as they are and knows nothing of training.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phasegrad.runs.console import duration, number

STAGES = 10  # a trial reports its return after each tenth, where it may be pruned
LEAST_FOR_IMPORTANCES = 10  # complete trials
COLUMN = 41  # where a line goes on after a trial's own result
BEST_TRIALS = 5  # at least so many are told from the rest


def trial_row(trial: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One trial for trials.json and the page: `return` is its evaluation, `training_return` what it was pruned by."""
    reported = max(trial.intermediate_values, default=None)
    attributes = trial.user_attrs
    # Optuna's value of a pruned trial is what it last reported: a training return, no evaluation.
    value = trial.value if trial.state.name == "COMPLETE" else None
    return {
        "number": trial.number + 1,
        "state": trial.state.name.lower(),
        "return": value,
        "settings": dict(settings),
        "seconds": attributes.get("seconds"),
        "error": attributes.get("error"),
        "reached": 1.0 if value is not None else None if reported is None else reported / STAGES,
        "training_return": None if reported is None else trial.intermediate_values[reported],
        "episodes": attributes.get("episodes"),
        "episodes_cut": attributes.get("episodes_cut", 0),
    }


def trial_line(row: Mapping[str, Any], best: Mapping[str, Any] | None, left: int, seconds: float | None) -> str:
    """A trial as it ends: its value or why it has none, the best so far, its time, what is left."""
    if row["state"] == "complete":
        text = f"return {number(row['return'])}"
        if row["episodes_cut"]:
            text += f" ({row['episodes_cut']} of {row['episodes']} episodes cut)"
    elif row["state"] == "pruned":
        text = f"pruned at {row['reached'] or 0:.0%} (training {number(row['training_return'])})"
    else:
        text = f"failed: {row['error'] or 'unknown error'}"
    parts = [f"trial {row['number']}: {text}".ljust(COLUMN)]
    if best is not None:
        parts.append(f"best {number(best['return'])} (#{best['number']})")
    parts.append(f"{row['seconds'] or 0.0:.0f} s")
    if left > 0 and seconds is not None:
        parts.append(f"{duration(seconds)} left")
    return "  ".join(parts)


def best_row(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The complete trial with the highest evaluation, the first of equals."""
    complete = [row for row in rows if row["state"] == "complete"]
    return max(complete, key=lambda row: row["return"], default=None)


def seconds_for(rows: Sequence[Mapping[str, Any]], left: int) -> float | None:
    """What so many more trials take, at the mean of those that ended; None before the first."""
    taken = [row["seconds"] for row in rows if row["seconds"]]
    return left * sum(taken) / len(taken) if taken else None


def importances_of(optuna: Any, study: Any, shown_name: Callable[[str], str]) -> dict[str, float]:
    """By Optuna's PED-ANOVA: how much each setting decides whether a trial is among the best, as shares, largest first.

    {} below 10 complete trials, or where they are all alike.
    """
    complete = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    values = {trial.value for trial in complete}
    if len(complete) < LEAST_FOR_IMPORTANCES or len(values) < 2:
        return {}
    quantile = min(max(0.1, BEST_TRIALS / len(complete)), 0.5)
    made = optuna.importance.PedAnovaImportanceEvaluator
    try:
        evaluator = made(target_quantile=quantile)
    except TypeError:  # its name before Optuna 5
        evaluator = made(baseline_quantile=quantile)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    shares = {shown_name(name): float(share) for name, share in found.items() if math.isfinite(share)}
    return dict(sorted(shares.items(), key=lambda entry: -entry[1]))


def importances_text(importances: Mapping[str, float]) -> str:
    """For the console: every setting with its share."""
    listed = ", ".join(f"{name} {share:.0%}" for name, share in importances.items())
    return textwrap.fill(f"what mattered: {listed}", 80, subsequent_indent="  ", break_on_hyphens=False)
