"""What a run writes into its directory, by name, and whose run it is: so that replacing one removes that and no more."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from phasegrad.errors import DamagedError, RunError
from phasegrad.runs.changing import CHANGES
from phasegrad.runs.files import intended_name, read_json
from phasegrad.runs.metrics import EVENTS, TENSORBOARD
from phasegrad.runs.reading import CONFIG, EVALUATIONS, METRICS, REPORT, RESULT, is_report
from phasegrad.runs.replacing import SEGMENT, SEGMENTS, is_unfinished, remove_save
from phasegrad.runs.steps import STEPS
from phasegrad.runs.tracking import ID_FILE, OLD_ID_FILE

CHECKPOINTS, VIDEOS = "checkpoints", "videos"
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
    except DamagedError:
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
    for entry in entries(folder / CHECKPOINTS):
        name = intended_name(entry.name) or entry.name
        if CHECKPOINT.fullmatch(name) or DAMAGED.fullmatch(name):
            remove_save(entry)
    for name, pattern in IN_FOLDERS.items():
        for entry in entries(folder / name):
            if pattern.fullmatch(entry.name) or (name == SEGMENTS and is_unfinished(entry.name, top=False)):
                _unlink(entry)
    for name in (*IN_FOLDERS, CHECKPOINTS):
        with contextlib.suppress(OSError):  # not there, a link, or something of the user's is in it
            (folder / name).rmdir()
    for entry in list(folder.iterdir()):
        if (
            (entry.name in FILES and entry.name != CONFIG)
            or is_stray(entry.name)
            or (entry.name == REPORT and is_report(entry))
        ):
            _unlink(entry)


def entries(folder: Path) -> list[Path]:
    """What is in a folder of the run; nothing where it is missing, or a link to somewhere else."""
    return [] if folder.is_symlink() or not folder.is_dir() else list(folder.iterdir())


def _unlink(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
