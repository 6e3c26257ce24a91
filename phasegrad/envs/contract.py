"""The one contract every environment is adapted to: same-step autoreset, so that a rollout is dense.

`step` returns the observation to act on next (already the first of the new episode where one ended) and, for the
environments that ended, the true final observation. Nothing here knows about agents, rollouts or backends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

# A batch of observations: one array [N, ...], or for Dict and Tuple spaces a flat dict of arrays by dotted name.
Observation = np.ndarray | dict[str, np.ndarray]


@dataclass(slots=True)
class Episode:
    """A finished episode as the environment scored it: raw rewards, for Atari the whole game and not one life."""

    env: int
    episode_return: float
    length: int
    success: bool | None = None  # as the environment's last info says; None where it says nothing


@dataclass(slots=True)
class Step:
    """What one step of all N environments returned."""

    observation: Observation  # [N, ...] to act on next
    reward: np.ndarray  # [N] float64
    terminated: np.ndarray  # [N] bool: ended in the MDP, so the value of what follows is 0
    truncated: np.ndarray  # [N] bool: cut short, so the value of the final observation counts
    ended: np.ndarray  # [K] int64, ascending: the environments where either flag is set
    final_observation: Observation | None = None  # [K, ...] true last observations, in the order of `ended`
    episodes: list[Episode] = field(default_factory=list)  # statistics of what finished on this step
    action_mask: np.ndarray | None = None  # [N, M] bool, True = allowed, for `observation`
    renewed: list[int] = field(default_factory=list)  # environments that `renew` has made anew on this step


class VectorEnv(ABC):
    """N environments stepped together. Spaces are those of one environment, flattened by `spaces.flatten`."""

    num_envs: int
    observation_space: gym.Space  # Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of those without nesting
    original_observation_space: gym.Space  # as the environment has it, with the action mask where it holds one
    action_space: gym.Space  # Discrete, MultiDiscrete, MultiBinary, Box, or a Dict of those: parts side by side, [N, K]
    original_action_space: gym.Space  # as the environment has it: nested, Discrete from elsewhere than 0
    has_action_mask: bool = False
    backend: str  # "envpool" or "gymnasium"
    family: str = "other"  # of environments that are about as fast
    checks_actions: bool = (
        True  # before they reach code that would read beyond its memory; costs a tenth of a quick step
    )

    @abstractmethod
    def reset(self) -> tuple[Observation, np.ndarray | None]:
        """Start every environment on its seed; the first observations [N, ...] and their action mask or None."""

    def reseed(self, seeds: Sequence[int]) -> None:
        """The seeds of the next `reset`."""
        self._seeds = list(seeds)

    def renew(self, seeds: Sequence[int], chosen: np.ndarray) -> None:  # noqa: B027 - what most can do, not all
        """Have each of the `chosen` [N] environments made anew, on its own of `seeds`, when its episode ends.

        `Step.renewed` tells when. No episode is cut short for it. Environments that cannot be made one by one stay.
        """

    def play_back(
        self, actions: Iterable[np.ndarray], starts: np.ndarray, tell: Callable[[int], None] | None = None
    ) -> tuple[Observation, np.ndarray | None]:
        """In place of `reset`: bring the environments to where `actions`, [N, ...] each, once led them.

        Environment i is on its seed when the action number `starts[i]` comes, and takes that and all that follow.
        `tell` hears how many actions are done.
        """
        observation, mask = self._reset_waiting(starts)
        for done, row in enumerate(actions):
            step = self.step(row)
            observation, mask = step.observation, step.action_mask
            if tell is not None:
                tell(done + 1)
        return observation, mask

    def state(self) -> dict[str, Any] | None:
        """All that decides what follows, as tensors by name; None where environments cannot be saved, as most."""
        return None

    def load_state(self, state: Mapping[str, Any]) -> tuple[Observation, np.ndarray | None]:
        """In place of `reset`: go on from such a state."""
        raise NotImplementedError(f"{type(self).__name__} has no state to load.")

    def _reset_waiting(self, starts: np.ndarray) -> tuple[Observation, np.ndarray | None]:
        """`reset`, after which environment i leaves out `starts[i]` actions: it waits where the reset has put it."""
        if starts.any():
            raise NotImplementedError(f"{type(self).__name__} cannot start its environments one by one.")
        return self.reset()

    @abstractmethod
    def step(self, actions: np.ndarray) -> Step:
        """Take `actions` [N, ...] (in the environment's own units) in every environment."""

    def render(self, indices: Sequence[int] | None = None) -> np.ndarray | None:
        """Frames [K, H, W, 3] uint8 of the current states of the environments `indices` (of all where not given).

        None where it was not made with `render=True`.
        """
        return None

    @property
    def frames_per_second(self) -> float:
        """The speed at which the frames of a recording look natural."""
        return 30.0

    @property
    def time_limit(self) -> int | None:
        """Steps after which an environment truncates its episodes, as far as it says so."""
        return None

    @property
    def is_lost(self) -> bool:
        """Whether they cannot go on, nor be reset, since a call failed or was broken off: they are to be made anew."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Free processes, threads and memory. Closing twice is allowed; what goes wrong is told, and nothing is raised."""
