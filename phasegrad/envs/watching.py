"""Environments that hang or die: time limits for a step, worker processes that never outlive the run.

Nothing here knows what an environment does.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from gymnasium.vector import AsyncVectorEnv

from phasegrad.machine.orphans import die_with_parent

_SECONDS_TO_END = 2.0


class StepTimeout(BaseException):
    """Raised inside a step that takes too long; not an Exception, which environments tend to swallow."""


class Alarm:
    """Raises `StepTimeout` in code that runs longer; in the main thread, where alone Python can be interrupted."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGALRM, _give_up)
            signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)


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


def end_with_parent() -> None:
    """Have the kernel end this worker process when the one that started it ends, by whatever signal."""
    gc.freeze()
    gc.enable()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C in a terminal reaches workers too: stopping is the parent's task
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()


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


def end_workers(workers: AsyncVectorEnv) -> None:
    """End and reap every worker process, however it is stuck."""
    for process in workers.processes:
        process.terminate()
    for process in workers.processes:
        process.join(_SECONDS_TO_END)
        if process.is_alive():
            process.kill()
            process.join()
    for pipe in workers.parent_pipes:
        if pipe is not None:
            pipe.close()
    workers.closed = True
