"""What of a metrics file counts when a run goes on, and what is missing of it: lines that were removed, cut or altered.

Nothing is made up for a line that is gone: a curve has a gap there, and whoever looks at it is told.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from phasegrad.runs.reading import MetricsReader

MOST_NAMED = 3  # gaps of a file that are listed one by one


def counted(path: Path, step: int) -> tuple[int, list[int]]:
    """The bytes up to the end of the last whole row that is not beyond a step, and the iterations that have a row."""
    reader, end, found = MetricsReader(path), 0, []
    for row in reader.new_rows():
        if float(row["step"]) > step:  # type: ignore[arg-type]  # the reader has checked it
            break
        end = reader.offset
        if isinstance(iteration := row.get("iteration"), float):
            found.append(int(iteration))
    return end, found


def between(iterations: Sequence[int], last: int | None = None) -> list[tuple[int, int]]:
    """The stretches that are missing between the iterations of the rows, and up to the `last` one there was."""
    ends = [*iterations, last + 1] if last is not None and iterations else iterations
    return [(first + 1, next_ - 1) for first, next_ in itertools.pairwise(ends) if next_ > first + 1]


def sentence(path: Path, iterations: Sequence[int], last: int) -> str:
    """What is said of a file that does not hold what the checkpoint of iteration `last` had seen written."""
    if not iterations:
        lacks = f"has no row of the {last:,} iterations so far"
    else:
        gaps = between(iterations, last)
        lacks = (
            f"lacks {named(gaps)}" if gaps else f"lacks what came before iteration {iterations[0]:,}, or was altered"
        )
    return f"{path} {lacks}: the run continues bit for bit, and its curves show what is there."


def named(gaps: Iterable[tuple[int, int]]) -> str:
    """'iterations 3 to 5, 8 and 2 other stretches'."""
    listed = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in gaps]
    more = len(listed) - MOST_NAMED
    rest = f" and {more} other stretch{'es' if more > 1 else ''}" if more > 0 else ""
    return f"iteration{'' if len(listed) == 1 and ' ' not in listed[0] else 's'} {', '.join(listed[:MOST_NAMED])}{rest}"
