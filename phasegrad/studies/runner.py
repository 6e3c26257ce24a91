"""Runs of a study side by side, each in a process of its own: what one run does cannot touch the others.

`execute` takes one run from whatever state its folder is in to its score, and blocks: a pool of threads calls it here,
and a cluster's tasks can call it elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from phasegrad.errors import PhasegradError, RunError
from phasegrad.machine import locking
from phasegrad.machine.regular_files import NotRegularError, open_below, require_folder
from phasegrad.outside import told_to_children
from phasegrad.runs.below import (
    LOGS,
    make_folder,
    names_in,
    open_own,
    read_start,
    remove_file,
    require_folders,
    split,
    told,
)
from phasegrad.runs.contents import LEVELS, is_stray
from phasegrad.runs.files import write_atomically, write_json, writing
from phasegrad.runs.lock import LOCK, signature
from phasegrad.studies.grid import PlannedRun
from phasegrad.studies.progress import StudyDisplay
from phasegrad.studies.standing import FAILED

POLL_SECONDS = 0.1
SHOW_SECONDS = 1.0
SECONDS_TO_STOP = 75.0  # a run ends its iteration and saves a checkpoint
MOST_REASON = 4000  # bytes of what a failed run said
RUNS = "runs"  # the folder of a study's runs
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class StudyStopped(BaseException):
    """A signal asked the study to stop; its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stop:
    """What a stop asks of the runs: to end in order, or at once."""

    def __init__(self) -> None:
        self.asked, self.at_once = threading.Event(), threading.Event()
        self.number = 0  # the signal's

    def ask(self, number: int) -> None:
        """A first or a further request."""
        if self.asked.is_set():
            self.at_once.set()
        else:
            self.number = number
            self.asked.set()


@dataclass(frozen=True)
class Outcome:
    """How a run ended: finished, failed (with a sentence) or stopped."""

    run: PlannedRun
    status: str
    message: str = ""


def execute(run: PlannedRun, stop: Stop | None = None, keep_open: Sequence[int] = (), bound: bool = False) -> Outcome:
    """Train the run, or go on with it, and evaluate it where the study's score asks for that.

    `keep_open`: file descriptors that the run's processes hold too. `bound`: they die with this one, as bound_process.py has them do.
    """
    try:
        _require_no_links(run)
        with open_log(run.log) as log:
            remove_file(run.log.with_suffix(FAILED))
            return noted(_execute(run, log, stop or Stop(), keep_open, bound))
    except NotRegularError as error:
        return noted(Outcome(run, "failed", f"{told(error)}: move it away, then try again."))
    except (PhasegradError, OSError) as error:
        return noted(Outcome(run, "failed", str(error)))


def _require_no_links(run: PlannedRun) -> None:
    """Refuse a run whose folders below the study's lead elsewhere."""
    root, _ = split(run.log)
    if run.folder.is_relative_to(root):
        with contextlib.suppress(FileNotFoundError):
            require_folder(root, *run.folder.relative_to(root).parts)


def open_log(path: Path) -> IO[bytes]:
    """The log of a run, to add to; its folders are made below the study's."""
    root, own = split(path)
    root.mkdir(parents=True, exist_ok=True)
    make_folder(root, *own[:-1])
    return open(open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def noted(outcome: Outcome) -> Outcome:
    """A failure leaves its reason beside the run's log, for whoever looks at the study from outside or later."""
    if outcome.status == "failed":
        with contextlib.suppress(RunError, OSError):  # a full disk: the outcome itself tells of it
            write_atomically(outcome.run.log.with_suffix(FAILED), f"{outcome.message}\n".encode())
    return outcome


def failure_of(run: PlannedRun) -> str | None:
    """Why the run failed when it was last tried; None where it did not."""
    try:
        return read_start(run.log.with_suffix(FAILED), MOST_REASON).decode(errors="replace").strip()
    except OSError:
        return None


def _execute(run: PlannedRun, log: IO[bytes], stop: Stop, keep_open: Sequence[int], bound: bool) -> Outcome:
    state = run.state()
    if state in ("new", "unfinished"):
        if state == "new" and run.folder.is_dir():
            for leftover in filter(is_stray, names_in(run.folder)):  # of a run killed while it wrote its config
                remove_file(run.folder / leftover)
        command = run.train_command() if state == "new" else run.resume_command()
        code, _ = call(command, log, stop, keep_open, bound)
        if stop.asked.is_set():
            return Outcome(run, "stopped")
        if code:
            return Outcome(run, "failed", _reason(run.log, code))
        state = run.state()
        if state == "unfinished":
            return Outcome(run, "failed", "it ended without a result")
    if state == "unscored" and run.eval_episodes:
        code, _ = call(run.eval_command("train"), log, stop, keep_open, bound)  # which records what it finds
        if stop.asked.is_set():
            return Outcome(run, "stopped")
        if code:
            return Outcome(run, "failed", _reason(run.log, code))
        if run.state() == "unscored":
            return Outcome(run, "failed", f"its evaluation over {run.eval_episodes} episodes left no score")
    elif state == "unscored":
        found: dict[str, Any] = {}
        for levels in ("train", "test"):
            code, output = call(run.eval_command(levels), log, stop, keep_open, bound)
            if stop.asked.is_set():
                return Outcome(run, "stopped")
            if code:
                return Outcome(run, "failed", _reason(run.log, code))
            try:
                found[levels] = json.loads(output)
            except ValueError:
                return Outcome(run, "failed", f"its evaluation on {levels} levels printed no JSON")
        write_json(run.folder / LEVELS, found)
    return Outcome(run, "finished")


def call(
    command: Sequence[str], log: IO[bytes], stop: Stop, keep_open: Sequence[int] = (), bound: bool = False
) -> tuple[int, str]:
    """Exit code and output of a command; its errors go to the log. It is ended when a stop is asked for."""
    log.write(f"$ {' '.join(command[1:])}\n".encode())
    log.flush()
    if bound:  # python -P -m phasegrad VERB ...
        command = [*command[:3], "phasegrad.cli.bound_process", str(os.getpid()), *command[4:]]
    environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), **told_to_children()}
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)  # what this process imports
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process, which then ends the run in order
            pass_fds=() if sys.platform == "win32" else tuple(keep_open),  # which has no such thing
        )
        try:
            while process.poll() is None and not stop.asked.is_set():
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                _end(process, stop)
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace")


