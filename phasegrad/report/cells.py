"""Text in the cells of tables that other programs open: a name can be neither a formula nor markup there."""

from __future__ import annotations

import re
from typing import Any

from phasegrad.errors import visible

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a spreadsheet knows one
MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[#>+-](?=\s)")
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def csv_cell(value: Any) -> Any:
    """A value for a CSV file: numbers as they are, before text that a spreadsheet would reckon out an apostrophe."""
    if not isinstance(value, str):
        return value
    text = f"'{value}" if value.startswith(FORMULA) else value
    return visible(" ".join(text.splitlines()))


def markdown_text(text: str) -> str:
    """Text for Markdown that shows as it is: no HTML, no links, no columns of its own."""
    line = MARKUP.sub(lambda found: f"\\{found[0]}", visible(" ".join(text.splitlines())))
    return "".join(ENTITIES.get(character, character) for character in line)
