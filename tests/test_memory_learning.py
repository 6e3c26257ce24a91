"""Policies with a memory solve what none without one can: symbols of the past and cues to be kept, see memory_envs."""

from __future__ import annotations

from typing import Any

import pytest
from memory_envs import CueEnv, RecallEnv

from phasegrad.algorithms import ALGORITHMS

pytestmark = pytest.mark.learning

SEED = 1  # of every run; the settings were chosen on others
SMALL = {"hidden_sizes": (16,), "memory_size": 16}
BRIEF = {"num_envs": 32, "num_steps": 16, "num_minibatches": 4, "learning_rate": 1e-2, "anneal_learning_rate": True}
PPO = {**BRIEF, "epochs": 4}
PPG = {**BRIEF, "n_pi": 4, "e_pi": 4, "e_v": 4, "e_aux": 2, "aux_minibatches": 8, "aux_learning_rate": 3e-3}
QUICK: dict[str, dict[str, Any]] = {
    "ppo": PPO,
    "ppg": PPG,
    "a2c": {"num_envs": 8, "num_steps": 16, "learning_rate": 5e-3, "entropy_coef": 0.0},
    "vpg": {"num_envs": 8, "num_steps": 32, "learning_rate": 3e-2, "value_steps": 5},
    "trpo": {"num_envs": 32, "num_steps": 16, "max_kl": 0.1, "value_epochs": 1, "num_minibatches": 8},
}


@pytest.mark.parametrize(
    ("name", "memory"), [("ppo", "lstm"), ("ppg", "gru"), ("a2c", "gru"), ("vpg", "lstm"), ("trpo", "gru")]
)
def test_the_symbol_before_is_recalled(name: str, memory: str) -> None:
    agent = ALGORITHMS[name](RecallEnv, seed=SEED, gamma=0.5, memory=memory, **SMALL, **QUICK[name])
    agent.learn(12_288)
    assert agent.evaluate(64).return_mean >= 0.9 * RecallEnv().best


@pytest.mark.parametrize(("name", "memory"), [("ppo", "gru"), ("ppg", "lstm")])
def test_a_cue_is_kept_until_it_is_asked_for(name: str, memory: str) -> None:
    agent = ALGORITHMS[name](CueEnv, seed=SEED, gamma=0.95, memory=memory, **SMALL, **QUICK[name])
    agent.learn(12_288)
    assert agent.evaluate(64).return_mean >= 0.9 * CueEnv().best


def test_without_a_memory_the_same_training_stays_at_chance() -> None:
    recall = ALGORITHMS["ppo"](RecallEnv, seed=SEED, gamma=0.5, hidden_sizes=(16,), **PPO).learn(12_288)
    # 256 episodes of 15 guesses, each right in one of 3 cases: their mean is within 0.57 in all but 1 of 10^6 cases
    assert abs(recall.evaluate(256).return_mean - RecallEnv().chance) < 0.57
    cue = ALGORITHMS["ppo"](CueEnv, seed=SEED, gamma=0.95, hidden_sizes=(16,), **PPO).learn(12_288)
    assert abs(cue.evaluate(256).return_mean - CueEnv().chance) < 0.147  # 5 standard deviations of 256 guesses
