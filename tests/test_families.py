"""Each family of environments trains for a few iterations with the settings of its preset, made small."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
import torch
from machine import environments, needs_procgen

import phasegrad as pg

TINY: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "eval_episodes": 0}
FAMILIES: dict[str, dict[str, Any]] = {
    "Breakout-v5": {},
    "procgen/coinrun": {"env_options": {"distribution": "easy"}},
    "procgen/CoinRun": {"env_options": {"distribution": "hard", "num_levels": 500, "start_level": 10}},
    "MiniGrid-DoorKey-5x5-v0": {},
    "LunarLander-v3": {},
    "HalfCheetah-v4": {},
    "Acrobot-v1": {},
    "gymnasium_only": {},
}


def gymnasium_only() -> gym.Env:
    return gym.make("Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3")


@pytest.mark.parametrize("env", environments(FAMILIES))
def test_ppo_trains(env: str) -> None:
    source = gymnasium_only if env == "gymnasium_only" else env
    agent = pg.PPO(source, seed=1, epochs=2, **TINY, **FAMILIES[env])
    before = {name: tensor.clone() for name, tensor in agent.model.named_parameters()}
    rows: list[dict[str, Any]] = []
    agent.learn(96, callback=rows.append)
    assert [row["step"] for row in rows] == [32, 64, 96]
    assert torch.isfinite(agent.flat.data).all()
    for name, tensor in agent.model.named_parameters():
        assert not torch.equal(tensor, before[name]), name


@pytest.mark.parametrize(
    "env", environments(["Breakout-v5", "procgen/coinrun", "MiniGrid-DoorKey-5x5-v0", "gymnasium_only"])
)
@pytest.mark.parametrize("arch", ["dual", "detach"])
def test_ppg_trains(env: str, arch: str) -> None:
    source = gymnasium_only if env == "gymnasium_only" else env
    agent = pg.PPG(source, seed=1, arch=arch, n_pi=2, e_aux=1, aux_minibatches=2, **TINY, **FAMILIES[env])
    rows: list[dict[str, Any]] = []
    agent.learn(96, callback=rows.append)
    assert ["aux_clone_kl" in row for row in rows] == [False, True, True]
    assert torch.isfinite(agent.flat.data).all()


@needs_procgen
def test_procgen_frames_are_stored_once_as_bytes() -> None:
    agent = pg.PPG("procgen/coinrun", n_pi=3, aux_minibatches=2, **TINY)
    whole = agent.experience.storage().whole
    assert whole.observations.dtype == torch.uint8
    assert whole.observations.shape == (3, 8, 4, 64, 64, 3)
    assert agent.experience.storage().rollouts[1].observations.data_ptr() == whole.observations[1].data_ptr()


@needs_procgen
def test_procgen_evaluates_on_train_and_test_levels() -> None:
    options = {"distribution": "easy", "num_levels": 1, "start_level": 3}
    network: dict[str, Any] = {"impala_stem": 4, "impala_stem_stride": 4, "impala_channels": (4,)}
    agent = pg.PPO("procgen/coinrun", seed=1, env_options=options, **TINY, **network)
    agent.learn(32)
    for levels in ("train", "test"):
        assert len(agent.evaluate(2, levels=levels, deterministic=False).returns) == 2
    with pytest.raises(pg.ConfigError, match="levels test needs a Procgen environment"):
        pg.PPO("CartPole-v1", **TINY).evaluate(1, levels="test")


def test_the_faithful_preset_is_the_published_one() -> None:
    """The settings of the published Procgen experiments, written out here a second time."""
    from phasegrad.algorithms.ppg import PPGConfig
    from phasegrad.presets import resolve_config

    config = resolve_config(PPGConfig, {"env": "procgen/coinrun", "preset": "procgen-paper"})
    wanted = {
        "total_steps": 100_000_000, "num_envs": 256, "num_steps": 256, "gamma": 0.999, "gae_lambda": 0.95,
        "learning_rate": 5e-4, "aux_learning_rate": 5e-4, "clip_range": 0.2, "entropy_coef": 0.01, "n_pi": 32, "e_pi": 1,
        "e_v": 1, "e_aux": 6, "beta_clone": 1.0, "aux_minibatches": 0, "num_minibatches": 8, "whole_segments": True,
        "arch": "dual", "encoder": "impala", "impala_channels": (16, 32, 32), "impala_stem": 0, "max_grad_norm": 0.0,
        "normalize_reward": True, "clip_reward": 10.0, "bootstrap_truncated": False, "normalize_advantage": "batch",
        "objective": "clip", "hold_value": False, "policy_gae_lambda": None, "aux_interval": 0, "aux_buffer": 0,
        "impala_pooling": "flatten", "aux_steps": 0, "value_clip": 0.0, "anneal_learning_rate": False,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert config.env_options == {"distribution": "hard"}
