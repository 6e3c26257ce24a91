"""Exported policies: what onnxruntime computes from the file is what the agent computes, for every kind of policy."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from identity_envs import FACTORIES, IdentityEnv
from torch import nn

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import RunError
from phasegrad.export.onnx import export_onnx

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 16, "num_minibatches": 2, "epochs": 2, "seed": 2}


class Picture(gym.Env):
    """An image, channels last, and an action that counts from 3."""

    observation_space = spaces.Box(0, 255, (40, 48, 3), np.uint8)
    action_space = spaces.Discrete(4, start=3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert 3 <= action < 7
        return self.draw(), 1.0, bool(self.np_random.random() < 0.1), False, {}

    def draw(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (40, 48, 3), np.uint8)


def wide_box() -> gym.Env:
    """Actions of shape [2, 1] between -3 and 5, in double precision."""
    env = IdentityEnv(spaces.Box(-3.0, 5.0, (2, 1), np.float64))
    env.observation_space = spaces.Box(-3.0, 5.0, (2, 1), np.float64)
    return env


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "discrete": (FACTORIES["discrete"], {"normalize_reward": True}),
    "multi_discrete": (FACTORIES["multi_discrete"], {}),
    "multi_binary": (FACTORIES["multi_binary"], {}),
    "clipped": (wide_box, {"normalize_observation": True, "normalize_reward": True, "initial_std": 4.0}),
    "rescaled": (wide_box, {"action_bounds": "rescale", "std": "state_dependent", "mean_tanh": True}),
    "masked": (FACTORIES["masked"], {}),
    "dict": (FACTORIES["dict"], {"normalize_observation": True}),
    "image": (Picture, {}),
}


def rows_of(agent: Any, count: int, seed: int) -> dict[str, np.ndarray]:
    """Observations by input name, drawn here and not by the code under test."""
    random = np.random.default_rng(seed)

    def some(space: gym.Space) -> np.ndarray:
        if isinstance(space, spaces.Discrete):
            return random.integers(0, space.n, count)
        if isinstance(space, spaces.MultiDiscrete):
            return np.stack([random.integers(0, n, count) for n in space.nvec], 1)
        if isinstance(space, spaces.MultiBinary):
            return random.integers(0, 2, (count, *space.shape)).astype(space.dtype)
        if space.dtype == np.uint8:
            return random.integers(0, 256, (count, *space.shape), np.uint8)
        return random.normal(0, 2, (count, *space.shape)).astype(np.float32)

    parts = agent.agent.observation_space
    if isinstance(parts, spaces.Dict):
        return {name: some(space) for name, space in parts.items()}
    return {"observation": some(parts)}


def expected_log_prob(agent: Any, observation: Any, mask: np.ndarray | None) -> np.ndarray:
    """Of the most likely action, from the distribution's parameters by its textbook formula."""
    tensors = {k: torch.from_numpy(v) for k, v in observation.items()} if isinstance(observation, dict) else None
    batch = tensors if tensors is not None else torch.from_numpy(observation)
    with torch.no_grad():
        params = agent.model.policy(batch, None if mask is None else torch.from_numpy(mask)).double().numpy()
    space = agent.agent.action_space
    if isinstance(space, spaces.Box):
        return -params[:, params.shape[1] // 2 :].sum(1) - params.shape[1] / 4 * math.log(2 * math.pi)
    if isinstance(space, spaces.MultiBinary):
        return -np.log1p(np.exp(-np.abs(params))).sum(1)
    sizes = [space.n] if isinstance(space, spaces.Discrete) else list(space.nvec)
    parts = np.split(params, np.cumsum(sizes)[:-1], axis=1)
    return sum(part.max(1) - np.log(np.exp(part - part.max(1, keepdims=True)).sum(1)) - part.max(1) for part in parts)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_computes_what_the_agent_does(kind: str, tmp_path: Path) -> None:
    factory, fields = KINDS[kind]
    agent = pg.PPO(factory, **SMALL, **fields)
    agent.learn(128)  # so that normalisers and heads are not at their start
    report = export_onnx(agent, tmp_path / "policy.onnx", with_value=True, with_log_prob=True)
    assert report.real_observations == 128
    assert report.largest_difference <= 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]
    onnx.checker.check_model(str(report.path), full_check=True)
    session = onnxruntime.InferenceSession(str(report.path))
    for count in (1, 2, 37):
        feed = rows_of(agent, count, seed=count)
        observation = feed["observation"] if list(feed) == ["observation"] else feed
        mask = None
        if kind == "masked":
            mask = np.eye(6, dtype=bool)[np.arange(count) % 6] | (np.arange(6) == 2)
            feed["action_mask"] = mask
        action, log_prob, value = session.run(["action", "log_prob", "value"], feed)
        wanted, _ = agent.predict(observation, mask=mask)
        assert action.dtype == wanted.dtype
        assert action.shape == wanted.shape
        np.testing.assert_allclose(action, wanted, rtol=1e-5, atol=1e-5)
        scale = max(1.0, agent.agent.reward_normalizer.std)
        np.testing.assert_allclose(value, agent.value(observation), rtol=1e-5, atol=1e-5 * scale)
        np.testing.assert_allclose(log_prob, expected_log_prob(agent, observation, mask), rtol=1e-5, atol=1e-5)
        for row in action:
            assert agent.agent.spaces.original_action.contains(row if row.shape else row.item())
        if mask is not None:
            assert mask[np.arange(count), action].all()


