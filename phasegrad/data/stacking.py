"""Which stored observations a stack is made of, and the stacks of running episodes.

Observations are stored once, with those that came before a rollout's first; a stack is rows of that storage. Before an
episode's first observation there is nothing: the first stands in, as gymnasium's and Atari's stacking have it.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad.data.storage import stored_dtype
from phasegrad.errors import EnvError
from phasegrad.models.stacking import Stacking
from phasegrad.tree import named_leaves, tree_map


def frame_rows(source: Any, positions: Tensor) -> Tensor:
    """Rows [B, n] of a source's `frames`, oldest first, that make the stacks at flat `positions` [B] of its samples.

    Each of its rollouts [T, N] has n - 1 observations before its first step, a stack that is complete: so a frame is as
    far back as its place in the stack, but no further than its episode's start.
    """
    steps, num_envs = source.since.shape[-2:]
    before = source.stacking.count - 1
    newest = positions + (positions // (steps * num_envs) + 1) * (before * num_envs)
    since = source.since.flatten()[positions].long()
    return newest[:, None] - num_envs * torch.minimum(torch.arange(before, -1, -1, device=since.device), since[:, None])


def steps_since_start(done: Tensor, most: int) -> Tensor:
    """For each step [T, N] how far back its episode goes, as far as is known within a rollout, `most` at most.

    What lies before the rollout counts as a full stack of the same episode, which it has been made.
    """
    steps = torch.arange(len(done), device=done.device)[:, None]
    starts = torch.full(done.shape, -most, device=done.device)
    starts[1:] = torch.where(done[:-1], steps[1:], -most)
    return (steps - starts.cummax(0).values).clamp(max=most).to(torch.uint8)


class RunningStack:
    """The stacks `seen` [B, ...] of B running episodes: tensors on the CPU that stay where they are in memory."""

    def __init__(self, stacking: Stacking, observation: Any) -> None:
        """Episodes that start with `observation` [B, ...], which may be without some entries, and stays so."""
        self.stacking = stacking
        size = len(named_leaves(observation)[0][1])
        space = stacking.space
        if isinstance(space, gym.spaces.Dict):
            self.seen: Any = {name: _empty(part, size) for name, part in space.items() if name in observation}
        else:
            self.seen = _empty(space, size)
        self._frames = stacking.frames(tree_map(lambda leaf: leaf.numpy(), self.seen))  # [B, n, ...], in place
        self.start(observation)

    def start(self, observation: Any) -> None:
        """All episodes begin, with `observation`."""
        self._each(_filled, observation)

    def push(self, observation: Any, starts: np.ndarray) -> None:
        """What is seen next: `observation` [B, ...], with which an episode begins in the environments `starts`."""

        def pushed(frames: np.ndarray, new: np.ndarray) -> None:
            frames[:, :-1] = frames[:, 1:]
            frames[:, -1] = new
            if len(starts):
                frames[starts] = new[starts][:, None]

        self._each(pushed, observation)

    def replace_last(self, observation: Any) -> None:
        """See `observation` instead of the last one."""

        def replaced(frames: np.ndarray, new: np.ndarray) -> None:
            frames[:, -1] = new

        self._each(replaced, observation)

    def following(self, envs: np.ndarray, observation: Any) -> Any:
        """What would be seen in the environments `envs` [K] if `observation` [K, ...] came next, as tensors [K, ...]."""
        own = RunningStack(self.stacking, observation)
        own.load(tree_map(lambda leaf: leaf[torch.tensor(envs)], self.seen))
        own.push(observation, envs[:0])
        return own.seen

    def before(self) -> Any:
        """All but the last of what is seen, as observations in time-major order [n - 1, B, ...]."""
        return tree_map(lambda frames: frames[:, :-1].swapaxes(0, 1), self._frames)

    def load(self, seen: Any) -> None:
        """Take over stacks [B, ...] that were `seen`, if they fit."""
        mine, given = dict(named_leaves(self.seen)), {name: np.asarray(leaf) for name, leaf in named_leaves(seen)}
        if mine.keys() != given.keys() or any(leaf.size != mine[name].numel() for name, leaf in given.items()):
            raise EnvError(
                f"The frames in the state do not fit {len(named_leaves(self.seen)[0][1])} observations of {self.stacking.single}: "
                "give what predict returned for as many observations, or None at the start."
            )
        for name, leaf in given.items():
            mine[name].copy_(torch.from_numpy(leaf.reshape(mine[name].shape)))

    def _each(self, change: Any, observation: Any) -> None:
        tree_map(change, self._frames, self.stacking.cut(tree_map(np.asarray, observation)))


def _filled(frames: np.ndarray, first: np.ndarray) -> None:
    frames[:] = first[:, None]


def _empty(space: gym.Space, size: int) -> Tensor:
    return torch.empty((size, *(space.shape or ())), dtype=stored_dtype(space))
