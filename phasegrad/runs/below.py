"""What the library writes into a folder of its own (a run's, a saved agent's, a study's): opened, made and removed below it alone.

Which end of a path is the library's is told by its names; what comes before them is the user's, who may use links there.
Each part of that end is opened in the one before, so that none can be exchanged for a link on the way. Needs no torch.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from phasegrad.errors import RunError
from phasegrad.machine.regular_files import (
    NotRegularError,
    by_descriptor,
    kind,
    open_below,
    open_folder,
    open_regular,
    require_folder,
)

CHECKPOINTS, SEGMENTS, VIDEOS, STEPS, TENSORBOARD = "checkpoints", "segments", "videos", "steps", "tensorboard"
LOGS = "logs"  # of a study: logs/ENVIRONMENT/VARIANT/sSEED.log
# The folders that a run or a saved agent has, with what they hold, finished or not. A folder of such a name that holds
# something else is the user's: they may well call a run "checkpoints".
HOLD = {
    CHECKPOINTS: re.compile(r"\.?(damaged-)?step-[0-9]{12,18}.*"),
    SEGMENTS: re.compile(r"\.{0,2}[0-9]{12}-[0-9]{12}\.safetensors.*"),
    VIDEOS: re.compile(r"\.?(steps?|eval)-.*"),
    STEPS: re.compile(r"\.?step-.*\.npz.*"),
    TENSORBOARD: re.compile(r"events\.out\.tfevents\..*"),
}
LOG = re.compile(r"\.?s[0-9]+\.(log|failed).*")


def split(path: Path) -> tuple[Path, tuple[str, ...]]:
    """The user's part of a path to a file or folder of the library's, and the library's own."""
    folder, name = path.parent, path.name
    if len(path.parents) > 3 and path.parents[2].name == LOGS and LOG.fullmatch(name):
        return path.parents[3], path.parts[-4:]
    holds = HOLD.get(folder.name)
    own = (folder.name, name) if holds is not None and holds.fullmatch(name) else (name,)
    root = path.parents[len(own) - 1]
    if root.parent.name == CHECKPOINTS and HOLD[CHECKPOINTS].fullmatch(root.name):
        return root.parent.parent, (CHECKPOINTS, root.name, *own)
    return root, own


