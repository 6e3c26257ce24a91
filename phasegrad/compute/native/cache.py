"""The folder of compiled binaries: nobody else may have written to it, files are whole, and it does not grow for ever.

Loading a binary runs it, so every doubt is a reason to build again. Knows nothing of compilers.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 256 << 20
MOST_FILES = 512
LITTLE_SPACE = 1 << 20  # bytes of a disk on which nothing more can be kept
NAME = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{64})?\.so")  # key and checksum; binaries of older versions had the key alone
BUILDING = "phasegrad-"  # the folder of a build that goes on, or that was killed
KILLED_AFTER = 3600  # seconds
MOST_LINKS = 40  # followed on the way to the folder, as many as Linux follows


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


def usable_folder() -> Path:
    """The cache folder, made where it is missing; OSError says why it cannot be used."""
    folder = cache_folder()
    require_own(folder)
    for place in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
    require_own(folder)
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise OSError(f"nothing may be executed in {folder}: its file system is mounted noexec")
    return folder


def require_own(folder: Path) -> None:
    """Refuse a folder that others could put files in, or exchange by way of a folder or link above it.

    What is missing yet is fine. A folder for everybody, such as /tmp, is fine on the way where it keeps people from
    touching each other's files.
    """
    at, waiting, links = Path("/"), list(reversed(folder.absolute().parts[1:])), 0
    while True:
        try:
            status = at.lstat()
        except FileNotFoundError:
            return
        if status.st_uid not in (os.getuid(), 0):
            raise OSError(f"{at} belongs to another user")
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(f"{folder} is a ring of links")
            target = at.readlink()
            waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = Path("/") if target.is_absolute() else at.parent
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise OSError(f"{at} is no folder")
        if status.st_mode & 0o022 and (not status.st_mode & stat.S_ISVTX or not waiting):
            raise OSError(f"others may write to {at}: chmod go-w {at}")
        if not waiting:
            if status.st_uid != os.getuid():
                raise OSError(f"{at} belongs to another user")
            return
        name = waiting.pop()
        at = at.parent if name == ".." else at / name


@functools.cache
def _private_folder(process: int) -> Path:
    """A folder for this process alone; a fork gets its own, and removes only that."""
    folder = Path(tempfile.mkdtemp(prefix="phasegrad-"))

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def private_folder() -> Path:
    """Where binaries go that cannot be kept, until this process ends."""
    folder = _private_folder(os.getpid())
    require_own(folder)
    return folder


def find(folder: Path, key: str) -> Path | None:
    """The binary kept under `key`, if there is one that only this user can have written and that is whole."""
    for path in folder.glob(f"{key}-*.so"):
        if NAME.fullmatch(path.name) and _is_whole(path):
            return path
    return None


def _is_whole(path: Path) -> bool:
    try:  # without waiting, should it be a pipe
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return False
        if status.st_mode & 0o022 or status.st_nlink != 1:
            return False
        if hashlib.file_digest(file, "sha256").hexdigest() != path.stem.partition("-")[2]:
            return False
        with contextlib.suppress(OSError):
            os.utime(descriptor)  # used now: the last to go
        return True


def keep(folder: Path, key: str, build: Callable[[Path], None]) -> Path:
    """Have `build` write a binary to the path it is given, and put it in its place whole or not at all."""
    with tempfile.TemporaryDirectory(prefix=BUILDING, dir=folder) as place:
        built = Path(place) / "program.so"
        build(built)
        built.chmod(0o700)
        with open(built, "rb") as file:
            path = folder / f"{key}-{hashlib.file_digest(file, 'sha256').hexdigest()}.so"
            os.fsync(file.fileno())
        built.replace(path)
    _trim(folder, path)
    return path


@dataclass
class Contents:
    """What lies in the cache folder."""

    folder: Path
    files: int
    bytes: int

    def describe(self) -> str:
        files = "1 file" if self.files == 1 else f"{self.files} files"
        return f"{files}, {self.bytes / 2**20:.1f} MB of at most {MOST_BYTES >> 20}, in {self.folder}"


def contents() -> Contents:
    """What is kept; OSError says why nothing can be added."""
    folder = usable_folder()
    disk = os.statvfs(folder)
    if not os.access(folder, os.W_OK):
        raise OSError(f"{folder} cannot be written to")
    if disk.f_bavail * disk.f_frsize < LITTLE_SPACE:
        raise OSError(f"the disk of {folder} is full")
    return _counted(folder, _kept(folder))


def clear() -> Contents:
    """Remove what was written here, and say what it was; processes that have loaded it are not disturbed."""
    folder = cache_folder()
    require_own(folder)
    kept = _kept(folder) if folder.is_dir() else []
    for _, _, path in kept:
        path.unlink(missing_ok=True)
    _remove_killed(folder)
    return _counted(folder, kept)


def _counted(folder: Path, kept: list[tuple[float, int, Path]]) -> Contents:
    return Contents(folder, len(kept), sum(size for _, size, _ in kept))


def _kept(folder: Path) -> list[tuple[float, int, Path]]:
    """(last use, bytes, path) of every binary, those longest not used first."""
    found = []
    for path in folder.iterdir():
        if NAME.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                status = path.lstat()
                if not stat.S_ISDIR(status.st_mode):
                    found.append((status.st_mtime, status.st_size, path))
    return sorted(found)


def _trim(folder: Path, newest: Path) -> None:
    """Remove what was longest not used where there is too much; another process may do the same."""
    kept = _kept(folder)
    files, total = len(kept), sum(size for _, size, _ in kept)
    for _, size, path in kept:
        if files <= MOST_FILES and total <= MOST_BYTES:
            break
        if path != newest:
            path.unlink(missing_ok=True)
            files, total = files - 1, total - size
    _remove_killed(folder)


def _remove_killed(folder: Path) -> None:
    """Remove what builds have left that were killed."""
    for path in folder.glob(f"{BUILDING}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_mtime < time.time() - KILLED_AFTER:
                shutil.rmtree(path, ignore_errors=True)
