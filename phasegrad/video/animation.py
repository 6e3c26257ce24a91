"""Films made of films: pictures for a README (GIF, WebP), and several films side by side. All by ffmpeg."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from phasegrad.errors import ConfigError
from phasegrad.machine.regular_files import NotRegularError
from phasegrad.runs.below import read_start, told
from phasegrad.video.film import CODEC, EVEN, LOSSLESS, encode, join, move

SUFFIXES = (".mp4", ".gif", ".webp")
BEGINNINGS = {".mp4": (4, b"ftyp"), ".gif": (0, b"GIF8"), ".webp": (8, b"WEBP")}  # of a file, from its n-th byte on
MOST_FRAMES_A_SECOND = 20  # of a GIF or WebP
GAP = "pad=iw+4:ih:0:0:color=0x3c3c3c"


def checked_format(path: Path) -> None:
    """Refuse a name that is no film's, and a file there that is none."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"The video must be an .mp4 file, a .gif or a .webp, not {path.name!r}.")
    if path.is_dir():
        raise ConfigError(f"{path} is a directory: name an {path.suffix} file.")
    if os.path.lexists(path):
        start, expected = BEGINNINGS[path.suffix.lower()]
        try:
            beginning = read_start(path, 16)
        except NotRegularError as error:
            raise ConfigError(f"{told(error)}: move it away, or name another file.") from None
        if beginning and beginning[start : start + 4] != expected:
            raise ConfigError(f"{path} exists and is no {path.suffix} film: name another file.")


def is_encoded_again(path: Path) -> bool:
    """Whether a film of this name is made from a lossless one."""
    return path.suffix.lower() != ".mp4"


def every_nth(path: Path, frames_per_second: float) -> int:
    """A GIF or WebP shows every n-th frame, an mp4 all."""
    return max(1, math.ceil(frames_per_second / MOST_FRAMES_A_SECOND)) if is_encoded_again(path) else 1


def convert(film: Path, path: Path, frames_per_second: float) -> None:
    """Give a finished film its place: as it is, or as the GIF or WebP that `path` names. `film` is gone then."""
    if not is_encoded_again(path):
        move(film, path)
        return
    made = film.with_name(f"made{path.suffix.lower()}")
    kept = f"framestep={every_nth(path, frames_per_second)}"
    if path.suffix.lower() == ".webp":
        encode(["-i", str(film), "-vf", kept, "-c:v", "libwebp_anim", "-quality", "70", "-loop", "0"], made)
    else:  # twice through the film, so that ffmpeg need not keep it in memory to choose the colours
        palette = film.with_suffix(".png")
        encode(["-i", str(film), "-vf", f"{kept},palettegen=stats_mode=full", "-update", "1"], palette)
        colours = f"[0:v]{kept}[kept];[kept][1:v]paletteuse=dither=none:diff_mode=rectangle"
        encode(["-i", str(film), "-i", str(palette), "-lavfi", colours, "-loop", "0"], made)
        palette.unlink()
    film.unlink()
    move(made, path)


def beside(films: Sequence[tuple[Path, int]], path: Path, *, lossless: bool) -> None:
    """One film of several (file, frames) of the same size and speed side by side; a shorter one keeps its last frame."""
    inputs = [argument for film, _ in films for argument in ("-i", str(film))]
    longest = max(frames for _, frames in films)
    columns = []
    for index, (_, frames) in enumerate(films):
        gap = f",{GAP}" if index < len(films) - 1 else ""
        columns.append(f"[{index}:v]tpad=stop_mode=clone:stop={longest - frames}{gap}[c{index}]")
    names = "".join(f"[c{index}]" for index in range(len(films)))
    stacked = f"{names}hstack=inputs={len(films)}" + ("" if lossless else f",{EVEN}")
    encode([*inputs, "-filter_complex", ";".join([*columns, stacked]), *(LOSSLESS if lossless else CODEC)], path)


def in_turn_beside(columns: Sequence[Sequence[tuple[Path, int]]], path: Path, folder: Path, *, lossless: bool) -> None:
    """Episode after episode, all columns' first beside each other, then all columns' second."""
    parts = []
    for number, films in enumerate(zip(*columns, strict=True)):
        part = folder / f"beside-{number:06d}.mp4"
        beside(films, part, lossless=lossless)
        parts.append(part)
    join(parts, path)
