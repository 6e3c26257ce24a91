"""What the user sees while a study runs: a table that redraws in a terminal, plain lines in a pipe, or nothing."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasegrad.runs.console import duration
from phasegrad.runs.reading import METRICS, last_row, number_or_none
from phasegrad.studies.board import Board, scored, sources
from phasegrad.studies.standing import Standing

if TYPE_CHECKING:
    from phasegrad.studies.grid import PlannedRun

SECONDS_BETWEEN_LINES = 30.0
ENDED_SHOWN = 5  # of the runs that ended last
LINES_AROUND = 4  # headline, header, what the sources mean, the cursor's


class StudyDisplay:
    """Keeps count and shows nothing: the quiet one, and the base of the others."""

    def __init__(self, runs: Sequence[PlannedRun], finished: int) -> None:
        """`runs` are those still to do, `finished` counts those that were done before."""
        self.total, self.done, self.failed = len(runs) + finished, finished, 0
        self.running: list[PlannedRun] = []
        self.standings: dict[Path, Standing] = {run.folder: run.standing() for run in runs}
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.steps_total = sum(run.config.total_steps for run in runs)
        self.steps_before = sum(latest(run)[0] for run in runs)  # from sessions before this one
        self.steps_ended = 0  # of runs that have ended

    def started(self, run: PlannedRun) -> None:
        with self.lock:
            self.running.append(run)

    def ended(self, run: PlannedRun, status: str, message: str) -> None:
        with self.lock:
            if run in self.running:
                self.running.remove(run)
            self.done += status == "finished"
            self.failed += status == "failed"
            self.steps_ended += run.config.total_steps

    def refresh(self) -> None: ...

    def close(self) -> None: ...

    def snapshot(self) -> list[Standing]:
        """The runs under way, as they stand now."""
        with self.lock:
            now = [self.standings[run.folder] for run in self.running]
        for standing in now:
            standing.look()
            standing.state = "running" if standing.step else "starting"  # which this process knows before the files do
        return now

    def eta(self, under_way: int) -> str:
        """Time left at the speed so far; `under_way` is the sum of the running ones' steps."""
        elapsed, done = time.monotonic() - self.began, self.steps_ended + under_way
        gained = done - self.steps_before
        if gained <= 0 or elapsed < 1:
            return "?"
        return duration(max(0, self.steps_total - done) * elapsed / gained)

    def headline(self, under_way: int) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {self.total} runs done{failed}, {len(self.running)} running, ETA {self.eta(under_way)}"


class PlainStudyDisplay(StudyDisplay):
    """A line when a run starts or ends, and how things stand now and then."""

    def __init__(self, runs: Sequence[PlannedRun], finished: int) -> None:
        super().__init__(runs, finished)
        self.last = time.monotonic()

    def started(self, run: PlannedRun) -> None:
        super().started(run)
        self._line(f"started  {run.label}")

    def ended(self, run: PlannedRun, status: str, message: str) -> None:
        super().ended(run, status, message)
        standing = self.standings[run.folder].look()
        detail = f": {message}" if message else f", {scored(standing)}" if status == "finished" else ""
        self._line(f"{status:8} {run.label}{detail}  ({self.done} of {self.total} done)")

    def refresh(self) -> None:
        if time.monotonic() - self.last < SECONDS_BETWEEN_LINES:
            return
        self.last = time.monotonic()
        now = self.snapshot()
        self._line(self.headline(sum(standing.step for standing in now)))
        for standing in now:
            progress = f"{standing.step:,} of {standing.total:,} steps"
            self._line(f"  {standing.place.label}: {progress}, {scored(standing)}")

    def _line(self, text: str) -> None:
        with contextlib.suppress(OSError):  # full, or nobody reads: the study goes on, and its exit code tells
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


class LiveStudyDisplay(StudyDisplay):
    """A table of the runs under way, and of those that ended last, that redraws in place."""

    def __init__(self, runs: Sequence[PlannedRun], finished: int) -> None:
        super().__init__(runs, finished)
        from rich.live import Live

        from phasegrad.runs.consoles import PlainConsole

        self.live: Live = Live(console=PlainConsole(), auto_refresh=False, transient=True)
        self.board = Board([standing.place for standing in self.standings.values()], self.live.console.width)
        self.over: deque[Standing] = deque(maxlen=ENDED_SHOWN)
        self.rows = 0  # as many as were ever needed: a run that ends does not pull up what is below it
        self.live.start()

    def ended(self, run: PlannedRun, status: str, message: str) -> None:
        super().ended(run, status, message)
        standing = self.standings[run.folder].look()
        standing.state = status
        self.over.append(standing)
        if status == "failed":
            self.live.console.print(f"failed {run.label}: {message}", markup=False, highlight=False)

    def refresh(self) -> None:
        self.live.update(self._table(), refresh=True)

    def _table(self) -> Any:
        from rich.text import Text

        now = self.snapshot()
        room = max(self.live.console.height - LINES_AROUND - len(self.over), 1)
        shown = now[:room]
        self.rows = max(self.rows, min(len(now), room))
        lines = [Text(self.headline(sum(standing.step for standing in now)), "bold")]
        lines.append(Text(self.board.header(), "dim"))
        lines += [Text(self.board.line(standing)) for standing in shown]
        lines += [Text("")] * (self.rows - len(shown))
        lines += [Text(self.board.line(standing), "dim") for standing in reversed(self.over)]
        lines.append(Text(sources([*now, *self.over]), "dim"))
        table = Text("\n").join(lines)
        table.no_wrap, table.overflow = True, "ellipsis"
        return table

    def close(self) -> None:
        self.live.stop()


def make_study_display(runs: Sequence[PlannedRun], finished: int, shown: bool) -> StudyDisplay:
    if not shown:
        return StudyDisplay(runs, finished)
    return (LiveStudyDisplay if sys.stdout.isatty() else PlainStudyDisplay)(runs, finished)


def latest(run: PlannedRun) -> tuple[int, float | None]:
    """Step and return of a run's last iteration; (0, None) before the first."""
    row = last_row(run.folder / METRICS)
    return int(number_or_none(row.get("step")) or 0), number_or_none(row.get("return_mean"))
