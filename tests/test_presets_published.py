"""Presets that reproduce a publication, against the numbers that it states."""

from __future__ import annotations

import pytest

from phasegrad.algorithms.ppg import PPGConfig
from phasegrad.algorithms.ppo import PPOConfig
from phasegrad.presets import PRESETS, resolve_config


@pytest.mark.parametrize("preset", [name for name in PRESETS if name.startswith("procgen")] + ["atari"])
@pytest.mark.parametrize("config_class", [PPOConfig, PPGConfig])
def test_the_value_loss_counts_once(preset: str, config_class: type) -> None:
    """Both papers' code minimises 1/2 (V - V_targ)^2, which is the loss that `value_coef` weighs."""
    env = "Pong-v5" if preset == "atari" else "procgen/coinrun"
    config = resolve_config(config_class, {"env": env, "preset": preset})
    assert (config.value_coef, config.entropy_coef) == (1.0, 0.01)
