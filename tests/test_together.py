"""What was built apart, used in one run: unlike actions, bounded distributions, memory, a critic that sees more, schedules,
layer norm, callbacks, warm starts. Each combination must train, be the same in every way of computing, and resume.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import hybrid_envs
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hybrid_envs import HybridIdentityEnv, MaskedHybridEnv
from interrupted import resumed_to_the_same_bits
from machine import needs_compiler

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.data.action_bounds import ActionBounds, stored_actions
from phasegrad.distributions import SquashedGaussian, distribution_for
from phasegrad.errors import ConfigError, PhasegradWarning

SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 12, "seed": 3, "hidden_sizes": (16,), "eval_episodes": 0}
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"num_minibatches": 2, "epochs": 2},
    "ppg": {"num_minibatches": 2, "n_pi": 3, "aux_minibatches": 2, "e_pi": 1, "e_v": 1, "e_aux": 2},
}
EVERYTHING: dict[str, Any] = {
    "arch": "dual", "critic_only": ("part1",), "memory": "gru", "memory_size": 8, "sequence_length": 4,
    "activation": "silu", "layer_norm": True, "value_hidden_sizes": (8,), "normalize_observation": True,
    "learning_rate": "warmup:0.1:cosine:3e-3:1e-4", "entropy_coef": "linear:0.01:0", "clip_range": "linear:0.3:0.1",
}  # fmt: skip
WAYS = ["off", pytest.param("on", marks=needs_compiler)]


@pytest.mark.parametrize("compile", WAYS)
@pytest.mark.parametrize("distribution", ["tanh", "beta"])
@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_a_run_with_everything_resumes_to_the_same_bits(
    name: str, distribution: str, compile: str, tmp_path: Path
) -> None:
    fields = {**SMALL, **OWN[name], **EVERYTHING, "compile": compile, "action_distribution": distribution}
    agent = ALGORITHMS[name](
        MaskedHybridEnv, run_dir=tmp_path / "run", checkpoint_every=96, restart_every=160, **fields
    )
    resumed = resumed_to_the_same_bits(agent, 48 * 8, killed_at=48 * 5, env=MaskedHybridEnv)
    env = MaskedHybridEnv()
    observation, info = env.reset(seed=1)
    without = {key: entry for key, entry in observation.items() if key != "part1"}
    action, _ = resumed.predict(without, mask=info["action_mask"])
    assert env.action_space.contains(action)
    for one in (agent, resumed):
        one.close()


@pytest.mark.parametrize("distribution", ["tanh", "beta"])
def test_parts_that_are_bounded_keep_within_their_bounds(distribution: str, tmp_path: Path) -> None:
    space = hybrid_envs.mixed_space()
    made = pg.PPO(HybridIdentityEnv, action_distribution=distribution, initial_std=3.0, **SMALL, **OWN["ppo"])
    made.learn(96)
    parts = [type(part).__name__ for part in made.distribution.parts.values()]
    assert parts.count("SquashedGaussian" if distribution == "tanh" else "Beta") == 1, "the one Box of floats"
    env = HybridIdentityEnv()
    observation, _ = env.reset(seed=0)
    aims = [made.predict(observation, deterministic=False)[0]["aim"] for _ in range(300)]
    assert all(space["aim"].contains(aim) for aim in aims)
    assert np.std(aims, 0).min() > 0.05, "they are no corner of the box"


@pytest.mark.parametrize("distribution", ["tanh", "beta"])
def test_an_export_of_bounded_parts_agrees(distribution: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    agent = pg.PPO(
        HybridIdentityEnv, action_distribution=distribution, layer_norm=True, activation="gelu", **SMALL, **OWN["ppo"]
    )
    agent.learn(96)
    assert pg.export_onnx(agent, tmp_path / "policy.onnx", with_log_prob=True).largest_difference <= 1e-5


@needs_compiler
@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_a_compiled_run_with_everything_is_the_plain_one(name: str) -> None:
    agents = {}
    for compile in ("off", "on"):
        fields = {**SMALL, **OWN[name], **EVERYTHING, "compile": compile, "action_distribution": "tanh"}
        agents[compile] = ALGORITHMS[name](MaskedHybridEnv, **fields)
        with warnings.catch_warnings():
            warnings.simplefilter("error", PhasegradWarning)  # nothing falls back
            agents[compile].learn(48 * 3)
    torch.testing.assert_close(agents["on"].flat.data, agents["off"].flat.data, rtol=1e-3, atol=3e-3)


# ---- warm starts


def demonstrated(count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    seen = np.random.default_rng(0).uniform(-1, 1, (count, 3)).astype(np.float32)
    return seen, (2 * np.tanh(seen[:, :1] - seen[:, 1:2])).astype(np.float32)


@pytest.mark.parametrize(
    "space", [spaces.Box(-2, 2, (1,), np.float32), spaces.Box(np.float32([0, -5]), np.float32([4, 5]))]
)
def test_squashed_actions_lead_back_to_the_environments(space: spaces.Box) -> None:
    bounds = ActionBounds(space, distribution_for(space, "tanh"), "clip")
    draw = np.random.default_rng(1)
    inside = draw.uniform(0.001, 0.999, (50, *space.shape)) * (space.high - space.low) + space.low
    np.testing.assert_allclose(
        bounds(stored_actions(inside.astype(np.float32), space, bounds).numpy()), inside, atol=2e-3
    )
    at_the_bounds = stored_actions(np.stack([space.low, space.high]), space, bounds)
    assert torch.isfinite(at_the_bounds).all()


def test_boxes_of_integers_lead_back_to_their_choices() -> None:
    space = spaces.Box(np.int16([[-1, 5]]), np.int16([[1, 6]]), dtype=np.int16)
    flat = spaces.MultiDiscrete([3, 2])
    bounds = ActionBounds(flat, distribution_for(flat), "clip")
    found = stored_actions(np.int16([[[-1, 5]], [[1, 6]]]), space, bounds)
    assert found.tolist() == [[0, 0], [2, 1]]
    with pytest.raises(ConfigError, match="is not in Box"):
        stored_actions(np.int16([[[-2, 5]]]), space, bounds)


def test_a_squashed_policy_is_cloned_and_held() -> None:
    agent = pg.PPO("Pendulum-v1", action_distribution="tanh", **SMALL, **OWN["ppo"], preset="none", total_steps=960)
    found = agent.clone(*demonstrated(), epochs=200, minibatch_size=32)
    assert isinstance(agent.distribution, SquashedGaussian)
    assert found.agreement > 0.9
    rows: list[dict[str, Any]] = []
    agent.learn(192, callback=rows.append)
    assert rows[0]["leash"] > 0
    assert rows[0]["leash_kl"] < 0.5


@pytest.mark.parametrize("env", [HybridIdentityEnv, hybrid_envs.choices])
def test_what_cannot_be_cloned_says_so(env: Any) -> None:
    agent = pg.PPO(env, **SMALL, **OWN["ppo"])
    one, _ = env().reset(seed=0)
    with pytest.raises(ConfigError, match="several parts cannot be cloned"):
        agent.clone({name: np.stack([entry] * 3) for name, entry in one.items()}, np.zeros((3, 9), np.float32))


def test_a_copy_of_an_agent_on_a_leash_goes_on_alike() -> None:
    agent = pg.PPO("Pendulum-v1", **SMALL, **OWN["ppo"], preset="none", total_steps=960, learning_rate="linear:1e-3")
    agent.clone(*demonstrated(), epochs=3)
    agent.learn(48 * 3)
    twin = copy.deepcopy(agent)
    for one in (agent, twin):
        one.learn(48 * 6)
    assert any(name.startswith("leash.") for name in twin.tensors())
    for name, tensor in agent.tensors().items():
        assert torch.equal(tensor, twin.tensors()[name]), name


# ---- going on


def test_a_scheduled_rate_is_given_another_schedule_when_a_run_goes_on(tmp_path: Path) -> None:
    agent = pg.PPO(
        "CartPole-v1", run_dir=tmp_path / "run", learning_rate="linear:1e-3", checkpoint_every=96, **SMALL, **OWN["ppo"]
    )
    agent.learn(48 * 4)
    rows: list[dict[str, Any]] = []
    resumed = pg.load(tmp_path / "run", learning_rate="constant:5e-4", total_steps=48 * 6)
    resumed.learn(callback=rows.append)
    assert [row["learning_rate"] for row in rows] == [5e-4, 5e-4]
    again = pg.load(tmp_path / "run")
    assert str(again.config.learning_rate.schedule) == "constant:0.0005"


def test_a_warm_up_of_the_critic_leaves_an_adaptive_rate_alone() -> None:
    rows: list[dict[str, Any]] = []
    fields = {
        **SMALL,
        **OWN["ppo"],
        "arch": "dual",
        "critic_warmup": 2,
        "kl_learning_rate": 1e-6,
        "learning_rate": 1e-3,
    }
    agent = pg.PPO("CartPole-v1", **fields)
    agent.learn(48 * 4, callback=rows.append)
    assert [row["learning_rate"] for row in rows[:2]] == [0.0, 0.0]
    assert rows[2]["learning_rate"] == 1e-3
    assert rows[3]["learning_rate"] == pytest.approx(1e-3 / 1.5)


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_recurrent_continuous_updates_are_replayed(name: str) -> None:
    """One operation that a record calls in two ways, here slices with and without an end, must be called as it says."""
    fields = {**SMALL, **OWN[name], "memory": "gru", "memory_size": 8, "sequence_length": 4, "preset": "none"}
    agents = {}
    for compile in ("off", "replay"):
        agents[compile] = ALGORITHMS[name]("Pendulum-v1", compile=compile, **fields)
        with warnings.catch_warnings():
            warnings.simplefilter("error", PhasegradWarning)  # nothing falls back
            agents[compile].learn(48 * 3)
    assert {stepper.way for stepper in agents["replay"].computation.steppers} == {"traced"}
    assert torch.equal(agents["replay"].flat.data, agents["off"].flat.data)


def test_steps_of_unlike_actions_cannot_be_kept_for_cloning(tmp_path: Path) -> None:
    agent = pg.PPO(HybridIdentityEnv, **SMALL, **OWN["ppo"])
    with pytest.raises(ConfigError, match=r"whose actions have several parts.*cannot be kept"):
        agent.evaluate(2, save_steps=tmp_path / "steps.npz")
    assert not (tmp_path / "steps.npz").exists()
