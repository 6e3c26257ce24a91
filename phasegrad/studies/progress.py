"""What the user sees while a study runs: a table that redraws in a terminal, plain lines in a pipe, or nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phasegrad.runs.console import duration, number
from phasegrad.runs.reading import METRICS, last_row, number_or_none

if TYPE_CHECKING:
    from phasegrad.studies.grid import PlannedRun

SECONDS_BETWEEN_LINES = 30.0


class StudyDisplay:
    """Keeps count and shows nothing: the quiet one, and the base of the others."""

    def __init__(self, runs: Sequence[PlannedRun], finished: int) -> None:
        """`runs` are those still to do, `finished` counts those that were done before."""
        self.total, self.done, self.failed = len(runs) + finished, finished, 0
        self.running: list[PlannedRun] = []
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

    def snapshot(self) -> list[tuple[PlannedRun, int, float | None]]:
        """The runs under way with their step and return."""
        with self.lock:
            return [(run, *latest(run)) for run in self.running]

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
        detail = f": {message}" if message else f", return {number(latest(run)[1])}" if status == "finished" else ""
        self._line(f"{status:8} {run.label}{detail}  ({self.done} of {self.total} done)")

    def refresh(self) -> None:
        if time.monotonic() - self.last < SECONDS_BETWEEN_LINES:
            return
        self.last = time.monotonic()
        now = self.snapshot()
        self._line(self.headline(sum(step for _, step, _ in now)))
        for run, step, mean_return in now:
            self._line(f"  {run.label}: {step:,} of {run.config.total_steps:,} steps, return {number(mean_return)}")

    def _line(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class LiveStudyDisplay(StudyDisplay):
    """A table of the runs under way that redraws in place."""

    def __init__(self, runs: Sequence[PlannedRun], finished: int) -> None:
        super().__init__(runs, finished)
        from rich.live import Live

        self.live: Live = Live(auto_refresh=False, transient=True)
        self.live.start()

    def ended(self, run: PlannedRun, status: str, message: str) -> None:
        super().ended(run, status, message)
        if status == "failed":
            self.live.console.print(f"failed {run.label}: {message}", markup=False, highlight=False)

    def refresh(self) -> None:
        self.live.update(self._table(), refresh=True)

    def _table(self) -> Any:
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        now = self.snapshot()
        table = Table(title=self.headline(sum(step for _, step, _ in now)), title_justify="left", box=box.SIMPLE)
        for name in ("environment", "variant"):
            table.add_column(name)
        for name in ("seed", "steps", "", "return"):
            table.add_column(name, justify="right")
        for run, step, mean_return in now:
            share = f"{step / run.config.total_steps:.0%}"
            names = escape(run.environment.name), escape(run.variant.name)
            table.add_row(*names, str(run.seed), f"{step:,}", share, number(mean_return))
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
