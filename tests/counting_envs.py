"""Hand-made environments whose every observation and reward is known beforehand, for the tests of the contract."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

# The episodes of an environment in turn, each (length, how it ends); an environment takes the row of its seed.
SCHEDULES: tuple[tuple[tuple[int, str], ...], ...] = (
    ((3, "terminated"), (1, "truncated"), (2, "both")),
    ((1, "terminated"),),
    ((5, "truncated"), (1, "both"), (4, "terminated")),
    ((1000, "truncated"),),
)
NUM_ACTIONS = 3


def reward_of(seed: int, episode: int, step: int) -> float:
    """The reward of taking the `step`-th step (from 1) of an episode (from 0)."""
    return 1000.0 * seed + 10.0 * episode + step / 8


def mask_of(episode: int, step: int) -> list[bool]:
    """What is allowed after `step` steps of an episode; no two neighbouring observations have the same mask."""
    return [(episode + step) % 2 == 0, (episode + step) % 2 == 1, True]


class CountingEnv(gym.Env):
    """Observes [seed, episode, step]; writes every observation into the same memory, as an environment may."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, mask: str | None = None, render_mode: str | None = None, dtype: Any = np.float64) -> None:
        self.render_mode = render_mode
        self.mask = mask
        counts = spaces.Box(0.0, 1e6, (3,), dtype)
        self.observation_space: gym.Space = counts
        if mask == "key":
            self.observation_space = spaces.Dict({"counts": counts, "action_mask": spaces.MultiBinary(NUM_ACTIONS)})
        self.action_space = spaces.Discrete(NUM_ACTIONS)
        self.memory = np.zeros(3, dtype)
        self.seed_row, self.episode, self.steps = 0, -1, 0

    def observe(self) -> tuple[Any, dict[str, Any]]:
        self.memory[:] = (self.seed_row, self.episode, self.steps)
        mask = np.array(mask_of(self.episode, self.steps), np.int8)
        observation = {"counts": self.memory, "action_mask": mask} if self.mask == "key" else self.memory
        return observation, {"action_mask": mask} if self.mask == "info" else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.seed_row, self.episode = seed, -1
        self.episode += 1
        self.steps = 0
        return self.observe()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        schedule = SCHEDULES[self.seed_row % len(SCHEDULES)]
        length, kind = schedule[self.episode % len(schedule)]
        assert self.steps < length, "stepped after its end"
        if self.mask is not None:
            assert mask_of(self.episode, self.steps)[action], "took a forbidden action"
        self.steps += 1
        over = self.steps == length
        observation, info = self.observe()
        reward = reward_of(self.seed_row, self.episode, self.steps)
        return observation, reward, over and kind != "truncated", over and kind != "terminated", info

    def render(self) -> np.ndarray:
        return np.full((4, 5, 3), self.steps, np.uint8)


class EchoEnv(gym.Env):
    """Takes any action space and any observation space; rewards the sum of the action; ends every third step."""

    def __init__(self, action_space: gym.Space, observation_space: gym.Space | None = None) -> None:
        self.action_space = action_space
        self.observation_space = observation_space or spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.steps += 1
        return self.observation_space.sample(), float(np.sum(action)), self.steps == 3, False, {}


class CrashingEnv(CountingEnv):
    """Raises on the second step of an episode where its seed is 2."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.seed_row == 2 and self.steps == 1:
            raise ZeroDivisionError("the cart fell off the table")
        return super().step(action)


class HandMadeVector(gym.vector.VectorEnv):
    """A third-party vector environment: what it does (`behaviour`) and what it claims (`label`) may differ.

    It returns its own memory, in float32, so that nothing on the way needs to copy it.
    """

    def __init__(self, num_envs: int, behaviour: str, label: AutoresetMode | None, mask: str | None = None) -> None:
        self.envs = [CountingEnv(mask, dtype=np.float32) for _ in range(num_envs)]
        self.num_envs = num_envs
        self.behaviour = behaviour  # "same", "next", "disabled", or "disabled_resets_all"
        self.mask = mask
        self.metadata = {} if label is None else {"autoreset_mode": label}
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.over = np.zeros(num_envs, bool)
        self.rows = np.zeros((num_envs, 3), np.float32)
        self.masks = np.ones((num_envs, NUM_ACTIONS), np.int8)

    def store(self, index: int) -> None:
        env = self.envs[index]
        self.rows[index] = (env.seed_row, env.episode, env.steps)
        self.masks[index] = mask_of(env.episode, env.steps)

    def result(self) -> tuple[Any, dict[str, Any]]:
        if self.mask == "key":
            return {"counts": self.rows, "action_mask": self.masks}, {}
        return self.rows, {"action_mask": self.masks} if self.mask == "info" else {}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        chosen = np.ones(self.num_envs, bool)
        if options and self.behaviour != "disabled_resets_all":
            chosen = options["reset_mask"]
        for index in np.flatnonzero(chosen):
            self.envs[index].reset(seed=None if seed is None else seed[index])
            self.store(index)
        self.over &= ~chosen
        return self.result()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rewards, flags = np.zeros(self.num_envs), np.zeros((2, self.num_envs), bool)
        finals = np.full(self.num_envs, None, object)
        for index, env in enumerate(self.envs):
            if self.behaviour == "next" and self.over[index]:
                env.reset()
            else:
                last, rewards[index], *ends, _ = env.step(int(actions[index]))
                flags[:, index] = ends
                if self.behaviour == "same" and any(ends):
                    finals[index] = copy.deepcopy(last)
                    env.reset()
            self.store(index)
        self.over = flags.any(axis=0)
        batch, info = self.result()
        if self.behaviour == "same" and self.over.any():
            info = {**info, "final_obs": finals, "_final_obs": self.over}
        return batch, rewards, flags[0], flags[1], info
