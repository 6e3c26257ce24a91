"""Calls the callbacks of a run: functions of the metrics, or objects with hooks. What they answer decides whether it stops.

It knows neither when a hook is due nor what is saved where one fails: that is the session's.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from phasegrad.config import short
from phasegrad.errors import ConfigError, PhasegradWarning, nearest
from phasegrad.runs.callbacks import Callback
from phasegrad.runs.evaluation import SUMMARY

HOOKS = ("on_start", "on_evaluation", "on_iteration", "on_checkpoint", "on_end")
PREFIXES = ("eval_", "eval_test_")
EVALUATED = {f"{prefix}{name}" for prefix in PREFIXES for name in SUMMARY}


class Missing(float):
    """A mean that is not known yet: a NaN that remembers whether it was compared, or made a number without memory.

    A NaN alone would not do: every comparison with one is false, so that `metrics["return_mean"] < 475`, which says
    "go on until 475", would stop a run before its first episode has ended.
    """

    asked: bool

    def __new__(cls) -> Missing:
        made = super().__new__(cls, "nan")
        made.asked = False
        return made

    def __reduce__(self) -> tuple[type[float], tuple[str]]:
        return float, ("nan",)  # a copy is a NaN like any other

    def __float__(self) -> float:
        self.asked = True
        return float("nan")

    def __hash__(self) -> int:
        return object.__hash__(self)

    def _compared(self, other: object) -> bool:
        self.asked = True
        return False

    def _differs(self, other: object) -> bool:
        self.asked = True
        return True

    def _computed(self, *others: object) -> Missing:
        return self  # what is computed from it is not known either


for _name in ("lt", "le", "gt", "ge", "eq"):
    setattr(Missing, f"__{_name}__", Missing._compared)
Missing.__ne__ = Missing._differs  # type: ignore[method-assign, assignment]
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Missing, f"__{_name}__", Missing._computed)
    setattr(Missing, f"__r{_name}__", Missing._computed)
for _name in ("neg", "pos", "abs", "round"):
    setattr(Missing, f"__{_name}__", Missing._computed)


class Metrics(dict[str, Any]):
    """The metrics of an iteration as a callback sees them; the scores of an iteration without evaluation are missing."""

    def __init__(self, row: Mapping[str, Any], missing: Missing) -> None:
        super().__init__({name: missing if value is None else value for name, value in row.items()})
        self.missing = missing

    def __missing__(self, name: str) -> Any:
        if name in EVALUATED:
            return self.missing
        raise KeyError(name)


class Hooked:
    """One callback: which hooks it has, and its name for sentences."""

    def __init__(self, callback: Any) -> None:
        self.missing = Missing()  # one for all its rows, so that comparing an older row counts too
        if isinstance(callback, type):
            name = callback.__name__
            raise ConfigError(f"The callback {name} is a class: give an object of it, such as {name}().")
        found = {name: getattr(callback, name) for name in HOOKS if callable(getattr(callback, name, None))}
        if found:
            self.name = type(callback).__name__
            self.hooks: dict[str, Callable[..., object]] = found
            _warn_of_misspelt(callback)
        elif callable(callback):
            self.name = getattr(callback, "__qualname__", None) or type(callback).__name__
            self.hooks = {"on_iteration": lambda agent, metrics: callback(metrics)}
        else:
            _refuse(callback)
        self.is_function = not found

    def is_asked(self, hook: str) -> bool:
        """Whether it has that hook with something in it."""
        function = getattr(self.hooks.get(hook), "__func__", self.hooks.get(hook))
        return function is not None and function is not getattr(Callback, hook)

    def stops(self, hook: str, agent: Any, *arguments: Any) -> bool:
        """Call it; whether its answer ends the training."""
        if not self.is_asked(hook):
            return False
        self.missing.asked = False
        try:
            answer = self.hooks[hook](agent, *arguments)
            return hook != "on_end" and self._is_false(answer)
        except BaseException as error:
            error.add_note(f"This came from the callback {self.name}{'' if self.is_function else f', in {hook}'}.")
            raise

    def _is_false(self, answer: object) -> bool:
        if isinstance(answer, (np.ndarray, torch.Tensor)):
            if (answer.numel() if isinstance(answer, torch.Tensor) else answer.size) != 1:
                raise ConfigError(
                    f"The callback returned {short(answer)}: return None or True to go on, False to stop."
                )
            is_false = not answer
        else:
            is_false = isinstance(answer, (numbers.Number, np.bool_)) and not answer
        return is_false and not self.missing.asked


class Hooks:
    """All callbacks of a session, in the order they were given; each is called, whatever those before it answer."""

    def __init__(self, callbacks: Any, agent: Any) -> None:
        given: Sequence[Any] = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        self.agent = agent
        self.each = [Hooked(callback) for callback in given if callback is not None]
        self.stopped = False  # since one of them asked for it

    def __bool__(self) -> bool:
        return bool(self.each)

    def hears_of_the_end(self) -> bool:
        """Whether one of them is told what the run came to, which an evaluation says."""
        return any(each.is_asked(hook) for each in self.each for hook in ("on_evaluation", "on_end"))

    def start(self) -> None:
        self._call("on_start")

    def evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self._call("on_evaluation", lambda each: dict(evaluation))

    def iteration(self, row: Mapping[str, Any]) -> None:
        self._call("on_iteration", lambda each: Metrics(row, each.missing))

    def checkpoint(self, path: Path) -> None:
        self._call("on_checkpoint", lambda each: path)

    def end(self, result: Mapping[str, Any]) -> None:
        self._call("on_end", lambda each: dict(result))

    def _call(self, hook: str, *arguments: Callable[[Hooked], Any]) -> None:
        for each in self.each:
            self.stopped |= each.stops(hook, self.agent, *(argument(each) for argument in arguments))


def evaluation_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The evaluation that a row of metrics tells of, by the names of its summary; None where there was none."""
    if "eval_return_mean" not in row:
        return None
    found = {"step": int(row["step"]), **_summary(row, "eval_")}
    test = _summary(row, "eval_test_")
    return {**found, "test": test} if test else found


def evaluations_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those that a run has made so far, oldest first."""
    for row in rows:
        evaluation = evaluation_of(row)
        if evaluation is not None:
            yield evaluation


def _summary(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name: row[f"{prefix}{name}"] for name in SUMMARY if f"{prefix}{name}" in row}


def _warn_of_misspelt(callback: Any) -> None:
    """A hook under a wrong name would never be called, and nobody would know."""
    for name in dir(type(callback)):
        meant = nearest(name, HOOKS, 1) if name.startswith("on_") and name not in HOOKS else ""
        if meant:
            told = f"{name} of the callback {type(callback).__name__} is never called.{meant}"
            warnings.warn(told, PhasegradWarning, stacklevel=7)


def _refuse(callback: Any) -> NoReturn:
    raise ConfigError(
        f"callback must be a function of the metrics, an object with one of {', '.join(HOOKS)}, or a list of these, not "
        f"{short(callback)}."
    )
