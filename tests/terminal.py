"""A program on a terminal of its own, for tests: press keys, change the size, see what a person would see."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from phasegrad.runs.panel import ROWS


def become_a_terminals() -> None:
    """In the new process: the terminal is its own, and Ctrl-C reaches it even where the tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program on a terminal of its own, and the screen as a person would see it."""

    def __init__(self, command: list[str], width: int, height: int = 30, **environment: str) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(width, height)
        surroundings = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=surroundings | {"TERM": "xterm"} | environment,
            start_new_session=True, preexec_fn=become_a_terminals,
        )  # fmt: skip
        os.close(theirs)
        self.output = b""
        self.first: float | None = None  # seconds until something was shown

    def resize(self, width: int, height: int) -> None:
        self.screen_size = width, height
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read(self, seconds: float, until: bytes | None = None) -> bool:
        """Take what comes, for so long or until something is shown or the program has ended; whether it goes on."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not (until is not None and until in self.output):
            if select.select([self.ours], [], [], min(left, 0.2))[0]:
                try:
                    part = os.read(self.ours, 65536)
                except OSError:
                    return False
                if not part:
                    return False
                if self.first is None:
                    self.first = time.monotonic() - self.began
                self.output += part
        return True

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.ours)[3] & termios.ECHO)

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def end(self, patience: float = 180.0) -> int:
        """The exit code; a program that goes on for longer than `patience` is killed, which no test expects."""
        deadline = time.monotonic() + patience
        while self.read(1.0) and self.process.poll() is None and time.monotonic() < deadline:
            pass
        if time.monotonic() >= deadline:
            self.process.kill()
        code = self.process.wait(timeout=60)
        os.close(self.ours)
        return code

    def lines(self) -> list[str]:
        """What the terminal shows and has scrolled away: only what these programs send is understood."""
        width, height = self.screen_size
        lines, row, column = [""], 0, 0
        text = self.output.decode()
        place = 0
        while place < len(text):
            found = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])").match(text, place)
            if found:
                count = int(found[1]) if found[1].isdigit() else 1
                if found[2] == "A":
                    row = max(row - count, len(lines) - height, 0)
                elif found[2] == "K":
                    lines[row] = "" if found[1] == "2" else lines[row][:column]
                elif found[2] == "J":
                    lines = [*lines[: max(len(lines) - height, 0)], ""]
                    row = len(lines) - 1
                place = found.end()
                continue
            character = text[place]
            place += 1
            if character == "\r":
                column = 0
            elif character == "\n":
                row += 1
            elif character >= " ":
                if column == width:
                    row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
                lines[row] = lines[row].ljust(column)[:column] + character + lines[row][column + 1 :]
                column += 1
            lines += [""] * (row + 1 - len(lines))
        return [line.rstrip() for line in lines]


def panels(lines: list[str]) -> list[int]:
    return [i for i, line in enumerate(lines) if line.startswith("╭")]


def require_one_whole_panel(lines: list[str], width: int) -> int:
    """The row after it."""
    (top,) = panels(lines)
    panel = lines[top : top + ROWS]
    assert panel[-1].startswith("╰"), lines
    assert {len(line) for line in panel} == {width}, lines
    assert sum(line.startswith("│") for line in lines) == ROWS - 2, lines  # no half panel elsewhere
    return top + ROWS
