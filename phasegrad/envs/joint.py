"""Several choices as one: actions whose mask says which combinations are allowed, not which values of each choice.

Jumanji's games have such masks. A policy then chooses among all combinations, numbered as numpy's `unravel_index` counts
them. Knows spaces and arrays only.
"""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from phasegrad.envs.spaces import ACTION_MASK


class JointChoices:
    """All combinations of an action's choices as one choice, `space`."""

    def __init__(self, sizes: tuple[int, ...], low: np.ndarray) -> None:
        self.sizes, self.low = sizes, low
        self.space = spaces.Discrete(math.prod(sizes))

    def divided(self, chosen: np.ndarray) -> np.ndarray:
        """[N] numbers of combinations as actions [N, choices], counted from where the environment counts."""
        return np.stack(np.unravel_index(chosen, self.sizes), 1) + self.low


def joint_choices(observation: gym.Space, action: gym.Space) -> JointChoices | None:
    """The choices of `action` as one where the mask in `observation` has an entry for each combination; None elsewhere."""
    mask = observation.spaces.get(ACTION_MASK) if isinstance(observation, spaces.Dict) else None
    if mask is None or isinstance(mask, spaces.Dict | spaces.Tuple) or len(action.shape or ()) != 1:
        return None
    if isinstance(action, spaces.MultiDiscrete):
        low, sizes = np.asarray(action.start), tuple(int(size) for size in action.nvec)
    elif isinstance(action, spaces.Box) and action.dtype.kind in "iu" and action.is_bounded("both"):
        low = action.low.astype(np.int64)
        sizes = tuple(int(size) for size in action.high.astype(np.int64) - low + 1)
    else:
        return None
    # Two choices of two: a row for each choice has the same shape, and is what most environments mean.
    return JointChoices(sizes, low) if mask.shape == sizes and math.prod(sizes) != sum(sizes) else None
