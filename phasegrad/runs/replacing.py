"""One save in place of another in a folder that may hold other files too: at any moment one of the two can be read.

The new files are written whole under names of their own, which hold their checksum; then state.json, which lists the
checksums, is replaced in one step: from then on the new save is the one that is read, by whichever name its files have.
Last they get their usual names. Nothing is removed but what a save is made of.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from phasegrad.errors import PhasegradError, RunError
from phasegrad.machine.regular_files import NotRegularError, kind
from phasegrad.runs.below import SEGMENTS as SEGMENTS
from phasegrad.runs.below import (
    holding,
    is_folder,
    make_folder,
    mode_of,
    move,
    names_in,
    remove_empty,
    remove_empty_in,
    remove_file,
    split,
    sync,
)
from phasegrad.runs.files import (
    MOST_JSON_BYTES,
    MOST_OBJECT_BYTES,
    intended_name,
    read_json,
    read_json_object,
    reading,
    require_checksum,
    temporary_name,
)
from phasegrad.runs.reading import CONFIG, METRICS

TENSORS, STATE, LEG = "state.safetensors", "state.json", "leg.safetensors"
README, CURVE = "README.md", "curve.png"  # the card: its names may be those of files of the user's too
CARD = (README, CURVE)
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
        with contextlib.suppress(OSError):  # reading it says why
            if stat.S_ISREG(mode_of(waiting) or 0):
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


def is_save_place(path: Path) -> bool:
    """Whether a folder is where a save is to go. A user may have made that a link, but for a checkpoint of a run."""
    return path.is_dir() if len(split(path)[1]) == 1 else is_folder(path)


def _is_save(folder: Path) -> bool:
    try:
        state = read_json(folder / STATE)
    except PhasegradError:
        return False
    return is_state(state)


def is_state(data: Any) -> bool:
    """Whether this is what a save's state.json holds, and not another program's."""
    return isinstance(data, dict) and {"format", "algorithm", "sha256"} <= data.keys()


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
    root, own = split(path)
    if len(own) == 1:
        root.mkdir(parents=True, exist_ok=True)
    make_folder(root, *own[:-1])
    if (mode := mode_of(path)) is not None and not stat.S_ISDIR(mode):
        raise NotRegularError(errno.ENOTDIR, f"it is {kind(mode)}, not a folder", str(path))
    strays = [name for name in names_in(root, *own[:-1]) if intended_name(name) == path.name]
    for stray in strays:  # of a write that was killed
        remove_save(path.with_name(stray))
    temporary = temporary_name(path)
    with holding(temporary) as (parent, name):
        os.mkdir(name, dir_fd=parent)
    try:
        yield temporary
        sync(temporary / STATE)
        with holding(temporary) as (parent, name), holding(path) as (_, place):
            os.rename(name, place, src_dir_fd=parent, dst_dir_fd=parent)
        sync(path)
    finally:
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
            move(staged(path, sha256), path)
    for inner in ((), (SEGMENTS,)):
        for entry in names_in(folder, *inner):
            name = "/".join((*inner, entry))
            usual = in_force and is_own(name) and name != STATE and name not in files
            if usual or is_unfinished(entry, top=not inner):
                remove_file(folder.joinpath(*inner, entry))
    remove_empty_in(folder, SEGMENTS)


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
    return {name: str(sha256) for name, sha256 in found.items()} | listed_card(state)


def listed_card(state: Mapping[str, Any]) -> dict[str, str]:
    """The checksums of the card's files; a card that someone has edited since is theirs."""
    card = state.get("card")
    files = card.get("files") if isinstance(card, dict) else None
    found = files.items() if isinstance(files, dict) else ()
    return {name: sha256 for name, sha256 in found if name in CARD and CHECKSUM.fullmatch(str(sha256))}


def card_places(folder: Path) -> set[str]:
    """The files of a card that may be written in a folder: where nothing is, or what the save there wrote."""
    if not folder.is_dir():
        return set(CARD)
    wrote = listed_card(read_json_object(folder / STATE, MOST_JSON_BYTES))
    return {name for name in CARD if mode_of(folder / name) is None or _holds(folder / name, wrote.get(name))}


def remove_old_card(folder: Path, before: Mapping[str, Any]) -> None:
    """Remove the files of the card of the save `before` that the one in force has not, unless they were changed."""
    now = listed_card(read_json_object(folder / STATE, MOST_JSON_BYTES))
    for name, sha256 in listed_card(before).items():
        if name not in now and _holds(folder / name, sha256):
            remove_file(folder / name)


def _holds(path: Path, sha256: str | None) -> bool:
    try:
        require_checksum(path, sha256, MOST_OBJECT_BYTES)
    except (PhasegradError, OSError):
        return False
    return True


def is_own(name: str) -> bool:
    """Whether a save has a file of this name."""
    folder, _, file = name.rpartition("/")
    return name in (TENSORS, STATE, LEG) or (folder == SEGMENTS and SEGMENT.fullmatch(file) is not None)


def is_unfinished(name: str, top: bool) -> bool:
    """Whether a file of this name, in a save's folder or in its segments, is one that a kill left unfinished."""
    found = STAGED.fullmatch(intended_name(name) or name)
    inner = found[1] if found else intended_name(name)
    if found and top and inner in CARD:
        return True
    return inner is not None and is_own(inner if top else f"{SEGMENTS}/{inner}")


def remove_save(folder: Path) -> None:
    """Remove what a save is made of, and the folder unless something else is in it; of a link the link alone."""
    mode = mode_of(folder)
    if stat.S_ISLNK(mode or 0):
        remove_file(folder)
    if not stat.S_ISDIR(mode or 0):
        return
    if intended_name(folder.name) is not None:  # it was never finished, so that nothing in it is anyone else's
        for name in CARD:
            remove_file(folder / name)
    for inner in ((SEGMENTS,), ()):
        try:
            found = names_in(folder, *inner)
        except NotRegularError:  # a link, or no folder, under that name: it is not a save's
            continue
        for entry in found:
            if is_own("/".join((*inner, entry))) or is_unfinished(entry, top=not inner):
                remove_file(folder.joinpath(*inner, entry))
        if inner:
            remove_empty_in(folder, SEGMENTS)
    remove_empty(folder)
