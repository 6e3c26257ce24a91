"""The versions a result depends on."""

from __future__ import annotations

from functools import cache

__version__ = "0.1.0"


@cache
def versions() -> dict[str, str]:
    """Of this library, Python and the packages whose change could change a run's bits."""
    import platform  # here: both take as long to import as the rest of a command that only prints something
    from importlib import metadata

    found = {"phasegrad": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "gymnasium", "envpool", "mujoco", "ale-py"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
