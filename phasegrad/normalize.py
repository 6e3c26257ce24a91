"""Running normalisers of observations and rewards. They belong to the agent: saved with it, frozen in evaluation.

Both change only between rollouts, so that every value, ratio and KL of an iteration sees the same scaling, and both
take their moments in float64. Nothing here knows about environments or algorithms.
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from phasegrad.advantages import discounted_suffix_sum
from phasegrad.parallel import ALONE, Ranks
from phasegrad.tree import named_leaves

EPSILON = 1e-8


def moments_of(batch: Tensor) -> Tensor:
    """(count, mean, sum of squared deviations) [3, ...] of the rows of `batch` [B, ...]."""
    mean = batch.mean(0)
    return torch.stack([torch.full_like(mean, batch.shape[0]), mean, (batch - mean).square().sum(0)])


def combined_moments(moments: Tensor, others: Tensor) -> Tensor:
    """The moments [3, ...] of two sets of rows together."""
    count, mean, squares = moments.unbind(0)
    size, other_mean, other_squares = others.unbind(0)
    shift = other_mean - mean
    total = count + size
    squares = squares + other_squares + shift.square() * count * size / total
    return torch.stack([total, mean + shift * size / total, squares])


def pooled_moments(own: Tensor, ranks: Ranks) -> Tensor:
    """The moments [3, ...] of the rows of all processes, from those of each."""
    return functools.reduce(combined_moments, ranks.gather(own)) if ranks.size > 1 else own


def merged_moments(moments: Tensor, batch: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Running moments [3, ...] extended by the rows of `batch` [B, ...] of every process."""
    return combined_moments(moments, pooled_moments(moments_of(batch), ranks).to(moments.device))


class ObservationNormalizer(nn.Module):
    """(s - mean) / std of each Box, of floats or of integers, clipped; images, choices and bits pass through."""

    def __init__(self, space: gym.Space, enabled: bool, clip: float) -> None:
        super().__init__()
        self.clip, self.ranks = clip, ALONE
        spaces = space.spaces if isinstance(space, gym.spaces.Dict) else {"": space}
        scaled = [name for name, part in sorted(spaces.items()) if _has_a_scale(part)]
        self.names = scaled if enabled else []
        for index, name in enumerate(self.names):
            shape = spaces[name].shape or ()
            self.register_buffer(f"moments_{index}", torch.zeros(3, *shape, dtype=torch.float64))
            self.register_buffer(f"mean_{index}", torch.zeros(shape))
            self.register_buffer(f"scale_{index}", torch.ones(shape))

    def forward(self, observation: Any) -> Any:
        if not self.names:
            return observation
        if not isinstance(observation, dict):
            return self._normalized(observation, 0)
        changed = {name: self._normalized(observation[name], index) for index, name in enumerate(self.names)}
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
            getattr(self, f"mean_{index}").copy_(mean)
            getattr(self, f"scale_{index}").copy_((squares / count + EPSILON).rsqrt())


def _has_a_scale(space: gym.Space) -> bool:
    """A Box, unless it is an image: three-dimensional uint8, which its encoder scales itself."""
    return isinstance(space, gym.spaces.Box) and not (space.dtype == np.uint8 and len(space.shape) == 3)


class RewardNormalizer:
    """Rewards divided by the running standard deviation of each environment's discounted return, clipped.

    R <- r + gamma R (1 - first), as in the published PPG code; no mean is subtracted, so signs and zeros stay.
    """

    def __init__(self, enabled: bool, gamma: float, clip: float, ranks: Ranks = ALONE) -> None:
        self.enabled, self.gamma, self.clip, self.ranks = enabled, gamma, clip, ranks
        self.moments = torch.zeros(3, dtype=torch.float64)
        self.running_return: Tensor | None = None  # [N]; fresh environments start at 0

    def start_leg(self) -> None:
        """The environments were made anew: no return is under way."""
        self.running_return = None

    @property
    def std(self) -> float:
        """What rewards are divided by: 1 where this is off or has seen nothing."""
        count, _, squares = self.moments.tolist()
        return float(np.sqrt(squares / count + EPSILON)) if self.enabled and count else 1.0

    def __call__(self, rewards: Tensor, done: Tensor) -> Tensor:
        """Learn from the rewards [T, N] of a rollout, then return them normalised, in float32."""
        if not self.enabled:
            return rewards.float()
        rewards = rewards.double()
        before = torch.zeros_like(rewards[0]) if self.running_return is None else self.running_return
        discounts = self.gamma * torch.cat([torch.ones_like(before)[None], (~done[:-1]).double()])
        terms = torch.cat([(rewards[0] + self.gamma * before)[None], rewards[1:]])
        returns = discounted_suffix_sum(terms.flip(0), discounts.flip(0)).flip(0)  # a prefix sum, in reversed time
        self.running_return = returns[-1] * ~done[-1]
        self.moments = merged_moments(self.moments, returns.flatten(), self.ranks)
        return self.scaled(rewards)

    def scaled(self, rewards: Tensor) -> Tensor:
        """Rewards normalised by what is known now, in float32; nothing is learnt from them."""
        return (rewards.double() / self.std).clamp(-self.clip, self.clip).float() if self.enabled else rewards.float()
