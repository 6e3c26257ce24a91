"""Where the time goes: seconds by named section, read and reset once an iteration."""

from __future__ import annotations

import time
from collections import defaultdict
from types import TracebackType


class Clock:
    """Adds up the seconds of each section; sections do not nest."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.current = ""  # the section that runs now, for a display to read
        self._sections: dict[str, _Section] = {}

    def section(self, name: str) -> _Section:
        """A context manager whose time counts as `name`."""
        found = self._sections.get(name)
        if found is None:
            found = self._sections[name] = _Section(self, name)
        return found

    def take(self) -> dict[str, float]:
        """The seconds since the last call, by section."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken


class _Section:
    __slots__ = ("clock", "name", "start")

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock, self.name, self.start = clock, name, 0.0

    def __enter__(self) -> None:
        self.clock.current = self.name
        self.start = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clock.seconds[self.name] += time.perf_counter() - self.start
        self.clock.current = ""
