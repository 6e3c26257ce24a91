"""The learning curve on an agent's card, as a small PNG. Knows numbers and words, and nothing of runs or of agents.

Drawn by Pillow: importing matplotlib would take longer than all else that saving an agent does.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from phasegrad.runs.curves import steps_text
from phasegrad.runs.formats import printable, shorten

Points = Sequence[tuple[float, float]]  # (steps, return), in rising order of steps

WIDTH, HEIGHT, FINE = 640, 300, 2  # pixels; drawn so many times larger, for smooth lines
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 40, 44
INK, FAINT, LINE, PAPER = (60, 60, 60), (225, 225, 225), (31, 102, 178), (255, 255, 255)
COLOURS = 24
MARKED = 20  # a curve of fewer points has a dot at each


def draw_curve(points: Points, title: str, what: str) -> bytes:
    """The PNG of a curve of two points or more; `what` says which return it is."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH * FINE, HEIGHT * FINE), PAPER)
    draw = ImageDraw.Draw(image)
    font, small = (ImageFont.load_default(size * FINE) for size in (15, 12))
    lowest, highest = min(value for _, value in points), max(value for _, value in points)
    marks = ticks(lowest, highest)
    low, high = min(marks[0], lowest), max(marks[-1], highest)
    end = points[-1][0] or 1.0

    def place(step: float, value: float) -> tuple[float, float]:
        across, up = step / end, (value - low) / ((high - low) or 1.0)
        wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return (LEFT + across * wide) * FINE, (HEIGHT - BOTTOM - up * tall) * FINE

    draw.text((LEFT * FINE, 10 * FINE), shorten(printable(title), 60), fill=INK, font=font)
    for mark in marks:
        _, y = place(0, mark)
        draw.line([(LEFT * FINE, y), ((WIDTH - RIGHT) * FINE, y)], fill=FAINT, width=FINE)
        draw.text(((LEFT - 8) * FINE, y), f"{mark:,.6g}", fill=INK, font=small, anchor="rm")
    for part in (0.0, 0.5, 1.0):
        x, _ = place(part * end, low)
        anchor = "ra" if part == 1.0 else "ma"
        draw.text((x, (HEIGHT - BOTTOM + 8) * FINE), steps_text(part * end), fill=INK, font=small, anchor=anchor)
    draw.text((LEFT * FINE, (HEIGHT - 18) * FINE), f"{what}, by environment steps", fill=INK, font=small)
    placed = [place(*point) for point in points]
    draw.line(placed, fill=LINE, width=2 * FINE, joint="curve")
    for x, y in placed if len(placed) < MARKED else []:
        draw.ellipse([x - 3 * FINE, y - 3 * FINE, x + 3 * FINE, y + 3 * FINE], fill=LINE)
    small_image = image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).quantize(COLOURS)
    file = io.BytesIO()
    small_image.save(file, format="png", optimize=True)
    return file.getvalue()


def ticks(lowest: float, highest: float) -> list[float]:
    """Round numbers, three to seven, that span all from the lowest to the highest."""
    span = highest - lowest
    if not math.isfinite(span) or span <= 1e-12 * max(abs(lowest), abs(highest)):
        middle, step = lowest, max(abs(lowest) * 0.1, 1e-6)
        return [middle - step, middle, middle + step]
    rough = span / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first, last = math.floor(lowest / step), math.ceil(highest / step)
    return [number * step for number in range(first, last + 1)]
