"""Paths as people write them."""

from __future__ import annotations

import os
import re
from pathlib import Path


def as_path(path: str | os.PathLike[str]) -> Path:
    """The path, where a leading ~ is the user's home: shells leave it in --run-dir=~/x, and Python knows no other way."""
    return Path(os.path.expanduser(path))


def folder_name(name: str) -> str:
    """A name as a folder of its own: letters, digits, dots, dashes; it can neither climb nor hide."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:80]
