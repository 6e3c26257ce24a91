"""What the user sees of a run: a live panel in a terminal or a notebook, plain lines in a pipe, nothing when quiet.

view.py holds what is shown, panel.py draws it, screen.py and notebook.py redraw it, ending.py has the last words.
"""

from __future__ import annotations

import shutil
import textwrap
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from phasegrad import envs
from phasegrad.errors import PhasegradWarning, visible
from phasegrad.machine.failures import reason
from phasegrad.machine.memory import gigabytes, resident_bytes
from phasegrad.phases import phase_schedule
from phasegrad.presets import ON_CPU
from phasegrad.runs.ending import next_lines, summary_line
from phasegrad.runs.formats import duration, number, sparkline
from phasegrad.runs.notebook import NotebookScreen, in_notebook
from phasegrad.runs.panel import RunPanel
from phasegrad.runs.screen import Screen, is_terminal
from phasegrad.runs.view import Pace, RunView, activity, plain_line, playback

if TYPE_CHECKING:
    from phasegrad.runs.contract import Trainer

__all__ = ["RunDisplay", "RunPanel", "RunView", "duration", "make_display", "number", "plain_line", "sparkline", "summary_line"]  # fmt: skip

SECONDS_BETWEEN_LINES = 5.0
LONGEST_LINE = 120  # where there is no terminal to ask
STOPPING = "stopping with a checkpoint; Ctrl-C: at once"


class RunDisplay:
    """Shows nothing: the quiet one, and the base of the others."""

    shows_stopping = False  # whether it says itself that a Ctrl-C was heard

    def iteration(self, row: Mapping[str, Any]) -> None: ...

    def playing_back(self, done: int, total: int) -> None:
        """A resumed run brings its environments to where they were: so many environment steps of so many."""

    def checkpoint(self, path: Path) -> None: ...

    def finished(self, result: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close after whatever has happened; the way an ExitStack calls it."""
        self.close()


class ShownRun(RunDisplay):
    """What the plain and the live display share: the view, and when it last heard of the run."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.heard = time.monotonic()
        self.begun = False  # whether this session has done an iteration
        self.lost = False  # whether nobody can read it any more

    def say(self, text: str) -> None:
        """A line on standard output. One that is full is no reason to lose a run."""
        if self.lost:
            return
        try:
            print(visible(text), flush=True)
        except BrokenPipeError:  # nobody reads any more: the run is stopped in order, as every command is
            raise
        except (OSError, ValueError) as error:  # ValueError: an environment has closed it
            self.lost = True
            told = f"Standard output can no longer be written ({reason(error) if isinstance(error, OSError) else error}): the run goes on without a display."
            warnings.warn(told, PhasegradWarning, stacklevel=4)

    def iteration(self, row: Mapping[str, Any]) -> None:
        self.view.take(row)
        self.heard, self.begun = time.monotonic(), True

    def checkpoint(self, path: Path) -> None:
        self.view.checkpoint = path.name

    def finished(self, result: Mapping[str, Any]) -> None:
        self.view.ended(result)
        self.close()
        summary = summary_line(self.view.scored(result), self.view.run_dir)
        if is_terminal():
            columns = shutil.get_terminal_size().columns
            self.say(textwrap.fill(summary, columns, break_long_words=False, break_on_hyphens=False))
        else:
            columns = LONGEST_LINE
            self.say(summary)
        self.say("\n".join(next_lines(result, self.view.run_dir, self.view.total, columns)))


class PlainRunDisplay(ShownRun):
    """A line now and then, without control characters: for pipes, files and CI."""

    def __init__(self, view: RunView, heading: str) -> None:
        super().__init__(view)
        self.last = 0.0
        self.say(heading)
        if view.run_dir:
            self.say(f"run directory {view.run_dir}")

    def iteration(self, row: Mapping[str, Any]) -> None:
        super().iteration(row)
        if self.heard - self.last >= SECONDS_BETWEEN_LINES or self.view.step >= self.view.total:
            self.last = self.heard
            self.say(plain_line(self.view))

    def playing_back(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN_LINES or done == total:
            self.last = now
            self.say(playback(done, total, "what the environments had been through: "))


class LiveRunDisplay(ShownRun):
    """A panel that redraws in place, also within an iteration: a long auxiliary phase shows as such."""

    shows_stopping = True

    def __init__(
        self,
        view: RunView,
        section: Callable[[], str],
        stopping: Callable[[], bool] = lambda: False,
        screen: Callable[[Callable[[], Any]], Screen | NotebookScreen] = Screen,
    ) -> None:
        """`section` is the clock's current one, `stopping` whether a signal has asked for a stop."""
        super().__init__(view)
        self.section, self.stopping = section, stopping
        self.playback, self.since = "", 0.0
        self.screen = screen(self.panel)

    def playing_back(self, done: int, total: int) -> None:
        self.playback = playback(done, total) if done < total else ""

    def now(self) -> str:
        """What goes on, in a few words."""
        if self.view.status:
            return self.view.status
        if self.stopping():
            return STOPPING
        return self.playback or activity(self.section(), self.begun)

    def panel(self) -> RunPanel:
        self.view.memory = resident_bytes()
        if not self.view.status:
            self.since = time.monotonic() - self.heard
        return RunPanel(self.view, self.now(), self.since, underway=not self.view.status)

    def finished(self, result: Mapping[str, Any]) -> None:
        self.since = 0.0
        super().finished(result)

    def close(self) -> None:
        self.screen.close()

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.view.status:
            asked = kind is None or issubclass(kind, (KeyboardInterrupt, SystemExit))
            self.view.status = "stopped" if asked else "failed"
        self.close()


def make_display(trainer: Trainer, total: int, shown: bool, stopping: Callable[[], bool] = lambda: False) -> RunDisplay:
    """The live panel in a terminal and in a notebook, plain lines elsewhere."""
    if not shown:
        return RunDisplay()
    config, agent = trainer.config, trainer.agent
    stored, computed = gigabytes(trainer.storage_bytes()), trainer.computation.described or "not compiled"
    schedule = phase_schedule(vars(config))
    # Whoever named no preset has this one for want of a GPU.
    preset = f", preset {config.preset} for CPUs" if config.preset in ON_CPU.values() else ""
    view = RunView(
        f"{trainer.name.upper()} on {config.env}, seed {config.seed}",
        total,
        schedule.interval if schedule else 0,
        f"{config.arch} on {agent.device}{preset}, rollouts {stored}, {computed}",
        checkpoint="none yet" if trainer.run.run_dir else "none",
        run_dir=str(trainer.run.run_dir or ""),
    )
    take_up(view, trainer)
    if in_notebook():
        return LiveRunDisplay(view, lambda: trainer.clock.current, stopping, NotebookScreen)
    if is_terminal():
        return LiveRunDisplay(view, lambda: trainer.clock.current, stopping)
    where = " on gymnasium" if envs.backend_notice(agent.source, config.env_options, config.backend) else ""
    more = f"{config.arch} network on {agent.device}{preset}, {stored} of stored rollouts, {computed}"
    return PlainRunDisplay(view, f"{view.title}{where}, {more}")


def take_up(view: RunView, trainer: Trainer) -> None:
    """What the sessions before this one have brought; the speed is this one's own."""
    run, progress = trainer.run, trainer.run.progress
    view.seconds_before = run.seconds_before
    if progress.step > 0:
        if run.run_dir is not None:
            view.read(run.run_dir)
        now = {"step": progress.step, "iteration": progress.iteration, "episodes": progress.episodes}
        view.row = {**view.row, **now, "seconds": run.seconds_before}
    view.pace = Pace(progress.step, one_session=True)
