"""Ctrl-C and SIGTERM: the first asks for a stop after the iteration, with a checkpoint; the second stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

GRACE_SECONDS = 60.0  # an iteration that has not ended by then is given up


class Stopped:
    """What a stopped run raises: its sentence, and the exit code that names the signal."""

    sentence = ""
    exit_code = 1


class Interrupted(KeyboardInterrupt, Stopped):
    """Stopped by Ctrl-C."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence, self.exit_code = sentence, 128 + signal.SIGINT


class Terminated(SystemExit, Stopped):
    """Stopped by SIGTERM."""

    def __init__(self, sentence: str) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.sentence, self.exit_code = sentence, 128 + signal.SIGTERM


class StopRequests:
    """Watches for both signals while a run is under way, where nobody else does."""

    def __init__(self, active: bool, at_once: Callable[[], str], speaks: bool = True) -> None:
        """`at_once` gives the sentence of a stop in the middle of an iteration; one of several processes `speaks`."""
        self.speaks = speaks
        self.requested = 0  # the signal's number
        self._at_once = at_once
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        if active and threading.current_thread() is threading.main_thread():
            for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) is usual or signal.getsignal(number) == usual:
                    self._before[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.requested:
            raise self.error(self._at_once())
        self.requested = number
        self._timer = threading.Timer(GRACE_SECONDS, _interrupt, (number,))
        self._timer.daemon = True
        self._timer.start()
        if self.speaks:
            os.write(2, b"phasegrad: stopping after this iteration with a checkpoint; a second Ctrl-C stops at once.\n")

    def iteration_is_over(self) -> None:
        """The time limit of a requested stop no longer counts: the checkpoint may take its time."""
        if self._timer is not None:
            self._timer.cancel()

    def error(self, sentence: str) -> BaseException:
        """What the requested stop raises."""
        return (Terminated if self.requested == signal.SIGTERM else Interrupted)(sentence)

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
