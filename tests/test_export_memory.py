"""Exported policies with a memory: the state goes in and out, and over whole episodes the file does what `predict` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from identity_envs import FACTORIES, DictIdentityEnv
from test_export import Picture, wide_box

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import RunError
from phasegrad.export.onnx import Export, ExportedPolicy, export_onnx
from phasegrad.export.parity import Samples, Sequel, play_episodes
from phasegrad.tree import tree_map

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SMALL: dict[str, Any] = {
    "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "epochs": 1, "seed": 2, "memory": "lstm", "memory_size": 5,
    "hidden_sizes": (8,), "policy_gain": 1.0, "eval_episodes": 0, "compile": "off",
}  # fmt: skip
KINDS: dict[str, tuple[Any, dict[str, Any], int]] = {  # and how many numbers it remembers
    "discrete": (FACTORIES["discrete"], {"arch": "dual", "normalize_reward": True}, 20),
    "clipped": (wide_box, {"memory": "gru", "arch": "shared", "normalize_observation": True, "initial_std": 4.0}, 5),
    "masked": (FACTORIES["masked"], {"memory": "gru", "arch": "dual"}, 10),
    "dict": (FACTORIES["dict"], {"arch": "shared", "normalize_observation": True}, 10),
    "image": (Picture, {"encoder": "nature"}, 10),
}


def played(agent: Any, steps: int) -> list[tuple[Any, np.ndarray | None, np.ndarray]]:
    """Flat observations, masks and starts of episodes in environments stepped here, with actions of no policy."""
    env = agent.experience.make()
    try:
        random, found = np.random.default_rng(5), []
        env.action_space.seed(5)
        observation, mask = env.reset()
        starts = np.ones(env.num_envs, bool)
        for _ in range(steps):
            found.append((observation, mask, starts))
            if mask is None:
                actions = np.stack([np.asarray(env.action_space.sample()) for _ in range(env.num_envs)])
            else:
                actions = np.array([random.choice(np.flatnonzero(row)) for row in mask])
            step = env.step(actions)
            observation, mask, starts = step.observation, step.action_mask, step.terminated | step.truncated
        return found
    finally:
        env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_over_episodes_the_file_does_what_the_agent_does(kind: str, tmp_path: Path) -> None:
    factory, fields, size = KINDS[kind]
    agent = pg.PPO(factory, **{**SMALL, **fields})
    agent.learn(128)
    report = export_onnx(agent, tmp_path / "policy.onnx", with_value=True, with_log_prob=True)
    assert report.largest_difference <= 1e-5
    assert report.sequel is not None
    assert report.sequel.episodes == 4
    assert report.sequel.drift <= 1e-5
    assert report.real_observations == report.sequel.observations >= 8
    assert ("state", "float", f"[batch, {size}]") in report.inputs
    assert report.outputs[-1] == ("next_state", "float", f"[batch, {size}]")
    onnx.checker.check_model(str(report.path), full_check=True)
    session = onnxruntime.InferenceSession(str(report.path))
    own = theirs = np.zeros((4, size), np.float32)
    memory_mattered = False
    for flat, mask, starts in played(agent, 45):  # more than two episodes of most kinds
        observation = agent.agent.observing.restore(flat)
        feed = dict(observation) if isinstance(observation, dict) else {"observation": observation}
        feed = {name: entry.astype(np.float32) if entry.dtype == np.float64 else entry for name, entry in feed.items()}
        own[starts] = 0.0
        feed |= {"state": own} | ({} if mask is None else {"action_mask": mask})
        action, log_prob, value, own = session.run(["action", "log_prob", "value", "next_state"], feed)
        wanted, after = agent.predict(observation, theirs, starts, mask)
        assert (action.dtype, action.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(action, wanted, rtol=1e-5, atol=1e-5)
        scale = max(1.0, agent.agent.reward_normalizer.std)
        np.testing.assert_allclose(value, agent.value(observation, theirs, starts), rtol=1e-5, atol=1e-5 * scale)
        np.testing.assert_allclose(own, after, rtol=1e-5, atol=1e-5)
        params, wanted_log_prob = of_the_likeliest(agent, flat, mask, np.where(starts[:, None], 0.0, theirs))
        np.testing.assert_allclose(log_prob, wanted_log_prob, rtol=1e-5, atol=1e-5)
        memory_mattered |= bool((of_the_likeliest(agent, flat, mask, 0.0 * theirs)[0] != params).any())
        theirs = after
    assert memory_mattered


def of_the_likeliest(agent: Any, flat: Any, mask: Any, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parameters of the policy, and the log-probability of its most likely action."""
    flat = tree_map(torch.from_numpy, flat)
    allowed = None if mask is None else torch.from_numpy(mask)
    with torch.no_grad():
        params = agent.model.step(flat, allowed, torch.from_numpy(states.astype(np.float32)))[0]
        return params.numpy(), agent.agent.distribution.log_prob(params, agent.agent.distribution.mode(params)).numpy()