def test_a_sampling_file_takes_its_noise_as_an_input(tmp_path: Path) -> None:
    agent = pg.PPO(FACTORIES["discrete"], **SMALL)
    export_onnx(agent, tmp_path / "p.onnx", deterministic=False)
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    count = 4000
    noise = ((np.arange(count) + 0.5) / count).astype(np.float32)[:, None]
    observation = np.zeros(count, np.int64)
    (action,) = session.run(None, {"observation": observation, "noise": noise})
    with torch.no_grad():
        probabilities = agent.model.policy(torch.from_numpy(observation[:1])).softmax(-1).numpy()[0]
    np.testing.assert_allclose(np.bincount(action, minlength=4) / count, probabilities, atol=2 / count)


def test_the_file_says_where_it_came_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    size = ["--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--epochs", "1"]
    train = ["train", "ppo", "--env", "CartPole-v1", "--total-steps", "64", "--run-dir", str(run), "--quiet", *size]
    assert main([*train, "--checkpoint-every", "32"]) == 0
    assert main(["export", str(run), "--onnx", str(tmp_path / "p.onnx"), "--checkpoint", "32"]) == 0
    printed = capsys.readouterr()
    assert "agrees with predict on 256 random and 128 real observations" in printed.out
    assert printed.out.count("\n") == 1
    assert "orch" not in printed.err
    found = {entry.key: entry.value for entry in onnx.load(str(tmp_path / "p.onnx")).metadata_props}
    state = json.loads((run / "checkpoints" / "step-000000000032" / "state.json").read_text())
    assert found["phasegrad.checkpoint_sha256"] == state["sha256"]
    assert found["phasegrad.version"] == pg.__version__
    assert (found["phasegrad.algorithm"], found["phasegrad.env"], found["phasegrad.step"]) == (
        "ppo",
        "CartPole-v1",
        "32",
    )
    assert json.loads(found["phasegrad.config"])["num_steps"] == 16


def test_a_file_that_disagrees_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = pg.PPO(FACTORIES["box"], **SMALL)
    right = agent.agent.predict
    monkeypatch.setattr(agent.agent, "predict", lambda *a, **k: (right(*a, **k)[0] + 1e-4, None))
    with pytest.raises(RunError, match=r"disagrees with predict by 1\.0e-04"):
        export_onnx(agent, tmp_path / "p.onnx")
    assert not list(tmp_path.iterdir())


def test_an_encoder_that_cannot_be_traced_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Numbers(nn.Module):
        features = 4

        def __init__(self, space: gym.Space) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.layer(observation) if observation.sum() > 3 else self.layer(-observation)

    agent = pg.PPO("CartPole-v1", encoder=Numbers, **SMALL, compile="off")
    with pytest.raises(RunError, match=r"^The network cannot be exported: [^\n]+$"):
        export_onnx(agent, tmp_path / "p.onnx")
    assert capsys.readouterr().out == ""


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    agent.save(tmp_path / "agent")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", str(tmp_path / "agent"), "--onnx", str(tmp_path / "p.onnx")]) == 2
    assert 'pip install "phasegrad[onnx]"' in capsys.readouterr().err
