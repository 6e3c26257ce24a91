"""Environments that hang, raise or die: time limits, sentences, worker processes that never outlive the run.

Nothing here knows what an environment does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from gymnasium.vector import AsyncVectorEnv

from phasegrad.errors import PhasegradError, PhasegradWarning, words_of
from phasegrad.machine.orphans import die_with, die_with_parent, leave_if_forked
from phasegrad.machine.stops import is_from_a_signal

SECONDS_TO_CLOSE = 10.0  # where no env_timeout says otherwise
_SECONDS_TO_END = 2.0
_SECONDS_AFTER_A_HANG = 1.0  # for each of the environments that are closed after one that hung


class StepTimeout(BaseException):
    """Raised inside a step that takes too long; not an Exception, which environments tend to swallow."""


class Alarm:
    """Raises `StepTimeout` in code that runs longer; in the main thread, where alone Python can be interrupted.

    Not on Windows, which has no such signal.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._before: Any = None

    def __enter__(self) -> None:
        if _has_alarm():
            self._before = signal.signal(signal.SIGALRM, _give_up)
            signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        if _has_alarm():
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)


def _has_alarm() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


def _give_up(_: int, __: FrameType | None) -> NoReturn:
    raise StepTimeout


def time_limit(seconds: float | None) -> contextlib.AbstractContextManager[None]:
    """A limit that can be entered again and again; none costs nothing."""
    return contextlib.nullcontext() if seconds is None else Alarm(seconds)


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """While worker processes are forked: no garbage is collected, so that none is in a worker before it is set apart.

    What the run has dropped but not yet collected, such as a native environment with its threads, is in a fork as well,
    where its threads are not: to end it there is a segmentation fault. `end_with_parent` sets it apart for good.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def is_forked_by_main_thread() -> bool:
    """Whether what this thread starts may count on the kernel's word of its death: that comes when the thread ends."""
    return threading.get_native_id() == os.getpid()


def end_with_parent(parent: int = 0) -> None:
    """Have this worker process end when the one that started it ends, by whatever signal.

    `parent`, its number, is given where another thread than its main one has started this: one that may end before it.
    """
    gc.freeze()
    gc.enable()
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
    # Ctrl-C in a terminal, and what torchrun sends to a whole group, reach workers too: stopping is the parent's task.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, _leave_to_parent)  # not ignored: what the environment starts would inherit that
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if parent:
        die_with(parent, by_kernel=False)
    else:
        die_with_parent()


def _leave_to_parent(_: int, __: FrameType | None) -> None:
    """The parent ends its workers itself, by SIGKILL if need be."""


# What went wrong, in words


def is_fault(error: BaseException) -> bool:
    """Whether the environment is to be named for it; not where a signal has stopped what it was doing."""
    return isinstance(error, Exception | StepTimeout) or not is_from_a_signal(error)


def describe_crash(index: int, seed: int, when: str, error: BaseException) -> str:
    """The sentence for an exception inside an environment."""
    said = words_of(error)
    return f"Environment {index} (seed {seed}) raised {type(error).__name__} on {when}{f': {said}' if said else ''}."


def describe_timeout(index: int, seed: int, when: str, seconds: float | None, of: str = "env_timeout") -> str:
    """The sentence for an environment that hangs."""
    return f"Environment {index} (seed {seed}) took longer than the {seconds:g} s of {of} on {when}."


def describe_death(index: int, seed: int, when: str, code: int | None) -> str:
    """The sentence for an environment's process that has ended; `code` as multiprocessing has it."""
    named = f"The process of environment {index} (seed {seed}) died on {when}"
    if code is None:
        return f"{named}."
    if code >= 0:
        return f"{named}: it exited with code {code}."
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    perhaps = ", as the kernel does where memory runs out" if name == "SIGKILL" else ""
    return f"{named}: it was ended by {name}{perhaps}."


def close_limit(timeout: float | None) -> tuple[float, str]:
    """Seconds that a close may take, and what they are called."""
    return (SECONDS_TO_CLOSE, "a close") if timeout is None else (timeout, "env_timeout")


def close_each(
    closes: Sequence[Callable[[], Any]], names: Sequence[tuple[int, int]], timeout: float | None = None
) -> None:
    """Close environments, each named by (index, seed): one that raises or hangs is told of, and keeps no other open."""
    limit, of = close_limit(timeout)
    process = os.getpid()
    for close, (index, seed) in zip(closes, names, strict=True):
        try:
            with Alarm(limit):
                close()
            leave_if_forked(process)
        except BaseException as error:
            leave_if_forked(process)
            if not is_fault(error):
                raise
            told = describe_crash(index, seed, "close", error)
            if isinstance(error, StepTimeout):
                told = describe_timeout(index, seed, "close", limit, of)
                limit = min(limit, _SECONDS_AFTER_A_HANG)
            warn_of_close(str(error) if isinstance(error, PhasegradError) else told)


def warn_of_close(sentence: str) -> None:
    warnings.warn(sentence, PhasegradWarning, stacklevel=3)


# Worker processes


def unanswering(workers: Any, hung_up: bool) -> tuple[int, bool] | None:
    """(index, whether it has died) of the first worker of a failed call that owes an answer.

    One that `hung_up` is about to be dead: its pipe closes a moment before the kernel has reaped it.
    """
    if not isinstance(workers, AsyncVectorEnv):
        return None
    deadline = time.monotonic() + _SECONDS_TO_END
    while hung_up and all(process.is_alive() for process in workers.processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    for index, process in enumerate(workers.processes):
        if not process.is_alive():
            return index, True
    for index, pipe in enumerate(workers.parent_pipes):
        if pipe is not None and not pipe.closed and not pipe.poll(0):
            return index, False
    return None


def end_workers(workers: AsyncVectorEnv, gently: bool = False) -> None:
    """End and reap every worker process, however it is stuck; `gently` where they are not this package's."""
    started = [process for process in workers.processes if process.pid is not None]
    deadline = time.monotonic() + (_SECONDS_TO_END if gently else 0.0)
    for process in started if gently else []:
        process.terminate()
    for process in started if gently else []:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in started:
        if process.is_alive():
            process.kill()
    for process in started:
        process.join()
    for pipe in workers.parent_pipes:
        if pipe is not None:
            pipe.close()
    workers.closed = True
