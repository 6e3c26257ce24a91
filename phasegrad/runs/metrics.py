"""Metrics on disk: one JSON object an iteration in metrics.jsonl, and the same numbers for TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Continue after the first `keep_bytes` bytes: what a killed run wrote after its checkpoint is dropped."""
        self.file = open(path, "ab")  # noqa: SIM115 - open for the whole run
        self.file.truncate(min(keep_bytes, path.stat().st_size))
        self.file.seek(0, os.SEEK_END)

    def write(self, metrics: Mapping[str, Any]) -> None:
        self.file.write(json.dumps(plain_json(metrics)).encode() + b"\n")
        self.file.flush()

    @property
    def bytes_written(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The iterations of a run; a last line cut by a kill is left out."""
    rows = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict):
                rows.append(row)
    return rows


class TensorBoard:
    """Writes event files that TensorBoard reads; resuming at a step makes it forget what lay beyond."""

    def __init__(self, folder: Path, resume_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self.writer = EventFileWriter(str(folder))
        if resume_step:
            start = SessionLog(status=SessionLog.SessionStatus.START)
            self.writer.add_event(Event(wall_time=time.time(), step=resume_step + 1, session_log=start))

    def write(self, metrics: Mapping[str, Any]) -> None:
        values = [
            self._summary.Value(tag=tag(name), simple_value=float(value))
            for name, value in metrics.items()
            if name not in NOT_CURVES and isinstance(value, (int, float)) and math.isfinite(value)
        ]
        self.writer.add_event(
            self._event(wall_time=time.time(), step=metrics["step"], summary=self._summary(value=values))
        )

    def close(self) -> None:
        self.writer.close()


def tag(name: str) -> str:
    """TensorBoard's grouping: returns and episodes, time, and what the update reports."""
    if name.startswith(("time_", "sps", "seconds")):
        return f"time/{name}"
    if name.startswith(("return_", "length_", "episode")):
        return f"rollout/{name}"
    return f"train/{name}"
