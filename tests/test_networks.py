"""Widths, activations and LayerNorm of the MLPs: what is built, how it starts, and that every way of computing agrees."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.config import ACTIVATIONS as NAMES
from phasegrad.errors import ConfigError
from phasegrad.models.encoders import ACTIVATIONS, MLP

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 2, "num_steps": 16, "hidden_sizes": (8, 6), "seed": 3, "eval_episodes": 0, "compile": "off",
}  # fmt: skip


def widths(encoder: nn.Module) -> list[int]:
    return [layer.out_features for layer in encoder.modules() if isinstance(layer, nn.Linear)]


def test_every_choice_has_a_layer_and_a_gain() -> None:
    assert set(NAMES) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_layer_puts_out_starts_as_large_as_what_it_takes_in(name: str) -> None:
    torch.manual_seed(0)
    make, gain = ACTIVATIONS[name]
    z = torch.randn(1 << 20, dtype=torch.float64)
    wanted = math.sqrt(2) if name == "tanh" else float(make()(z).square().mean() ** -0.5)
    assert gain == pytest.approx(wanted, rel=5e-3)
    mlp = MLP(64, (64,), name)
    layer = mlp.layers[0]
    assert isinstance(layer, nn.Linear)
    torch.testing.assert_close(layer.weight @ layer.weight.T, gain**2 * torch.eye(64), rtol=1e-4, atol=1e-4)


def test_layer_norm_comes_before_each_activation() -> None:
    kinds = [type(layer).__name__ for layer in MLP(3, (4, 5), "silu", True).layers]
    assert kinds == ["Linear", "LayerNorm", "SiLU"] * 2
    agent = pg.PPO("CartPole-v1", layer_norm=True, arch="dual", **SMALL)
    for encoder in (agent.model.policy_encoder, agent.model.value_encoder):
        assert [type(layer).__name__ for layer in encoder.mlp.layers][1::3] == ["LayerNorm"] * 2
    off = pg.PPO("CartPole-v1", **SMALL)
    assert not any(isinstance(module, nn.LayerNorm) for module in off.model.modules())


@pytest.mark.parametrize("algorithm", ["ppo", "ppg", "a2c", "vpg", "trpo", "acer"])
def test_the_value_network_may_have_widths_of_its_own(algorithm: str) -> None:
    fields: dict[str, Any] = {"num_minibatches": 2} if algorithm in ("ppo", "ppg", "trpo") else {}
    agent = ALGORITHMS[algorithm]("CartPole-v1", arch="dual", value_hidden_sizes="12,10,4", **SMALL, **fields).learn(64)
    assert widths(agent.model.policy_encoder) == [8, 6]
    assert widths(agent.model.value_encoder) == [12, 10, 4]
    assert widths(ALGORITHMS[algorithm]("CartPole-v1", arch="dual", **SMALL, **fields).model.value_encoder) == [8, 6]


@pytest.mark.parametrize(("algorithm", "arch"), [("ppo", "shared"), ("ppg", "detach"), ("acer", "shared")])
def test_one_network_has_one_set_of_widths(algorithm: str, arch: str) -> None:
    with pytest.raises(
        ConfigError, match="value_hidden_sizes needs a value network of its own: set arch dual or leave"
    ):
        ALGORITHMS[algorithm]("CartPole-v1", arch=arch, value_hidden_sizes=(4,), preset="none")

    class Picture(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
        action_space = gym.spaces.Discrete(2)

        def reset(self, **_: Any) -> Any:
            return np.zeros((8, 8, 3), np.uint8), {}

    with pytest.raises(
        ConfigError, match="value_hidden_sizes needs a value network of its own"
    ):  # which auto gives no image
        pg.PPO(Picture, value_hidden_sizes=(4,), preset="none")


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(
        ConfigError, match=r"activation must be one of tanh, relu, elu, gelu, silu, leaky_relu, not 'sillu'"
    ):
        pg.PPO("CartPole-v1", activation="sillu")
    with pytest.raises(ConfigError, match="value_hidden_sizes must be at least 1"):
        pg.PPO("CartPole-v1", arch="dual", value_hidden_sizes=(0,))
    with pytest.raises(ConfigError, match="critic_only must be text, not 3"):
        pg.PPO("CartPole-v1", arch="dual", critic_only=(3,))


@pytest.mark.parametrize("fields", [{"activation": name} for name in NAMES] + [{"layer_norm": True}])
def test_traced_runs_have_the_bits_of_plain_ones(fields: dict[str, Any]) -> None:
    settings = {**SMALL, "num_minibatches": 2, "epochs": 2, "arch": "dual", "value_hidden_sizes": (5,), **fields}
    plain, traced = (pg.PPO("CartPole-v1", **{**settings, "compile": how}).learn(128) for how in ("off", "replay"))
    assert traced.config.compile == "replay"
    assert torch.equal(plain.flat.data, traced.flat.data)
