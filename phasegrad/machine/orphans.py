"""Processes that must not outlive the one that started them, and whether one is there. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import psutil

SECONDS_BETWEEN_LOOKS = 0.5
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> bool:
    """Have the kernel kill this process when its parent ends, by whatever signal; False where the kernel cannot.

    It tells of deaths from now on: a parent that has ended before shows in `os.getppid`.
    """
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0)
    return False


def is_running(process: int) -> bool:
    """Whether this machine has a process of that number, whoever owns it."""
    try:
        return process > 0 and psutil.pid_exists(process)  # what is below is to the kernel a group of them
    except OverflowError:
        return False


def began(process: int) -> str | None:
    """When a process of this machine began, in the kernel's own count since a boot it names; None where none says.

    A number is used again, a number with its beginning is not.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        after_name = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return f"{after_name[19]}@{boot}"
    except IndexError:
        return None
    except OSError:  # no /proc
        with contextlib.suppress(psutil.Error, ValueError, OverflowError):
            return f"{psutil.Process(process).create_time():.2f}"
        return None


def die_with(parent: int, by_kernel: bool = True) -> None:
    """SIGKILL for this process when `parent` is gone; also where that is so already.

    At once rather than in order: the next attempt waits for this one's lock, and a checkpoint is whole at any moment.
    Not `by_kernel` where the thread that has forked this process may end before its own process does.
    """
    told = by_kernel and die_with_parent()
    if os.getppid() != parent:
        _die()
    if not told:
        _begin_to_watch(parent, threading.Event())


@contextmanager
def dying_with_parent() -> Iterator[None]:
    """The same for a while, and for a parent's death only: the kernel's signal comes at that of its forking thread."""
    over = threading.Event()
    _begin_to_watch(os.getppid(), over)
    try:
        yield
    finally:
        over.set()


def leave_if_forked(process: int) -> None:
    """End this process, without a trace, where it is not `process`: what it was in the middle of has forked it.

    Its files, pipes and locks are those of the other, which goes on.
    """
    if os.getpid() == process:
        return
    with contextlib.suppress(OSError):
        os.write(
            2, f"phasegrad: an environment forked the process {process}: its child {os.getpid()} ends here.\n".encode()
        )
    os._exit(0)


def _begin_to_watch(parent: int, over: threading.Event) -> None:
    threading.Thread(target=_watch, args=(parent, over), daemon=True).start()


def _watch(parent: int, over: threading.Event) -> None:
    while not over.wait(SECONDS_BETWEEN_LOOKS):
        if os.getppid() != parent or not is_running(parent):  # Windows never gives an orphan another parent
            _die()


def _die() -> NoReturn:
    if hasattr(signal, "SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)
