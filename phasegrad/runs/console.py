"""What the user sees of a run: a live panel in a terminal, plain lines in a pipe, nothing when quiet.

`RunView` is what is known of a run, told by its training or read from its files (cli/watch.py); drawing it needs no torch.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasegrad.machine.memory import gigabytes
from phasegrad.schedules import phase_schedule

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.table import Table

    from phasegrad.runs.contract import Trainer

SPARKS = "▁▂▃▄▅▆▇█"
SECONDS_BETWEEN_LINES = 5.0
FRAMES_A_SECOND = 2
SHARES = ("environment", "inference", "update", "auxiliary")
ACTIVITIES = {
    "environment": "stepping environments",
    "inference": "choosing actions",
    "update": "updating policy and value",
    "auxiliary": "auxiliary phase",
}


@dataclass
class RunView:
    """The state of a run as it is shown."""

    title: str
    total: int
    interval: int = 0  # iterations between auxiliary phases; 0 where there are none
    row: Mapping[str, Any] = field(default_factory=dict)
    returns: list[float] = field(default_factory=list)
    checkpoint: str = "none yet"
    status: str = ""
    run_dir: str = ""  # as it was given, or by default; "" without one

    def take(self, row: Mapping[str, Any]) -> None:
        self.row = row
        value = row.get("return_mean")
        if value is not None and math.isfinite(value):
            self.returns.append(value)

    @property
    def step(self) -> int:
        return int(self.row.get("step") or 0)

    def phase(self, underway: bool = False) -> str:
        """Where in PPG's phases the last iteration was, or the one underway is; the iteration elsewhere."""
        iteration = max(int(self.row.get("iteration") or 0) + underway, 1)
        if not self.interval:
            return f"iteration {iteration:,}"
        number, place = (iteration - 1) // self.interval + 1, (iteration - 1) % self.interval + 1
        return f"phase {number:,}, policy iteration {place} of {self.interval}"


