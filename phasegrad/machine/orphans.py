"""Processes that must not outlive the one that started them. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import ctypes
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
