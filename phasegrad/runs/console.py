"""What a person sees of a run: a live panel in a terminal, plain lines in a pipe, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasegrad.memory import gigabytes

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from phasegrad.algorithms.base import Algorithm

SPARKS = "▁▂▃▄▅▆▇█"
SECONDS_BETWEEN_LINES = 5.0
SHARES = ("environment", "inference", "update", "auxiliary")


class Display:
    """Shows nothing: the quiet one, and the base of the others."""

    def iteration(self, row: Mapping[str, Any]) -> None: ...

    def checkpoint(self, path: Path) -> None: ...

    def finished(self, result: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class PlainDisplay(Display):
    """A line now and then, without control characters: for pipes, files and CI."""

    def __init__(self, title: str, first_step: int, total: int) -> None:
        self.first_step, self.total = first_step, total
        self.started = time.monotonic()
        self.last = 0.0
        print(title, flush=True)

    def iteration(self, row: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self.last < SECONDS_BETWEEN_LINES and row["step"] < self.total:
            return
        self.last = now
        parts = [
            f"{row['step']:>11,} / {self.total:,} steps",
            f"return {number(row['return_mean'])}",
            f"{row['sps']:,.0f} steps/s",
            time_shares(row),
            f"ETA {eta(self.started, self.first_step, row['step'], self.total)}",
        ]
        print("  ".join(parts), flush=True)

    def finished(self, result: Mapping[str, Any]) -> None:
        print(summary_line(result), flush=True)


class LiveDisplay(Display):
    """A panel that redraws in place: progress, return with its history, losses, speed and where the time goes."""

    def __init__(self, title: str, first_step: int, total: int) -> None:
        from rich.live import Live

        self.title, self.first_step, self.total = title, first_step, total
        self.started = time.monotonic()
        self.returns: list[float] = []
        self.saved = "none yet"
        self.row: Mapping[str, Any] = {}
        self.live: Live = Live(auto_refresh=False, transient=False)
        self.live.start()

    def iteration(self, row: Mapping[str, Any]) -> None:
        self.row = row
        if row["return_mean"] is not None:
            self.returns.append(row["return_mean"])
        self.live.update(self.panel(), refresh=True)

    def panel(self) -> Any:
        from rich import box
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        row = self.row
        table: Table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        table.add_row("progress", ProgressBar(total=self.total, completed=row["step"], width=40))
        table.add_row(
            "",
            f"{row['step']:,} of {self.total:,} steps, {eta(self.started, self.first_step, row['step'], self.total)} left",
        )
        table.add_row(
            "return",
            f"[bold]{number(row['return_mean'])}[/]  [cyan]{sparkline(self.returns)}[/]  over the last episodes of {row['episodes']:,}",
        )
        table.add_row("speed", f"{row['sps']:,.0f} steps/s   {time_shares(row)}")
        details = [
            f"{name} {number(row[name])}"
            for name in ("kl", "entropy", "clip_fraction", "explained_variance", "value_loss")
            if name in row
        ]
        table.add_row("update", "  ".join(details))
        table.add_row("checkpoint", self.saved)
        return Panel(table, title=self.title, title_align="left", box=box.ROUNDED, expand=False)

    def checkpoint(self, path: Path) -> None:
        self.saved = str(path)

    def finished(self, result: Mapping[str, Any]) -> None:
        self.live.update(self.panel(), refresh=True)
        self.live.stop()
        print(summary_line(result), flush=True)

    def close(self) -> None:
        self.live.stop()


def make_display(agent: Algorithm, total: int, shown: bool) -> Display:
    """The live panel in a terminal, plain lines elsewhere."""
    if not shown:
        return Display()
    config = agent.config
    title = f"{agent.name.upper()} on {config.env}, seed {config.seed}, {config.arch} network on {agent.device}, "
    title += f"{gigabytes(agent.storage_bytes())} of stored rollouts"
    kind = LiveDisplay if sys.stdout.isatty() else PlainDisplay
    return kind(title, agent.progress.step, total)


def number(value: Any) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.3e}"


def time_shares(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {row[f'time_{name}']:.0%}" for name in SHARES if f"time_{name}" in row)


def eta(started: float, first_step: int, step: int, total: int) -> str:
    done = step - first_step
    if not done:
        return "?"
    seconds = int((time.monotonic() - started) / done * (total - step))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds % 60:02d}s"


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


def summary_line(result: Mapping[str, Any]) -> str:
    line = f"{result['status']} at {result['step']:,} steps in {result['seconds']:.0f} s ({result['sps']:,.0f} steps/s), return {number(result['return_mean'])}"
    if "eval" in result:
        line += f", evaluation {number(result['eval']['return_mean'])} over {result['eval']['episodes']} episodes"
    return line
