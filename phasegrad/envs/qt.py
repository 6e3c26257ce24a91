"""Loads the Qt 5 libraries Procgen draws with, from the PyQt5-Qt5 wheel or the system, before envpool looks for them.

Loading them with global symbols lets envpool's extension find them without any setting of the linker's path.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from pathlib import Path

from phasegrad.errors import EnvError

_LIBRARIES = ("libQt5Core.so.5", "libQt5Gui.so.5")  # Gui needs Core


def preload() -> str | None:
    """Load Qt where it is needed and found; else the loader's complaint."""
    if not sys.platform.startswith("linux"):
        return None
    complaint = None
    for folder in (_wheel_folder(), None):  # None: where the system keeps its libraries
        try:
            for library in _LIBRARIES:
                ctypes.CDLL(str(folder / library) if folder else library, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            complaint = complaint or str(error)
        else:
            return None
    return complaint


def require() -> None:
    """Make envpool's Procgen importable, or say what to install."""
    complaint = preload()
    if complaint is not None:
        raise EnvError(
            f"Procgen needs Qt 5, which could not be loaded ({complaint}): install it with "
            '`pip install "phasegrad[procgen]"` and, where the system lacks them, `apt install libgl1 libglib2.0-0`.'
        )
    module = sys.modules.get("envpool.procgen")
    if module is not None and "ProcgenEnvSpec" not in vars(module):
        importlib.reload(module)  # envpool was imported before Qt was loaded and keeps that failure


def _wheel_folder() -> Path | None:
    try:
        spec = importlib.util.find_spec("PyQt5")
    except (ImportError, ValueError):
        return None
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "Qt5" / "lib"
        if (folder / _LIBRARIES[0]).exists():
            return folder
    return None
