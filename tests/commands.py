"""Commands of the command line in forks of the test's process, to be sent signals: no import is paid for twice."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import misbehaving_envs as bad
import torch

import phasegrad as pg
from phasegrad.cli.main import main

MARK = "PHASEGRAD_TEST_COMMAND"


def import_what_training_does() -> None:
    """Once, in the process that the commands are forks of."""
    small = {"preset": "none", "num_envs": 2, "num_steps": 4, "num_minibatches": 1, "compile": "off"}
    with tempfile.TemporaryDirectory() as folder:
        pg.PPO(bad.Quiet, run_dir=Path(folder) / "run", **small).learn(8).close()


import_what_training_does()


class Command:
    """`phasegrad ARGUMENTS` in `folder`; what it says on stderr is in `said`."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.output = folder / f"{self.mark}.txt"
        self.code: int | None = None  # as a shell has it
        self.pid = os.fork()
        if self.pid == 0:
            self._run(arguments)

    def _run(self, arguments: list[str]) -> None:
        code = 99
        try:
            os.setsid()
            os.chdir(self.folder)
            handle = os.open(self.output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
            for descriptor in (1, 2):
                os.dup2(handle, descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
            os.environ[MARK] = self.mark
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, usual)
            torch.set_num_threads(1)
            code = main(arguments)
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            import multiprocessing.util

            with contextlib.suppress(BaseException):
                multiprocessing.util._exit_function()  # type: ignore[attr-defined]  # what Python does at its end
            os._exit(code)

    @property
    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 20.0) -> int:
        """Its exit code; the test fails where it does not end."""
        deadline = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.code = 128 - code if code < 0 else code
            elif time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self.code = 137
                raise AssertionError(f"still there after {seconds} s; it said: {self.said}")
            else:
                time.sleep(0.01)
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


def until(what: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)
