"""The engines' flames of LunarLander, drawn from its state and action: envpool's pictures show the lander without them.

The geometry is gymnasium's: 30 pixels a unit, the state's position relative to the pad, thrust from 50 to 100 percent.
"""

from __future__ import annotations

import math

import numpy as np

OUTER, INNER = (255, 128, 24), (255, 232, 128)
SHAPE = (400, 600, 3)
BOTTOM, SIDE, SIDE_HEIGHT = -11.0, 16.0, 13.0  # pixels from the lander's middle to where its engines are
MAIN_LENGTH, SIDE_LENGTH = 34.0, 20.0
HALF_WIDTHS = {"main": 8.0, "side": 4.0}


def thrusts(action: np.ndarray) -> tuple[float, float]:
    """(main, side) engines' power in [0, 1] and [-1, 1] for a discrete or a continuous action; the side's sign is
    where the lander is driven: -1 to its left.
    """
    if action.ndim == 0:
        return {0: (0.0, 0.0), 1: (0.0, -1.0), 2: (1.0, 0.0), 3: (0.0, 1.0)}[int(action)]
    main, side = (float(value) for value in action)
    strength = min(abs(side), 1.0)
    return (0.5 + 0.5 * min(main, 1.0) if main > 0 else 0.0, math.copysign(strength, side) if strength > 0.5 else 0.0)


def with_flames(frame: np.ndarray, state: np.ndarray, action: np.ndarray, step: int) -> np.ndarray:
    """The picture [400, 600, 3] of a state [8] with the flames of the action taken in it. `step` makes them flicker."""
    main, side = thrusts(action)
    if frame.shape != SHAPE or not (main or side):
        return frame
    from PIL import Image, ImageDraw

    picture = Image.fromarray(frame)
    draw = ImageDraw.Draw(picture)
    flicker = (1.0, 0.8, 0.92)[step % 3]
    x, y, angle = 300 + 300 * float(state[0]), 282 - 200 * float(state[1]), float(state[4])
    if not math.isfinite(x + y + angle) or max(abs(x), abs(y)) > 1e4:
        return frame
    right = (math.cos(angle), -math.sin(angle))  # of the lander, in the picture, where y points down
    up = (-math.sin(angle), -math.cos(angle))

    def place(across: float, above: float) -> tuple[float, float]:
        return (x + across * right[0] + above * up[0], y + across * right[1] + above * up[1])

    for colour, share in ((OUTER, 1.0), (INNER, 0.55)):
        if main:
            width, length = HALF_WIDTHS["main"] * share, MAIN_LENGTH * main * flicker * share
            draw.polygon([place(-width, BOTTOM), place(width, BOTTOM), place(0, BOTTOM - length)], fill=colour)
        if side:
            width, length = HALF_WIDTHS["side"] * share, SIDE_LENGTH * abs(side) * flicker * share
            away = -math.copysign(1.0, side)  # the flame goes where the lander does not
            edge = away * SIDE
            corners = [place(edge, SIDE_HEIGHT - width), place(edge, SIDE_HEIGHT + width)]
            draw.polygon([*corners, place(edge + away * length, SIDE_HEIGHT)], fill=colour)
    return np.asarray(picture)
