"""Vector environments that take one seed for all, as gymnasium's own CartPole does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

import phasegrad as pg
from phasegrad.errors import EnvError


class OneSeed(VectorEnv):
    """Three walks that end after 5 steps, and start where one generator for all of them says."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - gymnasium's own form
    single_observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
    single_action_space = gym.spaces.Discrete(2)
    num_envs = 3

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None and not isinstance(seed, int):
            raise TypeError("one seed, please")
        self.random = np.random.default_rng(seed)
        self.place = self.random.normal(size=(3, 2)).astype(np.float32)
        self.steps = 0
        return self.place.copy(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.place = np.clip(self.place + (2 * np.asarray(actions)[:, None] - 1) * 0.1, -10, 10).astype(np.float32)
        self.steps += 1
        reward, ended, info = self.place[:, 0].astype(np.float64), np.full(3, self.steps % 5 == 0), {}
        if ended.any():
            info = {"final_obs": self.place.copy()}
            self.place = self.random.normal(size=(3, 2)).astype(np.float32)
        return self.place.copy(), reward, ended, np.zeros(3, bool), info


def trained(steps: int, **settings: Any) -> Any:
    agent = pg.PPO(OneSeed(), num_steps=10, num_minibatches=2, eval_episodes=0, compile="off", **settings)
    agent.learn(steps)
    return agent


def test_one_seed_for_all_trains_and_depends_on_the_seed() -> None:
    first, same, other = (trained(120, seed=seed).parameters() for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)


def test_it_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    whole = trained(240, seed=1, total_steps=240).parameters()
    trained(120, seed=1, total_steps=240).save(tmp_path / "half")
    resumed = pg.load(tmp_path / "half", env=OneSeed())
    resumed.learn(240)
    assert all(np.array_equal(whole[name], value) for name, value in resumed.parameters().items())


def test_gymnasiums_own_vector_cartpole_is_refused_with_its_id() -> None:
    with pytest.raises(EnvError, match=r"resets on the next step.*or the id 'CartPole-v1'"):
        pg.PPO(gym.make_vec("CartPole-v1", num_envs=4), num_steps=32, eval_episodes=0).learn(256)


def test_the_first_error_is_told_where_one_seed_does_not_help() -> None:
    class Broken(OneSeed):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            raise RuntimeError("no map" if isinstance(seed, list) else "again")

    with pytest.raises(EnvError, match="raised RuntimeError on its first reset: no map"):
        pg.PPO(Broken(), eval_episodes=0).learn(64)
