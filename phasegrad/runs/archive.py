"""A saved agent as one .zip: packed from a folder, and unpacked from a file that may be a stranger's.

Only what a save consists of comes out of an archive, by names that are known beforehand, in sizes that were looked at
first. Links, other ways up the tree, encrypted and doubled entries are refused; what else an archive holds is not read.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phasegrad.errors import DamagedError, PhasegradError, RunError, visible
from phasegrad.machine.regular_files import NotRegularError, kind, open_regular
from phasegrad.runs.below import mode_of, named_output, told
from phasegrad.runs.files import MOST_JSON_BYTES, read_json_object, reading, replacing_file, writing
from phasegrad.runs.replacing import CARD, STATE, current, is_own, is_state, listed

SUFFIX = ".zip"
MOST_ENTRIES = 10_000
ROOM, MOST_RATIO = 1 << 26, 100  # an archive unpacks to at most so many bytes, and so many times its own size
WHEN = (1980, 1, 1, 0, 0, 0)  # of every entry, so that one agent makes one file
CHUNK = 1 << 20
OF_STABLE_BASELINES = {"data", "policy.pth"}


def is_archive(path: Path) -> bool:
    """Whether a saved agent of this name is a .zip."""
    return path.suffix.lower() == SUFFIX


def require_archive_place(path: Path) -> None:
    """Refuse to save over a file that is no saved agent, or that holds more than one: only the agent would be left of it."""
    with reading(path):
        there = os.path.lexists(path)
    if not there:
        return
    if path.is_dir():
        raise RunError(f"{path} is a folder: name a .zip file, or a folder without that ending.")
    named_output(path)
    try:
        with _opened(path) as archive:
            own = _own_entries(path, archive)
            _require_sizes(path, own)
            is_agent = is_state(_state(path, archive, own))
            others = [each.filename for each in archive.infolist() if not each.is_dir() and each not in own.values()]
    except PhasegradError:
        is_agent, others = False, []
    if not is_agent:
        raise RunError(f"{path} exists and is no saved agent, so it is not replaced: name another file.")
    if others:
        raise RunError(
            f"{path} holds other files beside a saved agent, such as {visible(others[0])[:80]!r}, so it is not replaced: name "
            "another file."
        )


def pack(folder: Path, path: Path) -> None:
    """The files of the save in `folder` as the archive `path`, whole or not at all."""
    path = named_output(path)
    with writing(path, "save it again"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(path) as temporary, open(temporary, "xb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
                for name, source in files_of(folder).items():
                    entry = zipfile.ZipInfo(name, WHEN)
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | 0o644) << 16
                    archive.writestr(entry, source.read_bytes())
            file.flush()
            os.fsync(file.fileno())


def files_of(folder: Path) -> dict[str, Path]:
    """The files that the save in a folder consists of, by name; nothing else in it is the agent's.

    The card may have been edited since.
    """
    state = read_json_object(folder / STATE, MOST_JSON_BYTES)
    files = {name: current(folder / name, sha256) for name, sha256 in listed(state).items() if name not in CARD}
    cards = {name: folder / name for name in CARD if stat.S_ISREG(mode_of(folder / name) or 0)}
    return {STATE: folder / STATE, **cards, **files}


def unpack(path: Path, folder: Path, card: bool = False) -> None:
    """The save in the archive `path`, as files in `folder`, which is empty; its `card` too, which loading does not need."""
    with _opened(path) as archive:
        own = _own_entries(path, archive)
        _require_sizes(path, own)
        for name in dict.fromkeys((STATE, *listed(_state(path, archive, own)), *CARD)):
            if name in own and (card or name not in CARD):  # what is missing is told by who reads the folder
                target = folder / name
                with writing(target, "try again"):  # a full disk is not the archive's fault
                    target.parent.mkdir(exist_ok=True)
                    with open(target, "xb") as file:
                        file.writelines(_chunks(path, archive, own[name]))


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        handle = open_regular(path)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist.") from None
    except NotRegularError as error:
        raise RunError(f"{told(error)}, so it is not read.") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from None
    with open(handle, "rb") as file:
        with _decoding(path):
            archive = zipfile.ZipFile(file)
        with archive:
            yield archive


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Turns what zipfile and its decompressors raise into the sentence for it; nothing else is done inside."""
    try:
        yield
    except (PhasegradError, MemoryError):
        raise
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # a place before the file's beginning is invalid
            raise RunError(f"{path} cannot be read: {error.strerror or error}.") from None
        raise DamagedError(f"{path} is damaged: it is not a whole .zip file ({visible(str(error))[:80]}).") from None
    except (
        Exception
    ) as error:  # each kind of compression has errors of its own, and a name that is no text is a ValueError
        raise DamagedError(f"{path} is damaged: it is not a whole .zip file ({visible(str(error))[:80]}).") from None


