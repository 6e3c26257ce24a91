"""Reading the small tables that a study's folder keeps: by column names, bounded, with a sentence on what is wrong."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from phasegrad.errors import RunError
from phasegrad.runs.files import read_limited

MOST_BYTES = 64 << 20


def csv_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file that has these columns, and maybe others."""
    try:
        reader = csv.DictReader(io.StringIO(read_limited(path, MOST_BYTES).decode(), newline=""))
        if not set(columns) <= set(reader.fieldnames or ()):
            raise RunError(f"{path}: its first line must name the columns {', '.join(columns)}.")
        return [{name: value or "" for name, value in row.items() if name is not None} for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{path} is not a table: {error}.") from None


def number_in(row: Mapping[str, str], name: str, path: Path) -> float | None:
    """A cell as a finite number; None where it is empty."""
    value = row.get(name) or ""
    try:
        found = float(value) if value else None
    except ValueError:
        found = math.nan
    if found is not None and not math.isfinite(found):
        raise RunError(f"{path}: {name} {value[:40]!r} is not a number.")
    return found
