"""Commands of the command line in processes of their own, to be sent signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path


def usual_signals() -> None:
    """As in a terminal; what was started by nohup or behind a shell ignores some."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


class Command:
    """`phasegrad ARGUMENTS` in `folder`; what it says is in `said`."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.output = folder / f"{uuid.uuid4().hex}.txt"
        self.code: int | None = None  # as a shell has it
        path = os.pathsep.join(each or os.getcwd() for each in sys.path)
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "phasegrad", *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=usual_signals,
            )
        self.pid = self.process.pid

    @property
    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 20.0) -> int:
        """Its exit code; the test fails where it does not end."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still there after {seconds} s; it said: {self.said}") from None
        self.code = 128 - code if code < 0 else code
        return self.code

    def processes(self) -> list[int]:
        """All that it has started and that still runs: its session is its own."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self.pid and fields[0] not in "ZX":
                        found.append(int(entry.name))
        return found


def until(what: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)