def test_a_sampling_file_with_a_memory(tmp_path: Path) -> None:
    agent = pg.PPO(FACTORIES["discrete"], **SMALL)
    sequel = export_onnx(agent, tmp_path / "p.onnx", deterministic=False).sequel
    assert sequel is not None
    assert (sequel.episodes, sequel.observations) == (4, 80)
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    count = 4000
    noise = ((np.arange(count) + 0.5) / count).astype(np.float32)[:, None]
    observation = np.zeros(count, np.int64)
    for filling in (0.0, 0.7):
        state = np.full((count, agent.model.state_size), filling, np.float32)
        action, after = session.run(None, {"observation": observation, "noise": noise, "state": state})
        np.testing.assert_allclose(after, agent.predict(observation, state)[1], rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            params, _, _ = agent.model.step(torch.from_numpy(observation[:1]), None, torch.from_numpy(state[:1]))
        probabilities = params.softmax(-1).numpy()[0]
        np.testing.assert_allclose(np.bincount(action, minlength=4) / count, probabilities, atol=2 / count)


def test_a_file_whose_state_disagrees_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = pg.PPO(FACTORIES["box"], **SMALL)
    right = agent.agent.predict

    def wrong(*args: Any, **named: Any) -> tuple[np.ndarray, Any]:
        action, state = right(*args, **named)
        return action, state + np.float32(1e-4)

    monkeypatch.setattr(agent.agent, "predict", wrong)
    with pytest.raises(RunError, match=r"disagrees with predict by 1\.0e-04"):
        export_onnx(agent, tmp_path / "p.onnx")
    assert not list(tmp_path.iterdir())


def test_what_only_a_whole_episode_shows_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = pg.PPO(FACTORIES["discrete"], **SMALL)
    memory = agent.model.policy_memory
    assert memory is not None
    with torch.no_grad():
        memory.bias[:15] = 20.0  # all gates but the last open: the cell counts the steps, to 20 in an episode
    right = ExportedPolicy.forward

    def forgetful(policy: ExportedPolicy, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return right(policy, inputs[0], inputs[1].clamp(-15.0, 15.0))  # random states are far smaller

    monkeypatch.setattr(ExportedPolicy, "forward", forgetful)
    with monkeypatch.context() as shorter:
        shorter.setattr("phasegrad.export.parity.EPISODE_STEPS", 10)
        sequel = export_onnx(agent, tmp_path / "p.onnx").sequel
    assert sequel is not None
    assert (sequel.episodes, sequel.observations) == (0, 40)
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))

    def run(batch: Samples) -> dict[str, np.ndarray]:
        outputs = session.run(None, {"observation": batch.observation, "state": batch.held()})
        return dict(zip(("action", "next_state"), outputs, strict=True))

    with pytest.raises(RunError, match="disagrees with predict"):
        play_episodes(agent.agent, run, True)


def test_a_memory_that_magnifies_rounding_errors_is_exported_and_this_is_said(tmp_path: Path) -> None:
    agent = pg.PPO("Pendulum-v1", **{**SMALL, "memory_size": 32, "arch": "shared"})
    memory = agent.model.policy_memory
    assert memory is not None
    with torch.no_grad():
        memory.hidden_weights *= 8.0
    report = export_onnx(agent, tmp_path / "p.onnx")
    assert report.largest_difference <= 1e-5
    assert report.sequel is not None
    assert report.sequel.drift > 1e-3
    assert report.describe().endswith(", as this memory magnifies rounding errors")


class Named(DictIdentityEnv):
    """A Dict whose entries have the names that a file may have for something else."""

    names: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        others = {name: spaces.Box(-1, 1, (2,)) for name in self.names}
        self.observation_space = spaces.Dict({"part": spaces.Discrete(3), "half": spaces.Box(-1, 1, (1,)), **others})


@pytest.mark.parametrize(
    ("name", "memory", "how", "kind"),
    [
        ("state", "lstm", {}, "input"),
        ("next_state", "gru", {}, "output"),
        ("noise", "none", {"deterministic": False}, "input"),
        ("action", "none", {}, "output"),
        ("value", "lstm", {"with_value": True}, "output"),
        ("log_prob", "none", {"with_log_prob": True}, "output"),
    ],
)
def test_an_entry_with_the_name_of_something_else_is_refused(
    name: str, memory: str, how: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    factory = type("Named", (Named,), {"names": (name,)})
    agent = pg.PPO(factory, **{**SMALL, "memory": memory})
    with pytest.raises(RunError) as caught:
        export_onnx(agent, tmp_path / "p.onnx", **how)
    assert str(caught.value) == (
        f"The observation has an entry {name!r}, which is the name of another {kind} of the file: rename the entry."
    )
    assert not list(tmp_path.iterdir())


def test_names_that_the_file_does_not_use_are_free() -> None:
    factory = type("Named", (Named,), {"names": ("state", "next_state", "noise", "value")})
    agent = pg.PPO(factory, **{**SMALL, "memory": "none"})
    policy = ExportedPolicy(agent.agent, with_value=False, with_log_prob=True, deterministic=True)
    policy.require_names()
    assert policy.input_names() == ["half", "next_state", "noise", "part", "state", "value"]


def test_the_command_says_that_episodes_were_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    agent.save(tmp_path / "agent")
    assert main(["export", str(tmp_path / "agent"), "--onnx", str(tmp_path / "p.onnx")]) == 0
    printed = capsys.readouterr().out
    assert "state float [batch, 20] -> action int64 [batch], next_state float [batch, 20]; agrees" in printed
    assert "; carried through the real ones, 4 whole episodes, its state and that of predict drift apart by " in printed


def test_a_users_own_environments_are_not_played() -> None:
    agent = pg.PPO(gym.make_vec("CartPole-v1", 4, vectorization_mode="sync"), **SMALL)
    sequel = play_episodes(agent.agent, lambda batch: pytest.fail("was played"), True)
    assert sequel == Sequel(0, 0, 0.0, 0.0)
    assert "carried" not in Export(Path("p.onnx"), [], [], 256, 0, 0.0, sequel).describe()
