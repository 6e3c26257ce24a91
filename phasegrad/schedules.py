"""Settings that follow a schedule over the run: what one may write, and the number in force at each point of it.

A schedule is a pure function of the progress, from 0 at the start to 1 at the end; the rule of an adaptive learning rate
is a pure function too. Nothing here knows of configs, runs or torch.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from phasegrad.errors import ConfigError, PhasegradWarning, nearest

EXAMPLES = "linear:1e-3:1e-5, cosine:1e-3, constant:3e-4 or warmup:0.05:linear:1e-3"
KINDS = ("constant", "linear", "cosine")
CUSTOM = "custom:"  # how files name a function that was given in Python
POINTS = 11  # of a function, by which a resumed run knows it again

KL_FACTOR, RATE_FACTOR = 2.0, 1.5  # of the adaptive learning rate, as skrl and rsl_rl have them
LEAST_RATE, MOST_RATE = 1e-6, 1e-2


@dataclass(frozen=True)
class Schedule:
    """From `start` to `end` over the run, after a linear rise from 0 in the first `warmup` of it."""

    kind: str
    start: float | None = None  # None: what the setting would be without a schedule
    end: float = 0.0
    warmup: float = 0.0

    def at(self, progress: float) -> float:
        assert self.start is not None
        if progress < self.warmup:
            return self.start * (progress / self.warmup)
        if self.warmup:
            progress = (progress - self.warmup) / (1.0 - self.warmup)
        if self.kind == "linear":
            return self.end + (self.start - self.end) * (1.0 - progress)
        if self.kind == "cosine":
            return self.end + (self.start - self.end) * (0.5 * (1.0 + math.cos(math.pi * progress)))
        return self.start

    def __str__(self) -> str:
        head = f"warmup:{plain(self.warmup)}:{self.kind}" if self.warmup else self.kind
        if self.start is None:
            return head
        return f"{head}:{plain(self.start)}" + ("" if self.kind == "constant" else f":{plain(self.end)}")


@dataclass(frozen=True)
class FunctionSchedule:
    """A user's own function of the progress."""

    function: Callable[[float], Any]

    def at(self, progress: float) -> float:
        return float(self.function(progress))

    def points(self) -> list[float]:
        """Its values at evenly spaced places of the run."""
        return [self.at(index / (POINTS - 1)) for index in range(POINTS)]

    def __str__(self) -> str:
        return f"{CUSTOM}{getattr(self.function, '__name__', type(self.function).__name__)}"


@dataclass(frozen=True)
class LostFunction:
    """In place of a function that a file can only name; who trains on must give it again."""

    name: str
    known: tuple[float, ...] = ()  # its values, as a checkpoint has them

    def at(self, _: float) -> float:
        return math.nan

    def points(self) -> list[float]:
        return list(self.known)

    def __str__(self) -> str:
        return self.name


class Scheduled(float):
    """The number in force of a setting that follows a schedule; as a number it is like any other."""

    schedule: Schedule | FunctionSchedule | LostFunction

    def __new__(cls, schedule: Schedule | FunctionSchedule | LostFunction, number: float | None = None) -> Self:
        begins = isinstance(schedule, Schedule) and schedule.start is None
        made = super().__new__(cls, math.nan if begins else schedule.at(0.0) if number is None else number)
        made.schedule = schedule
        return made

    def at(self, progress: float) -> Scheduled:
        return Scheduled(self.schedule, self.schedule.at(progress))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.schedule, float(self)

    def __eq__(self, other: object) -> bool:
        """Two of them are equal where their schedules are too: a config is another one with another schedule."""
        return float(self) == other and (not isinstance(other, Scheduled) or self.schedule == other.schedule)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = float.__hash__


def plain(number: float) -> str:
    """A number as one would type it, none of its digits lost."""
    return repr(float(number)).removesuffix(".0")


def as_given(value: Any) -> Any:
    """A setting as files have it: a schedule is its text, a function its name."""
    return str(value.schedule) if isinstance(value, Scheduled) else value


def is_scheduled(value: Any) -> bool:
    return isinstance(value, Scheduled)


# What one may write


def parsed(name: str, value: Any, check: Callable[[float], float]) -> Scheduled | None:
    """The schedule that a setting `name` was given as text or as a function; None for anything else, such as a number.

    `check` refuses numbers outside the setting's range.
    """
    if isinstance(value, Scheduled):
        return value
    if isinstance(value, str):
        if value.startswith(CUSTOM):
            return Scheduled(LostFunction(value))
        return None if is_number(value) else Scheduled(_from_text(name, value, check))
    if callable(value):
        return Scheduled(_from_function(name, value, check))
    return None