def open_own(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """The descriptor of a regular file of the library's; `NotRegularError` where a link or anything else is in its place."""
    root, own = split(path)
    return open_below(root, *own, flags=flags, mode=mode)


def read_start(path: Path, most: int) -> bytes:
    """The first bytes of a file of the library's; OSError where it is missing, a link or no file."""
    with open(open_own(path), "rb") as file:
        return file.read(most)


@contextlib.contextmanager
def folder_of(root: Path, *parts: str) -> Iterator[int | str]:
    """The folder `root/parts...` as a descriptor; `root` is a run's, a save's, a checkpoint's or a study's.

    Where the system does nothing by descriptor it is a path, which was looked at before.
    """
    base, own = split(root / "file")
    if not by_descriptor():
        require_folder(base, *own[:-1], *parts)
        yield str(root.joinpath(*parts))
        return
    descriptor = open_folder(base, *own[:-1], *parts)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _at(folder: int | str, name: str) -> tuple[str, int | None]:
    """What to call `name` in the folder, and the `dir_fd` to give with it."""
    return (os.path.join(folder, name), None) if isinstance(folder, str) else (name, folder)


@contextlib.contextmanager
def holding(path: Path) -> Iterator[tuple[int | None, str]]:
    """The folder that a file or folder of the library's is in, as a `dir_fd`, and what to call it there."""
    root, own = split(path)
    if not by_descriptor():
        require_folder(root, *own[:-1])
        yield None, str(path)
        return
    descriptor = open_folder(root, *own[:-1])
    try:
        yield descriptor, own[-1]
    finally:
        os.close(descriptor)


def special_in(root: Path, *parts: str) -> list[tuple[str, int]]:
    """Of what is in the folder `root/parts...` that which is neither a file nor a link, by name and `st_mode`."""
    try:
        with folder_of(root, *parts) as descriptor, os.scandir(descriptor) as entries:
            odd = [entry for entry in entries if not (entry.is_symlink() or entry.is_file(follow_symlinks=False))]
            return sorted((entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in odd)
    except FileNotFoundError:
        return []


def names_in(root: Path, *parts: str) -> list[str]:
    """What is in the folder `root/parts...`; nothing where there is none."""
    try:
        with folder_of(root, *parts) as descriptor:
            return sorted(os.listdir(descriptor))
    except FileNotFoundError:
        return []


def mode_of(path: Path) -> int | None:
    """`st_mode` of what has this name, a link's own; None where there is nothing."""
    try:
        with holding(path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def is_folder(path: Path) -> bool:
    """Whether a folder has this name; a link to one has not."""
    return stat.S_ISDIR(mode_of(path) or 0)


def make_folder(root: Path, *parts: str) -> None:
    """The folder `root/parts...`, made as far as it is missing below `root`, which must be there."""
    for depth in range(len(parts)):
        with folder_of(root, *parts[:depth]) as folder, contextlib.suppress(FileExistsError):
            name, descriptor = _at(folder, parts[depth])
            os.mkdir(name, dir_fd=descriptor)
    with folder_of(root, *parts):
        pass  # no link, nor anything else that was there before


def remove_file(path: Path) -> None:
    """Remove a file, or a link itself; nothing where there is none. A folder stays."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), holding(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def remove_empty(path: Path) -> None:
    """Remove a folder that nothing is in; any other, and what is none, stays."""
    with contextlib.suppress(OSError), holding(path) as (folder, name):
        os.rmdir(name, dir_fd=folder)


def remove_empty_in(root: Path, name: str) -> None:
    """Remove the folder `root/name` if nothing is in it."""
    with contextlib.suppress(OSError), folder_of(root) as folder:
        found, descriptor = _at(folder, name)
        os.rmdir(found, dir_fd=descriptor)


def move(source: Path, target: Path) -> None:
    """Give a file or folder of the library's another name; a link is moved itself."""
    with holding(source) as (here, name), holding(target) as (there, other):
        require_replaceable(target, there, other)
        os.replace(name, other, src_dir_fd=here, dst_dir_fd=there)


def require_replaceable(path: Path, folder: int | None, name: str) -> None:
    """Refuse to put a file in the place of a pipe, a socket or a device, which a file system would allow."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise NotRegularError(errno.EINVAL, f"it is {kind(mode)}, not a file", str(path))


def sync(path: Path) -> None:
    """Make what was done in the folder of `path` survive a power cut."""
    with holding(path) as (folder, _):
        if folder is not None:
            os.fsync(folder)


def told(error: NotRegularError) -> str:
    """`PATH is a link, not a file`."""
    return f"{error.filename} {str(error.strerror).removeprefix('it ')}"


def require_file(path: Path) -> None:
    """Refuse a link, a pipe or a device in the place of a file; a missing one is told elsewhere."""
    with contextlib.suppress(OSError):
        mode = mode_of(path)
        if mode is not None and not stat.S_ISREG(mode):
            raise RunError(f"{path} is {kind(mode)}, not a file, so it is not read.")


def require_folders(root: Path, *names: str) -> None:
    """Refuse a folder of these names in `root` that is a link or no folder, before anything is written."""
    for name in names:
        try:
            with folder_of(root, name):
                pass
        except FileNotFoundError:
            pass
        except NotRegularError as error:
            way_out = "put the folder itself there, or move it away" if "a link" in told(error) else "move it away"
            raise RunError(f"{told(error)}: {way_out}, then try again.") from None


def named_output(path: Path, option: str = "") -> Path:
    """Where a file that the user named is written: what a link leads to. Refuses what is no file."""
    shown = f"{option} {path}".strip()
    real = Path(os.path.realpath(path))
    try:
        mode = os.lstat(real).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return real if str(real) != os.path.abspath(path) else path
    except OSError as error:
        raise RunError(f"{shown} cannot be written: {error.strerror or error}.") from None
    if stat.S_ISLNK(mode):
        raise RunError(f"{shown} is a link that leads in a circle: name another file.")
    if not stat.S_ISREG(mode):
        raise RunError(f"{shown} is {kind(mode)}, not a file: name another file.")
    return real if str(real) != os.path.abspath(path) else path


def read_named(path: Path, most: int) -> bytes:
    """The first bytes of a file that the user named, where a link is theirs to use; OSError where it is no file."""
    with open(open_regular(path), "rb") as file:
        return file.read(most)
