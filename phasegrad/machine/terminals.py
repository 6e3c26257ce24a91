"""The streams of a command: what is written to them cannot steer the terminal, whoever wrote the text.

Names, versions and messages come from files and from environments that anyone may have made. While a command runs, all that
is printed goes through `PlainStream`. Only the displays, which move the cursor themselves, get at what is beneath it, and
they spell out their texts too (runs/consoles.py).
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from phasegrad.errors import visible

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class PlainStream:
    """A text stream without control characters; in all else the stream beneath."""

    def __init__(self, beneath: Any) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        plain = visible(text)
        try:
            self.beneath.write(plain)
        except UnicodeEncodeError as error:  # of a terminal that knows few characters
            self.beneath.write(plain.encode(error.encoding, "backslashreplace").decode(error.encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


def beneath(stream: Any) -> Any:
    """The stream that takes control characters."""
    return stream.beneath if isinstance(stream, PlainStream) else stream


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """For as long as a command runs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (each if isinstance(each, PlainStream) else PlainStream(each) for each in before)
    try:
        yield
    except BaseException as error:
        if sys.excepthook is sys.__excepthook__ and not isinstance(error, SystemExit):
            sys.excepthook = _show_error
        raise
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def as_it_writes() -> Iterator[None]:
    """For a package that the user has asked for and that writes in colours of its own."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(beneath, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def without_colours(text: str) -> str:
    """A message that a package has coloured, such as gymnasium's warnings."""
    return COLOUR.sub("", text)


def _show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error that nobody expected: its traceback, with a text that may be an environment's."""
    PlainStream(sys.stderr).write("".join(traceback.format_exception(kind, error, trace)))
