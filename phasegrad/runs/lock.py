"""One process writes a run directory at a time. The lock is the kernel's: it goes with its owner, however that ends."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from phasegrad.errors import RunError
from phasegrad.machine import locking

LOCK = ".lock"
_held: set[int] = set()  # file descriptors; a forked worker must not keep its parent's lock alive


def _let_go_in_child() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


class Lock:
    """Held from construction until `release`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self.handle = self._acquire() if locking.is_possible() else None

    def _acquire(self) -> int | None:
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                locking.take(handle)
            except BlockingIOError:
                owner = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
                os.close(handle)
                raise RunError(
                    f"Run directory {self.path.parent} is being written by the process {owner}: wait for it, stop it, or "
                    "use another --run-dir."
                ) from None
            except OSError:  # a file system without locks
                os.close(handle)
                return None
            try:
                same = os.fstat(handle).st_ino == os.stat(self.path).st_ino
            except FileNotFoundError:
                same = False
            if same:
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                _held.add(handle)
                return handle
            os.close(handle)  # its owner removed it as we came: there is, or will be, another

    def release(self) -> None:
        """Let others in; releasing twice is allowed."""
        handle, self.handle = self.handle, None
        if handle is not None:
            with contextlib.suppress(OSError):  # where the directory was moved, the lock at its old place is another's
                if os.path.samestat(os.fstat(handle), os.stat(self.path)):
                    self.path.unlink()
            _held.discard(handle)
            os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether a process is writing the run now; takes nothing."""
    if not locking.is_possible():
        return False
    try:
        handle = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        locking.take(handle)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False
