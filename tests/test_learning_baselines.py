"""The baselines trained to a score on known tasks, with their presets."""

from __future__ import annotations

import itertools

import pytest
from identity_envs import EPISODE, FACTORIES

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS

pytestmark = pytest.mark.learning

QUICK = {
    "a2c": {"learning_rate": 5e-3, "entropy_coef": 0.0},
    "vpg": {"num_steps": 32, "learning_rate": 3e-2, "value_steps": 5},
    "trpo": {"num_steps": 32, "max_kl": 0.1, "value_epochs": 1},
}


@pytest.mark.parametrize(
    ("name", "space"),
    [*itertools.product(QUICK, ["multi_discrete", "multi_binary", "masked"]), ("a2c", "box"), ("trpo", "box")],
)
def test_identity_is_learnt(name: str, space: str) -> None:
    agent = ALGORITHMS[name](FACTORIES[space], seed=1, num_envs=8, gamma=0.5, initial_std=0.5, **QUICK[name])
    untrained = agent.evaluate(16).return_mean
    agent.learn(16_384)
    assert untrained < 0.8 * EPISODE, "the task must need learning"
    assert agent.evaluate(16).return_mean >= 0.9 * EPISODE


@pytest.mark.parametrize(("name", "steps"), [("a2c", 200_000), ("vpg", 120_000), ("trpo", 100_000)])
def test_cartpole_is_solved(name: str, steps: int) -> None:
    agent = ALGORITHMS[name]("CartPole-v1", seed=1).learn(steps)
    assert agent.progress.step == steps
    assert agent.evaluate(20, deterministic=True).return_mean >= 450


def test_trpo_swings_up_the_pendulum() -> None:
    agent = pg.TRPO("Pendulum-v1", seed=1).learn(100_000)
    assert agent.evaluate(20, deterministic=True).return_mean >= -500  # a random policy gets about -1,200


def test_a2c_runs_with_the_half_cheetah() -> None:
    agent = pg.A2C("HalfCheetah-v5", seed=1).learn(100_000)
    returns = list(agent.progress.recent_returns)  # all of them: 96 or so episodes of 1,000 steps, oldest first
    assert sum(returns[:8]) / 8 < -100, "the task must need learning"  # a random policy gets about -280
    assert sum(returns[-8:]) / 8 >= 0
