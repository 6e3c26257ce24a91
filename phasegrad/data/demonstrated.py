"""A demonstrator's steps laid out as the rollout of one environment [B, 1, ...], and what of them is held out.

So stacks and sequences of them come about as those of an agent's own steps do.
"""

from __future__ import annotations

import gymnasium as gym
import torch

from phasegrad.data.demonstrations import Demonstrations
from phasegrad.data.stacking import steps_since_start
from phasegrad.data.storage import Rollout, Storage
from phasegrad.distributions import Distribution
from phasegrad.models.stacking import Stacking
from phasegrad.tree import tree_map


def divided(
    found: Demonstrations, share: float, in_order: bool, draw: torch.Generator
) -> tuple[Demonstrations, Demonstrations | None]:
    """What is fitted and what is held out: whole episodes, or where there are not several, steps.

    Where a policy sees steps `in_order`, one episode is cut: its end is held out.
    """
    count = len(found)
    episodes = 0 if found.ends is None else int(found.ends.sum())
    if not share or count < 2:
        return found, None
    held = torch.zeros(count, dtype=torch.bool)
    if found.ends is not None and episodes > 1:
        number = torch.cat([torch.zeros(1, dtype=torch.int64), found.ends[:-1].long()]).cumsum(0)
        chosen = torch.randperm(episodes, generator=draw)[: max(1, round(share * episodes))]
        held = torch.isin(number, chosen)
    elif in_order or found.rewards is not None:
        held[count - max(1, round(share * count)) :] = True
    else:
        held[torch.randperm(count, generator=draw)[: max(1, round(share * count))]] = True
    return found.at((~held).nonzero()[:, 0]), found.at(held.nonzero()[:, 0])


def as_rollout(
    found: Demonstrations,
    observation_space: gym.Space,
    distribution: Distribution,
    state_size: int,
    sequence: int,
    stacking: Stacking | None,
) -> Rollout:
    """The steps as one environment's rollout; its value targets and states are still to be filled."""
    count = len(found)
    rounded = -(-count // sequence) * sequence if sequence else count
    things = (observation_space, distribution, found.masks is not None)
    stored = Storage(1, rounded, 1, *things, state_size, sequence, stacking).rollouts[0].first(count)
    tree_map(lambda place, leaf: place.copy_(leaf[:, None]), stored.observations, found.observations)
    stored.actions.copy_(found.actions[:, None])
    if found.masks is not None and stored.masks is not None:
        stored.masks.copy_(found.masks[:, None])
    if found.rewards is not None:
        stored.rewards.copy_(found.rewards[:, None])
    if found.ends is not None and found.terminated is not None:
        stored.terminated.copy_(found.terminated[:, None])
        stored.truncated.copy_((found.ends & ~found.terminated)[:, None])
        stored.truncated[-1] = ~stored.terminated[-1]
    ends = stored.terminated | stored.truncated
    if stored.starts is not None:
        stored.starts.copy_(torch.cat([torch.ones_like(ends[:1]), ends[:-1]]))
    if stored.since is not None and stacking is not None:
        before = stacking.count - 1
        tree_map(lambda frames: frames[:before].copy_(frames[before].expand_as(frames[:before])), stored.frames)
        stored.since.copy_(steps_since_start(ends, before))
    return stored
