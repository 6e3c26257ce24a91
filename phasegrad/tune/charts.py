"""The charts of a search's page as SVG: trials in their order, and each setting against what its trials came to.

Pure functions of numbers and text. A trial without an evaluation has no height: its mark lies on a strip below the plot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from phasegrad.runs.console import number
from phasegrad.tune.search_spaces import Range

LEFT, RIGHT, TOP, STRIP, BOTTOM = 52, 12, 10, 16, 26  # pixels around the plot; STRIP is for trials without a value
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """Where values lie along an axis: `place` maps one to 0 .. 1; its ticks are (place, label)."""

    place: Callable[[Any], float]
    ticks: Sequence[tuple[float, str]]


def number_axis(values: Sequence[float], count: int = 4) -> Axis:
    """Evenly spaced, with a little room at both ends."""
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    low, high = low - room, high + room
    return Axis(lambda value: (value - low) / (high - low), _placed(round_numbers(low, high, count), low, high))


def setting_axis(name: str, space: Range) -> Axis:
    """The axis of a setting: its choices side by side, or its range as the search draws from it."""
    if space.choices:
        shown = [setting_text(choice) for choice in space.choices]
        count = len(shown)
        places = {text: (index + 0.5) / count for index, text in enumerate(shown)}
        return Axis(lambda value: places.get(setting_text(value), 0.5), [(places[text], text) for text in shown])
    if name == "gamma":  # drawn as 1 - gamma by its logarithm: .99 and .999 are as far apart as .9 and .99
        low, high = -math.log10(space.high), -math.log10(space.low)
        ticks = [
            ((-math.log10(1 - gamma) - low) / (high - low), f"{gamma:g}") for gamma in (0.9, 0.97, 0.99, 0.997, 0.999)
        ]
        return Axis(lambda value: (-math.log10(max(1 - value, 1e-12)) - low) / (high - low), ticks)
    if space.log:
        low, high = math.log10(space.low), math.log10(space.high)
        found = [sign * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for sign in (1, 2, 5)]
        inside = [value for value in found if space.low * 0.999 <= value <= space.high * 1.001]
        ticks = [((math.log10(value) - low) / (high - low), f"{value:g}") for value in inside]
        return Axis(lambda value: (math.log10(max(value, 1e-300)) - low) / (high - low), ticks)
    low, high = space.low, space.high
    return Axis(lambda value: (value - low) / (high - low), _placed(round_numbers(low, high, 4), low, high))


def round_numbers(low: float, high: float, count: int) -> list[float]:
    """About `count` numbers from low to high that are easy to read."""
    rough = (high - low) / max(count, 1)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next((size * factor for factor in (1, 2, 5, 10) if size * factor >= rough), rough)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def _placed(values: Sequence[float], low: float, high: float) -> list[tuple[float, str]]:
    return [((value - low) / (high - low), number(round(value, 10))) for value in values]


def setting_text(value: Any) -> str:
    """A setting's value as `train` takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def history(rows: Sequence[Row], best: Row, width: int, height: int) -> str:
    """Trials in their order, with the best so far as a line."""
    complete = [row for row in rows if row["state"] == "complete"]
    last = max(row["number"] for row in rows)
    ticks = [n for n in round_numbers(0.5, last + 0.5, max(5, width // 90)) if n == int(n) and n >= 1] or [1.0]
    across = Axis(lambda n: (n - 0.5) / last, [((n - 0.5) / last, f"{n:.0f}") for n in ticks])
    upwards = number_axis([row["return"] for row in complete])
    frame = Frame(width, height, across, upwards)
    reached, path = -math.inf, ""
    for row in sorted(complete, key=lambda row: row["number"]):
        if row["return"] > reached:
            x, y = frame.point(row["number"], row["return"])
            path += f"M{x:.1f} {y:.1f}" if not path else f"H{x:.1f}V{y:.1f}"
            reached = row["return"]
    line = f'<path class="best-line" d="{path}H{frame.right:.1f}"/>'
    marks = "".join(mark(frame, row, row["number"], best) for row in best_on_top(rows, best))
    return frame.drawn(line + marks, "trial", f"Evaluation return of {len(complete)} trials in their order")


def against(name: str, space: Range, rows: Sequence[Row], best: Row, width: int, height: int) -> str:
    """One setting against the evaluation of the trials."""
    complete = [row["return"] for row in rows if row["state"] == "complete"]
    frame = Frame(width, height, setting_axis(name, space), number_axis(complete))
    shown = best_on_top([row for row in rows if name in row["settings"]], best)
    marks = "".join(mark(frame, row, row["settings"][name], best, len(space.choices)) for row in shown)
    return frame.drawn(marks, "", f"Evaluation return against {name}")


def best_on_top(rows: Sequence[Row], best: Row) -> list[Row]:
    """With the best at the end: what is drawn last hides the others."""
    return sorted(rows, key=lambda row: row["number"] == best["number"])


def mark(frame: Frame, row: Row, value: Any, best: Row, choices: int = 0) -> str:
    """A trial: a dot at its evaluation, or on the strip below a stroke (pruned) or a cross (failed)."""
    x, y = frame.point(value, row["return"])
    if choices:  # trials of one choice would hide each other: side by side, by their numbers
        x += (row["number"] * 7 % 11 - 5) / 5 * min(0.28 * (frame.right - LEFT) / choices, 24)
    title = f"<title>{escape(told(row))}</title>"
    if row["state"] == "complete":
        kind = "best" if row["number"] == best["number"] else "dot"
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{5 if kind == "best" else 3.5}">{title}</circle>'
    if row["state"] == "pruned":
        return f'<path class="pruned" d="M{x:.1f} {y - 4:.1f}v8">{title}</path>'
    return f'<path class="failed" d="M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6">{title}</path>'


def told(row: Row) -> str:
    if row["state"] == "complete":
        return f"trial {row['number']}: return {number(row['return'])}"
    if row["state"] == "pruned":
        return f"trial {row['number']}: pruned at {row['reached'] or 0:.0%}, training return {number(row['training_return'])}"
    return f"trial {row['number']}: failed: {row['error'] or 'unknown error'}"[:300]


class Frame:
    """The plot's place in its picture, with axes and grid."""

    def __init__(self, width: int, height: int, across: Axis, upwards: Axis) -> None:
        self.width, self.height, self.across, self.upwards = width, height, across, upwards
        self.right, self.bottom = width - RIGHT, height - BOTTOM - STRIP

    def point(self, x: Any, y: float | None) -> tuple[float, float]:
        """Of a pair of values; without a height it is on the strip."""
        at = LEFT + min(max(self.across.place(x), 0.0), 1.0) * (self.right - LEFT)
        if y is None:
            return at, self.bottom + STRIP / 2
        return at, self.bottom - self.upwards.place(y) * (self.bottom - TOP)

    def drawn(self, marks: str, name: str, label: str) -> str:
        lines = [f'<path class="axis" d="M{LEFT} {TOP}V{self.bottom}H{self.right}"/>']
        for place, text in self.upwards.ticks:
            y = self.bottom - place * (self.bottom - TOP)
            lines.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{self.right}"/>')
            lines.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
        end = -math.inf
        for place, text in self.across.ticks:
            x, half = LEFT + place * (self.right - LEFT), 3.4 * len(text)
            if x - half > end:  # labels must not run into each other
                lines.append(
                    f'<text class="tick" x="{x:.1f}" y="{self.height - 8}" text-anchor="middle">{escape(text)}</text>'
                )
                end = x + half + 4
        named = f'<text class="tick" x="{self.right}" y="{self.height - 8}" text-anchor="end">{escape(name)}</text>'
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}">'
            f"{''.join(lines)}{marks}{named if name else ''}</svg>"
        )
