"""Small, read-only or unusual file systems for a case, where this machine lets us mount them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fault_cases.case import Skipped


def _call(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise Skipped(f"{command[0]} is not possible here: {done.stderr.strip()[:100]}")


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A tmpfs with these options, such as `size=64k` or `noexec`."""
    place.mkdir(parents=True, exist_ok=True)
    _call("mount", "-t", "tmpfs", "-o", options, "tmpfs", place)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True)


@contextmanager
def read_only(place: Path) -> Iterator[Path]:
    """The folder itself, on which nothing can be written, by root neither."""
    _call("mount", "--bind", place, place)
    try:
        _call("mount", "-o", "remount,ro,bind", place)
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True)
