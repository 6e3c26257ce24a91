"""`phasegrad watch`: a running or finished run in the terminal, read from its files alone.

It never writes, takes no lock and needs no torch, so it can look at a run of another machine on a shared disk.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from phasegrad.errors import RunError
from phasegrad.machine.orphans import is_running
from phasegrad.machine.paths import as_path
from phasegrad.runs.console import FRAMES_A_SECOND, RunView, draw, duration, plain_line, summary_line
from phasegrad.runs.files import read_json_object
from phasegrad.runs.lock import LOCK
from phasegrad.runs.reading import CONFIG, METRICS, RESULT, MetricsReader, number_or_none
from phasegrad.schedules import SETTINGS, phase_schedule

RECENT = 50  # iterations whose speed gives the time that is left
SECONDS_BETWEEN_LOOKS = 1.0
SILENT_SECONDS = 600.0  # a run without a lock of this machine that writes nothing for so long is taken for ended


class Watched:
    """A run directory, looked at again and again."""

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        self.config = read_json_object(self.path / CONFIG)
        if not self.config:
            raise RunError(f"{self.path} is not a run directory: it has no readable {CONFIG}.")
        self.reader = MetricsReader(self.path / METRICS)
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self.view = RunView("", 0)
        self.look()

    def look(self) -> bool:
        """Read what is new; whether there was anything."""
        offset = self.reader.offset
        new = False
        for row in self.reader.new_rows():
            if self.reader.offset < offset:  # the run went back to a checkpoint and its file was cut
                self.view.returns.clear()
                self.recent.clear()
                offset = 0
            new = True
            self.view.take({name: value for name, value in row.items() if not isinstance(value, list)})
            seconds = row.get("seconds")
            if isinstance(seconds, float):
                self.recent.append((float(self.view.step), seconds))
        config = read_json_object(self.path / CONFIG) or self.config
        total = number_or_none(config.get("total_steps"))
        self.view.total = int(total) if total is not None else 0
        self.view.interval = auxiliary_interval(config)
        names = [one_line(config.get(name, "?")) for name in ("algorithm", "env", "seed")]
        self.view.title = f"{names[0].upper()} on {names[1]}, seed {names[2]}, in {one_line(self.path)}"
        self.view.status = self.status()
        saved = sorted(self.path.glob("checkpoints/step-*"))
        self.view.checkpoint = saved[-1].name if saved else "none yet"
        return new

    def finished(self) -> dict[str, float | str] | None:
        """What result.json says, if it is of the step that the metrics have reached."""
        result = read_json_object(self.path / RESULT)
        wanted = ("step", "seconds", "sps")
        if any(number_or_none(result.get(name)) is None for name in wanted) or result["step"] < self.view.step:
            return None
        shown = {name: number_or_none(result.get(name)) for name in (*wanted, "return_mean")}
        return {"status": one_line(result.get("status", "finished")), **shown, "step": int(result["step"])}  # type: ignore[dict-item]

    def alive(self) -> bool:
        """Whether its process is there, or its files were written of late."""
        try:
            owner = int((self.path / LOCK).read_text()[:20])
        except (OSError, ValueError):
            owner = 0
        return is_running(owner) or (self.silence() < SILENT_SECONDS and not self.finished())

    def silence(self) -> float:
        """Seconds since the metrics were last written."""
        try:
            return max(0.0, time.time() - (self.path / METRICS).stat().st_mtime)
        except OSError:
            return float("inf")

    def status(self) -> str:
        finished = self.finished()
        if finished is not None:
            return str(finished["status"])
        if self.alive():
            return "running"
        ago = self.silence()
        return "not running" + ("" if ago == float("inf") else f", last written {duration(ago)} ago")

    def seconds_left(self) -> float | None:
        """At the mean speed of the last iterations."""
        if len(self.recent) < 2:
            return None
        (first_step, first), (last_step, last) = self.recent[0], self.recent[-1]
        if last <= first or last_step <= first_step:
            return None
        return (last - first) / (last_step - first_step) * max(self.view.total - last_step, 0.0)


def auxiliary_interval(config: dict[str, object]) -> int:
    """Iterations between auxiliary phases of a PPG run's settings, 0 where there are none or the file is damaged."""
    schedule = phase_schedule({name: int(number_or_none(config.get(name)) or 0) for name in SETTINGS})
    return max(schedule.interval, 0) if schedule else 0


def one_line(value: object) -> str:
    """Text from a file without control characters, which could move a terminal's cursor."""
    shown = " ".join(str(value).split())[:120]
    return "".join(character if character.isprintable() else "?" for character in shown)


def watch(path: str | Path, once: bool = False) -> None:
    """Show the run until it ends or Ctrl-C; with `once`, or when it has ended, once. Plain lines in a pipe."""
    watched = Watched(path)
    ended = once or not watched.alive()
    with contextlib.suppress(KeyboardInterrupt):  # how one leaves; the run itself goes on
        (_live if sys.stdout.isatty() else _plain)(watched, ended)
    result = watched.finished()
    if result is not None:
        print(summary_line(result), flush=True)


def _looks(watched: Watched, sleep: Callable[[float], None] = time.sleep) -> Iterator[bool]:
    """A look a second until the run has ended; whether each found something."""
    while watched.alive():
        sleep(SECONDS_BETWEEN_LOOKS)
        yield watched.look()


def _plain(watched: Watched, ended: bool) -> None:
    print(f"{watched.view.title}: {watched.view.status}", flush=True)
    if watched.view.row:
        print(plain_line(watched.view, watched.seconds_left()), flush=True)
    else:
        print("no iteration yet", flush=True)
    if not ended:
        for new in _looks(watched):
            if new:
                print(plain_line(watched.view, watched.seconds_left()), flush=True)


def _live(watched: Watched, ended: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    if ended:
        Console().print(draw(watched.view, watched.seconds_left()))
        return
    with Live(
        get_renderable=lambda: draw(watched.view, watched.seconds_left()), refresh_per_second=FRAMES_A_SECOND
    ) as live:
        for _ in _looks(watched):
            pass
        live.refresh()
