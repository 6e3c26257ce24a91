"""Reads metrics.jsonl as data from anyone: a cut last line, NaN, wrong types and enormous lines are passed over.

A reader can be asked again for what was appended since; it knows nothing of training. `phasegrad watch` needs no torch.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phasegrad.errors import RunError, visible
from phasegrad.machine.regular_files import NotRegularError
from phasegrad.runs.below import open_own, read_start, told
from phasegrad.runs.files import reading

LONGEST_LINE = 1 << 20  # bytes; a real iteration takes one to three thousand
MOST_BYTES = 1 << 32  # of a metrics file
CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"  # as in directory.py, which needs torch
TAIL_BYTES = 8192  # enough for the last iteration
LONGEST_NAME = 200  # characters
MOST_NAMES = 500  # different metrics of one run
MOST_EPOCHS = 1000  # entries of a list such as aux_clone_kl_by_epoch

REPORT = "report.html"
EVALUATIONS = "evaluations.jsonl"  # what `phasegrad eval` found

LARGEST = sys.float_info.max

Row = dict[str, "float | list[float | None] | None"]


class MetricsReader:
    """The rows of a metrics file, in rising order of step; `ignored` counts the lines that were no row."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.offset = 0
        self.ignored = 0
        self.last_step = -1.0
        self.names: set[str] = set()

    def new_rows(self) -> Iterator[Row]:
        """Rows appended since the last call; a last line that has no end yet is left for the next."""
        with reading(self.path):
            yield from self._new_rows()

    def _new_rows(self) -> Iterator[Row]:
        try:
            handle = open_own(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except NotRegularError as error:
            raise RunError(f"{told(error)}, so it is not read.") from None
        with open(handle, "rb") as file:
            size = os.fstat(handle).st_size
            if size > MOST_BYTES:
                raise RunError(f"{self.path} has {size:,} bytes, more than the {MOST_BYTES:,} that a run writes.")
            if size < self.offset:  # a resumed run went back to its checkpoint
                self.__init__(self.path)  # type: ignore[misc]
            file.seek(self.offset)
            while line := file.readline(LONGEST_LINE):
                if not line.endswith(b"\n"):
                    if len(line) < LONGEST_LINE:
                        return  # cut by a kill, or still being written
                    while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                        pass
                    line = b""
                self.offset = file.tell()
                row = self.parse(line)
                if row is None:
                    self.ignored += 1
                else:
                    yield row

    def parse(self, line: bytes) -> Row | None:
        """The numbers of one line, or None if it has no step beyond the one before."""
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):  # ValueError: no JSON, no UTF-8, or a number of thousands of digits
            return None
        if not isinstance(data, dict):
            return None
        step = number_or_none(data.get("step"))
        if step is None or step <= self.last_step:
            return None
        self.last_step = step
        row: Row = {}
        for name, value in data.items():
            if name not in self.names:
                if len(self.names) >= MOST_NAMES or isinstance(value, (str, bool, dict)) or not _is_name(name):
                    continue
                self.names.add(name)
            kind = type(value)
            if kind is float:
                row[name] = value if -LARGEST < value < LARGEST else None
            elif kind is list:
                row[name] = [number_or_none(item) for item in value[:MOST_EPOCHS]]
            elif kind is int or value is None:
                row[name] = number_or_none(value)
        return row


def _is_name(name: str) -> bool:
    """Whether a metric may be called so: what is no plain text would go on into trackers and pages."""
    return len(name) <= LONGEST_NAME and name == visible(name)


def number_or_none(value: Any) -> float | None:
    """A finite float, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def is_report(path: Path) -> bool:
    """Whether this is a page that `phasegrad report` wrote."""
    try:
        return b'<meta name="generator" content="phasegrad ' in read_start(path, 1 << 12)
    except OSError:
        return False


def last_row(path: Path) -> Row:
    """The last row of a metrics file, from its end alone: for a display that looks at many large files."""
    try:
        with open(open_own(path), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()
    except OSError:
        return {}
    found = (MetricsReader(path).parse(line) for line in reversed(lines))
    return next((row for row in found if row is not None), {})
