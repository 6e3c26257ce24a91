"""What a run writes into its directory, by name, and whose run it is: so that replacing one removes that and no more."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from phasegrad.errors import DamagedError, RunError
from phasegrad.machine.regular_files import kind
from phasegrad.runs.below import CHECKPOINTS as CHECKPOINTS
from phasegrad.runs.below import VIDEOS, mode_of, names_in, remove_empty_in, remove_file, require_folders, special_in
from phasegrad.runs.changing import CHANGES
from phasegrad.runs.files import intended_name, read_json
from phasegrad.runs.metrics import EVENTS, TENSORBOARD
from phasegrad.runs.reading import CONFIG, EVALUATIONS, METRICS, REPORT, RESULT, is_report
from phasegrad.runs.replacing import SEGMENT, SEGMENTS, is_unfinished, remove_save
from phasegrad.runs.steps import STEPS
from phasegrad.runs.tracking import ID_FILE, OLD_ID_FILE

BAD_BATCH, LAUNCH = "bad-batch.safetensors", ".launch"
LEVELS = "levels.json"  # of a study's run
CHECKPOINT = re.compile(r"step-([0-9]{12,18})")
DAMAGED = re.compile(r"damaged-(step-[0-9]{12,18})(-[0-9]+)?")  # a checkpoint that was passed over and set aside
FILES = (CONFIG, METRICS, RESULT, EVALUATIONS, CHANGES, BAD_BATCH, LAUNCH, ID_FILE, OLD_ID_FILE, LEVELS)
IN_FOLDERS = {
    SEGMENTS: SEGMENT,
    TENSORBOARD: EVENTS,
    # a film, what is in it, and what a kill left of one
    VIDEOS: re.compile(
        r"(?P<hidden>\.)?(step-[0-9]{12,18}(-grid)?|steps(-[0-9]{1,18}){2,6}|eval-(best|median|worst))"
        r"(?(hidden)\.([0-9]+\.(mp4|gif|webp)|json\.[0-9]+\.tmp)|\.(mp4|gif|webp|json))"
    ),
    STEPS: re.compile(r"step-[0-9]{12,18}\.npz|\.step-[0-9]{12,18}\.npz\.[0-9]+\.tmp"),
}

FOLDERS = (*IN_FOLDERS, CHECKPOINTS)


def is_stray(name: str) -> bool:
    """Whether this is the temporary name of a run's own file: a kill left it unfinished."""
    intended = intended_name(name)
    return intended is not None and intended in (*FILES, REPORT)


def require_own_run(folder: Path, way_out: str) -> None:
    """Refuse a directory whose config.json no run of this library wrote."""
    try:
        config = read_json(folder / CONFIG)
    except FileNotFoundError:
        raise RunError(
            f"{folder} is not a run directory (it has no {CONFIG}), so it will not be overwritten: {way_out}."
        ) from None
    except DamagedError as error:
        if not stat.S_ISREG(mode_of(folder / CONFIG) or 0):
            raise RunError(f"{str(error).rstrip('.')}, and {folder} will not be overwritten: {way_out}.") from None
        config = None
    versions = config.get("versions") if isinstance(config, dict) else None
    if (
        not isinstance(config, dict)
        or not isinstance(versions, dict)
        or "phasegrad" not in versions
        or not {"algorithm", "env", "total_steps", "seed"} <= config.keys()
    ):
        raise RunError(
            f"{folder / CONFIG} was not written by phasegrad, so {folder} will not be overwritten: {way_out}."
        )


def remove_run(folder: Path) -> None:
    """Remove what a run wrote, but for its config, which the next one replaces: until then the folder is a run's."""
    for entry in names_in(folder, CHECKPOINTS):
        name = intended_name(entry) or entry
        if CHECKPOINT.fullmatch(name) or DAMAGED.fullmatch(name):
            remove_save(folder / CHECKPOINTS / entry)
    for place, pattern in IN_FOLDERS.items():
        for entry in names_in(folder, place):
            if pattern.fullmatch(entry) or (place == SEGMENTS and is_unfinished(entry, top=False)):
                _unlink(folder / place / entry)
    for place in FOLDERS:
        remove_empty_in(folder, place)
    for entry in names_in(folder):
        if (entry in FILES and entry != CONFIG) or is_stray(entry) or (entry == REPORT and is_report(folder / entry)):
            _unlink(folder / entry)


def _unlink(path: Path) -> None:
    """Remove a file, or a link itself; what is neither, no run wrote."""
    mode = mode_of(path) or 0
    if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
        remove_file(path)


def require_plain(folder: Path, links: bool) -> None:
    """Refuse a directory in which a link, a pipe or a device has the name of a run's file or folder: nothing is written then.

    `links`: links in the place of files are allowed, since the run is replaced, and they go with it, alone.
    """
    require_folders(folder, *FOLDERS)
    for place, pattern in IN_FOLDERS.items():
        for name, mode in special_in(folder, place):
            if pattern.fullmatch(name):
                raise RunError(f"{folder / place / name} is {kind(mode)}, not a file: move it away, then try again.")
    for name in FILES:
        found = mode_of(folder / name)
        if found is not None and not stat.S_ISREG(found) and not (links and stat.S_ISLNK(found)):
            raise RunError(f"{folder / name} is {kind(found)}, not a file: move it away, then try again.")
