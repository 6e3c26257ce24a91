"""What is in a film, as NAME.json beside it: for captions, and for whoever finds the file later."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phasegrad.errors import ConfigError
from phasegrad.runs.contract import Trainer
from phasegrad.runs.files import read_json_object, write_json
from phasegrad.runs.metrics import plain_json
from phasegrad.video.recorders import Video

ALWAYS = {"algorithm", "env", "seed", "step", "returns", "levels", "deterministic"}


def notes_path(film: Path) -> Path:
    return film.with_suffix(".json")


def require_free(film: Path) -> None:
    """Refuse to write where a file that no film brought would be replaced."""
    path = notes_path(film)
    if path.is_dir() or (os.path.lexists(path) and not read_json_object(path).keys() >= ALWAYS):
        raise ConfigError(
            f"{path} exists and is not about a film, but that of {film.name} goes there: name another file."
        )


def write_notes(video: Video, agents: Sequence[Trainer], *, seed: int | None, levels: str, deterministic: bool) -> None:
    """Of a film of one agent, or of several checkpoints' episodes, those of the first agent first."""
    config, steps = agents[-1].config, [agent.run.progress.step for agent in agents]
    notes: dict[str, Any] = {
        "algorithm": agents[-1].name,
        "env": config.env,
        "seed": config.seed if seed is None else seed,
        "step": steps[-1],
        "returns": video.returns,
        "levels": levels,
        "deterministic": deterministic,
        "lengths": video.lengths,
        "endings": video.endings,
    }
    if len(steps) > 1:
        notes["steps"] = steps
    write_json(notes_path(video.path), plain_json(notes), "try again")
