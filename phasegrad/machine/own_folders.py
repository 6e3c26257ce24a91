"""Folders that only this user can have put something in, found and held by descriptor.

What lies in one may be executed, so every folder on the way counts too: each is opened in the one before and looked at
through its descriptor. Knows nothing of what is kept there.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from pathlib import Path

MOST_LINKS = 40  # followed on the way to a folder, as many as Linux follows
_ON_THE_WAY = getattr(os, "O_PATH", os.O_RDONLY)  # a folder that may be gone through need not be readable
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class UnsafeFolderError(OSError):
    """A folder that others can put files in or exchange; the message is what is wrong with it."""


def open_private(folder: Path, make: bool = False) -> int:
    """The descriptor of `folder`, which is this user's and closed to others, as are all folders on the way to it.

    A folder on the way may be root's, and may be for everybody, as /tmp is, where it keeps people from touching each
    other's files (the sticky bit): there what is this user's stays what it is. Links are followed where they are this
    user's or root's. `make`: what is missing is made, for this user alone; it may be another's by then, and is refused.
    """
    return _Way(folder, make).walk()


class _Way:
    """From the root to a folder: the descriptors of all folders on it so far, and the names still to go."""

    def __init__(self, folder: Path, make: bool) -> None:
        self.folder, self.make = folder.absolute(), make
        self.open: list[tuple[int, Path]] = []
        self.waiting = list(reversed(self.folder.parts[1:]))
        self.links = 0

    def walk(self) -> int:
        try:
            self._enter(os.open(self.folder.anchor, _ON_THE_WAY | _FOLDER), Path(self.folder.anchor))
            while self.waiting:
                name = self.waiting.pop()
                if name == "..":
                    if len(self.open) > 1:
                        os.close(self.open.pop()[0])
                else:
                    self._step(name)
            last, path = self.open[-1]
            if os.fstat(last).st_uid != os.geteuid():
                raise _others(path)
            if open_to_others(os.fstat(last)):
                raise _writable(path)
            return os.open(".", os.O_RDONLY | _FOLDER, dir_fd=last)
        finally:
            for descriptor, _ in self.open:
                os.close(descriptor)

    def _step(self, name: str) -> None:
        parent, path = self.open[-1][0], self.open[-1][1] / name
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            if not self.make:
                raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path)) from None
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if status.st_uid not in (os.geteuid(), 0):
            raise _others(path)
        if stat.S_ISLNK(status.st_mode):  # by one who may: nobody else can exchange it now
            self._follow(os.readlink(name, dir_fd=parent), status.st_nlink)
        elif not stat.S_ISDIR(status.st_mode):
            raise OSError(f"{path} is no folder")
        else:
            self._enter(os.open(name, _ON_THE_WAY | _FOLDER, dir_fd=parent), path)

    def _follow(self, target: str, names: int) -> None:
        self.links += 1
        if self.links > MOST_LINKS:
            raise OSError(f"{self.folder} is a ring of links")
        if names != 1:  # anybody could have given a link of root's this name
            raise UnsafeFolderError(f"a link on the way to {self.folder} has several names")
        parts = Path(target).parts
        if Path(target).is_absolute():
            for descriptor, _ in self.open[1:]:
                os.close(descriptor)
            del self.open[1:]
            parts = parts[1:]
        self.waiting += reversed(parts)

    def _enter(self, descriptor: int, path: Path) -> None:
        self.open.append((descriptor, path))
        status = os.fstat(descriptor)
        if status.st_uid not in (os.geteuid(), 0):
            raise _others(path)
        if open_to_others(status) and not status.st_mode & stat.S_ISVTX:
            raise _writable(path)


def open_to_others(status: os.stat_result) -> bool:
    """Whether somebody else may write: everybody, or a group that is more than this user."""
    if status.st_mode & 0o002:
        return True
    return bool(status.st_mode & 0o020) and not _private(status.st_gid, os.geteuid())


@functools.cache
def _private(group: int, user: int) -> bool:
    """Whether a group is this user alone, as Debian and its kin make one for each user and let it write."""
    try:
        import grp
        import pwd

        own, found, everybody = pwd.getpwuid(user), grp.getgrgid(group), pwd.getpwall()
    except (ImportError, KeyError):
        return False
    others = [other for other in everybody if other.pw_gid == group and other.pw_uid != user]
    return own.pw_gid == group and found.gr_name == own.pw_name and set(found.gr_mem) <= {own.pw_name} and not others


def _others(path: Path) -> UnsafeFolderError:
    return UnsafeFolderError(f"{path} belongs to another user")


def _writable(path: Path) -> UnsafeFolderError:
    return UnsafeFolderError(f"others may write to {path}: chmod go-w {path}")
