"""A privileged critic: entries of the observation that only the value network sees, to train with and to act without."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from interrupted import resumed_to_the_same_bits
from machine import needs_compiler

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.errors import ConfigError, EnvError
from phasegrad.models import build_model
from phasegrad.models.memory import Sequences
from phasegrad.video.recording import record_video

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "seed": 3, "hidden_sizes": (8,), "eval_episodes": 0, "compile": "off",
}  # fmt: skip
MINIBATCHES = {"num_minibatches": 2, "epochs": 1}


class Hidden(gym.Env):
    """Each episode pays a number, drawn at its start, at every step; it is under `secret.pay`, beside an image."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, masked: bool = False, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        entries: dict[str, gym.Space] = {
            "body": spaces.Box(-1, 1, (2,), np.float32),
            "secret": spaces.Dict({"pay": spaces.Box(-1, 1, (1,), np.float32), "map": spaces.Box(0, 1, (5, 5, 2), np.float32)}),
        }  # fmt: skip
        if masked:
            entries["action_mask"] = spaces.MultiBinary(3)
        self.masked = masked
        self.observation_space, self.action_space = spaces.Dict(entries), spaces.Discrete(3)

    def _seen(self) -> dict[str, Any]:
        body = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        secret = {"pay": np.array([self.pay], np.float32), "map": np.full((5, 5, 2), abs(self.pay), np.float32)}
        seen: dict[str, Any] = {"body": body, "secret": secret}
        if self.masked:
            seen["action_mask"] = np.array([1, 0, 1], np.int8)
        return seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.pay, self.steps = float(self.np_random.uniform(-1, 1)), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._seen(), self.pay, self.steps >= 8, False, {}

    def render(self) -> np.ndarray:
        return np.zeros((32, 32, 3), np.uint8)


def agent_of(name: str = "ppo", env: Any = Hidden, **fields: Any) -> Any:
    own = {
        "ppo": MINIBATCHES, "ppg": {"n_pi": 2, "aux_minibatches": 2, "num_minibatches": 2}, "trpo": {"num_minibatches": 2},
    }.get(name, {})  # fmt: skip
    return ALGORITHMS[name](env, **{**SMALL, **own, "arch": "dual", "critic_only": "secret", **fields})


def observation(pay: float, batch: int = 0, seed: int = 0) -> dict[str, Any]:
    body = np.random.default_rng(seed).uniform(-1, 1, (*([batch] if batch else []), 2)).astype(np.float32)
    lead = body.shape[:-1]
    return {
        "body": body,
        "secret": {"pay": np.full((*lead, 1), pay, np.float32), "map": np.full((*lead, 5, 5, 2), abs(pay), np.float32)},
    }


def test_the_value_sees_it_and_the_policy_neither_sees_nor_trains_on_it() -> None:
    agent = agent_of("ppg", normalize_observation=True).learn(64)
    model = agent.model
    flat = {
        "body": torch.randn(5, 2),
        "secret.map": torch.rand(5, 5, 5, 2, requires_grad=True),
        "secret.pay": torch.randn(5, 1, requires_grad=True),
    }
    for function, seen in (
        (lambda: model.policy(flat), False),
        (lambda: model.policy_and_value(flat)[0], False),
        (lambda: model.policy_and_auxiliary_value(flat)[1], False),
        (lambda: model.policy_and_both_values(flat)[1], False),
        (lambda: model.policy_and_both_values(flat)[2], True),
        (lambda: model.policy_and_value(flat)[1], True),
        (lambda: model.value(flat), True),
    ):
        entries = [flat["secret.pay"], flat["secret.map"]]
        gradients = torch.autograd.grad(function().sum(), entries, allow_unused=True)
        assert [gradient is not None and bool(gradient.abs().sum() > 0) for gradient in gradients] == [seen, seen]
    low, high = observation(-1.0, 6), observation(1.0, 6)
    assert np.array_equal(agent.predict(low)[0], agent.predict(high)[0])
    assert not np.allclose(agent.value(low), agent.value(high))
    assert {name for name, _ in model.policy_encoder.named_parameters()} < {
        name for name, _ in model.value_encoder.named_parameters()
    }


def test_explained_variance_is_clearly_higher_with_it() -> None:
    """The return depends on a number that the critic alone may see."""
    fields = {"num_envs": 8, "num_steps": 32, "learning_rate": 3e-3, "epochs": 4, "num_minibatches": 4}
    found = {}
    for keys in ("secret", ("secret.map", "secret.pay")):
        rows: list[dict[str, Any]] = []
        agent_of(critic_only=keys, **fields).learn(8192, callback=rows.append)
        found[str(keys)] = rows[-1]["explained_variance"]
    rows = []
    blind = lambda: gym.wrappers.FilterObservation(Hidden(), ["body"])
    agent_of(env=blind, critic_only=(), **fields).learn(8192, callback=rows.append)
    assert min(found.values()) > 0.8
    assert len(set(found.values())) == 1  # a Dict's name stands for all it holds
    assert rows[-1]["explained_variance"] < 0.5


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_predict_does_not_ask_for_it(memory: str, stack: int) -> None:
    agent = agent_of(memory=memory, memory_size=4, frame_stack=stack, policy_gain=3.0).learn(64)
    states: dict[str, Any] = {"whole": None, "bare": None, "mixed": None}
    for step in range(6):
        given = observation(0.5, 3, seed=step)
        shown = {
            "whole": given,
            "bare": {"body": given["body"]},
            "mixed": given if step % 2 == 0 else {"body": given["body"]},
        }
        before = states["whole"]
        actions = {}
        for name, each in shown.items():
            actions[name], states[name] = agent.predict(each, states[name])
        assert np.array_equal(actions["whole"], actions["bare"]), step
        assert np.array_equal(actions["whole"], actions["mixed"]), step
        assert agent.value(given, before).shape == (3,)
    if memory != "none" or stack > 1:
        with pytest.raises(EnvError, match=r"The state is that of the policy alone.*secret\.map, secret\.pay"):
            agent.value(observation(0.5, 3), states["bare"])
    with pytest.raises(EnvError, match=r"no entry 'secret\.map', which the value network sees \(critic_only\)"):
        agent.value({"body": observation(0.5)["body"]})
    one, _ = agent.predict({"body": observation(0.5)["body"]})
    assert one.shape == ()


