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
_OF_THE_SYSTEM = {
    "libGL.so.1": "libgl1",
    "libglib-2.0.so.0": "libglib2.0-0",
}  # what the wheel leaves out: Debian's packages


def preload() -> str | None:
    """Load Qt where it is needed and found; else the loader's complaints."""
    if not sys.platform.startswith("linux"):
        return None
    complaints: dict[str, None] = {}  # each once, in their order
    wheel = _wheel_folder()
    for folder in (wheel, None) if wheel else (None,):  # None: where the system keeps its libraries
        try:
            for library in _LIBRARIES:
                ctypes.CDLL(str(folder / library) if folder else library, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            complaints[str(error)] = None
        else:
            return None
    return "; ".join(complaints)


def missing() -> str | None:
    """A sentence that names what Procgen lacks here and how to install that; None where it lacks nothing."""
    complaint = preload()
    if complaint is None:
        return None
    libraries = [library for library in _OF_THE_SYSTEM if not _loads(library)]
    packages = f"`apt install {' '.join(_OF_THE_SYSTEM[library] for library in libraries)}`"
    if _wheel_folder() is None:
        fix = '`pip install "phasegrad[procgen]"`' + (f" and {packages}" if libraries else "")
        return f"Procgen draws with Qt 5, which is not installed: {fix}."
    if libraries:
        return f"Procgen draws with Qt 5, which is installed but needs {' and '.join(libraries)}: {packages}."
    return f"Procgen draws with Qt 5, which is installed but cannot be loaded ({complaint})."


def require() -> None:
    """Make envpool's Procgen importable, or say what to install."""
    sentence = missing()
    if sentence is not None:
        raise EnvError(sentence)
    module = sys.modules.get("envpool.procgen")
    if module is not None and "ProcgenEnvSpec" not in vars(module):
        importlib.reload(module)  # envpool was imported before Qt was loaded and keeps that failure


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


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
