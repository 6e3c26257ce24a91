"""One save in place of another in a folder that may hold other files too: at any moment one of the two can be read.

The new files are written whole under names of their own, which hold their checksum; then state.json, which lists the
checksums, is replaced in one step: from then on the new save is the one that is read, by whichever name its files have.
Last they get their usual names. Nothing is removed but what a save is made of.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phasegrad.errors import PhasegradError, RunError
from phasegrad.runs.files import intended_name, read_json, reading, sync_folder, temporary_name
from phasegrad.runs.reading import CONFIG, METRICS

TENSORS, STATE, LEG = "state.safetensors", "state.json", "leg.safetensors"
SEGMENTS = "segments"
SEGMENT = re.compile(r"[0-9]{12}-[0-9]{12}\.safetensors")
STAGED = re.compile(r"\.(.+)\.[0-9a-f]{16}\.new")
CHECKSUM = re.compile(r"[0-9a-f]{64}")


def staged(path: Path, sha256: str) -> Path:
    """What `path` with this content is called until the save that needs it is in force."""
    return path.with_name(f".{path.name}.{sha256[:16]}.new")


def current(path: Path, sha256: Any) -> Path:
    """Where the content with this checksum is: a kill may have left it under its first name."""
    if isinstance(sha256, str) and CHECKSUM.fullmatch(sha256):
        waiting = staged(path, sha256)
        if waiting.is_file() and not waiting.is_symlink():
            return waiting
    return path


def require_place(folder: Path) -> None:
    """Refuse to save where that would touch what is not a save: a file, a run, others' files under a save's names."""
    with reading(folder):
        if not folder.is_dir():
            if folder.exists():
                raise RunError(f"{folder} is a file: save to a folder.")
            return
        names = set(os.listdir(folder))
    if CONFIG in names and names & {"checkpoints", METRICS}:
        raise RunError(f"{folder} is a run directory: save to another folder, such as {folder / 'agent'}.")
    others = names & {TENSORS, LEG, SEGMENTS} if STATE not in names else set()
    if STATE in names and not _is_save(folder):
        others = {STATE}
    if others:
        raise RunError(f"{folder} holds a {min(others)} that phasegrad did not save there: save to another folder.")


def _is_save(folder: Path) -> bool:
    try:
        state = read_json(folder / STATE)
    except PhasegradError:
        return False
    return isinstance(state, dict) and {"format", "algorithm", "sha256"} <= state.keys()


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder to write a save into, where another may be: `staged` files first, state.json at last."""
    settle(folder)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError, PhasegradError):  # what stands can be read; the next save tidies up
            settle(folder)


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `path` when all is written, or goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stray in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # of a write that was killed
        if intended_name(stray.name) == path.name:
            remove_save(stray)
    temporary = temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
        sync_folder(temporary)
        os.rename(temporary, path)
        sync_folder(path.parent)
    finally:
        if temporary.exists():
            remove_save(temporary)


def settle(folder: Path) -> None:
    """Give the files of the save that is in force their usual names, and remove those of any other."""
    try:
        files = listed(read_json(folder / STATE))
        in_force = True
    except FileNotFoundError:
        files, in_force = {}, False
    for name, sha256 in files.items():
        path = folder / name
        if current(path, sha256) != path:
            os.replace(staged(path, sha256), path)
    places = [folder] + ([folder / SEGMENTS] if (folder / SEGMENTS).is_dir() else [])
    for place in places:
        for entry in place.iterdir():
            name = entry.name if place == folder else f"{SEGMENTS}/{entry.name}"
            usual = in_force and is_own(name) and name != STATE and name not in files
            if usual or is_unfinished(entry.name, place == folder):
                entry.unlink(missing_ok=True)
    if len(places) > 1:
        with contextlib.suppress(OSError):  # not empty
            places[1].rmdir()


def listed(state: Any) -> dict[str, str]:
    """The checksums of the files that a state.json needs beside it, by name."""
    state = state if isinstance(state, dict) else {}
    leg, extra = state.get("leg"), state.get("extra")
    carried = extra.get("carried") if isinstance(extra, dict) else None
    entries = carried.get("files") if isinstance(carried, dict) else None
    found = {TENSORS: state.get("sha256")}
    if isinstance(leg, dict):
        found[LEG] = leg.get("sha256")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and SEGMENT.fullmatch(str(entry.get("file"))):
            found[f"{SEGMENTS}/{entry['file']}"] = entry.get("sha256")
    return {name: str(sha256) for name, sha256 in found.items()}


def is_own(name: str) -> bool:
    """Whether a save has a file of this name."""
    folder, _, file = name.rpartition("/")
    return name in (TENSORS, STATE, LEG) or (folder == SEGMENTS and SEGMENT.fullmatch(file) is not None)


def is_unfinished(name: str, top: bool) -> bool:
    """Whether a file of this name, in a save's folder or in its segments, is one that a kill left unfinished."""
    found = STAGED.fullmatch(intended_name(name) or name)
    inner = found[1] if found else intended_name(name)
    return inner is not None and is_own(inner if top else f"{SEGMENTS}/{inner}")


def remove_save(folder: Path) -> None:
    """Remove what a save is made of, and the folder unless something else is in it."""
    for place in (folder / SEGMENTS, folder):
        if not place.is_dir() or place.is_symlink():
            continue
        for entry in place.iterdir():
            own = is_own(entry.name if place == folder else f"{SEGMENTS}/{entry.name}")
            if (own or is_unfinished(entry.name, place == folder)) and (entry.is_symlink() or not entry.is_dir()):
                entry.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            place.rmdir()
