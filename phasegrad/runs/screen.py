"""A panel that is redrawn in place while a program runs: in a terminal here, in a notebook in notebook.py.

Whatever the program prints, warns or logs meanwhile goes above the panel. The screen is whole again after an error, a
Ctrl-C and a change of the terminal's size.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

FRAMES_A_SECOND = 2
_UNMOVABLE = ("dumb", "unknown") if sys.platform == "win32" else ("", "dumb", "unknown")  # Windows sets no TERM


def is_terminal() -> bool:
    """Whether standard output is a terminal whose cursor can be moved."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in _UNMOVABLE


@contextlib.contextmanager
def keys_unseen() -> Iterator[None]:
    """Keys pressed meanwhile are not echoed: a line feed in the middle of a panel would move all of it.

    For commands, which read nothing. Only the terminal's foreground process may change it; Ctrl-C works as ever.
    """
    fd = _own_terminal()
    if fd is None:
        yield
        return
    before = termios.tcgetattr(fd)
    _echo(fd, False)
    try:
        yield
    finally:
        if _own_terminal() is not None:  # else a shell has it back, with settings of its own
            _echo(fd, bool(before[3] & termios.ECHO))


def _own_terminal() -> int | None:
    """Standard input, where it is a terminal and this process is in its foreground."""
    if termios is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        fd = sys.__stdin__.fileno() if sys.__stdin__ is not None else -1
        if is_terminal() and os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp():
            return fd
    return None


def _echo(fd: int, on: bool) -> None:
    with contextlib.suppress(termios.error):
        settings = termios.tcgetattr(fd)
        settings[3] = settings[3] | termios.ECHO if on else settings[3] & ~termios.ECHO
        termios.tcsetattr(fd, termios.TCSADRAIN, settings)


class Screen:
    """The panel in a terminal. The cursor rests on an empty line below it, where a key's echo does no harm."""

    def __init__(self, frame: Callable[[], RenderableType]) -> None:
        from phasegrad.runs.consoles import PlainConsole

        self.frame = frame
        self.console = PlainConsole(highlight=False)
        self.closed = threading.Event()
        self.lock = threading.RLock()
        self.cleanup = contextlib.ExitStack()
        self._start()
        threading.Thread(target=self._redraw, name="phasegrad display", daemon=True).start()

    def _start(self) -> None:
        from rich.live import Live

        usual = sys.stdout, sys.stderr
        self.size = self.console.size
        self.live: Live = Live(
            get_renderable=self._renderable,
            console=self.console,
            auto_refresh=False,
            redirect_stderr=sys.stderr.isatty(),
        )
        self.live.start(refresh=True)
        self.cleanup.callback(self.live.stop)
        self.cleanup.callback(_flush)
        self.cleanup.enter_context(_logs_moved(dict(zip(usual, (sys.stdout, sys.stderr), strict=True))))

    def _renderable(self) -> RenderableType:
        from rich.console import Group

        return self.frame() if self.closed.is_set() else Group(self.frame(), "")

    def _redraw(self) -> None:
        while not self.closed.wait(1 / FRAMES_A_SECOND):
            with self.lock:
                if self.closed.is_set():
                    return
                try:
                    self.refresh()
                except OSError:  # the terminal is gone; the run goes on
                    return

    def refresh(self) -> None:
        """Draw the panel as things stand now."""
        with self.lock:
            size, before = self.console.size, self.size
            if size.width < before.width or size.height < before.height:
                self.cleanup.close()
                self.console.clear()  # the terminal has wrapped or moved what was drawn: nobody knows where it is
                self._start()
            self.size = size
            self.live.refresh()

    def close(self) -> None:
        """Leave the last panel where it is, and the cursor below it."""
        with self.lock:
            if self.closed.is_set():
                return
            with contextlib.suppress(OSError):  # the terminal is gone
                self.refresh()  # a size that has changed since the last frame is noticed here
            self.closed.set()
            with contextlib.suppress(OSError):
                self.cleanup.close()


def _flush() -> None:
    """A last line without its end would be lost with the redirection."""
    sys.stdout.flush()
    sys.stderr.flush()


@contextlib.contextmanager
def _logs_moved(streams: dict[Any, Any]) -> Iterator[None]:
    """Handlers of `logging` that hold one of the streams write to what has taken its place."""
    moved = []
    named = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for handler in {handler for logger in (logging.root, *named) for handler in logger.handlers}:
        if (
            isinstance(handler, logging.StreamHandler)
            and streams.get(handler.stream, handler.stream) is not handler.stream
        ):
            moved.append((handler, handler.stream))
            handler.setStream(streams[handler.stream])
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)
