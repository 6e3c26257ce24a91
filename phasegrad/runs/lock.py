"""One process writes a run directory at a time. The lock is the kernel's: it goes with its owner, however that ends.

The file .lock is held, and the directory itself, so that a file which is removed lets nobody in. Where a file system has
no such locks, the number in the file counts, with the moment at which that process began: numbers are used again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path

from phasegrad.errors import RunError
from phasegrad.machine import locking
from phasegrad.machine.orphans import began, is_running
from phasegrad.machine.regular_files import NotRegularError, by_descriptor, open_below, open_folder
from phasegrad.runs.below import told

LOCK = ".lock"
ANEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
MOST_BYTES = 300  # of what is in it
TRIES, SECONDS_BETWEEN = 6, 0.01  # `is_held` has a lock of its own for a moment, which is no reason to give up
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
        self.process = os.getpid()
        self.handle: int | None = None
        self._folder: int | None = None
        try:
            self._folder = self._hold_folder()
            self.handle = self._acquire()
        except OSError as error:
            self.release()
            raise RunError(cannot_be_written(folder, error)) from None
        except RunError:
            self.release()
            raise

    def _hold_folder(self) -> int | None:
        if not by_descriptor():
            return None
        handle = open_folder(self.path.parent)
        try:
            if not _locked(handle):
                os.close(handle)
                return None
        except BlockingIOError:
            os.close(handle)
            raise RunError(self._taken(_owner(self.path.parent))) from None
        _held.add(handle)
        return handle

    def _acquire(self, again: bool = False) -> int:
        """`again`: for a run under way, which gives way to an owner of another machine that came since."""
        while True:
            handle = open_below(self.path.parent, LOCK, flags=os.O_RDWR | os.O_CREAT, mode=0o644)
            mine = False
            try:
                if _locked(handle):
                    if mine := self._is_at_its_place(handle):
                        return self._signed(handle)
                    continue  # its owner removed it as we came: there is, or will be, another
                owner = _read(handle)
                if _is_alive(owner) or (again and _is_elsewhere(owner)):
                    raise RunError(self._taken(owner))
                with contextlib.suppress(FileNotFoundError):
                    self.path.unlink()
                with contextlib.suppress(FileExistsError):  # a file of our own: whoever had the old one sees that
                    return self._signed(open_below(self.path.parent, LOCK, flags=ANEW, mode=0o644))
            except BlockingIOError:
                raise RunError(self._taken(_read(handle))) from None
            finally:
                if not mine:
                    os.close(handle)

    def _signed(self, handle: int) -> int:
        """The handle of a lock that is this process's, and says so."""
        _held.add(handle)
        try:
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, signature())
        except OSError:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self._close(handle)
            raise
        return handle

    def _is_at_its_place(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path, follow_symlinks=False))
        except OSError:
            return False

    def _taken(self, owner: list[str]) -> str:
        by = f"the process {owner[0]}" if owner else "another process"
        return f"Run directory {self.path.parent} is being written by {by}: wait for it, stop it, or use another --run-dir."

    def require_own(self) -> None:
        """Put the file back where it is gone, or stop where another process has come in through the gap."""
        if self.handle is None or self.process != os.getpid() or self._is_at_its_place(self.handle):
            return
        try:
            mine = self._acquire(again=True)
        except OSError:  # it cannot be put back now; what is written next says why
            return
        except RunError:
            owner = _owner(self.path.parent)
            raise RunError(
                f"{self.path} was removed while this run was training, and the process {owner[0] if owner else '?'} has "
                "taken the run directory since: this one has stopped, and has written nothing more."
            ) from None
        self._close(self.handle)
        self.handle = mine

    def release(self) -> None:
        """Let others in; releasing twice is allowed."""
        if self.process != os.getpid():
            return
        handle, self.handle = self.handle, None
        if handle is not None:
            with contextlib.suppress(OSError):  # where the directory was moved, the lock at its old place is another's
                if self._is_at_its_place(handle):
                    self.path.unlink()
            self._close(handle)
            if not by_descriptor():
                with contextlib.suppress(OSError):  # Windows removes no file that is open, neither ours nor another's
                    self.path.unlink()
        folder, self._folder = self._folder, None
        if folder is not None:
            self._close(folder)

    @staticmethod
    def _close(handle: int) -> None:
        _held.discard(handle)
        os.close(handle)


def signature() -> bytes:
    """This process as its lock has it: number, beginning and machine."""
    return f"{os.getpid()} {began(os.getpid()) or '-'} {_here()}\n".encode()[:MOST_BYTES]


def cannot_be_written(folder: Path, error: OSError) -> str:
    """The sentence for a run directory that cannot be taken."""
    if isinstance(error, NotRegularError):
        return f"{told(error)}: remove it, then try again."
    return f"Run directory {folder} cannot be written: {error.strerror or error}."


def is_held(folder: Path) -> bool:
    """Whether a process is writing the run, or the study, now; keeps nothing."""
    try:
        handle = open_below(folder, LOCK)
    except OSError:  # removed while a run goes on, or not for us to read
        return _is_folder_held(folder)
    try:
        return not _locked(handle, shared=True) and _is_alive(_read(handle))
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def _is_folder_held(folder: Path) -> bool:
    if not by_descriptor():
        return False
    try:
        handle = open_folder(folder)
    except OSError:
        return False
    try:
        _locked(handle, shared=True)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def holder(folder: Path) -> int:
    """The number of the process that writes the run or the study now; 0 where none does, or one of another machine."""
    if not is_held(folder):
        return 0
    owner = _owner(folder)
    return int(owner[0]) if owner and _is_alive(owner) else 0


def _locked(handle: int, shared: bool = False) -> bool:
    """Whether the kernel gives the lock; False where it has none for this file system. BlockingIOError: another has it."""
    if not locking.is_possible():
        return False
    for left in range(1 if shared else TRIES, 0, -1):
        try:
            locking.take(handle, shared)
            return True
        except BlockingIOError:
            if left == 1:
                raise
            time.sleep(SECONDS_BETWEEN)
        except OSError:
            return False
    return False


def _owner(folder: Path) -> list[str]:
    """What the file says of its owner: number, beginning and machine, as far as they are there."""
    try:
        handle = open_below(folder, LOCK)
    except OSError:
        return []
    try:
        return _read(handle)
    finally:
        os.close(handle)


def _read(handle: int) -> list[str]:
    try:
        os.lseek(handle, 0, os.SEEK_SET)
        words = os.read(handle, MOST_BYTES).decode("ascii", errors="replace").split()
    except OSError:
        return []
    return words if words and words[0].isascii() and words[0].isdecimal() and len(words[0]) < 20 else []


def _is_alive(owner: list[str]) -> bool:
    """Whether the process is one of this machine, and the same that wrote this."""
    if not owner or _is_elsewhere(owner):
        return False
    process, since = int(owner[0]), owner[1] if len(owner) > 1 else "-"
    return is_running(process) and (since == "-" or began(process) in (None, since))


def _is_elsewhere(owner: list[str]) -> bool:
    return len(owner) > 2 and owner[2] != _here()


def _here() -> str:
    return "".join(platform.node().split()) or "-"
