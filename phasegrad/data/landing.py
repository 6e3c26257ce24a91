"""Where what environments give on the host arrives in a rollout, step by step, and where their actions come from.

A rollout in this machine's memory is written in place. For one on a device a step is one copy there, of all that is seen,
and one copy back, of the actions; rewards and flags stay here until the rollout is full. Nothing here knows what acts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from phasegrad.data.stacking import RunningStack
from phasegrad.data.storage import Rollout
from phasegrad.data.transfers import device_of, send_tree, to_device
from phasegrad.envs.contract import Observation
from phasegrad.tree import tree_map


class HostLanding:
    """A rollout that lies in this machine's memory."""

    def __init__(self, rollout: Rollout, stack: RunningStack | None) -> None:
        self.rollout, self.stack = rollout, stack
        self._observations = tree_map(lambda leaf: leaf.numpy(), rollout.observations)
        self._masks = None if rollout.masks is None else rollout.masks.numpy()
        self.rewards, self.terminated, self.truncated, self._actions = (
            t.numpy() for t in (rollout.raw_rewards, rollout.terminated, rollout.truncated, rollout.actions)
        )
        self.starts = None if rollout.starts is None else rollout.starts.numpy()
        self.seen = None if stack is None else stack.seen  # where the policy finds a stack at every step

    def observe(self, t: int, observation: Observation, mask: np.ndarray | None) -> None:
        """What is seen before step `t`."""
        if isinstance(self._observations, dict):
            for name, stored in self._observations.items():
                stored[t] = observation[name]
        else:
            self._observations[t] = observation
        if self._masks is not None:
            self._masks[t] = mask

    def actions(self, t: int) -> np.ndarray:
        """What the policy does at step `t`, once it has acted."""
        return self._actions[t]

    def settle(self) -> None:
        """The rollout is full."""

    def taken(self) -> Tensor:
        """All actions [T, N, ...] in this machine's memory."""
        return self.rollout.actions


class DeviceLanding:
    """A rollout that lies on a device, from environments that do not."""

    def __init__(self, rollout: Rollout, stack: RunningStack | None) -> None:
        self.rollout, self.stack, self.device = rollout, stack, device_of(rollout.observations)
        shape = rollout.actions.shape[:2]
        self.rewards = np.zeros(shape)
        self.terminated, self.truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        self.starts = None if rollout.starts is None else np.zeros(shape, bool)
        self._taken = torch.zeros(rollout.actions.shape, dtype=rollout.actions.dtype)
        self.seen = None
        if stack is not None:
            self.seen = tree_map(lambda leaf: torch.empty(leaf.shape, dtype=leaf.dtype, device=self.device), stack.seen)

    def observe(self, t: int, observation: Observation, mask: np.ndarray | None) -> None:
        rollout, stacked = self.rollout, None if self.stack is None else self.stack.seen
        allowed = None if rollout.masks is None else mask
        stored = tree_map(_as_stored, observation, rollout.observations)
        seen, allowed, stacked = send_tree([stored, allowed, stacked], self.device)
        tree_map(lambda place, leaf: place[t].copy_(leaf), rollout.observations, seen)
        if rollout.masks is not None:
            rollout.masks[t].copy_(allowed)
        if self.seen is not None:
            tree_map(lambda place, leaf: place.copy_(leaf), self.seen, stacked)

    def actions(self, t: int) -> np.ndarray:
        self._taken[t] = self.rollout.actions[t].cpu()
        return self._taken[t].numpy()

    def settle(self) -> None:
        rollout = self.rollout
        given = [self.rewards, self.terminated, self.truncated, self.starts]
        rewards, terminated, truncated, starts = send_tree(given, self.device)
        rollout.raw_rewards.copy_(rewards)
        rollout.terminated.copy_(terminated)
        rollout.truncated.copy_(truncated)
        if rollout.starts is not None:
            rollout.starts.copy_(starts)

    def taken(self) -> Tensor:
        return self._taken


def landing_for(rollout: Rollout, stack: RunningStack | None) -> HostLanding | DeviceLanding:
    """As a rollout's storage needs it."""
    on_host = device_of(rollout.observations).type == "cpu"
    return HostLanding(rollout, stack) if on_host else DeviceLanding(rollout, stack)


def store_before(rollout: Rollout, stack: RunningStack) -> None:
    """Put what had been seen before a rollout where its first steps look for it."""

    def put(stored: Tensor, frames: np.ndarray) -> None:
        whole = torch.from_numpy(np.ascontiguousarray(frames)).reshape(len(frames), *stored.shape[1:])
        stored[: len(frames)] = to_device(whole, stored.device)

    tree_map(put, rollout.frames, stack.before())


def _as_stored(leaf: np.ndarray, place: Tensor) -> np.ndarray:
    """In the type that it is kept in: a copy across devices would have to change it on the way."""
    wanted = torch.empty(0, dtype=place.dtype).numpy().dtype
    return np.ascontiguousarray(leaf, dtype=wanted)
