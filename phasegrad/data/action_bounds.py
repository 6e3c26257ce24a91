"""From the action a policy sampled to the one its environment takes. The stored action is always the sampled one."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from phasegrad.distributions import Distribution
from phasegrad.errors import ConfigError


class ActionBounds:
    """Clips continuous actions to the space, or rescales [-1, 1] to its bounds; discrete ones pass through.

    Those of a distribution that is bounded by itself are always rescaled.
    """

    def __init__(self, space: gym.Space, distribution: Distribution, bounds: str) -> None:
        self.space, self.distribution = space, distribution
        self.continuous = isinstance(space, gym.spaces.Box)
        if isinstance(space, gym.spaces.Box):
            self.low, self.high = space.low.astype(np.float32), space.high.astype(np.float32)
            self.bounded = bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())
            if bounds == "rescale" and not self.bounded:
                raise ConfigError("action_bounds rescale needs finite action bounds; use --action-bounds clip.")
            self.rescale = bounds == "rescale" or distribution.bounded
            if self.rescale:
                self.half, self.centre = (self.high - self.low) / 2, (self.high + self.low) / 2

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """[N, ...] actions as sampled (flat) to [N, *space.shape] as the environment takes them."""
        if self.distribution.bounded:
            actions = self.distribution.within(torch.from_numpy(actions)).numpy()
        actions = actions.reshape(len(actions), *(self.space.shape or ()))
        if not self.continuous:
            return actions
        if self.rescale:
            return np.clip(actions, -1.0, 1.0) * self.half + self.centre
        return np.clip(actions, self.low, self.high)
