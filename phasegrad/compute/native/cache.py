"""The folder of compiled binaries: nobody else may have written to it, files are whole, and it does not grow for ever.

Loading a binary runs it, so every doubt is a reason to build again. The folder is held by descriptor, and a binary leaves
it as bytes that were checked: no path is looked at twice. Knows nothing of compilers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phasegrad.machine.own_folders import open_private
from phasegrad.machine.regular_files import read_all

MOST_BYTES = 256 << 20
MOST_FILES = 512
LITTLE_SPACE = 1 << 20  # bytes of a disk on which nothing more can be kept
NAME = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{64})?\.so")  # key and checksum; binaries of older versions had the key alone
BUILDING = "phasegrad-"  # what a build is at, or one that was killed
KILLED_AFTER = 3600  # seconds
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def cache_folder() -> Path:
    """Where binaries are kept: PHASEGRAD_CACHE, or the user's cache folder; OSError where there is no home."""
    chosen = os.environ.get("PHASEGRAD_CACHE")
    if chosen:
        root = Path(chosen).absolute()
    elif Path(os.environ.get("XDG_CACHE_HOME") or "").is_absolute():
        root = Path(os.environ["XDG_CACHE_HOME"])
    else:
        try:
            home = Path.home()
        except RuntimeError as error:
            raise OSError("there is no home folder") from error
        if os.environ.get("HOME") == "" or not home.is_absolute() or not home.is_dir():
            raise OSError(f"the home folder {os.environ.get('HOME', str(home))!r} is not there")
        root = home / ".cache"
    return root / "phasegrad" / "native"


@contextlib.contextmanager
def opened(make: bool = True) -> Iterator[Cache]:
    """The cache folder, made where it is missing; OSError says why it cannot be used."""
    path = cache_folder()
    descriptor = open_private(path, make)
    try:
        yield Cache(path, descriptor)
    finally:
        os.close(descriptor)


@dataclass
class Contents:
    """What lies in the cache folder."""

    folder: Path
    files: int
    bytes: int

    def describe(self) -> str:
        files = "1 file" if self.files == 1 else f"{self.files} files"
        return f"{files}, {self.bytes / 2**20:.1f} MB of at most {MOST_BYTES >> 20}, in {self.folder}"


class Cache:
    """The folder while it is open; `path` is for messages alone."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    def find(self, key: str) -> bytes | None:
        """The binary kept under `key`, if there is one that only this user can have written and that is whole."""
        for name in sorted(os.listdir(self.descriptor)):
            if name.startswith(f"{key}-") and NAME.fullmatch(name):
                with contextlib.suppress(OSError):
                    content = self._checked(name)
                    if content is not None:
                        return content
        return None

    def _checked(self, name: str) -> bytes | None:
        with open(os.open(name, _READ, dir_fd=self.descriptor), "rb") as file:  # without waiting, should it be a pipe
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                return None
            if status.st_mode & 0o022 or status.st_nlink != 1:
                return None
            content = read_all(file, MOST_BYTES)
            if hashlib.sha256(content).hexdigest() != name.removesuffix(".so").partition("-")[2]:
                return None
            with contextlib.suppress(OSError):
                os.utime(file.fileno())  # used now: the last to go
            return content

    def keep(self, key: str, content: bytes) -> str:
        """Write a binary whole or not at all, in place of what was kept under its key; its name."""
        name = f"{key}-{hashlib.sha256(content).hexdigest()}.so"
        unfinished = f"{BUILDING}{secrets.token_hex(8)}"
        try:
            with open(os.open(unfinished, _NEW, 0o700, dir_fd=self.descriptor), "wb") as file:
                os.fchmod(file.fileno(), 0o700)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(unfinished, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished, dir_fd=self.descriptor)
            raise
        with contextlib.suppress(OSError):  # some file systems have no fsync of folders
            os.fsync(self.descriptor)
        self._trim(name)
        return name

    def contents(self) -> Contents:
        """What is kept; OSError says why nothing can be added."""
        disk = os.statvfs(self.descriptor)
        if not os.access(".", os.W_OK, dir_fd=self.descriptor):
            raise OSError(f"{self.path} cannot be written to")
        if disk.f_bavail * disk.f_frsize < LITTLE_SPACE:
            raise OSError(f"the disk of {self.path} is full")
        return self._counted(self._kept())

    def clear(self) -> Contents:
        """Remove what was written here, and say what it was; processes that have loaded it are not disturbed."""
        kept = self._kept()
        for _, _, name in kept:
            self._remove(name)
        self._remove_killed()
        return self._counted(kept)

    def _counted(self, kept: list[tuple[float, int, str]]) -> Contents:
        return Contents(self.path, len(kept), sum(size for _, size, _ in kept))

    def _kept(self) -> list[tuple[float, int, str]]:
        """(last use, bytes, name) of every binary, those longest not used first."""
        found = []
        for name in os.listdir(self.descriptor):
            if NAME.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):  # another process has removed it
                    status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
                    if not stat.S_ISDIR(status.st_mode):
                        found.append((status.st_mtime, status.st_size, name))
        return sorted(found)

    def _trim(self, newest: str) -> None:
        """Remove what has the newest's key, and where there is too much what was longest not used; others may too."""
        kept = self._kept()
        files, total = len(kept), sum(size for _, size, _ in kept)
        for _, size, name in kept:
            replaced = name.startswith(f"{newest.partition('-')[0]}-")
            if name != newest and (replaced or files > MOST_FILES or total > MOST_BYTES):
                self._remove(name)
                files, total = files - 1, total - size
        self._remove_killed()

    def _remove_killed(self) -> None:
        """Remove what builds have left that were killed."""
        for name in os.listdir(self.descriptor):
            if name.startswith(BUILDING):
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
                    if status.st_mtime >= time.time() - KILLED_AFTER:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        shutil.rmtree(name, ignore_errors=True, dir_fd=self.descriptor)
                    else:
                        self._remove(name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)


def contents() -> Contents:
    """What is kept; OSError says why nothing can be added."""
    with opened() as cache:
        return cache.contents()


def clear() -> Contents:
    """Remove what was written here, and say what it was."""
    try:
        with opened(make=False) as cache:
            return cache.clear()
    except FileNotFoundError:
        return Contents(cache_folder(), 0, 0)
