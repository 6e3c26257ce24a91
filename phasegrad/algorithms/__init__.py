"""The algorithms, each on a page of its own.

They are imported when first asked for: they need torch, and the settings that lie beside them do not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phasegrad.machine.garbage import not_looked_for

if TYPE_CHECKING:
    from phasegrad.algorithms.builtin import A2C, ACER, ALGORITHMS, PPG, PPO, TRPO, VPG, Algorithm, register

__all__ = ["A2C", "ACER", "ALGORITHMS", "PPG", "PPO", "TRPO", "VPG", "Algorithm", "register"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        with not_looked_for():
            return getattr(importlib.import_module("phasegrad.algorithms.builtin"), name)
    raise AttributeError(f"module 'phasegrad.algorithms' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
