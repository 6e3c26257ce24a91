"""Storage of rollouts: T steps of N environments, time-major [T, N, ...], allocated once.

It belongs to whoever allocates it: PPO uses one rollout's storage again and again, PPG keeps many.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad.distributions import Distribution
from phasegrad.errors import DamagedError
from phasegrad.models.stacking import Stacking
from phasegrad.tree import tree_map

FLOATS = ("rewards", "values", "next_values", "log_probs", "advantages", "value_targets")


@dataclass
class Rollout:
    """T steps of N environments, each tensor [T, N, ...].

    The collector fills all but `advantages` and `value_targets`, which an algorithm estimates from the rest.
    """

    observations: Any
    masks: Tensor | None
    actions: Tensor  # as sampled
    behaviour_params: Tensor  # of the distribution that they were sampled from, [T, N, P]
    log_probs: Tensor  # of the actions under it
    raw_rewards: Tensor  # as the environment gave them, float64
    rewards: Tensor  # as the agent learns from them
    terminated: Tensor
    truncated: Tensor
    values: Tensor
    next_values: Tensor  # of the observation that really followed
    advantages: Tensor
    value_targets: Tensor
    starts: Tensor | None = None  # whether an episode starts with this step, where the policy has a memory
    states: Tensor | None = None  # what it remembered before the first step of each sequence, [T / L, N, K]
    sequence: int = 0  # L
    frames: Any = (
        None  # where the policy sees stacks of n: the observations after the n - 1 before them, [n - 1 + T, N, ...]
    )
    since: Tensor | None = None  # and how many steps back the episode of each goes, n - 1 at most
    stacking: Stacking | None = None
    leash_params: Tensor | None = None  # of the policy that training is held to, where it is, [T, N, P]

    def first(self, steps: int) -> Rollout:
        """The same storage, only its first `steps` steps: for a shorter last rollout."""
        cut = self.tensors()
        states, frames = cut.pop("states"), cut.pop("frames")
        cut = {name: _cut(tree, steps) for name, tree in cut.items()}
        if states is not None:
            cut["states"] = states[: -(-steps // self.sequence)]
        if self.stacking is not None:
            cut["frames"] = _cut(frames, steps + self.stacking.count - 1)
        return replace(self, **cut)

    def tensors(self) -> dict[str, Any]:
        """What it holds, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("sequence", "stacking")}

    def on_host(self) -> Rollout:
        """A copy in this machine's memory; the same one where it lies there."""
        if self.actions.device.type == "cpu":
            return self
        held: dict[str, Any] = {
            name: None if tree is None else tree_map(_on_host, tree) for name, tree in self.tensors().items()
        }
        return replace(self, **held)

    @property
    def num_steps(self) -> int:
        return int(self.actions.shape[0])

    @property
    def num_envs(self) -> int:
        return int(self.actions.shape[1])


def _on_host(leaf: Tensor) -> Tensor:
    return leaf.cpu()


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
        state_size: int = 0,
        sequence: int = 0,
        stacking: Stacking | None = None,
        device: torch.device | None = None,
    ) -> None:
        """`state_size` numbers are remembered of an episode, and kept at every `sequence`-th step. It lies on `device`, or
        in this machine's memory.
        """
        before = 0 if stacking is None else stacking.count - 1

        def allocated(shape: tuple[int, ...], dtype: torch.dtype, more: int = 0) -> Tensor:
            return torch.zeros((count, more + num_steps, num_envs, *shape), dtype=dtype, device=device)

        def frames_of(space: gym.Space) -> Tensor:
            return allocated(tuple(space.shape or ()), stored_dtype(space), before)

        if isinstance(observation_space, gym.spaces.Dict):
            frames: Any = {name: frames_of(space) for name, space in observation_space.items()}
        else:
            frames = frames_of(observation_space)
        floats: dict[str, Any] = {name: allocated((), torch.float32) for name in FLOATS}
        self.whole = Rollout(
            observations=tree_map(lambda leaf: leaf[:, before:], frames),
            actions=allocated(distribution.action_shape, distribution.action_dtype),
            behaviour_params=allocated((distribution.parameter_size,), torch.float32),
            raw_rewards=allocated((), torch.float64),
            terminated=allocated((), torch.bool),
            truncated=allocated((), torch.bool),
            masks=allocated((distribution.mask_size,), torch.bool) if has_mask else None,
            **floats,
        )
        if state_size:
            self.whole.starts, self.whole.sequence = allocated((), torch.bool), sequence
            self.whole.states = torch.zeros(count, num_steps // sequence, num_envs, state_size, device=device)
        if stacking is not None:
            self.whole.frames, self.whole.since, self.whole.stacking = frames, allocated((), torch.uint8), stacking
        named: dict[str, Any] = self.whole.tensors()
        self.rollouts = [
            replace(self.whole, **{name: _at(tree, index) for name, tree in named.items()}) for index in range(count)
        ]


def stored_dtype(space: gym.Space) -> torch.dtype:
    """uint8 stays uint8, float64 becomes float32."""
    dtype = torch.from_numpy(np.zeros(1, dtype=space.dtype)).dtype
    return torch.float32 if dtype == torch.float64 else dtype


def bytes_a_step(
    observation_space: gym.Space,
    distribution: Distribution,
    has_mask: bool,
    state_size: int = 0,
    sequence: int = 0,
    stacking: Stacking | None = None,
) -> int:
    """What one stored transition takes."""
    observation = observation_bytes(observation_space) + (stacking is not None)
    action = int(np.prod(distribution.action_shape or (1,))) * distribution.action_dtype.itemsize
    flags_and_reward = 2 + 8 + (distribution.mask_size if has_mask else 0)
    remembered = 1 + -(-4 * state_size // sequence) if state_size else 0
    return observation + action + 4 * distribution.parameter_size + flags_and_reward + 4 * len(FLOATS) + remembered


def observation_bytes(observation_space: gym.Space) -> int:
    """What one stored observation takes."""
    spaces = (
        observation_space.spaces.values() if isinstance(observation_space, gym.spaces.Dict) else [observation_space]
    )
    return sum(int(np.prod(space.shape or (1,))) * stored_dtype(space).itemsize for space in spaces)


def _at(tree: Any, index: int) -> Any:
    return None if tree is None else tree_map(lambda leaf: leaf[index], tree)


def fill(target: Tensor, saved: Tensor | None, what: str) -> None:
    """Copy a restored tensor to where it belongs, once it is known to fit."""
    if saved is None or saved.shape != target.shape or saved.dtype != target.dtype:
        found = "missing" if saved is None else f"{saved.dtype} {tuple(saved.shape)}"
        raise DamagedError(
            f"A saved rollout does not fit: {what} is {found}, not {target.dtype} {tuple(target.shape)}."
        )
    target.copy_(saved)
