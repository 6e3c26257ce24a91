"""A film inside a notebook's page: the file itself, as text in the page, where it is small enough."""

from __future__ import annotations

import atexit
import base64
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from phasegrad.errors import RunError
from phasegrad.machine.paths import as_path
from phasegrad.machine.regular_files import open_regular, read_bounded
from phasegrad.runs.formats import score
from phasegrad.runs.notebook_card import card, escaped

if TYPE_CHECKING:
    from phasegrad.runs.contract import Trainer
    from phasegrad.video.recorders import Video

MOST_BYTES = 16_000_000  # of a film within a page: a notebook holds it as text, a third longer
KINDS = {".mp4": "video/mp4", ".gif": "image/gif", ".webp": "image/webp"}

_folder: list[Path] = []  # of this process, for films that were not given a place


def inline_path(agent: Trainer, path: str | Path | None) -> Path | None:
    """Where a film goes that is made to be looked at: as given, else the run directory, else a folder that goes with the process."""
    if path is not None:
        return as_path(path)
    if agent.run.place is not None:
        return None
    if not _folder:
        _folder.append(Path(tempfile.mkdtemp(prefix="phasegrad-films-")))
        atexit.register(shutil.rmtree, _folder[0], ignore_errors=True)
    taken = len(list(_folder[0].glob("*.mp4")))
    return _folder[0] / f"film-{taken + 1}.mp4"


def embedded(video: Video) -> str:
    """The HTML of a film, with its returns beneath; in words where it is too large for a page, or gone."""
    returns = ", ".join(score(value) for value in video.returns)
    told = [("return", returns), ("file", video.path)]
    kind = KINDS.get(video.path.suffix.lower())
    try:
        payload = read_bounded(open_regular(video.path), MOST_BYTES)
    except (OSError, RunError) as error:
        return card("Video", [*told, ("not shown", getattr(error, "strerror", None) or error)])
    if kind is None:
        return card("Video", told)
    source = f"data:{kind};base64,{base64.b64encode(payload).decode()}"
    width = f"width:{video.size[0]}px;" if video.size[0] else ""
    style = f"{width}max-width:100%;height:auto;display:block"
    if kind == "video/mp4":
        shown = f'<video controls muted loop playsinline style="{style}" src="{source}"></video>'
    else:
        shown = f'<img alt="{escaped(video.path.name)}" style="{style}" src="{source}">'
    return f'<div>{shown}<div style="opacity:.7">return {escaped(returns)}</div></div>'
