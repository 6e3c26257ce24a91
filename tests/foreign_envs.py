"""Stand-ins for environments of other libraries: classes of the same shape, for those packages that are not installed.

Each has the methods and attributes by which the library's own are known; where a library is told by its module, the
class is given that module's name.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


def of_module(name: str) -> Any:
    """Makes a class look as if the module `name` had defined it."""

    def rename(kind: type) -> type:
        kind.__module__ = name
        return kind

    return rename


@of_module("gym.core")
class GymV26Env:
    """gym.Env of Gym 0.26: steps of five values."""

    observation_space = action_space = None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any: ...

    def step(self, action: Any) -> Any: ...


@of_module("gym.core")
class GymV21Env:
    """gym.Env of Gym 0.21: steps of four values, and seeds apart."""

    observation_space = action_space = None

    def seed(self, seed: Any = None) -> Any: ...

    def reset(self) -> Any: ...

    def step(self, action: Any) -> Any: ...


@of_module("gym.spaces.discrete")
class GymDiscrete:
    """gym.spaces.Discrete."""

    n = 2


class OldSpaces(gym.Env):
    """A gymnasium.Env whose author imported spaces from gym."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = GymDiscrete()  # type: ignore[assignment]


class ParallelEnv:
    """pettingzoo.ParallelEnv: a dict of agents from each method."""

    possible_agents = ("a", "b")

    def observation_space(self, agent: str) -> Any: ...

    def reset(self, seed: Any = None, options: Any = None) -> Any: ...

    def step(self, actions: Any) -> Any: ...


class AECEnv(ParallelEnv):
    """pettingzoo.AECEnv: agents take turns."""

    def agent_iter(self) -> Any: ...

    def last(self) -> Any: ...


class MultiAgentEnv(gym.Env):
    """ray.rllib.env.MultiAgentEnv, which derives from gymnasium.Env."""

    observation_space = spaces.Dict({"a": spaces.Discrete(2)})
    action_space = spaces.Dict({"a": spaces.Discrete(2)})


class DummyVecEnv:
    """stable_baselines3's VecEnv."""

    num_envs = 4
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self) -> Any: ...

    def step_async(self, actions: Any) -> None: ...

    def step_wait(self) -> Any: ...

    def step(self, actions: Any) -> Any: ...


class BraxEnv:
    """brax.envs.Env: pure functions of a state."""

    observation_size, action_size = 3, 1

    def reset(self, rng: Any) -> Any: ...

    def step(self, state: Any, action: Any) -> Any: ...


class GymnaxEnv:
    """gymnax.environments.Environment."""

    default_params = object()

    def reset(self, key: Any, params: Any = None) -> Any: ...

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any: ...
