"""The presets of the families that envpool brings beside Gym's: which id takes which, and that each trains."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
import torch
from machine import environments

import phasegrad as pg
from phasegrad import envs
from phasegrad.algorithms.ppo import PPOConfig
from phasegrad.presets import BY_FAMILY, PRESETS, preset_for, resolve_config
from phasegrad.presets.simulators import SIMULATORS

EXAMPLES = {
    "WalkerWalk-v1": "dmc",
    "MetaWorld/Reach-v3": "metaworld",
    "MyoSuite/myoFingerReachFixed-v0": "myosuite",
    "PandaPickCube-v1": "playground",
    "FetchReachDense-v4": "robotics",
    "HighwayFast-v0": "highway",
    "Game2048-v1": "jumanji",
    "DefendTheCenter-v1": "vizdoom",
}
WITHOUT = ("FrozenLake-v1", "Catch-v0", "Play2048-v1", "gfootball/academy_empty_goal-v1")


@pytest.mark.parametrize("env", environments(EXAMPLES))
def test_an_id_takes_the_preset_of_its_family(env: str) -> None:
    assert preset_for(env) == EXAMPLES[env]
    assert resolve_config(PPOConfig, {"env": env}).preset == EXAMPLES[env]
    assert resolve_config(PPOConfig, {"env": env, "preset": "none"}).num_minibatches == PPOConfig().num_minibatches


def test_every_id_of_a_family_takes_its_preset() -> None:
    listed = envs.list_envs()
    for family, preset in BY_FAMILY.items():
        if preset in SIMULATORS:
            for env in listed.get(family, [])[::7]:
                assert preset_for(env) == preset, env


def test_each_of_them_has_an_example_here() -> None:
    assert set(EXAMPLES.values()) == set(SIMULATORS)
    assert set(SIMULATORS) <= set(PRESETS)


@pytest.mark.parametrize("env", environments(WITHOUT))
def test_families_without_a_preset_keep_the_plain_settings(env: str) -> None:
    assert preset_for(env) == "none"
    config, plain = resolve_config(PPOConfig, {"env": env}), PPOConfig(env=env, preset="none")
    assert config == plain


@pytest.mark.parametrize("env", environments(EXAMPLES))
def test_the_speed_of_an_environment_is_not_decided_by_its_preset(env: str) -> None:
    """Restarts go by `EnvSpec.family`: a run with `--preset none` keeps its bits."""
    assert envs.resolve(env).family == "other"


@pytest.mark.parametrize("env", environments(EXAMPLES))
def test_a_few_steps_with_the_preset(env: str) -> None:
    small: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "epochs": 1, "eval_episodes": 0}
    agent = pg.PPO(env, seed=1, **small)
    before = {name: tensor.clone() for name, tensor in agent.model.named_parameters()}
    agent.learn(96)
    assert (agent.config.preset, agent.progress.step) == (EXAMPLES[env], 96)
    assert torch.isfinite(agent.flat.data).all()
    assert not any(torch.equal(tensor, before[name]) for name, tensor in agent.model.named_parameters())


@pytest.mark.parametrize(
    ("env", "preset"),
    [
        ("gymnasium:CartPole-v1", "cartpole"),
        ("gymnasium:Pendulum-v1", "pendulum"),
        ("gymnasium:MountainCar-v0", "classic"),
        ("gymnasium:Reacher-v5", "reacher"),
    ],
)
def test_the_name_of_a_module_before_an_id_changes_no_preset(env: str, preset: str) -> None:
    assert preset_for(env) == preset == preset_for(env.removeprefix("gymnasium:"))


def test_an_id_of_ones_own_takes_no_preset_for_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    own = gym.envs.registration.EnvSpec("Reacher-v77", entry_point="json:JSONDecoder")
    monkeypatch.setitem(gym.registry, "Reacher-v77", own)
    assert preset_for("json:Reacher-v77") == "none"


def test_a_familys_name_leads_to_its_preset() -> None:
    with pytest.raises(pg.ConfigError, match=r"Unknown preset 'dm_control': .* use 'dmc'\.$"):
        pg.PPO("CartPole-v1", preset="dm_control")
