"""What a picture of learning curves shows, as numbers: each run's score and training return, and their mean over seeds.

The score is the mean return of a run's evaluations; one run's curves are in runs/curves.py, how the lines look is decided in runs/drawing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from phasegrad.errors import RunError
from phasegrad.report.grouping import RunGroup
from phasegrad.runs.curves import COLUMNS, SCORE, TEST_SCORE, TRAINING, Line, curve_of, smoothed

__all__ = ["HEAD", "SCORE", "TEST_SCORE", "TRAINING", "Line", "as_table", "lines_of", "smoothed"]

FEWEST_FOR_BAND = 3  # seeds: of two, a mean with its range is just the two
MOST_POINTS = 400  # of a mean over seeds


def lines_of(groups: Sequence[RunGroup], smooth: float = 0.0) -> list[Line]:
    """The lines of all groups of seeds; three seeds or more become their mean and range, fewer stay single lines."""
    found: list[Line] = []
    for group in groups:
        by_curve = {curve: _run_lines(group, curve, smooth) for curve in COLUMNS}
        both_levels = bool(by_curve[TEST_SCORE])
        for curve, lines in by_curve.items():
            levels = "training" if both_levels and curve == SCORE else ""
            found.extend(replace(line, levels=levels) for line in _together(lines))
    if not found:
        first = groups[0].runs[0].path
        raise RunError(f"{first} has no evaluation and no finished episode in its metrics yet.")
    return found


def _run_lines(group: RunGroup, curve: str, smooth: float) -> list[Line]:
    lines = []
    for run in group.runs:
        steps, values = curve_of(run, run.result, curve)
        if len(steps):
            name = f"seed {run.seed}" if len({run.seed for run in group.runs}) == len(group.runs) else run.name
            lines.append(Line(group.label, curve, name, steps, smoothed(steps, values, smooth)))
    return lines


def _together(lines: list[Line]) -> list[Line]:
    """The mean over seeds with the lowest and highest, where all of them have values; few seeds as they are."""
    if len(lines) < FEWEST_FOR_BAND:
        return lines
    start, end = max(line.steps[0] for line in lines), min(line.steps[-1] for line in lines)
    if end < start:
        return lines
    grid = np.unique(np.concatenate([line.steps for line in lines]))
    grid = grid[(grid >= start) & (grid <= end)]
    if len(grid) > MOST_POINTS:
        grid = np.linspace(start, end, MOST_POINTS)
    values = np.stack([np.interp(grid, line.steps, line.values) for line in lines])
    first = lines[0]
    name = f"mean of {len(lines)} seeds"
    return [Line(first.group, first.curve, name, grid, values.mean(0), values.min(0), values.max(0))]


HEAD = ["group", "curve", "line", "step", "return", "lowest", "highest"]


def as_table(lines: Sequence[Line]) -> list[list[object]]:
    """The points of all lines as rows under HEAD; the range is empty for single runs."""
    rows: list[list[object]] = []
    for line in lines:
        ends = (line.lowest, line.highest)
        for index, (step, value) in enumerate(zip(line.steps, line.values, strict=True)):
            low, high = ("" if end is None else float(end[index]) for end in ends)
            rows.append([line.group, line.curve, line.name, float(step), float(value), low, high])
    return rows
