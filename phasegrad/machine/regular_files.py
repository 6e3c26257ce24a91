"""Files opened only where they are files: no pipe that never answers, no device that never ends, no link to elsewhere.

Below a folder of the library's own every part of the path must be what it seems, at the moment it is opened: each folder
is opened in the one before, so that none can be exchanged for a link in between. Knows nothing of what is in a file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0)
_BY_DESCRIPTOR = os.open in os.supports_dir_fd
_NAMES = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"), (stat.S_ISLNK, "a link"),
)  # fmt: skip


class NotRegularError(OSError):
    """What has the name of a file is something else; `strerror` says what."""


class TooLargeError(OSError):
    """A file has more bytes than what is kept in it can have."""


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666, links: bool = True) -> int:
    """The descriptor of a regular file that the user named: there a link is theirs to use, unless `links` is False."""
    return _opened(os.fspath(path), flags, mode, links, None)


def by_descriptor() -> bool:
    """Whether files can be opened, made and removed in a folder that is given as a descriptor; Windows cannot."""
    return _BY_DESCRIPTOR


def require_folder(root: Path, *parts: str) -> None:
    """Refuse `root/parts...` where it, or what is on the way below `root`, is a link or no folder; OSError where it is missing."""
    if _BY_DESCRIPTOR:
        os.close(open_folder(root, *parts))
        return
    for depth in range(1, len(parts) + 1):
        folder = root.joinpath(*parts[:depth])
        if not stat.S_ISDIR(found := folder.lstat().st_mode):
            raise _refusal(folder, kind(found), "a folder")


def open_below(root: Path, *parts: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """The descriptor of the regular file `root/parts[0]/parts[1]...`; `root` may be a link, nothing below it is."""
    *folders, name = parts
    if not _BY_DESCRIPTOR:
        require_folder(root, *folders)
        return _opened(str(root.joinpath(*parts)), flags, mode, False, None)
    parent = open_folder(root, *folders)
    try:
        return _opened(name, flags, mode, False, parent, root.joinpath(*parts))
    finally:
        os.close(parent)


def open_folder(root: Path, *parts: str) -> int:
    """The descriptor of the folder `root/parts...`, for `dir_fd`; `root` may be a link, nothing below it is."""
    descriptor = os.open(root, os.O_RDONLY | _FOLDER | _AT_ONCE)
    for depth, part in enumerate(parts, 1):
        try:
            inner = os.open(part, os.O_RDONLY | _FOLDER | _NO_LINK | _AT_ONCE, dir_fd=descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                found = os.stat(part, dir_fd=descriptor, follow_symlinks=False).st_mode
                raise _refusal(root.joinpath(*parts[:depth]), kind(found), "a folder") from None
            raise
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def read_bounded(descriptor: int, most: int) -> bytes:
    """All bytes of a regular file, and its descriptor closed; `TooLargeError` before one is read where there are more."""
    with open(descriptor, "rb") as file:
        return read_all(file, most)


def read_all(file: BinaryIO, most: int) -> bytes:
    """The rest of an open file, which may grow while it is read, by no more than `most` bytes."""
    size = os.fstat(file.fileno()).st_size
    payload = b"" if size > most else file.read(most + 1)
    if size > most or len(payload) > most:
        raise TooLargeError(errno.EFBIG, f"it is larger than {most:,} bytes")
    return payload


def kind(mode: int) -> str:
    """What `st_mode` is of, in words."""
    return next((name for is_one, name in _NAMES if is_one(mode)), "a file")


def _opened(name: str, flags: int, mode: int, links: bool, parent: int | None, told: Path | None = None) -> int:
    shown = told or Path(name)
    try:
        descriptor = os.open(name, flags & ~os.O_TRUNC | _AT_ONCE | (0 if links else _NO_LINK), mode, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a pipe that nobody reads, a folder
            found = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if not stat.S_ISREG(found):
                raise _refusal(shown, kind(found)) from None
        raise
    found = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(found) or (not links and not _NO_LINK and os.path.islink(name)):
        os.close(descriptor)
        raise _refusal(shown, kind(found) if not stat.S_ISREG(found) else "a link")
    if flags & os.O_TRUNC:  # only now that it is known for a file
        os.ftruncate(descriptor, 0)
    return descriptor


def _refusal(path: Path, found: str, expected: str = "a file") -> NotRegularError:
    return NotRegularError(errno.EINVAL, f"it is {found}, not {expected}", str(path))
