"""Paths as people write them."""

from __future__ import annotations

import os
from pathlib import Path


def as_path(path: str | os.PathLike[str]) -> Path:
    """The path, where a leading ~ is the user's home: shells leave it in --run-dir=~/x, and Python knows no other way."""
    return Path(os.path.expanduser(path))