def _end(process: subprocess.Popen[bytes], stop: Stop) -> None:
    """First in order, and at once where that takes too long or the user asks again."""
    process.terminate()
    deadline = time.monotonic() + SECONDS_TO_STOP
    while process.poll() is None and time.monotonic() < deadline and not stop.at_once.is_set():
        time.sleep(POLL_SECONDS)
    if process.poll() is None:
        process.kill()
    process.wait()


def _reason(log: Path, code: int) -> str:
    """The last thing a failed run said."""
    if code < 0:
        name = signal.Signals(-code).name
        why = ", by the system for lack of memory unless somebody did" if name == "SIGKILL" else ""
        return f"it was ended by {name} (signal {-code}{why}); running the study again resumes it"
    try:
        with open(open_own(log), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_REASON))
            end = file.read(MOST_REASON).decode(errors="replace")
    except OSError:
        end = ""
    lines = [line for line in end.splitlines() if line.strip()]
    said = lines[-1].removeprefix("phasegrad: ") if lines and not lines[-1].startswith("$ ") else ""
    return said[:300] or f"exit code {code}"


@contextmanager
def exclusive(root: Path) -> Iterator[int]:
    """Hold the study's folder: its file descriptor, which the runs keep open, so that orphans hold the folder too."""
    with writing(root, "start the study again"):
        root.mkdir(parents=True, exist_ok=True)
        descriptor = open_below(root, LOCK, flags=os.O_RDWR | os.O_CREAT, mode=0o644)
    try:
        require_folders(root, LOGS, RUNS)
        try:
            locking.take(descriptor)
        except BlockingIOError:
            raise RunError(
                f"{root} is in use by another study, or by runs that a killed one left behind: "
                "wait for them, end them, or choose another --dir."
            ) from None
        except OSError:
            pass  # a file system without locks
        with writing(root, "start the study again"):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, signature())  # for `phasegrad watch`, where the file system has no locks
        try:
            yield descriptor
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@contextmanager
def stoppable(stop: Stop, raising: bool = True) -> Iterator[None]:
    """The first SIGTERM or SIGINT raises StudyStopped in the main thread, the next ones end the runs at once.

    Not `raising`: for a main thread that looks at `stop` itself, since it waits in code that loses exceptions.
    """

    def handle(number: int, frame: Any) -> None:
        first = not stop.asked.is_set()
        stop.ask(number)
        if first and raising:
            raise StudyStopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_locally(
    runs: Sequence[PlannedRun],
    jobs: int,
    display: StudyDisplay,
    keep_open: Sequence[int] = (),
    ended: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Execute the runs, `jobs` at a time; a failed one does not stop the others. `ended` hears of each that is over."""
    stop = Stop()
    outcomes: list[Outcome] = []

    def start(run: PlannedRun) -> Outcome:
        if stop.asked.is_set():
            return Outcome(run, "stopped")
        display.started(run)
        return execute(run, stop, keep_open)

    with stoppable(stop):
        pool = ThreadPoolExecutor(max_workers=jobs)
        try:
            pending: set[Future[Outcome]] = {pool.submit(start, run) for run in in_order(runs)}
            while pending:
                done, pending = wait(pending, SHOW_SECONDS, FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    outcomes.append(outcome)
                    display.ended(outcome.run, outcome.status, outcome.message)
                    if ended:
                        ended(outcome)
                display.refresh()
        finally:
            display.close()
            stop.asked.set()
            pool.shutdown(wait=True, cancel_futures=True)
    return outcomes


def in_order(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """What was begun first, then a seed of every cell before the next seed, so that a partial table says the most."""
    seeds = list(dict.fromkeys(run.seed for run in runs))
    return sorted(runs, key=lambda run: (run.state() == "new", seeds.index(run.seed)))
