"""What a signal raises that asks a command or a run to stop: its sentence and its exit code. Imports nothing heavy.

It also tells what a signal raised from what the code that was under way raised by itself.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from phasegrad.machine.descriptors import leave_lost_terminal

NOTHING_TO_SAVE = "stopped before there was anything to save."
USUAL = {
    number: handler
    for name, handler in (
        ("SIGINT", signal.default_int_handler),
        ("SIGTERM", signal.SIG_DFL),
        ("SIGHUP", signal.SIG_DFL),
    )
    if (number := getattr(signal, name, None)) is not None
}  # the signals that ask for a stop, and who has them where nobody has taken them


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
    """Stopped by SIGTERM, or by SIGHUP where the terminal has gone."""

    def __init__(self, sentence: str, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
        self.sentence, self.exit_code = sentence, 128 + number


def stopped_by(number: int, sentence: str) -> BaseException:
    """What a stop by that signal raises."""
    return Interrupted(sentence) if number == signal.SIGINT else Terminated(sentence, number)


def note(number: int) -> None:
    """A signal has come; with SIGHUP the terminal may have gone, and there must be somewhere to write to."""
    if number == getattr(signal, "SIGHUP", None):
        leave_lost_terminal()


def is_free(number: int) -> bool:
    """Whether nobody but this package has taken the signal; one that is ignored, as by nohup, stays ignored."""
    handler = signal.getsignal(number)
    return handler is _raise_at_once or handler == USUAL[number]


def _raise_at_once(number: int, _: FrameType | None) -> None:
    note(number)
    raise stopped_by(number, NOTHING_TO_SAVE)


@contextlib.contextmanager
def stops_raise(for_good: bool = False) -> Iterator[None]:
    """While a command is under way: every signal that asks for a stop raises, so that what is open is put away.

    `for_good`: the process ends with the command, and there is nothing that a signal could stop any more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _raise_at_once) for number in USUAL if is_free(number)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if for_good else handler)


def stop_behind(error: BaseException) -> Any:
    """The first stop of a run among what led to this, if any: a further signal while it ends says nothing new."""
    found: list[Any] = []
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, Stopped):
            found.append(seen)
        seen = seen.__cause__ or seen.__context__
    told = [stop for stop in found if stop.sentence != NOTHING_TO_SAVE]
    return (told or found or [None])[-1]


def is_from_a_signal(error: BaseException) -> bool:
    """Whether a signal may have raised this, rather than the code that it came out of.

    Python's own handler of Ctrl-C leaves no trace, so that a KeyboardInterrupt is taken for one as long as that is in place.
    """
    if isinstance(error, Stopped):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True
    handlers = {getattr(_function(signal.getsignal(number)), "__code__", None) for number in signal.valid_signals()}
    trace, codes = error.__traceback__, set()
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    return bool(codes & (handlers - {None}))


def _function(handler: Any) -> Any:
    return getattr(handler, "__func__", handler)
