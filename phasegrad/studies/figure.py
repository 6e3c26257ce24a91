"""A study's learning curves as one picture: a panel for each environment, a line for each variant, published curves dashed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phasegrad.errors import RunError
from phasegrad.runs.curves import steps_text
from phasegrad.runs.files import replacing_file
from phasegrad.studies.curves import CURVES, PUBLISHED, Curve, read_curves, read_published

FIGURE = "curves.png"
POINTS = 100  # of a line that is the mean of several runs
MOST_PANELS = 40


def draw_study(root: Path, title: str, trained: bool) -> bool:
    """curves.png from curves.csv: the mean over seeds, the range of the seeds as a band. False where there is nothing to draw.

    `trained`: the study is scored by training episodes, so those are drawn; otherwise the scores of evaluations, where there
    are any but the last.
    """
    if not (root / CURVES).is_file():
        return False
    curves = read_curves(root / CURVES)
    trained = trained or all(np.isfinite(curve.score).sum() < 2 for curve in curves)  # a point is no curve
    published = read_published(root / PUBLISHED) if (root / PUBLISHED).is_file() else {}
    panels = list(dict.fromkeys(curve.environment for curve in curves))[:MOST_PANELS]
    lines = {name: _lines([curve for curve in curves if curve.environment == name], trained) for name in panels}
    lines = {name: found for name, found in lines.items() if found}
    if not lines:
        return False
    try:
        _draw(root / FIGURE, title, lines, published, "training return, last 100 episodes" if trained else "score")
    except OSError as error:
        raise RunError(f"{root / FIGURE} cannot be written: {error.strerror or error}.") from None
    return True


def _lines(curves: Sequence[Curve], trained: bool) -> dict[str, np.ndarray]:
    """By variant, [4, points]: steps, the mean of the seeds, their lowest and highest."""
    found = {}
    for variant in dict.fromkeys(curve.variant for curve in curves):
        single = [_known(curve, trained) for curve in curves if curve.variant == variant]
        single = [(steps, values) for steps, values in single if len(steps)]
        if single:
            start, end = max(steps[0] for steps, _ in single), min(steps[-1] for steps, _ in single)
            grid = np.linspace(start, max(start, end), POINTS)  # where all seeds have values
            values = np.stack([np.interp(grid, *curve) for curve in single])
            found[variant] = np.stack([grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0)])
    return found


def _known(curve: Curve, trained: bool) -> tuple[np.ndarray, np.ndarray]:
    values = curve.training if trained else curve.score
    finite = np.isfinite(values)
    return curve.steps[finite], values[finite]


def _draw(
    out: Path,
    title: str,
    lines: Mapping[str, Mapping[str, np.ndarray]],
    published: Mapping[str, Mapping[str, np.ndarray]],
    measure: str,
) -> None:
    from matplotlib.figure import Figure  # not pyplot: the backend stays as it is

    across = min(4, len(lines))
    down = math.ceil(len(lines) / across)
    size = (max(6.4, 3.1 * across), 2.3 * down + 1.0)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    variants = list(dict.fromkeys(name for found in lines.values() for name in found))
    colours = {name: f"C{index % 10}" for index, name in enumerate(variants)}
    handles: dict[str, Any] = {}
    for panel, (environment, found) in zip(axes.flat, lines.items(), strict=False):
        for variant, (steps, middle, low, high) in found.items():
            (handles[variant],) = panel.plot(steps, middle, color=colours[variant], linewidth=1.4)
            panel.fill_between(steps, low, high, color=colours[variant], alpha=0.18, linewidth=0)
        end = max(values[0, -1] for values in found.values())
        for label, points in published.get(environment, {}).items():
            near = points[points[:, 0] <= 1.02 * end]
            mark = "o" if len(near) == 1 else None  # a line of one point does not show
            (handles[label],) = panel.plot(
                *near.T, color="0.35", linewidth=1.1, linestyle="--", marker=mark, markersize=4
            )
        panel.set_title(environment, fontsize=9, parse_math=False)
        panel.xaxis.set_major_formatter(lambda value, _: steps_text(value))
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in list(axes.flat)[len(lines) :]:
        panel.set_visible(False)
    figure.suptitle(title, fontsize=11, parse_math=False)
    for panel in list(axes.flat)[max(0, len(lines) - across) : len(lines)]:
        panel.set_xlabel("environment steps", fontsize=8)
    figure.supylabel(measure, fontsize=9)
    legend = figure.legend(
        handles.values(),
        handles.keys(),
        frameon=False,
        fontsize=8,
        ncols=min(5, len(handles)),
        loc="outside lower center",
    )
    for entry in legend.get_texts():
        entry.set_parse_math(False)
    with replacing_file(out) as path:
        figure.savefig(path, format="png", metadata={"Software": None})
