"""`phasegrad watch`: a running or finished run in the terminal, read from its files alone.

It never writes, keeps no lock and needs no torch, so it can look at a run of another machine on a shared disk.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from phasegrad.errors import RunError
from phasegrad.machine.memory import resident_bytes
from phasegrad.machine.paths import as_path
from phasegrad.phases import SETTINGS, phase_schedule
from phasegrad.runs.below import require_file
from phasegrad.runs.ending import summary_line
from phasegrad.runs.files import read_json_object, require_within_reach
from phasegrad.runs.formats import duration, printable
from phasegrad.runs.lock import holder, is_held
from phasegrad.runs.noting import is_greedy_at, read_evaluations
from phasegrad.runs.panel import RunPanel
from phasegrad.runs.reading import CONFIG, METRICS, RESULT, MetricsReader, number_or_none
from phasegrad.runs.screen import Screen, is_terminal, keys_unseen
from phasegrad.runs.view import RunView, latest_checkpoint, plain_line

SECONDS_BETWEEN_LOOKS = 1.0
SILENT_SECONDS = 600.0  # a run without a lock of this machine that writes nothing for so long is taken for ended
RUNNING = "running"


class Watched:
    """A run directory, looked at again and again."""

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        require_file(self.path / CONFIG)
        self.config = read_json_object(self.path / CONFIG)
        if not self.config:
            require_within_reach(self.path / CONFIG)
            raise RunError(f"{self.path} is not a run directory: it has no readable {CONFIG}.")
        self.reader = MetricsReader(self.path / METRICS)
        self.view = RunView("", 0, run_dir=printable(self.path))
        self.look()

    def look(self) -> bool:
        """Read what is new; whether there was anything."""
        view, offset, new = self.view, self.reader.offset, False
        for row in self.reader.new_rows():
            if self.reader.offset < offset:  # the run went back to a checkpoint and its file was cut
                view.went_back()
                offset = 0
            new = True
            view.take({name: value for name, value in row.items() if not isinstance(value, list)})
        config = read_json_object(self.path / CONFIG) or self.config
        total = number_or_none(config.get("total_steps"))
        view.total = int(total) if total is not None else 0
        view.interval = auxiliary_interval(config)
        names = [printable(config.get(name, "?"), 120) for name in ("algorithm", "env", "seed")]
        view.title = f"{names[0].upper()} on {names[1]}, seed {names[2]}"
        view.details = details(config)
        result = self.finished()
        if result is not None:
            view.ended(result)
        if not view.scores:
            view.evaluated(view.step, latest_evaluation(self.path, view.step))
        view.status = self.status(result)
        view.memory = resident_bytes(owner) if (owner := holder(self.path)) else None
        view.checkpoint = latest_checkpoint(self.path)
        return new

    def finished(self) -> dict[str, Any] | None:
        """What result.json says, if it is of the step that the metrics have reached."""
        result = read_json_object(self.path / RESULT)
        wanted = ("step", "seconds", "sps")
        if any(number_or_none(result.get(name)) is None for name in wanted) or result["step"] < self.view.step:
            return None
        shown: dict[str, Any] = {name: number_or_none(result.get(name)) for name in (*wanted, "return_mean")}
        shown |= {name: numbers(result[name]) for name in ("eval", "eval_test", "best_eval") if result.get(name)}
        return {"status": printable(result.get("status", "finished"), 120), **shown, "step": int(result["step"])}

    def alive(self) -> bool:
        """Whether a process holds it, or its files were written of late; a number in a file that was left behind is none."""
        return is_held(self.path) or (self.silence() < SILENT_SECONDS and not self.finished())

    def silence(self) -> float:
        """Seconds since the metrics were last written."""
        try:
            return max(0.0, time.time() - (self.path / METRICS).stat().st_mtime)
        except OSError:
            return float("inf")

    def status(self, finished: Mapping[str, Any] | None) -> str:
        if finished is not None:
            return str(finished["status"])
        if self.alive():
            return RUNNING
        ago = self.silence()
        return "not running" + ("" if ago == float("inf") else f", last written {duration(ago)} ago")

    def since(self) -> float:
        """Seconds since the last row, of a run that goes on."""
        return self.silence() if self.view.status == RUNNING and self.view.row else 0.0

    def panel(self) -> RunPanel:
        return RunPanel(self.view, self.view.status, self.since(), underway=self.view.status == RUNNING)


def auxiliary_interval(config: dict[str, object]) -> int:
    """Iterations between auxiliary phases of a PPG run's settings, 0 where there are none or the file is damaged."""
    schedule = phase_schedule({name: int(number_or_none(config.get(name)) or 0) for name in SETTINGS})
    return max(schedule.interval, 0) if schedule else 0


def details(config: Mapping[str, Any]) -> str:
    """Network and computation, as far as a config tells them."""
    arch, compiled = (printable(config.get(name, ""), 60) for name in ("arch", "compile"))
    return ", ".join(
        part for part in (f"{arch} network" if arch else "", f"compile {compiled}" if compiled else "") if part
    )


def numbers(found: Any) -> dict[str, Any]:
    """The numbers of an object of a file; counts as such."""
    taken = {name: number_or_none(value) for name, value in found.items()} if isinstance(found, dict) else {}
    return {
        name: int(value) if name in ("step", "episodes", "episodes_cut") else value
        for name, value in taken.items()
        if value is not None
    }


def latest_evaluation(folder: Path, step: int) -> float | None:
    """The mean return of the latest `phasegrad eval` at a step, by greedy actions on the levels of training."""
    found = [line for line in read_evaluations(folder) if is_greedy_at(line, step)]
    return number_or_none(found[-1]["return_mean"]) if found else None


def watch(path: str | Path, once: bool = False) -> None:
    """Show the run until it ends or Ctrl-C; with `once`, or when it has ended, once. Plain lines in a pipe."""
    watched = Watched(path)
    ended = once or not watched.alive()
    with contextlib.suppress(KeyboardInterrupt):  # how one leaves; the run itself goes on
        (_live if is_terminal() else _plain)(watched, ended)
    result = watched.finished()
    if result is not None:
        print(summary_line(watched.view.scored(result)), flush=True)


def _looks(watched: Watched, sleep: Callable[[float], None] = time.sleep) -> Iterator[bool]:
    """A look a second until the run has ended; whether each found something."""
    while watched.alive():
        sleep(SECONDS_BETWEEN_LOOKS)
        yield watched.look()


def _plain(watched: Watched, ended: bool) -> None:
    print(f"{watched.view.title}, in {watched.view.run_dir}: {watched.view.status}", flush=True)
    if watched.view.row:
        print(plain_line(watched.view, watched.since()), flush=True)
    else:
        print("no iteration yet", flush=True)
    if not ended:
        for new in _looks(watched):
            if new:
                print(plain_line(watched.view, watched.since()), flush=True)


def _live(watched: Watched, ended: bool) -> None:
    from phasegrad.runs.consoles import PlainConsole

    if ended:
        PlainConsole(highlight=False).print(watched.panel())
        return
    with keys_unseen():
        screen = Screen(watched.panel)
        try:
            for _ in _looks(watched):
                pass
        finally:
            screen.close()
