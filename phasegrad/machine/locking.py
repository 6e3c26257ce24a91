"""Locks on open files that go with their holder, by whatever the system has: flock, or Windows' locked ranges of bytes."""

from __future__ import annotations

import contextlib
import os
from typing import Any

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]
msvcrt: Any = None
with contextlib.suppress(ImportError):
    import msvcrt

_FAR = 1 << 30  # a byte beyond all content: on Windows nobody else may read what is locked


def is_possible() -> bool:
    return fcntl is not None or msvcrt is not None


def take(descriptor: int, shared: bool = False) -> None:
    """Lock an open file for this process; BlockingIOError where another has it, OSError where its file system has no locks.

    `shared`: with others that take it so, where the system can.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    elif msvcrt is not None:
        _at_far_byte(descriptor, "LK_NBLCK")


def _at_far_byte(descriptor: int, mode: str) -> None:
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _FAR, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, getattr(msvcrt, mode), 1)
    except OSError as error:
        raise BlockingIOError(error.errno, "another process has locked it") from error
    finally:
        os.lseek(descriptor, place, os.SEEK_SET)
