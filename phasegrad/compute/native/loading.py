"""A binary's bytes as a loaded library: from memory that has no path, else from a folder of this process alone.

Whoever has checked the bytes has checked what runs: they are not read from anywhere again. Knows nothing of compilers.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import os
import shutil
import tempfile
from pathlib import Path

from phasegrad.machine.own_folders import open_private

_EXECUTABLE = (
    0x10  # MFD_EXEC, without which some systems make memory that may not be executed; older ones know no such flag
)
_numbers = itertools.count(1)


def load(content: bytes, key: str) -> ctypes.CDLL:
    """The library; OSError says why the system does not load it."""
    try:
        return _from_memory(content, key)
    except (OSError, AttributeError) as error:  # no /proc, no such call, or memory that may not be executed
        reason = error
    try:
        return _from_private_folder(content, key)
    except OSError as error:
        raise OSError(f"there is nowhere to load compiled code from: {reason}; {error}") from error


def _from_memory(content: bytes, key: str) -> ctypes.CDLL:
    descriptor = _memory(f"phasegrad-{key}")
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        # The loader takes a name that it has seen for the library it saw there, and descriptors are used again.
        return ctypes.CDLL(f"/proc/self/fd/{'./' * (next(_numbers) % 1500)}{descriptor}")


def _memory(name: str) -> int:
    flags = os.MFD_CLOEXEC
    try:
        return os.memfd_create(name, flags | _EXECUTABLE)
    except OSError:
        return os.memfd_create(name, flags)


def _from_private_folder(content: bytes, key: str) -> ctypes.CDLL:
    folder = private_folder()
    name = f"{key}-{next(_numbers)}.so"
    descriptor = open_private(folder)
    try:
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700, dir_fd=descriptor), "wb") as file:
            file.write(content)
    finally:
        os.close(descriptor)
    try:
        return ctypes.CDLL(
            str(folder / name)
        )  # nobody else can exchange anything on the way: `open_private` has looked
    finally:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


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
    """Where a binary is while it is loaded, on systems that load it from files alone."""
    return _private_folder(os.getpid())
