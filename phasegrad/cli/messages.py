"""Sentences for the person at the terminal."""

from __future__ import annotations

import contextlib
import os
import sys

from phasegrad.errors import visible
from phasegrad.machine.terminals import beneath


def say(sentence: str) -> None:
    """A sentence on stderr; where several processes have the same to say, once."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        from phasegrad.distributed.joining import first_to_say

        if not first_to_say(sentence):
            return
    with contextlib.suppress(OSError, ValueError):  # nobody listens: the exit code tells
        print(f"phasegrad: {visible(sentence)}", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """A piece of a line on how far something is, on stderr, at once; stdout is for what comes out of it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(visible(text))
        sys.stderr.flush()


def fresh_line() -> None:
    """After a Ctrl-C: the terminal has written ^C where the next sentence is to begin."""
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        print("\r\x1b[K", end="", file=beneath(sys.stderr), flush=True)
