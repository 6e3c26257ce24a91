"""Packages that gymnasium's environments need beside gymnasium, and the commands that install them.

Looks for modules without importing them; makes no environment.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

# Beginnings of entry points, the module that must be there, and what installs it.
_NEEDED: tuple[tuple[str, str, str], ...] = (
    ("gymnasium.envs.box2d", "Box2D", '"phasegrad[box2d]"'),
    ("gymnasium.envs.mujoco", "mujoco", '"phasegrad[mujoco]"'),
    ("gymnasium.envs.phys2d", "jax", '"gymnasium[jax]"'),
    ("gymnasium.envs.tabular", "jax", '"gymnasium[jax]"'),
    ("minigrid", "minigrid", '"phasegrad[minigrid]"'),
    ("ale_py", "ale_py", '"gymnasium[atari]"'),
)


def installing(entry_point: Any) -> str | None:
    """The command that installs what an entry point needs, as far as it is known."""
    found = _needed(entry_point)
    return None if found is None else f"pip install {found[2]}"


def missing_for(entry_point: Any) -> str | None:
    """The same where it is not installed; None where it is, or nothing is known."""
    found = _needed(entry_point)
    return None if found is None or is_installed(found[1]) else f"pip install {found[2]}"


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _needed(entry_point: Any) -> tuple[str, str, str] | None:
    if not isinstance(entry_point, str):
        return None
    return next((row for row in _NEEDED if entry_point.startswith((f"{row[0]}.", f"{row[0]}:"))), None)
