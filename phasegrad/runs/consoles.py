"""Consoles for tables and panels: rich draws them, and no text in them can steer the terminal.

rich itself lets escape sequences in a text through. Here each piece of text is spelt out before it is laid out in lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from phasegrad.errors import visible
from phasegrad.machine.terminals import beneath


class PlainConsole(Console):
    """A console on standard output, unless another `file` is named."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**{"file": beneath(sys.stdout), **how})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)
