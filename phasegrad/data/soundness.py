"""Whether there is no fault in a rollout that lies on a device, as flags there: the host reads one number.

The sentence for a fault needs more of it, and is the collector's. Nothing here waits for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad.data.storage import Rollout
from phasegrad.data.transfers import to_device
from phasegrad.envs.spaces import outside_choices
from phasegrad.tree import named_leaves

Choices = Sequence[tuple[str, gym.Space]]  # the entries of observations that are one of a few, by name


def rollout_flags(rollout: Rollout, choices: Choices, largest_reward: float) -> list[Tensor]:
    """True, each, where a rollout's observations, policy, rewards and masks can be learnt from."""
    flags = observation_flags(rollout.observations, choices)
    for leaf in (rollout.behaviour_params, rollout.actions):
        if leaf.is_floating_point():
            flags.append(torch.isfinite(leaf).all())
    flags.append((rollout.raw_rewards.abs() <= largest_reward).all())  # false for NaN too
    if rollout.masks is not None:
        flags.append(rollout.masks.any(-1).all())
    return flags


def observation_flags(tree: Any, choices: Choices, counted: Tensor | None = None) -> list[Tensor]:
    """The same of observations [..., *shape]; of those alone that are `counted` [...], where that is given."""
    spaces, flags = dict(choices), []
    for name, leaf in named_leaves(tree):
        if name in spaces:
            sound = _among_choices(leaf, spaces[name])
        elif leaf.is_floating_point():
            sound = torch.isfinite(leaf)
        else:
            continue
        if counted is not None:
            sound = sound.reshape(*counted.shape, -1).all(-1) | ~counted
        flags.append(sound.all())
    return flags


def arrays_are_sound(tree: Any, choices: Choices) -> bool:
    """Whether observations [B, *shape] in this machine's memory can be learnt from."""
    found = dict(named_leaves(tree))
    if not all(np.isfinite(leaf).all() for leaf in found.values()):
        return False
    return not any(outside_choices(found[name], space).any() for name, space in choices)


def _among_choices(leaf: Tensor, space: gym.Space) -> Tensor:
    most = space.n if isinstance(space, gym.spaces.Discrete) else _counts(_numbers(space), leaf.device)
    return (leaf >= 0) & (leaf < most)


def _numbers(space: gym.Space) -> tuple[int, ...]:
    assert isinstance(space, gym.spaces.MultiDiscrete)
    return tuple(int(number) for number in space.nvec)


@functools.cache
def _counts(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """On the device from their first use on."""
    with torch.inference_mode(False):
        return to_device(torch.tensor(numbers), device)
