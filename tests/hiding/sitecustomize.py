"""Makes a Python that has this folder on its path believe that its machine lacks what PHASEGRAD_HIDE names.

Names of libraries (libGL.so.1) cannot be loaded, nor Qt without them; modules (PyQt5) cannot be found.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

HIDDEN = os.environ.get("PHASEGRAD_HIDE", "").split(",")
NEEDS = {
    "libQt5Core.so.5": ("PyQt5", "libglib-2.0.so.0"),
    "libQt5Gui.so.5": ("PyQt5", "libglib-2.0.so.0", "libGL.so.1"),
}

load = ctypes.CDLL.__init__


def load_unless_hidden(self: ctypes.CDLL, name: Any = None, *arguments: Any, **options: Any) -> None:
    file = Path(str(name)).name
    for needed in (file, *NEEDS.get(file, ())):
        if needed in HIDDEN:
            library = file if needed == "PyQt5" else needed
            raise OSError(f"{library}: cannot open shared object file: No such file or directory")
    load(self, name, *arguments, **options)


class Hider(PathFinder):
    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if name in HIDDEN else PathFinder.find_spec(name, path, target)


ctypes.CDLL.__init__ = load_unless_hidden  # type: ignore[method-assign]
sys.meta_path[sys.meta_path.index(PathFinder)] = Hider
