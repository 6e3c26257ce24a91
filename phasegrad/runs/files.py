"""Files of a run: written whole or not at all and durable, read only after their size is known to be sensible.

A write that fails (a full disk, a folder that is gone) becomes one sentence and leaves what was there before. A file
that is merely out of reach (no permission, a server that is away) is not damaged: nothing may be done without it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phasegrad.errors import DamagedError, RunError
from phasegrad.machine.failures import reason, remedy
from phasegrad.machine.memory import available_bytes, gigabytes
from phasegrad.machine.regular_files import NotRegularError, open_regular
from phasegrad.runs.below import move, open_own, remove_file, sync, told

MOST_JSON_BYTES = 1 << 26
MOST_OBJECT_BYTES = 1 << 22  # of a file that anyone may have written
MOST_HEADER_BYTES = 1 << 24
LARGE = 1 << 28  # from so many bytes on a file is not read before there is memory for it
BAD_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)  # gone, something else, or on a broken disk
TEMPORARY = re.compile(r"\.(.+)\.[0-9]+\.tmp")  # the name of a file or folder while it is written, with who writes it
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@contextlib.contextmanager
def writing(path: Path, then: str = "resume the run") -> Iterator[None]:
    """Turns a failed write into the sentence for it, which says what to do `then`."""
    try:
        yield
    except NotRegularError as error:
        raise RunError(f"{told(error)}, so it is not written: move it away, then try again.") from None
    except OSError as error:
        raise RunError(f"{path} could not be written: {reason(error)}; {remedy(error)}, then {then}.") from error


def write_synced(path: Path, payload: bytes) -> None:
    with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def temporary_name(path: Path) -> Path:
    """What `path` is called while it is written."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def intended_name(name: str) -> str | None:
    """What a file with a temporary name was to be called; None for any other name."""
    found = TEMPORARY.fullmatch(name)
    return found[1] if found else None


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A name to write a file under, which becomes `path` when that is done, or goes. Its folder must be there.

    Where `path` is a link, the link is replaced and what it leads to is left alone.
    """
    temporary = temporary_name(path)
    remove_file(temporary)  # of a process of the same number, which was killed
    try:
        yield temporary
        move(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_file(temporary)
        raise


def replace_synced(path: Path, payload: bytes) -> None:
    """The file `path` with this content and no other, even after a power cut. Its folder must be there."""
    with replacing_file(path) as temporary:
        write_synced(temporary, payload)
    sync(path)


def write_atomically(path: Path, payload: bytes, then: str = "resume the run") -> None:
    """`replace_synced`, with a sentence where it fails."""
    with writing(path, then):
        replace_synced(path, payload)


def write_json(path: Path, data: Any, then: str = "resume the run") -> None:
    """The data as JSON that a person can read too."""
    write_atomically(path, (json.dumps(data, indent=1) + "\n").encode(), then)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns a failed read into the sentence for it, and tells a file that is damaged from one that is out of reach."""
    try:
        yield
    except NotRegularError as error:
        raise DamagedError(f"{told(error)}, so it is not read.") from None
    except OSError as error:
        sentence = f"{path} cannot be read: {error.strerror or error}"
        if error.errno in BAD_FILE:
            raise DamagedError(f"{sentence}.") from None
        helps = remedy(error) if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG) else "make it readable"
        raise RunError(f"{sentence}; nothing was changed: {helps}, then try again.") from None


def read_limited(path: Path, most_bytes: int, links: bool = False) -> bytes:
    """The content of a plain file that is no larger than expected; nothing is read of one that is.

    `links`: it is the user's own, and may be one.
    """
    with reading(path), open(open_regular(path) if links else open_own(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise DamagedError(f"{path} is damaged: it has {size} bytes, more than the {most_bytes} it could need.")
        if size > LARGE and (free := available_bytes()) is not None and size > free:
            raise RunError(f"{path} has {gigabytes(size)}, and only {gigabytes(free)} of memory are free.")
        return file.read(size + 1)  # asking for more would take memory for that


def require_within_reach(path: Path) -> None:
    """RunError where a file is there and merely cannot be read now; one that is missing or damaged passes."""
    with contextlib.suppress(DamagedError):
        read_limited(path, MOST_OBJECT_BYTES)


def require_checksum(path: Path, sha256: Any, most_bytes: int) -> None:
    """Refuse a file that is larger than expected, or not the one whose checksum was noted, without keeping it in memory."""
    with reading(path), open(open_own(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise DamagedError(f"{path} is damaged: it has {size} bytes, more than the {most_bytes} it could need.")
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DamagedError(f"{path} is damaged: its checksum does not match.")


def read_json(path: Path, most_bytes: int = MOST_JSON_BYTES, links: bool = False) -> Any:
    """A JSON file of sensible size; FileNotFoundError where there is none. `links`: as for `read_limited`."""
    try:
        os.stat(path, follow_symlinks=links)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError:
        pass  # reading it says why
    try:
        return json.loads(read_limited(path, most_bytes, links))
    except (ValueError, RecursionError):
        raise DamagedError(f"{path} is damaged: it is not valid JSON.") from None


def read_json_object(path: Path, most_bytes: int = MOST_OBJECT_BYTES) -> dict[str, Any]:
    """The object in a JSON file; {} where it is missing, out of reach, damaged, too large or something else."""
    try:
        data = read_json(path, most_bytes)
    except (FileNotFoundError, RunError):
        return {}
    return data if isinstance(data, dict) else {}


def checked_header(path: Path, payload: bytes | None = None) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(dtype, shape) of each tensor in a safetensors file, read from its header alone and in step with its size.

    `payload`: what was read of the file, which may be another by now.
    """
    damaged = DamagedError(f"{path} is damaged: it is not a whole safetensors file.")
    try:
        with reading(path), io.BytesIO(payload) if payload is not None else open(open_own(path), "rb") as file:
            size = len(payload) if payload is not None else os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
                raise damaged
            header = json.loads(file.read(length))
        found = {}
        end = 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            shape = tuple(int(n) for n in entry["shape"])
            if any(n < 0 for n in shape):
                raise damaged
            found[name] = (str(entry["dtype"]), shape)
            first, last = (int(n) for n in entry["data_offsets"])
            if last - first != ITEM_BYTES[entry["dtype"]] * math.prod(shape):
                raise damaged
            end += last - first
        if end != size - 8 - length:
            raise damaged
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise damaged from None
    return found
