"""Videos inside the page: each run's newest, as long as there is room, with what it shows.

A film's NAME.json says whose episodes it holds; where it is missing, the file's name says what it can.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from phasegrad.report.collect import RecordedRun, text
from phasegrad.report.tables import number
from phasegrad.runs.below import VIDEOS, names_in, read_start
from phasegrad.runs.files import read_json_object
from phasegrad.runs.reading import number_or_none

KINDS = {".mp4": "video/mp4", ".webp": "image/webp", ".gif": "image/gif"}  # of one film the first of these is shown
MOST_NOTE_BYTES = 1 << 16
NAMED_STEP = re.compile(r"step-([0-9]{1,18})(?:-grid)?")
NAMED_EPISODE = re.compile(r"eval-(best|median|worst)")
RETURNS_LISTED = 4


def newest_videos(run: RecordedRun) -> list[Path]:
    """The run's films, the newest first, each once; links out of the folder and files of another kind are left out."""
    folder = run.path / VIDEOS
    try:
        names = names_in(run.path, VIDEOS)
    except OSError:
        return []
    films: dict[str, Path] = {}
    for kind in KINDS:
        for file in (folder / name for name in names if name.endswith(kind)):
            if _is_what_it_says(file):
                films.setdefault(file.stem, file)
    return sorted(films.values(), key=lambda file: (-file.stat().st_mtime, file.name))


def _is_what_it_says(file: Path) -> bool:
    try:
        start = read_start(file, 12)
    except OSError:
        return False
    if file.suffix == ".mp4":
        return start[4:8] == b"ftyp"
    return start[:4] == b"GIF8" if file.suffix == ".gif" else start[:4] == b"RIFF" and start[8:12] == b"WEBP"


def caption(run: RecordedRun, file: Path) -> str:
    """Whose film it is: seed, step and return, from the note beside the file or from its name."""
    beside = file.with_suffix(".json")
    note = read_json_object(beside, MOST_NOTE_BYTES)
    algorithm, env = note.get("algorithm", run.algorithm), note.get("env", run.env)
    words = f"{text(algorithm).upper()} on {text(env)}, seed {text(note.get('seed', run.seed))}"
    step, named = number_or_none(note.get("step")), NAMED_STEP.fullmatch(file.stem)
    if step is None and named is not None:
        step = float(named[1])
    if step is not None:
        words += f", step {number(step)}"
    found = note.get("returns")
    listed = found[:10_000] if isinstance(found, list) else []
    returns = [value for each in listed if (value := number_or_none(each)) is not None]
    episode = NAMED_EPISODE.fullmatch(file.stem)
    if returns:
        words += f": {_returns(returns)}"
    elif episode is not None:
        words += f": the {episode[1]} episode of an evaluation"
    elif step is None:
        words += f" ({text(file.stem)})"
    greedy, levels = note.get("deterministic"), note.get("levels")
    how = ["greedy actions" if greedy is True else "sampled actions" if greedy is False else ""]
    how.append({"train": "training levels", "test": "test levels"}.get(levels, "") if isinstance(levels, str) else "")
    shown = ", ".join(filter(None, how))
    return f"{words} ({shown})" if shown else words


def _returns(returns: Sequence[float]) -> str:
    if len(returns) == 1:
        return f"return {number(returns[0])}"
    listed = ", ".join(map(number, returns[:RETURNS_LISTED])) + (", …" if len(returns) > RETURNS_LISTED else "")
    return f"returns {listed} (mean of {len(returns)}: {number(sum(returns) / len(returns))})"


def video_figures(runs: Sequence[RecordedRun], bytes_left: int) -> str:
    """The newest video of each run inside the page, as long as `bytes_left` last; the others by name."""
    shown, named = [], []
    for run in runs:
        for index, file in enumerate(newest_videos(run)):
            size = (file.stat().st_size + 2) // 3 * 4 + 1500
            if index or size > bytes_left:
                named.append(f"{run.name}: {file.name}")
                continue
            try:
                content = read_start(file, bytes_left)
            except OSError:
                continue
            bytes_left -= size
            shown.append(_figure(file, content, caption(run, file)))
    if not shown and not named:
        return ""
    rest = f'<p class="quiet">Not inside this page: {escape(text(", ".join(named)))}.</p>' if named else ""
    return f'<div class="videos">{"".join(shown)}</div>{rest}'


def _figure(file: Path, content: bytes, words: str) -> str:
    kind = KINDS[file.suffix]
    source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    label = escape(words)
    film = f'<img alt="{label}" src="{source}">'
    if kind.startswith("video"):
        film = f'<video controls loop muted playsinline preload="auto" aria-label="{label}" src="{source}"></video>'
    return f"<figure>{film}<figcaption>{label}</figcaption></figure>"
