"""Videos inside the page: each run's newest, as long as there is room, with what it shows."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from phasegrad.report.collect import RecordedRun, text


def newest_videos(run: RecordedRun) -> list[Path]:
    """The run's mp4 files, the newest first; links out of the folder and files of another kind are left out."""
    folder = run.path / "videos"
    if folder.is_symlink() or not folder.is_dir():
        return []
    files = [file for file in folder.glob("*.mp4") if file.is_file() and not file.is_symlink()]
    return sorted((file for file in files if _is_mp4(file)), key=lambda file: -file.stat().st_mtime)


def _is_mp4(file: Path) -> bool:
    with open(file, "rb") as opened:
        return opened.read(12)[4:8] == b"ftyp"


def video_figures(runs: Sequence[RecordedRun], bytes_left: int) -> str:
    """The newest video of each run inside the page, as long as `bytes_left` last; the others by name."""
    shown, named = [], []
    for run in runs:
        for index, file in enumerate(newest_videos(run)):
            size = (file.stat().st_size + 2) // 3 * 4 + 400
            label = f"{run.name}: {file.name}"
            if index or size > bytes_left:
                named.append(label)
                continue
            bytes_left -= size
            data = base64.b64encode(file.read_bytes()).decode()
            shown.append(
                f'<figure><video controls loop muted playsinline preload="metadata" aria-label="{escape(label)}" '
                f'src="data:video/mp4;base64,{data}"></video><figcaption>{escape(label)}</figcaption></figure>'
            )
    if not shown and not named:
        return ""
    rest = f'<p class="quiet">Not inside this page: {escape(text(", ".join(named)))}.</p>' if named else ""
    return f'<div class="videos">{"".join(shown)}</div>{rest}'
