"""Where the metrics go beside the run directory: loggers of the user's own, and the trackers that `track` names.

Whatever goes wrong there is a warning, once, and never the end of a run.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from phasegrad.config import short
from phasegrad.errors import ConfigError, PhasegradWarning
from phasegrad.runs.metrics import plain_json


@dataclass(eq=False)
class Sink:
    """One that gets the rows, and what a sentence calls it."""

    name: str
    logger: Any
    is_own: bool  # the user's


class Loggers:
    """All that rows are written to, in the first process; one that fails is told of and gets no more of them."""

    def __init__(self, own: Any, is_first: bool) -> None:
        given = own if isinstance(own, (list, tuple)) else [] if own is None else [own]
        for logger in given:
            require_logger(logger)
        self.sinks = [Sink(f"The logger {type(each).__name__}", each, True) for each in given if is_first]
        self.is_asked = bool(given)  # alike in every process

    def track(self, name: str, start: Callable[[], Any]) -> None:
        """Begin with a tracker; go on without it where it cannot be had."""
        sink = Sink(f"track {name}", None, False)
        with self._survived(sink):
            sink.logger = start()
            self.sinks.append(sink)

    def write(self, row: Mapping[str, Any]) -> None:
        """An iteration's metrics, as metrics.jsonl has them; each gets its own copy."""
        for sink in list(self.sinks):
            with self._survived(sink):
                sink.logger.write(plain_json(row))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Tell the trackers what the run came to."""
        for sink in [sink for sink in self.sinks if not sink.is_own]:
            with self._survived(sink):
                sink.logger.finish(plain_json(result))

    def close(self) -> None:
        """Once a session is over, whichever way."""
        for sink in list(self.sinks):
            close = getattr(sink.logger, "close", None)
            if callable(close):
                with self._survived(sink):
                    close()
        self.sinks = []

    @contextlib.contextmanager
    def _survived(self, sink: Sink) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.sinks = [other for other in self.sinks if other is not sink]
            told = " ".join(str(error).split())[:200]
            warnings.warn(
                f"{sink.name} has failed ({type(error).__name__}: {told}): the run goes on without it.",
                PhasegradWarning,
                stacklevel=4,
            )


def require_logger(logger: Any) -> None:
    if isinstance(logger, type):
        name = logger.__name__
        raise ConfigError(f"The logger {name} is a class: give an object of it, such as {name}().")
    if not callable(getattr(logger, "write", None)):
        raise ConfigError(f"loggers must be an object with write(row), or a list of these, not {short(logger)}.")
