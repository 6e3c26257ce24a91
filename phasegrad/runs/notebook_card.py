"""What a notebook shows of an object: a title and rows of names and values, as a small table.

All text is data from anyone: it is escaped and cut. No colour is set but the page's own, so dark and light pages both work.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from phasegrad.errors import visible

LONGEST = 400  # characters of a cell
LINE = "1px solid rgba(128,128,128,.35)"
CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;border:0;background:none;color:inherit"


def plain(value: Any, most: int = LONGEST) -> str:
    """A value as a short line of text that cannot steer a terminal."""
    try:
        text = visible(" ".join(str(value).split()))
    except Exception:  # of an object of the user's
        text = type(value).__name__
    return text if len(text) <= most else text[: most - 1] + "…"


def card(title: str, rows: Iterable[tuple[str, Any]], below: str = "") -> str:
    """The HTML of it; `below` is HTML already."""
    cells = "".join(
        f'<tr style="background:none"><th style="{CELL};font-weight:normal;opacity:.7;white-space:nowrap">{escaped(name)}</th>'
        f'<td style="{CELL};overflow-wrap:anywhere">{escaped(value)}</td></tr>'
        for name, value in rows
    )
    return (
        f'<div style="display:inline-block;max-width:46em;border:{LINE};border-radius:4px;padding:8px 12px;color:inherit">'
        f'<div style="font-weight:bold;margin-bottom:4px">{escaped(title)}</div>'
        f'<table style="border-collapse:collapse;margin:0;font-size:inherit;color:inherit">{cells}</table>{below}</div>'
    )


def escaped(value: Any) -> str:
    return html.escape(plain(value), quote=True)
