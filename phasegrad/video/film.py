"""Frames to mp4 files: an ffmpeg fed through a pipe, captions, and scaling that keeps pixels sharp.

Knows arrays and files only: no agents and no environments. Nothing is kept in memory beyond the frame at hand.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from phasegrad.errors import RunError

BACKGROUND, PLAIN, FINISHED, MUTED = (24, 26, 32), (236, 238, 242), (122, 214, 142), (150, 156, 168)


class Film:
    """One mp4 under way. Its size is that of the first frame, padded to even sides as the codec needs them.

    It gets its name when it is closed; a film that was given up leaves nothing behind.
    """

    def __init__(self, path: str | Path, frames_per_second: float) -> None:
        self.path = Path(path)
        self.frames_per_second = frames_per_second
        self.frames = 0
        self._partial = _unfinished(self.path)
        self._process: subprocess.Popen[bytes] | None = None
        self._shape: tuple[int, ...] = ()
        self._complaints: IO[bytes] | None = None

    def write(self, frame: np.ndarray, times: int = 1) -> None:
        """Add a frame [H, W, 3] uint8, shown `times` times."""
        if self._process is None:
            self._start(frame.shape)
        if frame.shape != self._shape:
            raise RunError(f"The frames of {self.path} changed their size from {self._shape} to {frame.shape}.")
        assert self._process is not None
        assert self._process.stdin is not None
        payload = np.ascontiguousarray(frame).data
        try:
            for _ in range(times):
                self._process.stdin.write(payload)
        except BrokenPipeError:
            raise RunError(self._failure()) from None
        self.frames += times

    def close(self) -> None:
        """Finish the file."""
        if self._process is None:
            raise RunError(f"{self.path} has no frames, so no video was written.")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit code says it too
            self._process.stdin.close()
        if self._process.wait() != 0:
            raise RunError(self._failure())
        self._partial.replace(self.path)
        self._forget()

    def give_up(self) -> None:
        """Stop without a result; after `close` this does nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._partial.unlink(missing_ok=True)
            self._forget()

    def _start(self, shape: tuple[int, ...]) -> None:
        height, width, _ = self._shape = shape
        _make_folder(self.path)
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the film
        command = [
            ffmpeg(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
            "-r", f"{self.frames_per_second:g}", "-i", "-", "-an", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2",
            "-c:v", "libx264", "-preset", "veryfast", "-crf", "18", "-pix_fmt", "yuv420p", "-threads", "1",
            "-movflags", "+faststart", str(self._partial),
        ]  # fmt: skip
        # Complaints go to a file: an unread pipe could fill up and stop ffmpeg.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self._complaints)

    def _failure(self) -> str:
        assert self._process is not None
        assert self._complaints is not None
        self._process.kill()
        self._process.wait()
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        self._partial.unlink(missing_ok=True)
        self._forget()
        return f"ffmpeg could not write {self.path}: {said[-1] if said else 'it ended early'}."

    def _forget(self) -> None:
        if self._complaints is not None:
            self._complaints.close()
        self._process = self._complaints = None


def join(parts: Sequence[Path], path: Path) -> None:
    """One film of several of the same size and speed, without encoding anything again. The parts are deleted."""
    _make_folder(path)
    if len(parts) == 1:
        parts[0].replace(path)
        return
    partial = _unfinished(path)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as listing:
        for part in parts:
            quoted = str(part.resolve()).replace("'", "'\\''")
            listing.write(f"file '{quoted}'\n")
        listing.flush()
        command = [
            ffmpeg(), "-y", "-loglevel", "error", "-f", "concat", "-safe", "0", "-i", listing.name, "-c", "copy",
            "-movflags", "+faststart", str(partial),
        ]  # fmt: skip
        finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        partial.unlink(missing_ok=True)
        raise RunError(f"ffmpeg could not write {path}: {finished.stderr.strip() or 'it ended early'}.")
    partial.replace(path)
    for part in parts:
        part.unlink()


def ffmpeg() -> str:
    """The encoder: the binary that the imageio-ffmpeg wheel carries, or the one IMAGEIO_FFMPEG_EXE names."""
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise RunError(
            f"Videos need an ffmpeg ({error}): pip install imageio-ffmpeg, or set IMAGEIO_FFMPEG_EXE to one."
        ) from None


def scaled(frame: np.ndarray, longest_side: int) -> np.ndarray:
    """The frame at about that size: small ones enlarged by a whole factor without blur, large ones averaged down."""
    height, width, _ = frame.shape
    factor = max(1, round(longest_side / max(height, width)))
    if factor > 1:
        return frame.repeat(factor, axis=0).repeat(factor, axis=1)
    if max(height, width) <= 1.25 * longest_side:
        return frame
    from PIL import Image

    shrink = longest_side / max(height, width)
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BOX))


def captioned(frame: np.ndarray, left: str, right: str = "", *, finished: bool = False) -> np.ndarray:
    """The frame under a bar of text, so that no pixel of it is hidden. `finished` changes the colour."""
    bar = caption_bar(frame.shape[1], left, right, finished=finished)
    return np.concatenate([bar, frame])


def caption_bar(width: int, left: str, right: str = "", *, finished: bool = False) -> np.ndarray:
    """A bar [H, width, 3] with text at both ends; the right one is left out where both do not fit."""
    size = 18 if width >= 440 else 14 if width >= 240 else 11
    glyphs = glyphs_of_size(size)
    height, advance = glyphs[" "].shape
    margin = advance // 2
    fitting = (width - 2 * margin) // advance  # characters
    ink = np.zeros((height, width), np.float32)
    muted = np.zeros((height, width), np.float32)
    _draw(ink, left[:fitting], margin, glyphs)
    if len(left) + len(right) + 1 <= fitting:
        _draw(muted, right, width - margin - advance * len(right), glyphs)
    colour = FINISHED if finished else PLAIN
    bar = np.array(BACKGROUND) * (1 - ink - muted)[..., None]
    bar += np.array(colour) * ink[..., None] + np.array(MUTED) * muted[..., None]
    padded = np.full((height + size // 2, width, 3), BACKGROUND, np.uint8)
    padded[size // 4 : size // 4 + height] = bar.round().astype(np.uint8)
    return padded


def _draw(ink: np.ndarray, text: str, x: int, glyphs: dict[str, np.ndarray]) -> None:
    for character in text:
        glyph = glyphs.get(character, glyphs["?"])
        ink[:, x : x + glyph.shape[1]] = glyph[:, : max(0, ink.shape[1] - x)]
        x += glyph.shape[1]


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


def _unfinished(path: Path) -> Path:
    """What a film is called while it is written: ffmpeg knows the format by the ending."""
    return path.with_name(f".{path.stem}.{os.getpid()}.mp4")


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"The folder of {path} cannot be made: {error.strerror}.") from None
