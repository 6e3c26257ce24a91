"""Training to a score: identity environments for every action space, then known tasks with their presets.

Each case is a test of its own, so that `pytest -n 2` shares them out.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from identity_envs import EPISODE, FACTORIES

import phasegrad as pg

pytestmark = pytest.mark.learning


@pytest.mark.parametrize(
    ("name", "arch"), [*((name, "dual") for name in FACTORIES), ("discrete", "shared"), ("box", "shared")]
)
def test_identity_is_learnt(name: str, arch: str) -> None:
    agent = pg.PPO(
        FACTORIES[name], seed=1, arch=arch, num_envs=8, num_steps=32, epochs=4, num_minibatches=4, gamma=0.5,
        learning_rate=5e-3, anneal_learning_rate=True, initial_std=0.5,
    )  # fmt: skip
    untrained = agent.evaluate(16).return_mean
    agent.learn(10_240)
    trained = agent.evaluate(16)
    assert untrained < 0.8 * EPISODE, "the task must need learning"
    assert trained.return_mean >= 0.95 * EPISODE
    assert trained.lengths == [EPISODE] * 16


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cartpole_is_solved_within_100k_steps(seed: int) -> None:
    agent = pg.PPO("CartPole-v1", seed=seed).learn(100_000)
    assert agent.progress.step == 100_000
    assert agent.evaluate(20, deterministic=True).return_mean >= 475


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_inverted_pendulum_is_solved_within_100k_steps(seed: int) -> None:
    agent = pg.PPO("InvertedPendulum-v5", seed=seed).learn(100_000)
    assert agent.progress.step == 100_000
    assert agent.evaluate(20, deterministic=True).return_mean >= 950


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ppg_solves_cartpole_within_100k_steps(seed: int) -> None:
    agent = pg.PPG("CartPole-v1", seed=seed).learn(100_000)
    assert agent.progress.step == 100_000
    assert agent.evaluate(20, deterministic=True).return_mean >= 475


def test_ppg_swings_up_the_pendulum_within_100k_steps() -> None:
    agent = pg.PPG("Pendulum-v1", seed=1).learn(100_000)
    assert agent.evaluate(20, deterministic=True).return_mean >= -250  # a random policy gets about -1,200


@pytest.mark.parametrize("seed", [1, 3])
def test_a_short_run_with_long_episodes_learns_with_default_checkpoints(seed: int, tmp_path: Path) -> None:
    """Episodes of 999 steps in a run of 2,560 for each environment: checkpoints used to begin them all anew."""
    agent = pg.PPO("MountainCarContinuous-v0", seed=seed, run_dir=tmp_path / "run").learn(40_960)
    assert agent.progress.episodes >= 2 * agent.config.num_envs
    assert agent.evaluate(20, deterministic=True).return_mean >= 90
