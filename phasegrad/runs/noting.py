"""What `phasegrad eval` has found, kept beside the run it was found of: a line of JSON for each, in evaluations.jsonl."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasegrad.machine.paths import as_path
from phasegrad.runs.below import open_own
from phasegrad.runs.reading import CONFIG, EVALUATIONS, number_or_none

MOST_READ = 1 << 22  # bytes of the file, from its end


def note_evaluation(folder: str | Path, found: Mapping[str, Any]) -> None:
    """Add an evaluation to a run directory; a saved agent's folder, and one that may not be written, stay as they are."""
    path = as_path(folder)
    if not (path / CONFIG).is_file():
        return
    line = json.dumps(found).encode() + b"\n"
    with contextlib.suppress(OSError):
        handle = open_own(path / EVALUATIONS, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        with open(handle, "r+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(handle, 1, end - 1) != b"\n":  # a kill has cut the last one
                line = b"\n" + line
            file.write(line)


def read_evaluations(folder: str | Path) -> list[dict[str, Any]]:
    """The evaluations of a run, oldest first; lines that are none are passed over."""
    try:
        with open(open_own(as_path(folder) / EVALUATIONS), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_READ))
            lines = file.read(MOST_READ).splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            data = json.loads(line)
            if isinstance(data, dict) and None not in map(number_or_none, (data.get("step"), data.get("return_mean"))):
                found.append(data)
    return found


def is_greedy_at(found: Mapping[str, Any], step: Any) -> bool:
    """Whether this is an evaluation at a step by greedy actions, on the levels of training where there are others."""
    return found.get("step") == step and found.get("deterministic") is True and found.get("levels") in (None, "train")
