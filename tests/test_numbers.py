"""Numbers that nothing can be learnt from: refused where they arise, with the first cause named."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import phasegrad as pg
from phasegrad.data.collecting import LARGEST_REWARD
from phasegrad.data.reward_scaling import RewardNormalizer
from phasegrad.errors import EnvError, NonFiniteError

SMALL: dict[str, Any] = {"preset": "none", "num_envs": 2, "num_steps": 8}


class Rewarding(gym.Env):
    """Reward `reward` and observation `observation` on step 5 of an environment's life, else 1 and 0; acts as told."""

    def __init__(self, reward: float = 1.0, observation: float = 0.0, on_nan: str = "nan") -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.reward, self.observation, self.on_nan = reward, observation, on_nan
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if np.isnan(action).any():
            if self.on_nan == "crash":
                raise ValueError("NaN in the simulation")
            return np.full(2, np.nan), float("nan"), False, False, {}
        odd = self.steps == 5
        seen = np.full(2, self.observation if odd else 0.0)
        return seen, self.reward if odd else 1.0, self.steps % 20 == 0, False, {}


@pytest.mark.parametrize("name", [pg.PPO, pg.A2C])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("reward", [1e300, -1e300, 1e25])
def test_a_reward_too_large_is_refused(name: Any, normalize: bool, reward: float) -> None:
    agent = name(lambda: Rewarding(reward), normalize_reward=normalize, **SMALL)
    with pytest.raises(
        NonFiniteError, match=r"reward of environment 0 is -?1e\+\d+ at step 8, too large to learn from"
    ):
        agent.learn(64)
    assert torch.isfinite(agent.agent.reward_normalizer.moments).all()


def test_the_largest_reward_leaves_the_moments_finite() -> None:
    normalizer = RewardNormalizer(True, 1.0, 10.0)
    found = normalizer(torch.full((64, 4), LARGEST_REWARD, dtype=torch.float64), torch.zeros(64, 4, dtype=torch.bool))
    assert torch.isfinite(normalizer.moments).all()
    assert torch.isfinite(found).all()


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("normalize", [True, False])
def test_an_observation_that_float32_cannot_hold_is_refused(normalize: bool) -> None:
    agent = pg.PPO(lambda: Rewarding(observation=1e300), normalize_observation=normalize, **SMALL)
    with pytest.raises(
        NonFiniteError, match=r"observation of environment 0 is NaN or infinite .*: check the environment"
    ):
        agent.learn(64)
    for name, buffer in agent.model.normalizer.named_buffers():
        assert torch.isfinite(buffer).all(), name


@pytest.mark.parametrize("on_nan", ["nan", "crash"])
@pytest.mark.parametrize("arch", ["dual", "shared"])
def test_a_policy_that_diverged_is_not_blamed_on_the_environment(on_nan: str, arch: str) -> None:
    agent = pg.PPO(lambda: Rewarding(on_nan=on_nan), arch=arch, **SMALL)

    def diverge(row: dict[str, Any]) -> None:
        agent.flat.data.fill_(float("nan"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(
            NonFiniteError, match=r"policy's output is NaN .* at step 16: training has diverged; lower learn"
        ):
            agent.learn(64, callback=diverge)


def test_infinite_actions_are_the_policys() -> None:
    agent = pg.PPO(Rewarding, **SMALL)

    def widen(row: dict[str, Any]) -> None:
        agent.model.policy_head.log_std.data.fill_(100.0)  # e^100 is beyond float32

    with pytest.raises(NonFiniteError, match=r"policy's action is NaN or infinite .* training has diverged"):
        agent.learn(64, callback=widen)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_an_environment_that_spoils_the_policys_input_is_named(number: float) -> None:
    for on_nan in ("nan", "crash"):
        agent = pg.PPO(lambda on_nan=on_nan: Rewarding(observation=number, on_nan=on_nan), **SMALL)
        with pytest.raises(NonFiniteError, match="observation of environment 0 is NaN or infinite at step 10"):
            agent.learn(64)


def test_an_environment_that_crashes_by_itself_is_still_named() -> None:
    class Crashing(Rewarding):
        def step(self, action: Any) -> Any:
            raise ZeroDivisionError("by nothing")

    with pytest.raises(EnvError, match="by nothing"):
        pg.PPO(Crashing, **SMALL).learn(64)


def test_a2c_with_a_huge_learning_rate_has_diverged() -> None:
    agent = pg.A2C("Pendulum-v1", preset="none", seed=1, learning_rate=1e30, max_grad_norm=0.0)
    with pytest.raises(NonFiniteError, match="training has diverged; lower learning_rate"):
        agent.learn(16 * 5 * 32 * 4)
