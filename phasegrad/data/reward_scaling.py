"""The running normaliser of rewards. It belongs to the agent, whose values are in its units."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from phasegrad.advantages import discounted_suffix_sum
from phasegrad.distributed.moments import merged_moments
from phasegrad.distributed.ranks import ALONE, Ranks

EPSILON = 1e-8


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

    def _live_with(self, rewards: Tensor) -> None:
        """The statistics lie where the rewards do."""
        self.moments = self.moments.to(rewards.device)
        if self.running_return is not None:
            self.running_return = self.running_return.to(rewards.device)

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
        self._live_with(rewards)
        before = torch.zeros_like(rewards[0]) if self.running_return is None else self.running_return
        discounts = self.gamma * torch.cat([torch.ones_like(before)[None], (~done[:-1]).double()])
        terms = torch.cat([(rewards[0] + self.gamma * before)[None], rewards[1:]])
        returns = discounted_suffix_sum(terms.flip(0), discounts.flip(0)).flip(0)  # a prefix sum, in reversed time
        self.running_return = returns[-1] * ~done[-1]
        self.moments = merged_moments(self.moments, returns.flatten(), self.ranks)
        return self.scaled(rewards)

    def scaled(self, rewards: Tensor) -> Tensor:
        """Rewards normalised by what is known now, in float32; nothing is learnt from them."""
        if not self.enabled:
            return rewards.float()
        std = self.std if self.moments.device.type == "cpu" else self._std_there()
        return (rewards.double() / std).clamp(-self.clip, self.clip).float()

    def _std_there(self) -> Tensor:
        """`std` as a number on the device, which nobody has to wait for."""
        count, _, squares = self.moments.unbind(0)
        return torch.where(count > 0, (squares / count.clamp(min=1) + EPSILON).sqrt(), 1.0)