def _from_text(name: str, text: str, check: Callable[[float], float]) -> Schedule:
    kind, *numbers = (part.strip() for part in text.lower().split(":"))
    if kind == "warmup":
        return _with_warmup(name, text, numbers, check)
    most = 1 if kind == "constant" else 2
    if kind not in KINDS or len(numbers) > most or not all(map(is_number, numbers)):
        hint = nearest(kind, (*KINDS, "warmup")) if kind not in KINDS else ""
        raise ConfigError(f"{name} must be a finite number or a schedule such as {EXAMPLES}, not {text[:80]!r}.{hint}")
    return Schedule(kind, *(check(float(number)) for number in numbers))


def _with_warmup(name: str, text: str, parts: list[str], check: Callable[[float], float]) -> Schedule:
    share, *rest = parts or [""]
    if not is_number(share) or not 0.0 < float(share) < 1.0 or not rest or rest[0] == "warmup":
        raise ConfigError(
            f"{name}: a warm-up is warmup:FRACTION:SCHEDULE, with a fraction of the run between 0 and 1, such as "
            f"warmup:0.05:linear:1e-3, not {text[:80]!r}."
        )
    after = ["constant", *rest] if is_number(rest[0]) else rest
    return replace(_from_text(name, ":".join(after), check), warmup=float(share))


def _from_function(name: str, function: Callable[[float], Any], check: Callable[[float], float]) -> FunctionSchedule:
    """A function that can be one of the progress: with finite numbers in range, the same ones each time."""
    schedule = FunctionSchedule(function)
    shown = str(schedule).removeprefix(CUSTOM)
    if "remaining" in first_parameter(function):
        raise ConfigError(
            f"{name} was given {shown}, a function of the remaining progress, as Stable-Baselines3 has them: here progress "
            f"goes from 0 to 1, so give {name}=lambda progress: {shown}(1 - progress)."
        )
    try:
        points, again = schedule.points(), schedule.points()
    except Exception as error:  # whatever a user's function does
        raise ConfigError(
            f"{name} was given {shown}, which must be a function from the progress (0 to 1) to a number, but it failed: "
            f"{type(error).__name__} {str(error)[:80]}."
        ) from None
    if not all(map(math.isfinite, points)):
        raise ConfigError(f"{name} was given {shown}, which must give finite numbers from progress 0 to 1.")
    if points != again:
        raise ConfigError(f"{name} was given {shown}, which must give the same number for the same progress.")
    for point in points:
        check(point)
    if points[-1] > points[0]:
        warnings.warn(
            f"{name} rises from {points[0]:g} to {points[-1]:g} over the run: here progress goes from 0 to 1; a function of "
            f"the remaining progress (Stable-Baselines3) belongs in {name}=lambda progress: {shown}(1 - progress).",
            PhasegradWarning,
            stacklevel=2,
        )
    return schedule


def first_parameter(function: Callable[..., Any]) -> str:
    """The name of what a function takes first, where it can be known."""
    try:
        return next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):
        return ""


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def completed(name: str, value: Any, base: Any) -> Any:
    """A schedule without a start begins where the setting would be without it, `base`; others stay as they are."""
    if not isinstance(value, Scheduled) or not isinstance(value.schedule, Schedule) or value.schedule.start is not None:
        return value
    start = base.at(0.0) if isinstance(base, Scheduled) else base
    if isinstance(base, Scheduled) and isinstance(base.schedule, Schedule):
        start = base.schedule.start  # the value that a warm-up leads to
    text = str(value.schedule)
    if not start or not math.isfinite(start):
        raise ConfigError(
            f"{name} {text} has nothing to start from, since {name} would be {'none' if start is None else plain(start)}: "
            f"give the start too, such as {text}:0.01."
        )
    return Scheduled(replace(value.schedule, start=float(start)))


def agree(wanted: Any, found: Any) -> bool:
    """Whether a setting as it was typed, perhaps without its start, is the one that a file has."""
    if not isinstance(wanted, Scheduled) or not isinstance(found, str):
        return bool(as_given(wanted) == found)
    there = parsed("", found, lambda number: number)
    return there is not None and as_given(completed("", wanted, there)) == str(there.schedule)


# The adaptive learning rate


def adapted_learning_rate(rate: float, kl: float, target: float) -> float:
    """The next rate where an update moved the policy by `kl`: lower above twice the target, higher below half of it."""
    if kl > target * KL_FACTOR:
        return max(LEAST_RATE, rate / RATE_FACTOR)
    if kl < target / KL_FACTOR:
        return min(MOST_RATE, rate * RATE_FACTOR)
    return rate
