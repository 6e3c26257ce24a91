"""The bar above a picture: how the text of a frame is laid out and drawn, legible at every width, beside the picture only.

Knows arrays and text: no agents and no environments.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BACKGROUND, PLAIN, MUTED = (24, 26, 32), (236, 238, 242), (164, 170, 182)
FINISHED, CUT = (122, 214, 142), (240, 180, 84)
NARROWEST = 200  # a picture that is less wide gets a margin, so that its text can be read
TWO_LINES = 38  # characters from which on two lines take what narrower bars need three for


@dataclass(frozen=True)
class Caption:
    """What is said about a frame. `ending` is how the episode ended, `cut` whether the film ended before it."""

    episode_return: float
    step: int
    title: str = ""  # which episode it is
    agent: str = ""  # the algorithm and its checkpoint
    action: str = ""
    value: float | None = None
    ending: str = ""
    cut: bool = False
    levels: tuple[float, ...] = ()  # of an action with many numbers, each from -1 to 1, drawn as columns


Line = tuple[str, Sequence[str]]  # the text at the left, and what may stand at the right: the first that fits


def lines(caption: Caption, characters: int) -> list[Line]:
    """The lines of a bar that has room for so many characters. How many lines depends on the width alone."""
    earned = f"return {number(caption.episode_return)}"
    value = "" if caption.value is None else f"V(s) {number(caption.value)}"
    done = caption.ending or (f"action {caption.action}" if caption.action or caption.levels else "")
    step = f"step {caption.step:,}"
    places = [f"{caption.title}  {step}", step] if caption.title else [step]
    if characters >= TWO_LINES:
        room = characters - len(caption.agent) - 1
        return [("  ".join(filter(None, (earned, value))), places), (shortened(done, room), [caption.agent])]
    room = characters - (len(value) + 1 if value else 0)
    return [(earned, places), (shortened(done, room), [value]), (caption.agent, [])]


def number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.1f}" if abs(value) < 1e6 else f"{value:.3g}"


def shortened(text: str, room: int) -> str:
    """The text, or as many whole words of it as there is room for."""
    if len(text) <= room:
        return text
    return text[: max(0, room - 2)].rpartition(" ")[0] + " .."


def captioned(frame: np.ndarray, caption: Caption) -> np.ndarray:
    """The frame [H, W, 3] under its bar, so that no pixel of it is hidden; a narrow one in the middle of a margin."""
    missing = max(0, NARROWEST - frame.shape[1])
    if missing:
        wide = np.full((frame.shape[0], NARROWEST, 3), BACKGROUND, np.uint8)
        wide[:, missing // 2 : missing // 2 + frame.shape[1]] = frame
        frame = wide
    return np.concatenate([caption_bar(frame.shape[1], caption), frame])


def caption_bar(width: int, caption: Caption) -> np.ndarray:
    """The bar [H, width, 3]. The first line has the colour of the episode's state, what stands at the right is muted."""
    size = 18 if width >= 440 else 14 if width >= 240 else 11
    glyphs = glyphs_of_size(size)
    height, advance = glyphs[" "].shape
    margin = advance // 2
    characters = (width - 2 * margin) // advance
    state = CUT if caption.cut else FINISHED if caption.ending else PLAIN
    rows = []
    for index, (left, candidates) in enumerate(lines(caption, characters)):
        row = np.zeros((height, width, 3), np.float32)
        row += BACKGROUND
        _draw(row, left[:characters], margin, glyphs, state if index == 0 or caption.ending else PLAIN)
        right = next((text for text in candidates if len(left) + len(text) + 1 <= characters), "")
        end = width - margin - advance * len(right)
        _draw(row, right, end, glyphs, MUTED)
        if index == 1 and caption.levels and not caption.ending:
            _draw_levels(row, caption.levels, margin + advance * len(left), end - advance)
        rows.append(row)
    bar = np.concatenate(rows).round().astype(np.uint8)
    edge = np.full((size // 4, width, 3), BACKGROUND, np.uint8)
    return np.concatenate([edge, bar, edge])


def _draw(row: np.ndarray, text: str, x: int, glyphs: dict[str, np.ndarray], colour: tuple[int, int, int]) -> None:
    for character in text:
        glyph = glyphs.get(character, glyphs["?"])[..., None]
        place = row[:, x : x + glyph.shape[1]]
        place += (np.array(colour, np.float32) - place) * glyph[:, : place.shape[1]]
        x += glyph.shape[1]


def _draw_levels(row: np.ndarray, levels: Sequence[float], x: int, end: int) -> None:
    """A column for each number, up or down from a line in the middle; as many as there is room for."""
    height = row.shape[0]
    middle, reach = height // 2, height // 2 - 2
    pitch = max(3, min(8, (end - x) // len(levels)))
    for index, level in enumerate(levels[: max(0, end - x) // pitch]):
        left = x + index * pitch
        row[middle, left : left + pitch] = MUTED
        tip = middle - round(max(-1.0, min(1.0, level)) * reach)
        row[min(tip, middle) : max(tip, middle) + 1, left : left + pitch - 1] = PLAIN


@functools.cache
def glyphs_of_size(size: int) -> dict[str, np.ndarray]:
    """Printable characters as coverage [height, advance] in [0, 1], all of one width, drawn once."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSansMono.ttf"), size)
    ascent, descent = font.getmetrics()
    advance = round(font.getlength("0"))
    glyphs = {}
    for character in map(chr, range(32, 127)):
        image = Image.new("L", (advance, ascent + descent))
        ImageDraw.Draw(image).text((0, 0), character, fill=255, font=font)
        glyphs[character] = np.asarray(image, dtype=np.float32) / 255
    return glyphs
