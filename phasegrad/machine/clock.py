"""Where the time goes: seconds by named section, read and reset once an iteration."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType


class Clock:
    """Adds up the seconds of each section; the time of one inside another counts as its own alone."""

    _last: Clock | None = None  # the one whose section was entered last: for what has no clock at hand

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.current = ""  # the section that runs now, for a display to read
        self._sections: dict[str, _Section] = {}
        self._since = 0.0  # when the current section was entered, or came back
        self._outer: list[str] = []  # the sections that it lies in

    def section(self, name: str) -> _Section:
        """A context manager whose time counts as `name`."""
        found = self._sections.get(name)
        if found is None:
            found = self._sections[name] = _Section(self, name)
        return found

    @contextlib.contextmanager
    def apart(self, name: str) -> Iterator[Taken]:
        """A section whose seconds the caller gets, and no iteration."""
        taken = Taken()
        with self.section(name):
            yield taken
        taken.seconds = self.seconds.pop(name, 0.0)

    def take(self) -> dict[str, float]:
        """The seconds since the last call, by section."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken


@dataclass
class Taken:
    """What a section took, once it is over."""

    seconds: float = 0.0


def compiling() -> contextlib.AbstractContextManager[None]:
    """Programs are being made: their seconds are those of no section that happens to need them first."""
    clock = Clock._last
    return contextlib.nullcontext() if clock is None or not clock.current else clock.section("compile")


class _Section:
    __slots__ = ("clock", "name")

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock, self.name = clock, name

    def __enter__(self) -> None:
        clock, now = self.clock, time.perf_counter()
        if clock.current:
            clock.seconds[clock.current] += now - clock._since
        clock._outer.append(clock.current)
        clock.current, clock._since, Clock._last = self.name, now, clock

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock, now = self.clock, time.perf_counter()
        clock.seconds[self.name] += now - clock._since
        clock.current, clock._since = clock._outer.pop(), now
