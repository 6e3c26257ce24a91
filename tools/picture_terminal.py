"""Pictures of what a command shows in a terminal, on a dark and on a light one.

    python tools/picture_terminal.py docs/images/console-80.png --width 80 --after 30 -- phasegrad train ppg --env CartPole-v1

Runs the command in a tmux of its own, takes the screen after so many seconds, ends the command with Ctrl-C and draws the screen
as OUT.png and OUT-light.png. Needs tmux, Pillow and matplotlib's fonts.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
SIZE, LEADING, MARGIN = 26, 30, 24
THEMES = {  # background, foreground, then the eight colours as common terminals have them
    "": ("#1e1e1e", "#d4d4d4", ("#000000", "#cd3131", "#0dbc79", "#e5e510", "#2472c8", "#bc3fbc", "#11a8cd", "#e5e5e5")),
    "-light": ("#ffffff", "#333333", ("#000000", "#cd3131", "#00bc00", "#949800", "#0451a5", "#bc05bc", "#0598bc", "#555555")),
}  # fmt: skip


def screen_of(command: list[str], width: int, height: int, seconds: float) -> list[Text]:
    """The lines of the terminal, with their styles."""
    tmux = [shutil.which("tmux") or sys.exit("tmux is missing."), "-L", f"picture-{os.getpid()}"]
    try:
        size = ["-x", str(width), "-y", str(height)]
        subprocess.run([*tmux, "new-session", "-d", *size, f"{shlex.join(command)}; sleep 600"], check=True)
        time.sleep(seconds)
        shown = subprocess.run([*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True).stdout
        subprocess.run([*tmux, "send-keys", "C-c"], check=True)
        time.sleep(2.0)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    return [Text.from_ansi(line) for line in shown.rstrip("\n").split("\n")]


def color_of(color: Color | None, usual: str, named: tuple[str, ...]) -> str:
    if color is None or color.is_default:
        return usual
    return named[color.number % 8] if color.number is not None and color.number < 16 else color.get_truecolor().hex


def draw(lines: list[Text], width: int, theme: str) -> Image.Image:
    background, foreground, named = THEMES[theme]
    plain, bold = (ImageFont.truetype(FONTS / f"DejaVuSansMono{kind}.ttf", SIZE) for kind in ("", "-Bold"))
    step = plain.getlength("x")
    picture = Image.new("RGB", (round(2 * MARGIN + width * step), 2 * MARGIN + LEADING * len(lines)), background)
    pen, console = ImageDraw.Draw(picture), Console(width=width)
    for row, line in enumerate(lines):
        column = 0
        for segment in line.render(console):
            style = segment.style or Style()
            for character in segment.text:
                place = (MARGIN + column * step, MARGIN + row * LEADING)
                pen.text(place, character, color_of(style.color, foreground, named), bold if style.bold else plain)
                column += cell_len(character)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=80)
    parser.add_argument("--height", type=int, default=30)
    parser.add_argument("--after", type=float, default=20.0, help="seconds after which the screen is taken")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    lines = screen_of(options.command, options.width, options.height, options.after)
    for theme in THEMES:
        path = options.out.with_stem(options.out.stem + theme)
        draw(lines, options.width, theme).save(path, optimize=True)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
