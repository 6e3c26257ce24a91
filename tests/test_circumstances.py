"""What the last bits of a run depend on beside its settings: recorded, kept where that can be, told where it cannot."""

from __future__ import annotations

import json
import os
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import phasegrad as pg
from phasegrad.compute import circumstances
from phasegrad.errors import PhasegradWarning


class Pictures(gym.Env):
    """Random images, and a reward for the brighter half."""

    observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        self.image = self.np_random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        return self.image

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        right = int(self.image[:20].mean() > self.image[20:].mean())
        self.steps += 1
        return self._observe(), float(action == right), self.steps == 20, False, {}


def processors(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(count)))


def begin(run_dir: Path | None = None) -> Any:
    settings: dict[str, Any] = {
        "num_envs": 4,
        "num_steps": 16,
        "eval_episodes": 0,
        "seed": 5,
        "compile": "off",
        "num_minibatches": 1,
    }
    settings["encoder"] = "impala"  # ends with other bits on two threads than on one
    return pg.PPO(Pictures, **settings, **({"run_dir": run_dir, "checkpoint_every": 64} if run_dir else {}))


def told(agent: Any, steps: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent.learn(steps)
    found = [str(each.message) for each in caught if issubclass(each.category, PhasegradWarning)]
    return [sentence for sentence in found if "bit" in sentence]


def bits(agent: Any) -> torch.Tensor:
    return agent.flat.data.clone()


def test_a_run_with_convolutions_keeps_its_threads_and_its_bits_on_more_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processors(monkeypatch, 1)
    whole = begin()
    whole.learn(128)
    half = begin()
    half.learn(128, callback=lambda row: False)
    half.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "state.json").read_text())["computed"]["torch_threads"] == 1
    processors(monkeypatch, 2)
    resumed = pg.load(tmp_path / "saved", env=Pictures)
    threads: list[int] = []
    monkeypatch.setattr(
        torch, "set_num_threads", lambda count, real=torch.set_num_threads: real(count) or threads.append(count)
    )
    (sentence,) = told(resumed, 128)
    assert sentence == (
        "torch keeps the 1 thread that the run was begun with, so that its bits stay the same: torch_threads 2 would use "
        "this machine."
    )
    assert threads[0] == 1
    assert torch.equal(bits(resumed), bits(whole))
    for agent in (whole, half, resumed):
        agent.close()


def test_fewer_processors_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processors(monkeypatch, 2)
    agent = begin(tmp_path / "run")
    agent.learn(128, callback=lambda row: False)
    agent.close()
    processors(monkeypatch, 1)
    resumed = pg.load(tmp_path / "run", env=Pictures)
    (sentence,) = told(resumed, 128)
    assert sentence == (
        "The run continues with torch_threads 1 in place of 2, so it may not end bit for bit as it would have; "
        "torch_threads 2 would avoid that difference."
    )
    assert told(resumed, 192) == []  # once
    resumed.close()
    again = pg.load(tmp_path / "run", env=Pictures, torch_threads=2)
    assert "torch_threads 2 in place of 1" in told(again, 256)[0]
    again.close()


def test_the_same_machine_says_nothing(tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", num_envs=4, num_steps=8, eval_episodes=0)
    assert told(agent, 32) == []
    agent.save(tmp_path / "saved")
    agent.close()
    resumed = pg.load(tmp_path / "saved")
    assert told(resumed, 64) == []
    resumed.close()


def test_another_processor_compiler_or_device_is_told(tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", num_envs=4, num_steps=8, eval_episodes=0)
    agent.learn(32)
    agent.save(tmp_path / "saved")
    agent.close()
    file = tmp_path / "saved" / "state.json"
    state = json.loads(file.read_text())
    now = dict(state["computed"])
    assert set(now) == {"torch_threads", "device", "instructions", "processor"}
    state["computed"] |= {"instructions": "AVX1024", "processor": "Abacus\x1b[31m 3000", "odd": 3}
    file.write_text(json.dumps(state))
    resumed = pg.load(tmp_path / "saved")
    (sentence,) = told(resumed, 64)
    assert f"the instructions {now['instructions']} in place of AVX1024 and the processor" in sentence
    assert "in place of Abacus?[31m 3000, so it may not" in sentence
    resumed.close()


@pytest.mark.parametrize(
    "saved", [None, 3, [], {"torch_threads": 0}, {"torch_threads": True}, {"torch_threads": 2**70}, {"device": {}}]
)
def test_what_is_none_of_them_is_left_out(saved: Any) -> None:
    assert circumstances.from_json(saved) == {}
    assert circumstances.threads_to_keep({}) == 0


def test_all_packages_are_told_in_one_sentence(tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", num_envs=4, num_steps=8, eval_episodes=0)
    agent.save(tmp_path / "saved")
    agent.close()
    file = tmp_path / "saved" / "state.json"
    state = json.loads(file.read_text())
    state["versions"] |= {"torch": "1.0", "numpy": "0.9"}
    file.write_text(json.dumps(state))
    with pytest.warns(PhasegradWarning) as caught:
        pg.load(tmp_path / "saved")
    (sentence,) = [str(each.message) for each in caught]
    assert f"was written with torch 1.0, numpy 0.9 and is read with torch {metadata.version('torch')}" in sentence
