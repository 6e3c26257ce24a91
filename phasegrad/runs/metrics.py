"""Metrics on disk: one JSON object an iteration in metrics.jsonl, and the same numbers for TensorBoard."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from phasegrad.runs.below import TENSORBOARD as TENSORBOARD
from phasegrad.runs.below import make_folder, names_in, open_own, remove_file
from phasegrad.runs.event_file import event, first_event
from phasegrad.runs.files import writing
from phasegrad.runs.reading import MetricsReader

EVENTS = re.compile(r"events\.out\.tfevents\.[0-9]{10,}\.phasegrad")  # the files of ours in it
NOT_CURVES = ("step", "iteration")


def plain_json(value: Any) -> Any:
    """NaN and infinities, which JSON does not have, as null."""
    if isinstance(value, Mapping):
        return {key: plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class MetricsFile:
    """Appends to metrics.jsonl, a whole line at a time, visible at once to readers."""

    def __init__(self, path: Path, keep_bytes: int = 0, before_write: Callable[[], None] | None = None) -> None:
        """Continue after the first `keep_bytes` bytes: what a killed run wrote after its checkpoint is dropped."""
        self.path, self.before_write = path, before_write
        with writing(path):
            handle = open_own(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            self.file = open(handle, "ab", buffering=0)  # noqa: SIM115 - open for the whole run
            self.file.truncate(min(max(keep_bytes, 0), os.fstat(handle).st_size))
            self.file.seek(0, os.SEEK_END)

    def write(self, metrics: Mapping[str, Any]) -> None:
        if self.before_write is not None:
            self.before_write()
        line = json.dumps(plain_json(metrics)).encode() + b"\n"
        end = self.file.tell()
        with writing(self.path):
            try:
                if self.file.write(line) != len(line):  # a disk that is almost full takes a part
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except BaseException:
                with contextlib.suppress(OSError):  # half a line would spoil the next one
                    self.file.truncate(end)
                    self.file.seek(end)
                raise

    def sync(self) -> None:
        """Make what was written survive a power cut, before a checkpoint counts on it."""
        with writing(self.path):
            os.fsync(self.file.fileno())

    @property
    def bytes_written(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The iterations of a run; a last line cut by a kill is left out."""
    return list(MetricsReader(path).new_rows())


class TensorBoard:
    """One event file that TensorBoard reads. A resumed run writes it anew from the metrics that count.

    So there is never a step twice, as there would be beside the file of a killed process, nor a step missing that such
    a process had not yet written out.
    """

    def __init__(self, folder: Path, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.path = folder / f"events.out.tfevents.{int(time.time()):010d}.phasegrad"
        rows = [row for row in rows if 0 <= row["step"] < 1 << 63]
        started = time.time() - (_seconds(rows[-1]) if rows else 0.0)
        with writing(self.path):
            make_folder(folder.parent, folder.name)
            for old in names_in(folder.parent, folder.name):
                if EVENTS.fullmatch(old):
                    remove_file(folder / old)
            handle = open_own(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            self.file = open(handle, "wb")  # noqa: SIM115 - open for the whole run
            self.file.write(first_event(started))
            for row in rows:
                self._add(row, started + _seconds(row))
            self.file.flush()

    def write(self, metrics: Mapping[str, Any]) -> None:
        with writing(self.path):
            self._add(metrics, time.time())
            self.file.flush()

    def _add(self, metrics: Mapping[str, Any], wall_time: float) -> None:
        values = {
            tag(name): float(value)
            for name, value in metrics.items()
            if name not in NOT_CURVES and isinstance(value, (int, float)) and math.isfinite(value)
        }
        self.file.write(event(wall_time, int(metrics["step"]), values))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()


def _seconds(row: Mapping[str, Any]) -> float:
    value = row.get("seconds")
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def tag(name: str) -> str:
    """TensorBoard's grouping: returns and episodes, time, and what the update reports."""
    if name.startswith(("time_", "sps", "seconds")):
        return f"time/{name}"
    if name.startswith(("return_", "length_", "episode", "success_")):
        return f"rollout/{name}"
    return f"train/{name}"
