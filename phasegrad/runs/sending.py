"""Whether a run that goes on may send to a tracker: where this user has begun it here, or says so now.

A run directory may be a stranger's, with `track wandb` among its settings. A run that sends leaves a random word in its
directory and in a folder of this user's; one whose word is not known there was not begun by this user on this machine.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import warnings
from pathlib import Path

from phasegrad.errors import PhasegradWarning
from phasegrad.runs.files import read_json_object, write_json
from phasegrad.runs.tracking import AN_ID, ID_FILE, TOKEN


def state_folder() -> Path:
    """Where this user's programs keep what they know from one run to the next."""
    named = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA") or ""
    root = Path(named) if Path(named).is_absolute() else Path.home() / ".local" / "state"
    return root / "phasegrad" / "tracked"


def is_known(folder: Path) -> bool:
    """Whether a run directory is one that this user has let send from here."""
    token = _token(folder)
    with contextlib.suppress(OSError, RuntimeError):
        return token is not None and (state_folder() / token).is_file()
    return False


def remember(folder: Path) -> None:
    """Note that a run directory may send; one that cannot be noted is asked about again."""
    if is_known(folder):
        return
    token = secrets.token_hex(16)
    with contextlib.suppress(OSError, RuntimeError):
        state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        (state_folder() / token).touch(mode=0o600)
        write_json(folder / ID_FILE, {**read_json_object(folder / ID_FILE), TOKEN: token})


def warn_of_silence(folder: Path, track: str) -> None:
    warnings.warn(
        f"{folder} asks to send what is trained to {track.replace(',', ' and ')}, but was not begun by you on this machine: nothing "
        f"is sent. To send it, go on with --set track={track} (Python: phasegrad.load(path, track={track!r})).",
        PhasegradWarning,
        stacklevel=2,
    )


def _token(folder: Path) -> str | None:
    found = read_json_object(folder / ID_FILE).get(TOKEN)
    return found if isinstance(found, str) and AN_ID.fullmatch(found) else None
