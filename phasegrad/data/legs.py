"""Legs: what each environment has been through since it was last made, so that a fresh one can be brought there.

Environments cannot be saved. What can is their seed and the actions since: a resumed run makes them anew and plays those
actions back. An environment's leg is its life on one seed, (run seed, number of the leg, environment); the next leg
begins when an episode ends, and only when playing back would take too long. Settings and the episodes seen decide when,
never the clock or a checkpoint, so that a run stays a function of its config.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

# Environment steps that two processors of a laptop play back in about a minute, by the family of the environment.
STEPS_A_MINUTE = {"classic": 5_000_000, "box2d": 2_000_000, "mujoco": 600_000, "atari": 150_000, "procgen": 1_000_000}
OTHER_STEPS_A_MINUTE = 300_000
EPISODES_A_LEG = 4  # of the longest seen: no leg is to end before
LONGEST_LEG = 4  # times what a leg should be: environments that never end an episode are cut there
MOST_BYTES = 1 << 28  # of the actions kept


class Legs:
    """The legs of `num_envs` environments, those of one process, and the actions [T, N, ...] since the oldest began.

    Steps are those of each environment since the run began.
    """

    def __init__(self, num_envs: int) -> None:
        self.numbers = np.zeros(num_envs, np.int64)  # of the leg that each environment is in
        self.targets = np.zeros(num_envs, np.int64)  # of the leg that it is in or is to begin when its episode ends
        self.starts = np.zeros(num_envs, np.int64)  # the step at which its leg began
        self.first = 0  # the step of the first action kept
        self.actions: list[Tensor] = []

    @property
    def settled(self) -> bool:
        """Whether no environment is to begin another leg."""
        return bool((self.numbers == self.targets).all())

    def age(self, step: int) -> int:
        """Steps since the oldest leg began."""
        return step - int(self.starts.min())

    def log(self, actions: Tensor) -> None:
        """The actions [T, N, ...] of a rollout were taken."""
        self.actions.append(actions.clone())

    def begin(self, environments: Sequence[int], step: int) -> None:
        """These environments are in a new leg from `step` on."""
        chosen = list(environments)
        self.numbers[chosen], self.starts[chosen] = self.targets[chosen], step

    def announce(self) -> np.ndarray:
        """Every environment is to begin another leg; its number [N]."""
        self.targets = np.full_like(self.targets, self.targets.max() + 1)
        return self.targets

    def restart(self, step: int) -> None:
        """All environments begin the next leg now."""
        self.announce()
        self.begin(range(len(self.numbers)), step)
        self.actions, self.first = [], step

    def stand(self, step: int) -> None:
        """The environments can be saved as they are at `step`: nothing before it has to be played back."""
        self.starts[:], self.actions, self.first = step, [], step

    def forget(self) -> None:
        """Let go of rollouts that ended before the oldest leg began."""
        oldest = int(self.starts.min())
        while self.actions and self.first + len(self.actions[0]) <= oldest:
            self.first += len(self.actions.pop(0))

    def kept(self) -> Tensor | None:
        """The actions since the oldest leg began, joined; None where there are none."""
        if not self.actions:
            return None
        oldest = int(self.starts.min())
        self.actions = [torch.cat(self.actions)[oldest - self.first :]]
        self.first = oldest
        return self.actions[0]

    def rows(self) -> Iterator[Tensor]:
        """The same [N, ...] step by step."""
        kept = self.kept()
        yield from () if kept is None else kept

    def copy_last(self, target: Tensor) -> None:
        """Put them at the end of `target` [T, N, ...]; what comes before stays as it is."""
        kept = self.kept()
        if kept is not None and len(kept):
            target[-len(kept) :] = kept


def stored_dtype(space: gym.Space, dtype: torch.dtype) -> torch.dtype:
    """The smallest type that holds every action of a space whose policy acts in `dtype`."""
    parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else [space]
    sizes = [_sizes(part) for part in parts]
    if dtype.is_floating_point or any(own is None or np.max(own) > 256 for own in sizes):
        return dtype
    return torch.uint8


def _sizes(space: gym.Space) -> np.ndarray | int | None:
    """How many values each entry of a discrete action has."""
    sizes: np.ndarray | int | None = getattr(space, "nvec", getattr(space, "n", None))
    return sizes


def can_be_taken(actions: Tensor, space: gym.Space) -> bool:
    """Whether logged actions [T, N, ...] are such as a policy for this space samples."""
    if isinstance(space, gym.spaces.Dict):
        return _parts_can_be_taken(actions, space)
    if isinstance(space, gym.spaces.Box):
        return actions.dtype.is_floating_point and bool(torch.isfinite(actions).all())
    sizes = torch.as_tensor(2 if isinstance(space, gym.spaces.MultiBinary) else _sizes(space))
    return not actions.dtype.is_floating_point and bool(((actions >= 0) & (actions < sizes)).all())


def _parts_can_be_taken(actions: Tensor, space: gym.spaces.Dict) -> bool:
    """The same of actions [T, N, K] whose parts lie side by side: choices beside real numbers are stored as such."""
    widths = [int(np.prod(part.shape or (), dtype=np.int64)) for part in space.values()]
    if actions.shape[-1] != sum(widths):
        return False
    for part, columns in zip(space.values(), actions.split(widths, -1), strict=True):
        if not isinstance(part, gym.spaces.Box) and columns.dtype.is_floating_point:
            if not bool((columns == columns.trunc()).all()):
                return False
            columns = columns.long()
        shape = columns.shape[:-1] if isinstance(part, gym.spaces.Discrete) else columns.shape
        if not can_be_taken(columns.reshape(shape), part):
            return False
    return True


def steps_a_leg(restart_every: int, family: str, backend: str, num_envs: int, bytes_a_step: int) -> int:
    """Steps of each environment in a leg, by settings alone; `bytes_a_step` is what all environments' actions take."""
    wanted = restart_every or (STEPS_A_MINUTE if backend == "envpool" else {}).get(family, OTHER_STEPS_A_MINUTE)
    return max(1, min(-(-wanted // num_envs), MOST_BYTES // (LONGEST_LEG * max(1, bytes_a_step))))
