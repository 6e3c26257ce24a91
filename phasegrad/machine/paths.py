"""Paths as people write them."""

from __future__ import annotations

import os
import re
from pathlib import Path

RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")  # devices of Windows, whatever the ending


def as_path(path: str | os.PathLike[str]) -> Path:
    """The path, where a leading ~ is the user's home: shells leave it in --run-dir=~/x, and Python knows no other way."""
    return Path(os.path.expanduser(path))


def folder_name(name: str) -> str:
    """A name as a folder of its own: letters, digits, dots, dashes; it can neither climb nor hide."""
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:80].rstrip(".-")
    return f"{made}_" if RESERVED.fullmatch(made) else made
