"""The running normaliser of observations: part of the network, saved with it, frozen in evaluation.

It changes only between rollouts, so that every value, ratio and KL of an iteration sees the same scaling.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from phasegrad.distributed.moments import merged_moments
from phasegrad.distributed.ranks import ALONE
from phasegrad.models.images import has_own_scale
from phasegrad.models.stacking import Stacking
from phasegrad.tree import named_leaves

EPSILON = 1e-8


class ObservationNormalizer(nn.Module):
    """(s - mean) / std of each Box, of floats or of integers, clipped; images with bounds, choices and bits pass through.

    The frames of a stack have one mean and std, those of single observations.
    """

    def __init__(self, space: gym.Space, enabled: bool, clip: float, stacking: Stacking | None = None) -> None:
        """`space` is that of single observations; what is normalised are those, or stacks of them."""
        super().__init__()
        self.clip, self.ranks, self.stacking = clip, ALONE, stacking
        spaces = space.spaces if isinstance(space, gym.spaces.Dict) else {"": space}
        scaled = [name for name, part in sorted(spaces.items()) if _has_a_scale(part)]
        self.names = scaled if enabled else []
        for index, name in enumerate(self.names):
            shape = spaces[name].shape or ()
            self.register_buffer(f"moments_{index}", torch.zeros(3, *shape, dtype=torch.float64))
            self.register_buffer(f"mean_{index}", self._repeated(torch.zeros(shape), name))
            self.register_buffer(f"scale_{index}", self._repeated(torch.ones(shape), name))

    def forward(self, observation: Any) -> Any:
        if not self.names:
            return observation
        if not isinstance(observation, dict):
            return self._normalized(observation, 0)
        there = [(index, name) for index, name in enumerate(self.names) if name in observation]
        changed = {name: self._normalized(observation[name], index) for index, name in there}
        return {**observation, **changed}

    def _normalized(self, values: Tensor, index: int) -> Tensor:
        mean, scale = getattr(self, f"mean_{index}"), getattr(self, f"scale_{index}")
        return ((values - mean) * scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, observations: Any) -> None:
        """Learn from the observations of a rollout, [T, N, ...] or any [B, ...] with as many leading dimensions."""
        for name, values in named_leaves(observations):
            if name not in self.names:
                continue
            index = self.names.index(name)
            moments = getattr(self, f"moments_{index}")
            batch = values.reshape(-1, *moments.shape[1:]).double()
            moments.copy_(merged_moments(moments, batch, self.ranks))
            count, mean, squares = moments.unbind(0)
            getattr(self, f"mean_{index}").copy_(self._repeated(mean, name))
            getattr(self, f"scale_{index}").copy_(self._repeated((squares / count + EPSILON).rsqrt(), name))

    def _repeated(self, numbers: Tensor, name: str) -> Tensor:
        """Numbers of a single observation's entry as often as there are frames in a stack."""
        if self.stacking is None:
            return numbers
        each = numbers.expand(self.stacking.count, *numbers.shape).contiguous()
        return self.stacking.joined_entry(each, name)[0]


def _has_a_scale(space: gym.Space) -> bool:
    """A Box, unless it is an image that its encoder scales itself."""
    return isinstance(space, gym.spaces.Box) and not has_own_scale(space)