@pytest.mark.parametrize("name", ["ppo", "ppg", "a2c", "vpg", "trpo"])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_every_algorithm_trains_with_masks_and_evaluates(name: str, memory: str) -> None:
    agent = agent_of(name, lambda: Hidden(masked=True), memory=memory, memory_size=4, normalize_observation=True)
    agent.learn(128)
    assert len(agent.evaluate(episodes=2).returns) == 2
    action, _ = agent.predict({"body": np.zeros(2, np.float32), "action_mask": np.array([0, 1, 0], np.int8)})
    assert action == 1


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ppo", {"normalize_observation": True}),
        ("ppg", {"memory": "gru", "memory_size": 4}),
        ("ppg", {"frame_stack": 2, "normalize_observation": True}),
        ("a2c", {"updates_per_iteration": 2}),
        ("trpo", {"memory": "lstm", "memory_size": 4}),
    ],
)
def test_a_killed_run_resumes_to_the_same_bits(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    agent = agent_of(name, run_dir=tmp_path / "whole", checkpoint_every=64, **fields)
    resumed = resumed_to_the_same_bits(agent, 512, 256, Hidden)
    assert resumed.config.critic_only == ("secret",)


@needs_compiler
@pytest.mark.parametrize("fields", [{}, {"memory": "gru", "memory_size": 4}, {"frame_stack": 2}])
def test_compiled_runs_agree_with_plain_ones(fields: dict[str, Any]) -> None:
    agents = [agent_of(compile=how, **fields).learn(320) for how in ("on", "off")]
    assert agents[0].computation.actor.compiled
    fast, plain = (agent.flat.data for agent in agents)
    assert float((fast - plain).norm() / plain.norm()) < 1e-5


def test_acting_is_shown_no_more_than_the_policy_sees() -> None:
    agent = agent_of()
    agent.learn(64)
    assert set(agent.computation.actor.seen) == {"body"}


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_an_export_has_no_input_for_it(memory: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    agent = agent_of(memory=memory, memory_size=4).learn(64)
    bare = pg.export_onnx(agent, tmp_path / "policy.onnx")
    assert [name for name, _, _ in bare.inputs] == ["body", *(["state"] if memory == "gru" else [])]
    if memory == "gru":
        assert bare.inputs[-1][2] == "[batch, 4]"
    whole = pg.export_onnx(agent, tmp_path / "value.onnx", with_value=True)
    assert [name for name, _, _ in whole.inputs][:3] == ["body", "secret.map", "secret.pay"]


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_film_shows_its_values(memory: str, tmp_path: Path) -> None:
    agent = agent_of(env=lambda **how: Hidden(**how), memory=memory, memory_size=4).learn(64)
    assert record_video(agent, tmp_path / "film.mp4", episodes=1).path.stat().st_size > 0


def test_own_encoders_are_shown_what_is_theirs() -> None:
    seen: list[set[str]] = []

    class Wide(torch.nn.Module):
        def __init__(self, space: spaces.Dict) -> None:
            super().__init__()
            self.features, self.names = 3, set(space.spaces)
            self.linear = torch.nn.Linear(1, 3)

        def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
            seen.append(set(given))
            assert set(given) == self.names
            return self.linear(torch.stack([leaf.flatten(1).sum(1) for leaf in given.values()]).sum(0)[:, None])

    agent_of(encoder=Wide).learn(64)
    assert {frozenset(names) for names in seen} == {
        frozenset({"body"}),
        frozenset({"body", "secret.map", "secret.pay"}),
    }


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"arch": "shared"}, r"critic_only needs a value network of its own: set arch dual or leave critic_only out\."),
        (
            {"critic_only": "secrte"},
            r"critic_only 'secrte' is no entry of the observation, which has body, secret\.map",
        ),
        ({"critic_only": "secret.pai"}, r"Did you mean secret\.pay|secret\.pay"),
        ({"critic_only": "body,secret"}, r"critic_only body,secret leaves nothing for the policy to see"),
        ({"critic_only": "sec"}, r"critic_only 'sec' is no entry"),
        ({"env": "CartPole-v1"}, r"critic_only names entries of a Dict observation, but the observation space is Box"),
    ],
)
def test_mistakes_get_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        agent_of(**fields)


def test_acer_has_one_network() -> None:
    with pytest.raises(ConfigError, match="critic_only is not for acer"):
        ALGORITHMS["acer"](Hidden, critic_only="secret", preset="none")
    with pytest.raises(ConfigError, match="value_hidden_sizes needs a value network of its own"):
        agent_of(arch="shared", critic_only=(), value_hidden_sizes=(4,))


def test_sequences_of_what_the_policy_sees_are_enough_for_it() -> None:
    agent = agent_of(memory="lstm", memory_size=4)
    model, size = agent.model, agent.model.state_size
    seen = Sequences({"body": torch.randn(6, 2)}, torch.zeros(2, size), torch.zeros(6, dtype=torch.bool))
    assert model.policy(seen).shape == (6, 3)
    space, action = agent.agent.observation_space, agent.agent.action_space
    assert build_model(space, action, agent.config).critic_only == ("secret.map", "secret.pay")
