"""From the action a policy sampled to the one its environment takes. The stored action is always the sampled one."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from phasegrad.distributions import Distribution, Product
from phasegrad.distributions.choosing import parts_of
from phasegrad.errors import ConfigError


class ActionBounds:
    """Clips continuous actions to the space, or rescales [-1, 1] to its bounds; discrete ones pass through.

    Those of a distribution that is bounded by itself are always rescaled. Where actions have parts, each has its own.
    """

    def __init__(self, space: gym.Space, distribution: Distribution, bounds: str) -> None:
        self.space, self.distribution = space, distribution
        self.continuous = isinstance(space, gym.spaces.Box)
        self.parts: list[ActionBounds] = []
        if isinstance(distribution, Product):
            pairs = zip(parts_of(space).items(), distribution.parts.values(), strict=True)
            self.parts = [self._of_part(name, part, own, bounds) for (name, part), own in pairs]
            self.edges = np.cumsum(distribution.widths)[:-1]
        if isinstance(space, gym.spaces.Box):
            self.low, self.high = space.low.astype(np.float32), space.high.astype(np.float32)
            self.bounded = bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())
            if bounds == "rescale" and not self.bounded:
                raise ConfigError("action_bounds rescale needs finite action bounds; use --action-bounds clip.")
            self.rescale = bounds == "rescale" or distribution.bounded
            if self.rescale:
                self.half, self.centre = (self.high - self.low) / 2, (self.high + self.low) / 2

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """[N, ...] actions as sampled (flat) to [N, *space.shape] as the environment takes them; parts side by side."""
        if self.parts:
            pieces = zip(self.parts, np.split(actions, self.edges, 1), strict=True)
            return np.concatenate([part(piece).reshape(len(actions), -1) for part, piece in pieces], 1)
        if self.distribution.bounded:
            actions = self.distribution.within(torch.from_numpy(actions)).numpy()
        actions = actions.reshape(len(actions), *(self.space.shape or ()))
        if not self.continuous:
            return actions
        if self.rescale:
            return np.clip(actions, -1.0, 1.0) * self.half + self.centre
        return np.clip(actions, self.low, self.high)

    @staticmethod
    def _of_part(name: str, space: gym.Space, distribution: Distribution, bounds: str) -> ActionBounds:
        try:
            return ActionBounds(space, distribution, bounds)
        except ConfigError as error:
            raise ConfigError(f"The part {name!r} of the actions: {error}") from None
