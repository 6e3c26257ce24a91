"""Processes that must not outlive the one that started them, and whether one is there. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

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
    if process <= 0:  # the number of no process: to the kernel it means a group of them
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True  # there, and another user's
    except (OSError, OverflowError):
        return False
    return True
