"""Networks and crowds of environments that cannot fit: refused in one sentence, before they are made."""

from __future__ import annotations

import mmap
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import phasegrad as pg
from phasegrad.algorithms import crowds
from phasegrad.errors import ConfigError
from phasegrad.machine import memory
from phasegrad.machine.memory import resident_bytes
from phasegrad.models import room

GIB = 1 << 30
SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "eval_episodes": 0, "compile": "off", "preset": "none"}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with 4 GiB to give."""
    for module in (memory, crowds):
        monkeypatch.setattr(module, "available_bytes", lambda: 4 * GIB)
    return monkeypatch


class Heavy(gym.Env):
    """An environment of a megabyte."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.world = mmap.mmap(-1, 1 << 20)  # from the system: a heap may have room of what was freed before
        self.world.write(bytes([1]) * (1 << 20))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, True, False, {}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("hidden_sizes", {"hidden_sizes": (100_000_000,)}),
        ("hidden_sizes", {"hidden_sizes": (64, 1_000_000, 1_000_000)}),
        ("value_hidden_sizes", {"value_hidden_sizes": (100_000_000,)}),
        ("memory_size", {"memory": "lstm", "memory_size": 65_536, "num_minibatches": 2}),
    ],
)
@pytest.mark.parametrize("algorithm", ["PPO", "PPG", "ACER"])
def test_a_network_that_cannot_fit_is_not_made(
    algorithm: str, name: str, settings: dict[str, Any], free: pytest.MonkeyPatch
) -> None:
    if algorithm == "ACER" and name != "hidden_sizes":
        pytest.skip("ACER has one trunk and no memory")
    before = resident_bytes()
    with pytest.raises(ConfigError, match=rf"only 4\.00 GiB are free \(.*\): make {name} smaller\.$"):
        getattr(pg, algorithm)("CartPole-v1", **SMALL, **settings)
    assert before is not None
    assert (resident_bytes() or 0) - before < 300 << 20


def test_looking_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    def weights() -> torch.Tensor:
        torch.manual_seed(3)
        agent = pg.PPO(
            "CartPole-v1", **SMALL, hidden_sizes=(32, 32), memory="gru", memory_size=16, num_minibatches=2, seed=5
        )
        return torch.cat([agent.learn(32).flat.data, torch.rand(3)])

    before = weights()
    monkeypatch.setattr(room, "WIDE", 1)
    looked: list[int] = []
    monkeypatch.setattr(room, "require_room", lambda needed, remedy: looked.append(sum(needed.values())))
    assert torch.equal(weights(), before)
    agent = pg.PPO("CartPole-v1", **SMALL, hidden_sizes=(32, 32))
    named = [tensor.nbytes for name, tensor in agent.tensors().items() if name.startswith("model.")]
    assert looked[-1] == 3 * sum(named)


def test_more_environments_than_fit_are_not_made(free: pytest.MonkeyPatch) -> None:
    Heavy.made = 0
    with pytest.raises(
        ConfigError, match=r"environments need .* GiB\): make num_envs or num_steps smaller\.$"
    ) as caught:
        pg.PPO(Heavy, **SMALL | {"num_envs": 100_000})
    assert Heavy.made < 200
    needed = float(str(caught.value).split("environments need ")[1].split(" GiB")[0])
    assert 90 < needed < 130  # a hundred thousand megabytes


@pytest.mark.parametrize(
    "settings", [{"num_envs": 1_000_000, "num_steps": 1_000_000}, {"num_envs": 100_000, "vectorization": "async"}]
)
def test_where_numbers_alone_say_so_none_is_made(settings: dict[str, Any], free: pytest.MonkeyPatch) -> None:
    Heavy.made = 0
    with pytest.raises(ConfigError, match="make num_envs or num_steps smaller"):
        pg.A2C(Heavy, **SMALL | settings)
    assert Heavy.made == 0


def test_many_that_fit_are_made(free: pytest.MonkeyPatch) -> None:
    agent = pg.PPO("CartPole-v1", **SMALL | {"num_envs": 8192})
    assert agent.learn(8192 * 8).progress.step == 8192 * 8
