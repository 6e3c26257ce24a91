"""Callbacks to derive from, and ready ones: what a run is told of, and what may end it early.

A callback holds nothing that a checkpoint would have to save: what it needs of the past it takes, at the start, from the
evaluations that the run has made. How callbacks are called is in `hooks.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from phasegrad.config import coerce
from phasegrad.errors import ConfigError
from phasegrad.machine.paths import as_path


class Callback:
    """Methods that do nothing, to be replaced by those that a callback needs; any object with some of them will do.

    `agent` is the one that learns. All but `on_end` stop the training by returning False; None goes on.
    """

    def on_start(self, agent: Any) -> object:
        """Once at the start of each `learn`, before its first iteration."""

    def on_evaluation(self, agent: Any, evaluation: dict[str, Any]) -> object:
        """After each evaluation that the run makes of itself: its step, return_mean, return_std, episodes and so on."""

    def on_iteration(self, agent: Any, metrics: dict[str, Any]) -> object:
        """After every iteration, with its metrics."""

    def on_checkpoint(self, agent: Any, path: Path) -> object:
        """After a checkpoint has been written to the run directory."""

    def on_end(self, agent: Any, result: dict[str, Any]) -> object:
        """Once the run is finished or was stopped by a callback, with what result.json holds."""


class StopAtScore(Callback):
    """Ends the run when an evaluation comes to a mean return of `threshold`, as the setting stop_at does."""

    def __init__(self, threshold: float) -> None:
        self.threshold = _number("threshold of StopAtScore", threshold)

    def on_start(self, agent: Any) -> bool:
        require_evaluations(agent, type(self).__name__)
        made = agent.run.history  # a run that was killed between its stop and its result
        return not (made and made[-1]["step"] == agent.progress.step and self._is_reached(made[-1]))

    def on_evaluation(self, agent: Any, evaluation: Mapping[str, Any]) -> bool:
        return not self._is_reached(evaluation)

    def _is_reached(self, evaluation: Mapping[str, Any]) -> bool:
        return score_of(evaluation) >= self.threshold


class StopWithoutImprovement(Callback):
    """Ends the run after `patience` evaluations in a row that were no better than the best before by more than `min_delta`.

    A resumed run counts those that it had made before.
    """

    def __init__(self, patience: int = 5, min_delta: float = 0.0) -> None:
        self.patience: int = coerce("patience of StopWithoutImprovement", patience, int, {"low": 1})
        self.min_delta = _number("min_delta of StopWithoutImprovement", min_delta, low=0)
        self.best, self.waited = -math.inf, 0

    def on_start(self, agent: Any) -> bool:
        require_evaluations(agent, type(self).__name__)
        made, best = agent.run.history, agent.run.evaluations.best  # one that was saved apart knows its best alone
        self.best, self.waited = score_of(best) if best and not made else -math.inf, 0
        for evaluation in made:
            self._count(evaluation)
        return not (self.waited >= self.patience and made[-1]["step"] == agent.progress.step)

    def on_evaluation(self, agent: Any, evaluation: Mapping[str, Any]) -> bool:
        self._count(evaluation)
        return self.waited < self.patience

    def _count(self, evaluation: Mapping[str, Any]) -> None:
        score = score_of(evaluation)
        if score > self.best + self.min_delta:
            self.best, self.waited = score, 0
        else:
            self.waited += 1


class TimeLimit(Callback):
    """Ends the run after the iteration in which `seconds` have passed since this `learn` began.

    With `whole_run` the seconds of earlier sessions count too, so that a resumed run has only what is left.
    """

    def __init__(self, seconds: float, *, whole_run: bool = False) -> None:
        self.seconds, self.whole_run = _number("seconds of TimeLimit", seconds, low=0), whole_run
        self.begun = 0.0

    def on_start(self, agent: Any) -> bool:
        self.begun = time.monotonic() - (agent.run.seconds_before if self.whole_run else 0.0)
        return not (self.whole_run and self._is_over())

    def on_iteration(self, agent: Any, metrics: Mapping[str, Any]) -> bool:
        return not self._is_over()

    def _is_over(self) -> bool:
        return time.monotonic() - self.begun >= self.seconds


class SaveBest(Callback):
    """Saves the agent to the folder `path` whenever an evaluation is better than all before, for `phasegrad.load`."""

    def __init__(self, path: str | Path) -> None:
        try:
            self.path = as_path(path)
        except TypeError:
            raise ConfigError(f"path of SaveBest must be a folder's name, not {path!r}.") from None
        self.best = -math.inf

    def on_start(self, agent: Any) -> None:
        require_evaluations(agent, type(self).__name__)
        there, best = agent.ranks.from_first(self.path.exists), agent.run.evaluations.best
        self.best = (
            score_of(best) if there and best else -math.inf
        )  # where it is gone, the next one is the best there is

    def on_evaluation(self, agent: Any, evaluation: Mapping[str, Any]) -> None:
        score = score_of(evaluation)
        if score > self.best:
            agent.save(self.path)
            self.best = score


def score_of(evaluation: Mapping[str, Any]) -> float:
    """The mean return; of one that had none that is a number, the lowest there is."""
    score = evaluation.get("return_mean")
    return float(score) if isinstance(score, (int, float)) and not math.isnan(score) else -math.inf


def require_evaluations(agent: Any, name: str) -> None:
    """Refuse a run that would never ask the callback."""
    config = agent.config
    if config.eval_checkpoints or config.eval_episodes:
        return
    if config.eval_episodes == 0:
        raise ConfigError(f"{name} needs evaluations, and eval_episodes is 0: leave it out, or set a number.")
    if isinstance(agent.agent.source, gym.vector.VectorEnv):
        raise ConfigError(
            f"{name} needs evaluations, which a vectorised environment that was passed in has only where eval_episodes is "
            "set: set it, or pass an id or a function that makes the environment."
        )


def _number(name: str, value: Any, low: float | None = None) -> float:
    number: float = coerce(name, value, float, {"low": low})
    if not math.isfinite(number):
        raise ConfigError(f"{name} must be a number, not {number}.")
    return number
