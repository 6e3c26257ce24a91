"""Ctrl-C, SIGTERM and SIGHUP: the first asks for a stop after the iteration, with a checkpoint; the second stops at once.

Whatever comes after the second finds the run ending, and says the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from phasegrad.machine.stops import USUAL, Interrupted, Stopped, Terminated, is_free, note, stopped_by

__all__ = ["Interrupted", "StopRequests", "Stopped", "Terminated"]

GRACE_SECONDS = 60.0  # an iteration that has not ended by then is given up
SAID = b"phasegrad: stopping after this iteration with a checkpoint; a second Ctrl-C stops at once.\n"


class StopRequests:
    """Watches for these signals while a run is under way, where nobody else does."""

    def __init__(self, active: bool, at_once: Callable[[], str], speaks: bool = True) -> None:
        """`at_once` gives the sentence of a stop in the middle of an iteration; one of several processes `speaks`."""
        self.speaks = speaks
        self.requested = 0  # the signal's number
        self._at_once = at_once
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        if active and threading.current_thread() is threading.main_thread():
            for number in filter(is_free, USUAL):
                self._before[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        note(number)
        if self.requested:
            raise self.error(self._at_once())
        self.requested = number
        self._timer = threading.Timer(GRACE_SECONDS, _interrupt, (number,))
        self._timer.daemon = True
        self._timer.start()
        if self.speaks:
            with contextlib.suppress(OSError):  # the terminal may be what has gone
                os.write(2, SAID)

    def iteration_is_over(self) -> None:
        """The time limit of a requested stop no longer counts: the checkpoint may take its time."""
        if self._timer is not None:
            self._timer.cancel()

    def error(self, sentence: str) -> BaseException:
        """What the requested stop raises."""
        return stopped_by(self.requested, sentence)

    def close(self) -> None:
        """Give the signals back."""
        self.iteration_is_over()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def _interrupt(number: int) -> None:
    """The signal once more, in the main thread, where Python handles signals."""
    if hasattr(signal, "pthread_kill") and (thread := threading.main_thread().ident) is not None:
        signal.pthread_kill(thread, number)
    else:
        signal.raise_signal(number)
