"""Room for rollouts: T steps of N environments, time-major [T, N, ...], allocated once.

It belongs to whoever allocates it: PPO uses one rollout's room again and again, PPG keeps many.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad.distributions import Distribution
from phasegrad.tree import tree_map

FLOATS = ("rewards", "values", "next_values", "log_probs", "advantages", "value_targets")


@dataclass
class Rollout:
    """Storage of one rollout, each tensor [T, N, ...]."""

    observations: Any
    actions: Tensor
    policy_params: Tensor  # the whole old distribution, [T, N, P]
    raw_rewards: Tensor  # as the environment gave them, float64
    rewards: Tensor  # as the agent learns from them
    terminated: Tensor
    truncated: Tensor
    values: Tensor
    next_values: Tensor  # of the observation that really followed
    log_probs: Tensor
    advantages: Tensor
    value_targets: Tensor
    masks: Tensor | None

    def first(self, steps: int) -> Rollout:
        """The same storage, only its first `steps` steps: for a shorter last rollout."""
        return Rollout(**{f.name: _cut(getattr(self, f.name), steps) for f in fields(self)})

    @property
    def num_steps(self) -> int:
        return int(self.actions.shape[0])

    @property
    def num_envs(self) -> int:
        return int(self.actions.shape[1])


def _cut(tree: Any, steps: int) -> Any:
    return None if tree is None else tree_map(lambda leaf: leaf[:steps], tree)


class Storage:
    """`count` rollouts in one allocation, `whole` [count, T, N, ...]; observations in the environment's own type."""

    def __init__(
        self,
        count: int,
        num_steps: int,
        num_envs: int,
        observation_space: gym.Space,
        distribution: Distribution,
        has_mask: bool,
    ) -> None:
        def room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros((count, num_steps, num_envs, *shape), dtype=dtype)

        def observation_room(space: gym.Space) -> Tensor:
            return room(tuple(space.shape or ()), stored_dtype(space))

        if isinstance(observation_space, gym.spaces.Dict):
            observations: Any = {name: observation_room(space) for name, space in observation_space.items()}
        else:
            observations = observation_room(observation_space)
        self.whole = Rollout(
            observations=observations,
            actions=room(distribution.action_shape, distribution.action_dtype),
            policy_params=room((distribution.parameter_size,), torch.float32),
            raw_rewards=room((), torch.float64),
            terminated=room((), torch.bool),
            truncated=room((), torch.bool),
            masks=room((distribution.mask_size,), torch.bool) if has_mask else None,
            **{name: room((), torch.float32) for name in FLOATS},
        )
        self.rollouts = [
            Rollout(**{f.name: _at(getattr(self.whole, f.name), index) for f in fields(Rollout)})
            for index in range(count)
        ]


def stored_dtype(space: gym.Space) -> torch.dtype:
    """uint8 stays uint8, float64 becomes float32."""
    dtype = torch.from_numpy(np.zeros(1, dtype=space.dtype)).dtype
    return torch.float32 if dtype == torch.float64 else dtype


def bytes_a_step(observation_space: gym.Space, distribution: Distribution, has_mask: bool) -> int:
    """What one stored transition takes."""
    spaces = (
        observation_space.spaces.values() if isinstance(observation_space, gym.spaces.Dict) else [observation_space]
    )
    observation = sum(int(np.prod(space.shape or (1,))) * stored_dtype(space).itemsize for space in spaces)
    action = int(np.prod(distribution.action_shape or (1,))) * distribution.action_dtype.itemsize
    flags_and_reward = 2 + 8 + (distribution.mask_size if has_mask else 0)
    return observation + action + 4 * distribution.parameter_size + flags_and_reward + 4 * len(FLOATS)


def _at(tree: Any, index: int) -> Any:
    return None if tree is None else tree_map(lambda leaf: leaf[index], tree)