def _own_entries(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The entries of the save by their names in its folder; the archive may hold that folder itself."""
    entries = archive.infolist()
    if len(entries) > MOST_ENTRIES:
        raise RunError(f"{path} has {len(entries):,} entries, more than the {MOST_ENTRIES:,} that a saved agent has.")
    seen: set[str] = set()
    for entry in entries:
        shown = visible(entry.filename)[:80]
        _require_plain(path, entry, shown)
        if entry.filename in seen:
            raise RunError(f"{path} is refused: it has two entries {shown!r}.")
        seen.add(entry.filename)
    top = [name for name in seen if name == STATE or (name.endswith(f"/{STATE}") and name.count("/") == 1)]
    if not top:
        hint = " It looks like an agent of Stable-Baselines3, which phasegrad cannot read." * (
            seen >= OF_STABLE_BASELINES
        )
        raise RunError(f"{path} is not a saved agent: it has no {STATE}.{hint}")
    if len(top) > 1:
        raise RunError(f"{path} holds {len(top)} saved agents: unpack it and load the folder of one.")
    prefix = top[0].removesuffix(STATE)
    inside = {name.filename.removeprefix(prefix): name for name in entries if name.filename.startswith(prefix)}
    return {name: entry for name, entry in inside.items() if is_own(name) or name in CARD}


def _require_plain(path: Path, entry: zipfile.ZipInfo, shown: str) -> None:
    """Refuse an entry that could lead elsewhere, or that is not what it seems."""
    name, mode = entry.filename, entry.external_attr >> 16
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or "\\" in name or ":" in name:
        raise RunError(f"{path} is refused: its entry {shown!r} would lead out of the folder it is unpacked to.")
    if stat.S_IFMT(mode) and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise RunError(f"{path} is refused: its entry {shown!r} is {kind(mode)}, not a file.")
    if entry.flag_bits & 1:
        raise RunError(f"{path} is encrypted: unpack it first, then load the folder.")


def _require_sizes(path: Path, own: dict[str, zipfile.ZipInfo]) -> None:
    """Refuse an archive that would unpack to far more than it is, before anything is unpacked."""
    size, unpacked = path.stat().st_size, sum(entry.file_size for entry in own.values())
    if unpacked > ROOM + MOST_RATIO * size:
        raise RunError(
            f"{path} is refused: its {size:,} bytes would unpack to {unpacked:,}, more than a saved agent's would."
        )
    if own[STATE].file_size > MOST_JSON_BYTES:
        raise RunError(f"{path} is refused: its {STATE} has {own[STATE].file_size:,} bytes.")


def _state(path: Path, archive: zipfile.ZipFile, own: dict[str, zipfile.ZipInfo]) -> Any:
    try:
        return json.loads(b"".join(_chunks(path, archive, own[STATE])))
    except (ValueError, RecursionError):
        raise DamagedError(f"{path} is damaged: its {STATE} is not valid JSON.") from None


def _chunks(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content of an entry, which is no larger than it says."""
    left = entry.file_size
    with _decoding(path), archive.open(entry) as source:
        while chunk := source.read(min(CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                raise DamagedError(f"{path} is damaged: {entry.filename[:80]!r} is larger than it says.")
            yield chunk
