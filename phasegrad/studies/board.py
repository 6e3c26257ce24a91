"""The runs of a study as lines of fixed columns: for the live table of `study`, for `watch`, and for a pipe.

The widths come from the names alone, which are known from the beginning: nothing moves while the numbers change.
"""

from __future__ import annotations

from collections.abc import Sequence

from phasegrad.runs.console import duration, number
from phasegrad.studies.standing import EVAL, ON_LEVELS, TRAINING, RunPlace, Standing

LEAST_COLUMNS, MOST_COLUMNS = 60, 120
# seed, state, steps, score, its source, time left
WIDTHS = (4, 8, 6, 10, 8, 7)
SOURCES = {
    EVAL: "eval: the last evaluation",
    TRAINING: "training: the last 100 training episodes",
    ON_LEVELS: "levels: training levels / all levels",
}


class Board:
    """How the runs of one study are written."""

    def __init__(self, places: Sequence[RunPlace], columns: int = 80) -> None:
        columns = min(max(columns, LEAST_COLUMNS), MOST_COLUMNS)
        room = columns - sum(WIDTHS) - len(WIDTHS) - 1
        longest = [max((len(name) for name in names), default=0) for names in _names(places)]
        variant = min(max(longest[1], len("variant")), room // 2)
        self.names = (min(max(longest[0], len("environment")), room - variant), variant)

    def header(self) -> str:
        return self._line(("environment", "variant"), ("seed", "state", "steps", "score", "from", "left"))

    def line(self, standing: Standing) -> str:
        state = standing.state
        if state == "running" and standing.total:
            state = f"{min(standing.step / standing.total, 1):.0%}"
        left = standing.seconds_left()
        place = standing.place
        cells = (
            str(place.seed),
            state,
            short_count(standing.step) if standing.step else "-",
            shown_score(standing),
            standing.source,
            "" if left is None or standing.state != "running" else duration(left),
        )
        return self._line((place.environment, place.variant), cells)

    def _line(self, names: tuple[str, str], cells: Sequence[str]) -> str:
        left = [f"{elided(name, width):{width}}" for name, width in zip(names, self.names, strict=True)]
        right = [f"{elided(cell, width):>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)]
        return " ".join([*left, *right]).rstrip()


def headline(standings: Sequence[Standing]) -> str:
    """How many runs are where, and what is left of all of them at the speeds so far."""
    states = [standing.state for standing in standings]
    parts = [f"{states.count('finished')} of {len(states)} runs done"]
    parts += [f"{count} {name}" for name in ("running", "failed", "stopped") if (count := states.count(name))]
    left = seconds_left(standings)
    return ", ".join(parts) + ("" if left is None else f", about {duration(left)} left")


def seconds_left(standings: Sequence[Standing]) -> float | None:
    """Of the whole study with as many runs at a time as now; None where nothing runs or no speed is known."""
    running = sum(standing.state == "running" for standing in standings)
    speeds: dict[tuple[str, str], list[float]] = {}
    for standing in standings:
        if standing.seconds and standing.step:
            kind = (standing.place.environment, standing.place.variant)
            speeds.setdefault(kind, []).append(standing.seconds / standing.step)
    if not running or not speeds:
        return None
    means = {kind: sum(found) / len(found) for kind, found in speeds.items()}
    usual = sum(means.values()) / len(means)
    work = longest = 0.0
    for standing in standings:
        if standing.state not in ("finished", "failed", "scoring"):
            kind = (standing.place.environment, standing.place.variant)
            own = standing.seconds_left()
            seconds = means.get(kind, usual) * max(standing.total - standing.step, 0) if own is None else own
            work, longest = work + seconds, max(longest, seconds)
    return max(work / running, longest)


def sources(standings: Sequence[Standing]) -> str:
    """What the words in the column `from` mean, as far as they occur."""
    used = {standing.source for standing in standings}
    return "; ".join(text for source, text in SOURCES.items() if source in used)


def scored(standing: Standing) -> str:
    """What a run has come to so far, and by which measure."""
    names = {EVAL: "evaluation", TRAINING: "training return", ON_LEVELS: "on training levels/all levels"}
    return f"{names.get(standing.source, 'no return yet')} {shown_score(standing) if standing.source else ''}".rstrip()


def shown_score(standing: Standing) -> str:
    if standing.test_score is not None and standing.score is not None:
        return f"{standing.score:.3g}/{standing.test_score:.3g}"
    return number(standing.score)


def short_count(count: int) -> str:
    """A number of steps in at most six characters."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size * (10 if unit == "k" else 1):
            value = count / size
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"
    return f"{count:,}"


def elided(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _names(places: Sequence[RunPlace]) -> tuple[list[str], list[str]]:
    return [place.environment for place in places], [place.variant for place in places]
