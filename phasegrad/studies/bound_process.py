"""The command line in a process that never outlives the one that started it: `python -m phasegrad.studies.bound_process PID ...`.

A cluster's task starts its run this way. When the task's worker is killed, the task is tried again elsewhere within a
second, and a run that trained on unnoticed would hold the run's lock and be trained twice.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from phasegrad.machine.orphans import die_with_parent

SECONDS_BETWEEN_LOOKS = 0.5


def die_with(parent: int) -> None:
    """SIGKILL for this process when `parent` is gone; also where that is so already.

    At once rather than in order: the next attempt waits for this one's lock, and a checkpoint is whole at any moment.
    """
    told = die_with_parent()
    if os.getppid() != parent:
        _die()
    if not told:
        threading.Thread(target=_watch, args=(parent, threading.Event()), daemon=True).start()


@contextmanager
def dying_with_parent() -> Iterator[None]:
    """The same for a while, and for a parent's death only: the kernel's signal comes at that of its forking thread."""
    over = threading.Event()
    threading.Thread(target=_watch, args=(os.getppid(), over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(parent: int, over: threading.Event) -> None:
    while not over.wait(SECONDS_BETWEEN_LOOKS):
        if os.getppid() != parent:
            _die()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(1)  # never reached


def main() -> int:
    parent, *arguments = sys.argv[1:]
    die_with(int(parent))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the cluster's workers block it, and we inherit that
    from phasegrad.cli.main import main as run

    return run(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
