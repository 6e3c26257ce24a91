"""Commands run as a stranger would, each in a session of its own: forked from this process, which has everything imported, or real.

Watches time, memory and what is left behind from outside. Linux only: it looks at /proc.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

_PR_SET_CHILD_SUBREAPER = 36
HARD_MB = 4000  # a process that has more than this is ended at once, before the machine suffers
ORPHANS_MAY_TAKE = 8.0  # seconds: a worker looks for its parent twice a second, on a busy machine less often


helpers: set[int] = set()  # processes of the campaign itself, such as one that exchanges files under a reader


def adopt_orphans() -> None:
    """Processes whose parents end become this one's children, whatever session they are in."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork_main(
    arguments: Sequence[str], files: tuple[Path, Path], cwd: Path, environment: Mapping[str, str],
    prepare: Callable[[], None] | None = None, program: str | None = None,
) -> int:  # fmt: skip
    """The id of a child that runs the command line, or a Python program, in its own session."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    _be_the_child(arguments, files, cwd, environment, prepare, program)


def _be_the_child(
    arguments: Sequence[str], files: tuple[Path, Path], cwd: Path, environment: Mapping[str, str],
    prepare: Callable[[], None] | None, program: str | None,
) -> NoReturn:  # fmt: skip
    code = 99
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the campaign has its own way to stop
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
        for number, path in enumerate(files, 1):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(handle, number)
            os.close(handle)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        if prepare is not None:
            prepare()
        from phasegrad.cli.main import main

        try:
            if program is not None:
                exec(program, {"__name__": "__main__"})
                code = 0
            else:
                sys.argv = ["phasegrad", *arguments]  # and not as an argument: it is to be a process of its own
                code = main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except BaseException:
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def start_real(
    command: Sequence[str], files: tuple[Path, Path], cwd: Path, environment: Mapping[str, str],
    prepare: Callable[[], None] | None = None,
) -> int:  # fmt: skip
    """The id of a process of its own; `prepare` runs in it before the program does."""
    with open(files[0], "ab") as out, open(files[1], "ab") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, env=dict(environment),
            start_new_session=True, preexec_fn=prepare,
        )  # fmt: skip
    process.returncode = 0  # it is waited for here, not by the object
    return process.pid


def limit(**limits: int) -> Callable[[], None]:
    """For `prepare`: resource limits by name, such as `limit(AS=1 << 30)`."""

    def prepare() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))

    return prepare


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("process", ctypes.c_int))


def without_privileges() -> None:
    """For `prepare`: root whom permissions hold for like anybody else, who still reaches what root installed."""
    if os.geteuid() == 0:
        header, sets = _Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
        if ctypes.CDLL(None, use_errno=True).capset(ctypes.byref(header), ctypes.byref(sets)):
            raise OSError(ctypes.get_errno(), "capset")


def wait(process: int, seconds: float) -> tuple[int, float, bool]:
    """Exit code (negative: a signal), peak memory in MB, and whether it had to be ended for time or memory."""
    begun, pause, peak, late = time.monotonic(), 0.003, 0.0, False
    while True:
        found, status, usage = os.wait4(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), max(peak, usage.ru_maxrss / 1024), late
        peak = max(peak, resident_mb(process))
        if not late and (time.monotonic() - begun > seconds or peak > HARD_MB):
            late = time.monotonic() - begun > seconds
            end_session(process)
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)


def resident_mb(process: int) -> float:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / 1e6
    except (OSError, IndexError):
        return 0.0


def members(session: int) -> dict[int, str]:
    """The living processes of a session, and those this process was left with, by id."""
    mine, found = os.getpid(), {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == mine or int(entry) in helpers:
            continue
        with contextlib.suppress(OSError, IndexError):
            name, _, rest = Path(f"/proc/{entry}/stat").read_text().partition(") ")
            state, parent, _, its_session = rest.split()[:4]
            if state not in "ZX" and (int(its_session) == session or int(parent) == mine):
                found[int(entry)] = f"{name.partition('(')[2]} ({entry})"
    return found


def left_behind(session: int) -> tuple[str, ...]:
    """Processes that outlive the command by more than a moment; they are ended."""
    deadline = time.monotonic() + ORPHANS_MAY_TAKE
    while members(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = tuple(members(session).values())
    end_session(session)
    return left


def end_session(session: int) -> None:
    for process in members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def reap() -> None:
    """Bury what was adopted and has ended; helpers are waited for by those who started them."""
    mine = str(os.getpid())
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in helpers:
            with contextlib.suppress(OSError, IndexError):
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(") ")[2].split()[:2]
                if state == "Z" and parent == mine:
                    os.waitpid(int(entry), os.WNOHANG)
