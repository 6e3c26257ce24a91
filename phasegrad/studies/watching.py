"""`phasegrad watch` of a study's folder: all its runs in one table, read from the files alone, while it runs or later.

It never writes, keeps no lock and needs no torch, so it can look at a study of another process or machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasegrad.errors import RunError
from phasegrad.machine.paths import as_path
from phasegrad.runs.below import require_file
from phasegrad.runs.files import MOST_JSON_BYTES, read_json_object
from phasegrad.runs.lock import is_held
from phasegrad.runs.reading import CONFIG, number_or_none
from phasegrad.studies.board import Board, headline, scored, sources
from phasegrad.studies.checking import folder_name, one_line
from phasegrad.studies.standing import DEFINITION, RunPlace, Standing

if TYPE_CHECKING:
    from rich.text import Text

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_LINES = 30.0
MOST_RUNS = 10_000
MEASURES = ("last100", "eval", "levels")
AT_WORK = ("running", "starting", "scoring")
# Where not all runs fit the screen, those of the first states are shown.
IN_ORDER = (*AT_WORK, "failed", "stopped", "finished", "waiting")


def is_study(path: str | Path) -> bool:
    """Whether this is a study's folder, and no run's."""
    folder = as_path(path)
    return os.path.lexists(folder / DEFINITION) and not (folder / CONFIG).exists()


class WatchedStudy:
    """A study's folder, looked at again and again."""

    def __init__(self, path: str | Path) -> None:
        self.root = as_path(path)
        require_file(self.root / DEFINITION)
        data = read_json_object(self.root / DEFINITION, MOST_JSON_BYTES)
        places = planned_places(self.root, data)
        if not places:
            raise RunError(f"{self.root / DEFINITION} describes no study: it is damaged, or another program's.")
        known = {place.folder for place in places}
        places += [place for place in found_places(self.root) if place.folder not in known]
        measure = data.get("score")
        self.title = one_line(str(data.get("title") or data.get("name") or self.root.name))[:200]
        self.measure = one_line(str(data.get("score_name") or measure))[:300]
        self.standings = [Standing(place, measure if measure in MEASURES else "eval") for place in places]
        self.look()

    def look(self) -> list[Standing]:
        """Read what is new; the runs whose state has changed."""
        before = [standing.state for standing in self.standings]
        for standing in self.standings:
            if standing.state != "finished":  # a run that is done stays as it is
                standing.look()
        return [now for now, state in zip(self.standings, before, strict=True) if now.state != state]

    def alive(self) -> bool:
        """Whether the study's process is there, or some run is at work."""
        return is_held(self.root) or any(standing.state in AT_WORK for standing in self.standings)


def planned_places(root: Path, data: dict[str, Any]) -> list[RunPlace]:
    """The grid of a study.json, which anyone may have written; [] where it is no study's."""
    lists = [data.get(name) for name in ("environments", "variants", "seeds")]
    if not all(isinstance(entries, list) for entries in lists):
        return []
    environments, variants = ([entry for entry in found if isinstance(entry, dict)] for found in lists[:2])  # type: ignore[union-attr]
    seeds = [seed for seed in lists[2] if type(seed) is int and seed >= 0]  # type: ignore[union-attr]
    if len(environments) * len(variants) * len(seeds) > MOST_RUNS:
        raise RunError(f"{root} holds a study of more than {MOST_RUNS:,} runs: watch its runs one by one.")
    places = []
    for environment in environments:
        steps = number_or_none(environment.get("steps")) or number_or_none(data.get("steps")) or 0
        for variant in variants:
            names = one_line(str(environment.get("name"))), one_line(str(variant.get("name")))
            below = Path(*map(folder_name, names))
            places += [_place(root, below, *names, seed, int(steps)) for seed in seeds]
    return places


def found_places(root: Path) -> Iterator[RunPlace]:
    """Runs of earlier calls, with seeds or variants that the last one did not ask for."""
    for config in sorted(root.glob(f"runs/*/*/s*/{CONFIG}"))[:MOST_RUNS]:
        environment, variant, seed = config.parts[-4:-1]
        if seed[1:].isdecimal():
            below = Path(environment, variant)
            yield _place(root, below, one_line(environment), one_line(variant), int(seed[1:]), 0)


def _place(root: Path, below: Path, environment: str, variant: str, seed: int, steps: int) -> RunPlace:
    folder, log = root / "runs" / below / f"s{seed}", root / "logs" / below / f"s{seed}.log"
    return RunPlace(environment, variant, seed, folder, log, steps)


def watch_study(path: str | Path, once: bool = False) -> None:
    """Show the study until it ends or Ctrl-C; with `once`, or when nothing runs, once. Plain lines in a pipe."""
    watched = WatchedStudy(path)
    ended = once or not watched.alive()
    with contextlib.suppress(KeyboardInterrupt):  # how one leaves; the study itself goes on
        (_live if sys.stdout.isatty() else _plain)(watched, ended)


def _looks(watched: WatchedStudy, sleep: Callable[[float], None] = time.sleep) -> Iterator[list[Standing]]:
    """A look a second until nothing runs any more; what each found changed."""
    while watched.alive():
        sleep(SECONDS_BETWEEN_LOOKS)
        yield watched.look()


def _plain(watched: WatchedStudy, ended: bool) -> None:
    for line in table_lines(watched, 120):
        _say(line)
    if ended:
        return
    last = time.monotonic()
    for changed in _looks(watched):
        for standing in changed:
            detail = f": {standing.message}" if standing.message else f", {scored(standing)}"
            _say(f"{standing.state:8} {standing.place.label}{detail}")
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            _say(headline(watched.standings))
    _say(headline(watched.standings))


def _live(watched: WatchedStudy, ended: bool) -> None:
    from rich.live import Live

    from phasegrad.runs.consoles import PlainConsole

    console = PlainConsole()
    if ended:
        console.print(_as_text(table_lines(watched, console.width)), highlight=False)
        return
    with Live(
        get_renderable=lambda: _as_text(table_lines(watched, console.width, console.height - 1)),
        console=console,
        auto_refresh=False,
    ) as live:
        live.refresh()
        for _ in _looks(watched):
            live.refresh()


def table_lines(watched: WatchedStudy, columns: int, lines: int | None = None) -> list[str]:
    """The table: its head, a line for each run or for as many as fit, why runs failed, what the words mean."""
    standings = watched.standings
    board = Board([standing.place for standing in standings], columns)
    head = [watched.title, headline(standings), board.header()]
    failed = [f"{now.place.label} failed: {now.message}" for now in standings if now.state == "failed"]
    foot = [f"score: {watched.measure}", *filter(None, [sources(standings)])]
    shown: Sequence[Standing] = standings
    if lines is not None and len(head) + len(standings) + len(failed) + len(foot) > lines:
        failed = failed[:3]
        room = max(lines - len(head) - len(failed) - len(foot) - 1, 1)
        places = sorted(range(len(standings)), key=lambda index: (IN_ORDER.index(standings[index].state), index))
        shown = [standings[index] for index in sorted(places[:room])]
        rest = [standings[index].state for index in places[room:]]
        counted = ", ".join(f"{rest.count(state)} {state}" for state in IN_ORDER if state in rest)
        foot = [f"and {counted}" if rest else "", *foot]
    return [*head, *map(board.line, shown), *failed, *foot]


def _as_text(lines: Sequence[str]) -> Text:
    from rich.text import Text

    text = Text("\n").join([Text(line, "bold" if index < 2 else "") for index, line in enumerate(lines)])
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
