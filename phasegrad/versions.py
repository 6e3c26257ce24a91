"""The versions a result depends on."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

__version__ = "0.1.0"


@cache
def versions() -> dict[str, str]:
    """Of this library, Python and the packages whose change could change a run's bits."""
    found = {"phasegrad": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "gymnasium", "envpool"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
