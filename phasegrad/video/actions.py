"""Actions for the bar above a picture: by name where the environment's have names, as numbers, or as columns for many."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np

from phasegrad.envs import ActionAdapter
from phasegrad.envs.spaces import follow

MOST_NUMBERS = 3  # that are written; more are drawn
# Discrete actions by the environment's name without its version; what they do, where a documented name says the opposite
# of what one sees (LunarLander's "left engine" is the one that drives it to the left, and fires to the right).
NAMES: dict[str, tuple[str, ...]] = {
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "none", "right"),
    "Acrobot": ("torque -1", "none", "torque +1"),
    "LunarLander": ("none", "drive left", "main engine", "drive right"),
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
    "MiniGrid": ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done"),
    "procgen": (
        "left down", "left", "left up", "down", "none", "up", "right down", "right", "right up",
        "key D", "key A", "key W", "key S", "key Q", "key E",
    ),
}  # fmt: skip


def names_of(env_id: Any, choices: int) -> tuple[str, ...]:
    """The names of an environment's discrete actions; none where they are not known, or are not as many."""
    kind = re.split(r"[-/]", env_id.rpartition(":")[2])[0] if isinstance(env_id, str) else ""
    names = NAMES.get(kind, ())
    return names if len(names) == choices else ()


def described(action: np.ndarray, names: tuple[str, ...] = ()) -> str:
    """One environment's action as text: the number and name of a choice, or the numbers of a short vector."""
    if action.ndim == 0 and action.dtype.kind in "iub":
        index = int(action)
        return f"{index} {names[index]}" if 0 <= index < len(names) else str(index)
    if action.dtype.kind != "f":
        return " ".join(str(int(value)) for value in action.reshape(-1))
    return " ".join(f"{value:+.2f}" for value in action.reshape(-1)) if action.size <= MOST_NUMBERS else ""


def levels_of(action: np.ndarray, space: gym.Space) -> tuple[float, ...]:
    """The numbers of a long vector, each from -1 at its lowest to 1 at its highest; as they are where it has no bounds."""
    if action.dtype.kind != "f" or action.size <= MOST_NUMBERS or not isinstance(space, gym.spaces.Box):
        return ()
    low, high = space.low.astype(float).reshape(-1), space.high.astype(float).reshape(-1)
    bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
    span = np.where(bounded, high - low, 2.0)
    return tuple((2 * (action.reshape(-1) - np.where(bounded, low, -1.0)) / span - 1).tolist())


def said_of(own: ActionAdapter, taken: Any, index: int, names: tuple[str, ...]) -> dict[str, Any]:
    """What a caption says of one environment's action in a batch as it takes them; parts of a Dict or Tuple by name."""
    texts: list[str] = []
    levels: list[float] = []
    for part in own.parts:
        action = np.asarray(follow(taken, part.path)[index])
        text = described(action, names)
        texts += [f"{part.name} {text}".lstrip()] if text else []
        levels += levels_of(action, part.original)
    return {"action": "  ".join(texts), "levels": tuple(levels)}
