"""Learning curves as a picture: scores, training returns fainter, seeds as their mean and range.

A figure is matplotlib's own, without pyplot: no window opens, no backend changes, and a notebook shows it once. This module
imports matplotlib, so it is imported where something is drawn.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from phasegrad.runs.curves import SCORE, TEST_SCORE, TRAINING, Line, steps_text

TRAINING_LABEL = "training episodes, sampled actions, last 100"
STAND_IN = "training return, last 100 episodes"  # where nothing was evaluated
LEGEND_WIDTH = 110  # characters


class CurvesFigure(Figure):
    """A figure that a notebook shows whether or not pyplot was imported."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        with matplotlib.rc_context({"text.usetex": False}):
            self.savefig(picture, format="png")
        return picture.getvalue()


def drawn(lines: Sequence[Line], title: str | None = None, smooth: float = 0.0, dots_per_inch: int = 100) -> Figure:
    """Return against steps."""
    figure = CurvesFigure(figsize=(7.5, 4.8), dpi=dots_per_inch, layout="constrained")
    axes = figure.subplots()
    draw_lines(axes, lines)
    smoothing = f", smoothed over {smooth:,.0f} steps" if smooth > 0 else ""
    scored = any(line.curve != TRAINING for line in lines)
    axes.set_ylabel(f"return{smoothing}" if scored else STAND_IN + smoothing)
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(lambda value, _: steps_text(value))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda index: labels[index] == TRAINING_LABEL)  # what is faint comes last
    legend = figure.legend(
        [handles[index] for index in order],
        [labels[index] for index in order],
        frameon=False,
        fontsize=8,
        loc="outside lower center",  # never over a curve
    )
    for entry in legend.get_texts():
        entry.set_parse_math(False)  # a name with dollars is a name
    if title:
        axes.set_title(title, parse_math=False)
    return figure


def draw_lines(axes: Any, lines: Sequence[Line]) -> None:
    """A colour for each group; scores on top, training beneath, the legend naming each kind of line once."""
    groups = list(dict.fromkeys(line.group for line in lines))
    scored = {line.group for line in lines if line.curve != TRAINING}
    named: set[str] = set()
    for line in lines:
        faint = line.curve == TRAINING and line.group in scored
        colour = f"C{groups.index(line.group) % 10}"
        alike = sum((other.group, other.curve) == (line.group, line.curve) for other in lines)
        label = TRAINING_LABEL if faint else legend_text(line, alike)
        named_so = f" {label}" if label.startswith("_") else label
        shown = "_" if label in named else textwrap.fill(named_so, LEGEND_WIDTH)  # matplotlib leaves out what begins so
        named.add(label)
        style: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.35, "zorder": 1} if faint else {"linewidth": 2.0}
        marker = "o" if len(line.steps) < 20 and not faint else None
        dashes = "--" if line.curve == TEST_SCORE else "-"
        axes.plot(line.steps, line.values, dashes, color=colour, marker=marker, markersize=4, label=shown, **style)
        if line.lowest is not None and not faint:
            axes.fill_between(line.steps, line.lowest, line.highest, color=colour, alpha=0.18, linewidth=0)


def legend_text(line: Line, alike: int) -> str:
    """What a line is: the group, what was measured, and of how many seeds it is made."""
    kinds = {SCORE: "greedy evaluation", TEST_SCORE: "greedy evaluation on test levels", TRAINING: STAND_IN}
    measured = f"{kinds[line.curve]} on {line.levels} levels" if line.levels else kinds[line.curve]
    if line.lowest is not None:
        return f"{line.group}: {measured}, {line.name}, lowest to highest shaded"
    return f"{line.group}: {measured}" + (f", {alike} seeds, a line each" if alike > 1 else "")
