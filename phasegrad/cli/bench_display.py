"""What `phasegrad bench` shows: how far it is while it measures, and a table that fits a terminal."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

BESIDE = (
    12.0  # seconds of a measurement beside the timed part (start, warm-up, limit): a guess, for the first line only
)
COLUMNS = ("task", "steps/s", "limit", "share", "env/act/learn", "memory")
READING = (
    "share: of the limit, which is what this machine could do at most: its environments alone, or for convolutions the "
    "GFLOPS of a matrix product; higher is better. env/act/learn: where the time goes."
)


class BenchProgress:
    """Writes which task is measured for which time, what came out, and how long the rest will take."""

    def __init__(
        self,
        names: Sequence[str],
        repeats: int,
        seconds: float,
        write: Callable[[str], object],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.order = [name for _ in range(repeats) for name in names]
        self.repeats, self.write, self.now = repeats, write, now
        self.took: dict[str, float] = {}  # seconds, the latest of each task
        self.done, self.begun = 0, 0.0
        tasks = f"{len(names)} task{'s' if len(names) > 1 else ''}"
        guess = duration(len(self.order) * (seconds + BESIDE))
        write(f"Measuring {tasks}, {repeats} time{'s' if repeats > 1 else ''} each: {guess} in all, at a guess.\n")

    def __call__(self, name: str, repeat: int, sps: float | None) -> None:
        if sps is None:
            self.begun = self.now()
            place = f"[{self.done + 1:{len(str(len(self.order)))}}/{len(self.order)}]"
            self.write(f"{place} {name}, repeat {repeat + 1} of {self.repeats} ... ")
            return
        self.took[name] = self.now() - self.begun
        self.done += 1
        left = f"; {duration(self.left())} left" if self.done < len(self.order) else ""
        self.write(f"{sps:,.0f} steps/s, {self.took[name]:.0f} s{left}\n")

    def left(self) -> float:
        """Seconds of the measurements to come: what the same task took, or the mean of those that are known."""
        mean = sum(self.took.values()) / len(self.took)
        return sum(self.took.get(name, mean) for name in self.order[self.done :])


def duration(seconds: float) -> str:
    """'about 40 s', 'about 12 min', 'about 1.5 h'."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def terminal_table(results: Mapping[str, Any]) -> str:
    """The measurements in aligned columns, and a line on how to read them."""
    rows = [COLUMNS, *(_cells(name, row) for name, row in results.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]
    return "\n".join([*lines, "", *textwrap.wrap(READING, 78)])


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    limit = f"{row['limit_gflops']:,.0f} GFLOPS" if "limit_gflops" in row else f"{row['limit_sps']:,.0f} /s"
    learning = row.get("share_update", 0.0) + row.get("share_auxiliary", 0.0)
    parts = [f"{100 * part:.0f}" for part in (row["share_environment"], row["share_inference"], learning)]
    times = "/".join(part.rjust(2) for part in parts) + " %"
    return name, f"{row['sps']:,.0f}", limit, f"{row['ratio_to_limit']:.0%}", times, f"{row['peak_rss_mb']:,.0f} MB"
