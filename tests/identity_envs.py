"""Environments that pay for echoing the observation: whatever cannot learn these has a bug in its action space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

EPISODE = 20  # steps; also the best return, since a perfect echo pays 1


class IdentityEnv(gym.Env):
    """Observes a random element of the action space and pays for taking it. Episodes are cut after 20 steps."""

    def __init__(self, space: gym.Space) -> None:
        self.observation_space = space
        self.action_space = type(space)(**_arguments(space))  # one of its own: spaces carry random state
        self.steps = 0
        self.wanted: Any = None

    def draw(self) -> Any:
        self.wanted = self.observation_space.sample()
        return self.wanted

    def pay(self, action: Any) -> float:
        """The share of choices that are right; for a Box 1 less the mean distance."""
        if isinstance(self.action_space, spaces.Box):
            return float(1.0 - np.abs(np.asarray(action) - self.wanted).mean())
        return float(np.mean(np.asarray(action) == self.wanted))

    def info(self) -> dict[str, Any]:
        return {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.draw(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.pay(action)
        self.steps += 1
        return self.draw(), reward, False, self.steps >= EPISODE, self.info()


class MaskedIdentityEnv(IdentityEnv):
    """Six actions of which three are allowed at a time; the observed action is always allowed. Notes what it was given."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(6))
        self.mask = np.ones(6, bool)
        self.forbidden_taken = 0
        self.taken = 0

    def draw(self) -> Any:
        wanted = super().draw()
        others = self.np_random.permutation([a for a in range(6) if a != wanted])[:2]
        self.mask = np.isin(np.arange(6), [wanted, *others])
        return wanted

    def info(self) -> dict[str, Any]:
        return {"action_mask": self.mask.astype(np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        self.forbidden_taken += not self.mask[int(action)]
        return super().step(action)


class DictIdentityEnv(IdentityEnv):
    """What to echo is split over two entries beside one that is only noise: all of a Dict has to be read."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(6))
        self.observation_space = spaces.Dict(
            {
                "noise": spaces.Box(-1, 1, (2,)),
                "part": spaces.Discrete(3),
                "half": spaces.Box(-1, 1, (1,)),
            }
        )

    def draw(self) -> Any:
        observation = self.observation_space.sample()
        half = int(self.np_random.integers(2))
        observation["half"] = np.array([2.0 * half - 1.0], np.float32)
        self.wanted = 3 * half + int(observation["part"])
        return observation


def _arguments(space: gym.Space) -> dict[str, Any]:
    if isinstance(space, spaces.Discrete):
        return {"n": space.n}
    if isinstance(space, spaces.MultiDiscrete):
        return {"nvec": space.nvec}
    if isinstance(space, spaces.MultiBinary):
        return {"n": space.n}
    assert isinstance(space, spaces.Box)
    return {"low": space.low, "high": space.high}


def discrete() -> gym.Env:
    return IdentityEnv(spaces.Discrete(4))


def multi_discrete() -> gym.Env:
    return IdentityEnv(spaces.MultiDiscrete([3, 4]))


def multi_binary() -> gym.Env:
    return IdentityEnv(spaces.MultiBinary(3))


def box() -> gym.Env:
    return IdentityEnv(spaces.Box(-1.0, 1.0, (2,)))


FACTORIES = {
    "discrete": discrete,
    "multi_discrete": multi_discrete,
    "multi_binary": multi_binary,
    "box": box,
    "masked": MaskedIdentityEnv,
    "dict": DictIdentityEnv,
}