class RunDisplay:
    """Shows nothing: the quiet one, and the base of the others."""

    def iteration(self, row: Mapping[str, Any]) -> None: ...

    def playing_back(self, done: int, total: int) -> None:
        """A resumed run brings its environments to where they were: so many environment steps of so many."""

    def checkpoint(self, path: Path) -> None: ...

    def finished(self, result: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class PlainRunDisplay(RunDisplay):
    """A line now and then, without control characters: for pipes, files and CI."""

    def __init__(self, view: RunView, first_step: int) -> None:
        self.view, self.first_step = view, first_step
        self.started = time.monotonic()
        self.last = 0.0
        print(view.title, flush=True)
        if view.run_dir:
            print(f"run directory {view.run_dir}", flush=True)

    def iteration(self, row: Mapping[str, Any]) -> None:
        self.view.take(row)
        now = time.monotonic()
        if now - self.last < SECONDS_BETWEEN_LINES and row["step"] < self.view.total:
            return
        self.last = now
        print(plain_line(self.view, seconds_left(self.started, self.first_step, self.view)), flush=True)

    def playing_back(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN_LINES or done == total:
            self.last = now
            print(playback_line(done, total), flush=True)
        if done == total:
            self.started = now  # what remains is told from the speed of training

    def checkpoint(self, path: Path) -> None:
        self.view.checkpoint = path.name

    def finished(self, result: Mapping[str, Any]) -> None:
        print(summary_line(result, self.view.run_dir), flush=True)


class LiveRunDisplay(RunDisplay):
    """A panel that redraws in place, also within an iteration: a long auxiliary phase shows as such."""

    def __init__(self, view: RunView, first_step: int, activity: Callable[[], str]) -> None:
        from rich.live import Live

        self.view, self.first_step, self.activity = view, first_step, activity
        self.started = time.monotonic()
        self.underway, self.playback = True, ""
        self.live: Live = Live(get_renderable=self.panel, refresh_per_second=FRAMES_A_SECOND, transient=False)
        self.live.start()

    def iteration(self, row: Mapping[str, Any]) -> None:
        self.view.take(row)

    def playing_back(self, done: int, total: int) -> None:
        self.playback = playback_line(done, total) if done < total else ""
        if done == total:
            self.started = time.monotonic()  # what remains is told from the speed of training

    def panel(self) -> Panel:
        doing = (self.playback or activity_shown(self.activity())) if self.underway else None
        return draw(self.view, seconds_left(self.started, self.first_step, self.view), doing)

    def checkpoint(self, path: Path) -> None:
        self.view.checkpoint = path.name

    def finished(self, result: Mapping[str, Any]) -> None:
        self.close()
        print(summary_line(result, self.view.run_dir), flush=True)

    def close(self) -> None:
        self.underway = False
        self.live.stop()


def make_display(trainer: Trainer, total: int, shown: bool) -> RunDisplay:
    """The live panel in a terminal, plain lines elsewhere."""
    if not shown:
        return RunDisplay()
    config, agent = trainer.config, trainer.agent
    title = f"{trainer.name.upper()} on {config.env}, seed {config.seed}, {config.arch} network on {agent.device}, "
    title += f"{gigabytes(trainer.storage_bytes())} of stored rollouts"
    title += f", {trainer.computation.described}" if trainer.computation.described else ""
    schedule = phase_schedule(vars(config))
    view = RunView(title, total, schedule.interval if schedule else 0, run_dir=str(trainer.run.run_dir or ""))
    first_step = trainer.run.progress.step
    if sys.stdout.isatty():
        return LiveRunDisplay(view, first_step, lambda: trainer.clock.current)
    return PlainRunDisplay(view, first_step)


def draw(view: RunView, seconds: float | None, doing: str | None = None) -> Panel:
    """The panel: progress, phase, return with its history, speed and where the time goes, update, checkpoint.

    `doing` is what the iteration underway does just now; None where none is.
    """
    from rich import box
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row = view.row
    table: Table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    if view.status:
        table.add_row("status", Text(view.status))
    table.add_row("progress", ProgressBar(total=max(view.total, 1), completed=view.step, width=40))
    done = f" ({view.step / view.total:.0%})" if view.total else ""
    left = "" if view.total and view.step >= view.total else f", {duration(seconds)} left"
    table.add_row("", f"{view.step:,} of {view.total:,} steps{done}{left}")
    table.add_row("phase", view.phase(underway=doing is not None) + (f", {doing}" if doing else ""))
    if row:
        history = Text.assemble((number(row.get("return_mean")), "bold"), "  ", (sparkline(view.returns), "cyan"))
        table.add_row("return", history.append(f"  {int(row.get('episodes') or 0):,} episodes", "dim"))
        table.add_row("speed", f"{number(row.get('sps'))} steps/s   {time_shares(row)}")
        details = [
            f"{name} {number(row[name])}"
            for name in ("kl", "entropy", "clip_fraction", "explained_variance", "value_loss")
            if row.get(name) is not None
        ]
        table.add_row("update", "  ".join(details))
    table.add_row("checkpoint", Text(view.checkpoint))
    if view.run_dir:
        table.add_row("directory", Text(view.run_dir, overflow="fold"))
    return Panel(table, title=Text(view.title), title_align="left", box=box.ROUNDED, expand=False)


def plain_line(view: RunView, seconds: float | None) -> str:
    """The same in one line without control characters."""
    row = view.row
    parts = [
        f"{view.step:>11,} / {view.total:,} steps",
        view.phase().replace("policy iteration ", "").replace(" of ", "/"),
        f"return {number(row.get('return_mean'))}",
        f"{number(row.get('sps'))} steps/s",
        time_shares(row),
        f"ETA {duration(seconds)}",
        f"checkpoint {view.checkpoint}",
    ]
    return "  ".join(part for part in parts if part)


def number(value: Any) -> str:
    if value is None or not math.isfinite(value):
        return "-" if value is None else str(value)
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.3e}"


def playback_line(done: int, total: int) -> str:
    """What a resumed run does before it goes on."""
    return f"playing back what the environments had been through: {done / total:.0%} of {total:,} steps"


def activity_shown(section: str) -> str:
    """What the section that runs now does; one that is not known here by its own name."""
    return ACTIVITIES.get(section, section)


def time_shares(row: Mapping[str, Any]) -> str:
    """Of the library's own sections first, then of those that an algorithm from outside has added."""
    names = [name.removeprefix("time_") for name in row if name.startswith("time_")]
    names.sort(key=lambda name: SHARES.index(name) if name in SHARES else len(SHARES))
    return " ".join(f"{name} {row[f'time_{name}']:.0%}" for name in names if row[f"time_{name}"] is not None)


def seconds_left(started: float, first_step: int, view: RunView) -> float | None:
    """What remains at the mean speed since the start; None before the first iteration."""
    done = view.step - first_step
    return (time.monotonic() - started) / done * max(view.total - view.step, 0) if done > 0 else None


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    hours, minutes = int(seconds) // 3600, int(seconds) // 60 % 60
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{int(seconds) % 60:02d}s"


def sparkline(values: list[float], width: int = 30) -> str:
    """The history in a few characters, lowest to highest."""
    if len(values) < 2:
        return ""
    picked = [
        values[round(i * (len(values) - 1) / (min(width, len(values)) - 1))] for i in range(min(width, len(values)))
    ]
    low, high = min(picked), max(picked)
    span = (high - low) or 1.0
    return "".join(SPARKS[min(len(SPARKS) - 1, int((value - low) / span * len(SPARKS)))] for value in picked)


def summary_line(result: Mapping[str, Any], run_dir: str = "") -> str:
    line = f"{result['status']} at {result['step']:,} steps in {result['seconds']:.0f} s ({result['sps']:,.0f} steps/s), return {number(result['return_mean'])}"
    if "eval" in result:
        line += f", evaluation {number(result['eval']['return_mean'])} over {result['eval']['episodes']} episodes"
    return line + (f"; the run is in {run_dir}" if run_dir else "")
