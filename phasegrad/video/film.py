"""Frames to mp4 files: an ffmpeg fed through a pipe, and scaling that keeps pixels sharp.

Knows arrays and files only: no agents and no environments. Nothing is kept in memory beyond the frame at hand.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from phasegrad.errors import RunError
from phasegrad.machine.failures import reason, remedy
from phasegrad.machine.regular_files import NotRegularError
from phasegrad.runs import below

CODEC = [
    "-c:v", "libx264", "-preset", "veryfast", "-crf", "18", "-pix_fmt", "yuv420p", "-threads", "1",
    "-movflags", "+faststart",
]  # fmt: skip
LOSSLESS = ["-c:v", "libx264rgb", "-preset", "ultrafast", "-crf", "0", "-threads", "1"]  # what is encoded once more
PARTS = "phasegrad-video-"  # folders where the parts of a film are put together
LEAST_ROOM = 1 << 16  # bytes on a disk below which it is taken for full
EVEN = "pad=ceil(iw/2)*2:ceil(ih/2)*2"  # the codec needs even sides


class Film:
    """One mp4 under way. Its size is that of the first frame, padded to even sides.

    It gets its name when it is closed; a film that was given up leaves nothing behind. A `lossless` one is made to be
    turned into another.
    """

    def __init__(self, path: str | Path, frames_per_second: float, lossless: bool = False) -> None:
        self.path = Path(path)
        self.frames_per_second, self.lossless = frames_per_second, lossless
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
            before, now = (f"{shape[1]} x {shape[0]}" for shape in (self._shape, frame.shape))
            raise RunError(f"The pictures changed their size from {before} to {now}, and a film has one size.")
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
        with refused(self.path):
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
        with refused(self.path):
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the film
        command = [
            ffmpeg(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
            "-r", f"{self.frames_per_second:g}", "-i", "-", "-an",
            *(LOSSLESS if self.lossless else ["-vf", EVEN, *CODEC]), str(self._partial),
        ]  # fmt: skip
        # Complaints go to a file: an unread pipe could fill up and stop ffmpeg.
        with refused(self.path):
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
        return failure(self.path, said)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of its frames."""
        return self._shape[1], self._shape[0]

    def _forget(self) -> None:
        if self._complaints is not None:
            self._complaints.close()
        self._process = self._complaints = None


def join(parts: Sequence[Path], path: Path) -> None:
    """One film of several of the same size and speed, without encoding anything again. The parts are deleted."""
    if len(parts) == 1:
        move(parts[0], path)
        return
    listing = parts[0].with_suffix(".txt")
    with refused(path):
        lines = (str(part.resolve()).replace("'", "'\\''") for part in parts)
        listing.write_text("".join(f"file '{line}'\n" for line in lines), encoding="utf-8")
    encode(["-f", "concat", "-safe", "0", "-i", str(listing), "-c", "copy", "-movflags", "+faststart"], path)
    listing.unlink(missing_ok=True)
    for part in parts:
        part.unlink()


def encode(arguments: Sequence[str], path: Path) -> None:
    """Run ffmpeg with these arguments to write `path`, which appears when it is whole."""
    _make_folder(path)
    partial = _unfinished(path)
    command = [ffmpeg(), "-y", "-loglevel", "error", *arguments, str(partial)]
    try:
        with refused(path):
            finished = subprocess.run(
                command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
            )
        if finished.returncode != 0:
            said = finished.stderr.strip().splitlines()
            raise RunError(failure(path, said))
        with refused(path):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def move(source: Path, path: Path) -> None:
    """Give a finished film its place, which may be on another disk."""
    _make_folder(path)
    try:
        with below.holding(path) as (folder, name):
            below.require_replaceable(path, folder, name)
            os.replace(source, name, dst_dir_fd=folder)
    except NotRegularError as error:
        raise RunError(f"{below.told(error)}: move it away, then try again.") from None
    except OSError:
        copy(source, path)
        source.unlink()


def copy(source: Path, path: Path) -> None:
    """A finished film at a second place, which appears when it is whole."""
    partial = _unfinished(path)
    try:
        below.remove_file(partial)
        handle = below.open_own(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(source, "rb") as whole, open(handle, "wb") as file:
            shutil.copyfileobj(whole, file, 1 << 20)
        below.move(partial, path)
    except NotRegularError as error:
        raise RunError(f"{below.told(error)}: move it away, then try again.") from None
    except OSError as error:
        raise RunError(f"{path} cannot be written: {reason(error)}; {remedy(error)}.") from None
    finally:
        with contextlib.suppress(OSError):
            below.remove_file(partial)


@contextlib.contextmanager
def working_folder() -> Iterator[Path]:
    """A folder for the parts of a film, which goes when the film is done; it may be on another disk than the film."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=PARTS, ignore_cleanup_errors=True)
    except OSError as error:
        raise RunError(
            f"There is no folder for the parts of a film: {reason(error)}; set TMPDIR to one that can be written."
        ) from None
    with folder:
        yield Path(folder.name)


@contextlib.contextmanager
def refused(path: Path) -> Iterator[None]:
    """Turns what the system refuses into the sentence for a film."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be filmed: {reason(error)}; {remedy(error)}.") from None


def failure(path: Path, said: Sequence[str]) -> str:
    """Why ffmpeg gave up; it says little of a disk that is full."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(path.parent).free < LEAST_ROOM:
            elsewhere = ", or set TMPDIR to a folder on another disk" if PARTS in str(path.parent) else ""
            return f"ffmpeg could not write {path}: {os.strerror(errno.ENOSPC)}; make room there{elsewhere}."
    return f"ffmpeg could not write {path}: {said[-1].strip().rstrip('.') if said else 'it ended early'}."


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


def _unfinished(path: Path) -> Path:
    """What a film is called while it is written: ffmpeg knows the format by the ending."""
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")


def _make_folder(path: Path) -> None:
    root, own = below.split(path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        below.make_folder(root, *own[:-1])
    except NotRegularError as error:
        raise RunError(f"{below.told(error)}: put the folder itself there, or move it away, then try again.") from None
    except OSError as error:
        raise RunError(f"The folder of {path} cannot be made: {error.strerror}.") from None
