"""What a killed run leaves of ViZDoom: games that wait for orders for ever, and the shared memory they got them by.

Only this user's are touched, only by ViZDoom's own names, and only where every process that could use them was looked
at: a game whose master lives, or memory that any process but such a game has open, stays. Memory that no process has
open stays while it is young: its game may be starting where its processes are not seen, as in a container that shares
/dev/shm with this one and no more. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

SHARED = Path("/dev/shm")
PROCESSES = Path("/proc")
NAME = re.compile(r"ViZDoom(?:MQCtr|MQDoom|SM)([A-Za-z0-9]{10})")
INSTANCE = b"+viz_instance_id"
SECONDS_TO_END = 2.0
SECONDS_TO_START = 120.0  # once a game runs, it and its master have opened the memory and need its name no more


@dataclass
class Instance:
    """One game's files, and the processes that use them."""

    files: list[Path] = field(default_factory=list)
    games: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)
    made: float = 0.0


def remove_leftovers() -> int:
    """Remove what no living run uses; how many games and files that were."""
    try:
        found = _instances()
        if not found or not _look_at_processes(found):
            return 0
    except OSError:
        return 0
    removed = 0
    for instance in found.values():
        starting = not instance.games and time.time() - instance.made < SECONDS_TO_START
        if instance.others or starting or not _end(instance.games):
            continue
        removed += len(instance.games)
        for path in instance.files:
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
    return removed


def _instances() -> dict[str, Instance]:
    """This user's files by the names of the games; before the processes are looked at, so that none is newer than they."""
    found: dict[str, Instance] = {}
    for entry in os.scandir(SHARED):
        match = NAME.fullmatch(entry.name)
        if match is None:
            continue
        about = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid():
            instance = found.setdefault(match[1], Instance())
            instance.files.append(Path(entry.path))
            instance.made = max(instance.made, about.st_mtime)
    return found


def _look_at_processes(found: dict[str, Instance]) -> bool:
    """Note who uses the files; False where a process of this user's cannot be looked at, so that nothing is certain."""
    for entry in PROCESSES.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            mine = entry.stat().st_uid == os.getuid()
            # Opened, mapped, closed: in the other order a file could be mapped after the one look and closed before the other.
            names = {match[1] for link in _links(entry / "fd") if (match := NAME.search(link)) is not None}
            names |= {match[1] for match in NAME.finditer((entry / "maps").read_text(errors="replace"))}
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except PermissionError:
            if mine and not _may_more(entry):
                return False
            continue
        except OSError:  # it has ended
            continue
        for name in names & found.keys():
            is_game = Path(words[0].decode(errors="replace")).name == "vizdoom" and mine
            orphaned = is_game and INSTANCE in words and name.encode() in words and not _has_master(entry, name)
            (found[name].games if orphaned else found[name].others).add(int(entry.name))
    return True


def _may_more(process: Path) -> bool:
    """Whether a process has powers that this one has not, as the system's own have: no run of this user's does."""
    held = [
        int(line.split()[1], 16)
        for about in (process, PROCESSES / "self")
        for line in (about / "status").read_text().splitlines()
        if line.startswith("CapPrm:")
    ]
    return len(held) == 2 and bool(held[0] & ~held[1])


def _links(folder: Path) -> list[str]:
    found = []
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(entry))
    return found


def _has_master(game: Path, name: str) -> bool:
    """Whether the process that started the game is still its parent, and shares its memory."""
    parent = (game / "stat").read_text().rpartition(")")[2].split()[1]
    try:
        return name in (PROCESSES / parent / "maps").read_text(errors="replace")
    except FileNotFoundError:
        return False
    except PermissionError:  # whoever takes in orphans here, unless it is one that cannot be looked at
        return not _may_more(PROCESSES / parent)


def _end(games: set[int]) -> bool:
    """End orphaned games; whether they are gone."""
    for process in games:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS_TO_END
    while any(_runs(process) for process in games):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _runs(process: int) -> bool:
    try:
        return (PROCESSES / str(process) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
