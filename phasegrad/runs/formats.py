"""Numbers, durations and names as a display shows them: in few characters, or in exactly as many as there are."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from phasegrad.errors import visible

SPARKS, ASCII_SPARKS = "▁▂▃▄▅▆▇█", "_.-=+*#@"


def number(value: Any) -> str:
    """A number in about four digits, `-` for none."""
    if value is None or not math.isfinite(value):
        return "-" if value is None else str(value)
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.3e}"


def score(value: Any) -> str:
    """A return: 500.0, 12.34, 0.931."""
    if value is None or not math.isfinite(value) or abs(value) >= 1e6:
        return number(value)
    return f"{value:,.{1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3}f}"


def field(value: Any, width: int, text: str | None = None) -> str:
    """A number (or its `text`, where that fits) to the right of a field that is never wider than `width`."""
    shown = number(value) if text is None else text
    digits = 4
    while len(shown) > width and digits:
        digits -= 1
        shown = f"{value:.{digits}g}" if digits else "#" * width
    return shown.rjust(width)


def whole(value: Any) -> int:
    """A count from data that may hold anything; 0 for what is no number."""
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0


def duration(seconds: float | None) -> str:
    """1m01s, 1h01m, 3d04h; `?` where it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    hours, minutes = int(seconds) // 3600, int(seconds) // 60 % 60
    if hours >= 100:
        return f"{hours // 24}d{hours % 24:02d}h"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{int(seconds) % 60:02d}s"


def sparkline(values: Sequence[float], width: int = 30, sparks: str = SPARKS) -> str:
    """The history in a few characters, lowest to highest."""
    values = [value for value in values if math.isfinite(value)]
    if len(values) < 2 or width < 2:
        return ""
    count = min(width, len(values))
    picked = [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]
    low, high = min(picked), max(picked)
    if low == high:
        return sparks[len(sparks) // 2] * count
    span = high / 2 - low / 2 or 1.0  # halves: the span of two huge numbers may be too large for a float
    return "".join(sparks[min(len(sparks) - 1, int((value / 2 - low / 2) / span * len(sparks)))] for value in picked)


def printable(value: object, most: int = 1000) -> str:
    """Text from a file in one line, without control characters, which could move a terminal's cursor."""
    shown = visible(" ".join(str(value).split()))[:most]
    return "".join(character if character.isprintable() else "?" for character in shown)


def cells(text: str) -> int:
    """The columns that a text takes in a terminal."""
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    return 0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, width: int, dots: str = "…") -> str:
    """A text of at most `width` columns: of a longer one the middle is left out, since its ends tell names apart."""
    if cells(text) <= width:
        return text
    room = max(0, width - len(dots))
    head, tail = _start(text, room - room // 2), _start(text[::-1], room // 2)[::-1]
    return f"{head}{dots}{tail}"[: max(width, 0)]


def _start(text: str, width: int) -> str:
    kept = ""
    for character in text:
        width -= _cells(character)
        if width < 0:
            break
        kept += character
    return kept
