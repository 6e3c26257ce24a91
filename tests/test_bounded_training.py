"""Agents with squashed Gaussian and Beta policies: every algorithm, every way of computing, resume, export, refusals."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from identity_envs import EPISODE, FACTORIES, IdentityEnv
from interrupted import resumed_to_the_same_bits
from machine import needs_compiler
from torch import distributions as td

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.cli.main import main
from phasegrad.errors import ConfigError, EnvError, PhasegradWarning
from phasegrad.export.onnx import export_onnx

SMALL: dict[str, Any] = {"preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (9, 7), "seed": 3}
SURROGATE: dict[str, Any] = {**SMALL, "num_minibatches": 2}
NAMES = [name for name in ALGORITHMS if name != "acer"]
BOUNDED = ("tanh", "beta")


def lopsided() -> gym.Env:
    """Actions of shape [2, 1] between -3 and 5."""
    return IdentityEnv(spaces.Box(-3.0, 5.0, (2, 1)))


@needs_compiler
@pytest.mark.parametrize("distribution", BOUNDED)
@pytest.mark.parametrize("name", NAMES)
def test_the_three_ways_of_computing_agree(name: str, distribution: str) -> None:
    ends: dict[str, torch.Tensor] = {}
    for how in ("off", "replay", "on"):
        with warnings.catch_warnings():
            warnings.simplefilter("error", PhasegradWarning)  # a fall-back would compare the plain path with itself
            own = {"updates_per_iteration": 1} if name == "a2c" else {}  # programs come with the second iteration
            made = {"action_distribution": distribution, "compile": how, **SMALL, **own}
            agent = ALGORITHMS[name](FACTORIES["box"], **made)
            agent.learn(64 * 4)
        assert agent.computation.actor.runs_program == (how == "on")
        ends[how] = agent.flat.data
    for how in ("replay", "on"):
        assert float((ends[how] - ends["off"]).norm() / ends["off"].norm()) < 1e-4


@pytest.mark.parametrize("how", ["off", pytest.param("on", marks=needs_compiler)])
@pytest.mark.parametrize("distribution", BOUNDED)
@pytest.mark.parametrize(("name", "options"), [("ppo", {}), ("ppg", {"n_pi": 2, "aux_minibatches": 3}), ("trpo", {})])
def test_a_resumed_run_ends_with_the_same_bits(
    name: str, options: dict[str, Any], distribution: str, how: str, tmp_path: Path
) -> None:
    fields = SMALL if name == "trpo" else SURROGATE
    agent = ALGORITHMS[name](
        "Pendulum-v1", action_distribution=distribution, compile=how, checkpoint_every=128, run_dir=tmp_path / "whole",
        **fields, **options,
    )  # fmt: skip
    resumed = resumed_to_the_same_bits(agent, 64 * 8, 320)
    assert resumed.distribution.bounded


@pytest.mark.parametrize("distribution", BOUNDED)
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_memory_and_a_bounded_distribution_resume_together(memory: str, distribution: str, tmp_path: Path) -> None:
    agent = pg.PPO(
        "Pendulum-v1", action_distribution=distribution, memory=memory, memory_size=8, checkpoint_every=128, compile="off",
        run_dir=tmp_path / "whole", **SURROGATE,
    )  # fmt: skip
    resumed_to_the_same_bits(agent, 64 * 6, 256)


@pytest.mark.parametrize("distribution", BOUNDED)
def test_an_agent_acts_within_the_bounds_and_is_the_same_when_loaded(distribution: str, tmp_path: Path) -> None:
    agent = pg.PPO(lopsided, action_distribution=distribution, initial_std=3.0, **SURROGATE)
    agent.learn(64 * 3)
    observation = np.random.default_rng(0).uniform(-3, 5, (200, 2, 1)).astype(np.float32)
    sampled, _ = agent.predict(observation, deterministic=False)
    assert sampled.shape == (200, 2, 1)
    assert ((sampled >= -3) & (sampled <= 5)).all()
    assert sampled.min() < -2 < 4 < sampled.max(), "all of the bounds is reached"
    agent.save(tmp_path / "agent")
    loaded = pg.load(tmp_path / "agent", env=lopsided)
    assert np.array_equal(loaded.predict(observation)[0], agent.predict(observation)[0])
    with torch.no_grad():
        params = agent.model.policy(torch.from_numpy(observation))
    mode = agent.distribution.within(agent.distribution.mode(params)).numpy()
    np.testing.assert_allclose(agent.predict(observation)[0].reshape(200, 2), 1 + 4 * mode, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bounds", ["clip", "rescale"])
@pytest.mark.parametrize("distribution", BOUNDED)
def test_action_bounds_change_nothing(distribution: str, bounds: str) -> None:
    agent = pg.PPO(lopsided, action_distribution=distribution, action_bounds=bounds, **SURROGATE)
    observation = np.full((1, 2, 1), 4.0, np.float32)
    other = pg.PPO(lopsided, action_distribution=distribution, **SURROGATE)
    assert np.array_equal(agent.predict(observation)[0], other.predict(observation)[0])


@pytest.mark.parametrize("std", ["state_independent", "state_dependent", "fixed"])
def test_a_squashed_gaussian_has_every_kind_of_std(std: str) -> None:
    agent = pg.PPO(lopsided, action_distribution="tanh", std=std, initial_std=0.4, fixed_std_fraction=0.1, **SURROGATE)
    agent.learn(64 * 2)
    with torch.no_grad():
        params = agent.model.policy(torch.zeros(3, 2, 1))
    found = agent.distribution.described(params)["std"]
    wanted = 0.2 if std == "fixed" else 0.4  # a tenth of the two units from -1 to 1
    torch.testing.assert_close(found, torch.full((3, 2), wanted), rtol=1e-5 if std == "fixed" else 0.2, atol=0)


def test_steps_are_logged_by_the_names_of_their_distribution(tmp_path: Path) -> None:
    for distribution, names in {"tanh": ("mean", "std"), "beta": ("alpha", "beta")}.items():
        run = tmp_path / distribution
        agent = pg.PPO(lopsided, action_distribution=distribution, log_steps=True, run_dir=run, **SURROGATE)
        agent.learn(64)
        steps = np.load(next((run / "steps").iterdir()))
        assert steps["action"].shape == (16, 4, 2)
        for name in names:
            assert steps[name].shape == (16, 4, 2)
        if distribution == "beta":
            assert (steps["alpha"] > 1).all()
            assert ((steps["action"] > 0) & (steps["action"] < 1)).all()


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("distribution", BOUNDED)
def test_an_exported_file_computes_what_the_agent_does(distribution: str, sampled: bool, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    agent = pg.PPO(lopsided, action_distribution=distribution, **SURROGATE)
    agent.learn(128)
    report = export_onnx(agent, tmp_path / "p.onnx", with_log_prob=True, deterministic=not sampled)
    assert report.largest_difference <= 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    observation = np.random.default_rng(1).uniform(-3, 5, (50, 2, 1)).astype(np.float32)
    feed = {"observation": observation}
    if sampled:
        noise = agent.distribution.draw_noise((50,), torch.Generator().manual_seed(5))
        feed["noise"] = noise.numpy()
    action, log_prob = session.run(["action", "log_prob"], feed)
    if not sampled:
        np.testing.assert_allclose(action, agent.predict(observation)[0], rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        params = agent.model.policy(torch.from_numpy(observation)).double()
    first, second = agent.distribution.described(params).values()
    scaled = torch.from_numpy(
        (action.reshape(50, 2) - 1) / 4
    ).double()  # in [-1, 1], found from the file's action alone
    if distribution == "tanh":
        wanted = td.Normal(first, second).log_prob(scaled.atanh()) - torch.log(1 - scaled.square())
    else:
        wanted = td.Beta(first, second).log_prob((scaled + 1) / 2) - np.log(2)
    np.testing.assert_allclose(log_prob, wanted.sum(-1), rtol=2e-3, atol=2e-3)
    assert ((action >= -3) & (action <= 5)).all()


# Refusals


@pytest.mark.parametrize("distribution", BOUNDED)
def test_what_would_be_ignored_is_refused(distribution: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^mean_tanh is for action_distribution gaussian: {distribution} keeps .*\.$"
    ):
        pg.PPO("Pendulum-v1", action_distribution=distribution, mean_tanh=True, **SURROGATE)
    for std in ("fixed", "state_dependent"):
        if distribution == "beta":
            with pytest.raises(ConfigError, match=rf"^std {std} is for action_distribution gaussian and tanh: .*\.$"):
                pg.PPO("Pendulum-v1", action_distribution=distribution, std=std, **SURROGATE)


@pytest.mark.parametrize("distribution", BOUNDED)
def test_spaces_that_do_not_fit_are_refused(distribution: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=f"{distribution} needs a Box action space"):
        pg.PPO("CartPole-v1", action_distribution=distribution, **SURROGATE)
    with pytest.raises(ConfigError, match=f"{distribution} needs finite action bounds"):
        pg.PPO(lambda: IdentityEnv(spaces.Box(-np.inf, np.inf, (1,))), action_distribution=distribution, **SURROGATE)
    with pytest.raises(EnvError, match="acer needs a Discrete action space"):
        pg.ACER("Pendulum-v1", action_distribution=distribution, preset="none", num_envs=4, num_steps=16)
    command = ["train", "ppo", "--env", "CartPole-v1", "--total-steps", "64", "--action-distribution", distribution]
    assert main([*command, "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# Learning

QUICK: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 32, "epochs": 4, "num_minibatches": 4, "learning_rate": 5e-3, "anneal_learning_rate": True},
    "ppg": {"num_steps": 32, "n_pi": 4, "e_pi": 4, "num_minibatches": 4, "e_aux": 1, "learning_rate": 5e-3},
    "a2c": {"learning_rate": 2e-3, "entropy_coef": 0.0},
    "vpg": {"num_steps": 32, "learning_rate": 1e-2, "value_steps": 5},
    "trpo": {"num_steps": 32, "max_kl": 0.1, "value_epochs": 1},
}


# A Beta's spread is learnt through the network, which at the rate that suits a squashed Gaussian takes VPG twice as long.
FASTER: dict[tuple[str, str], dict[str, Any]] = {("vpg", "beta"): {"learning_rate": 3e-2}}


@pytest.mark.learning
@pytest.mark.parametrize("distribution", BOUNDED)
@pytest.mark.parametrize("name", NAMES)
def test_identity_is_learnt(name: str, distribution: str) -> None:
    how = {**QUICK[name], **FASTER.get((name, distribution), {}), "action_distribution": distribution}
    agent = ALGORITHMS[name](FACTORIES["box"], seed=1, num_envs=8, gamma=0.5, initial_std=0.5, **how)
    untrained = agent.evaluate(16).return_mean
    agent.learn(32_768 if name in ("a2c", "vpg") else 16_384)
    assert untrained < 0.8 * EPISODE, "the task must need learning"
    assert agent.evaluate(16).return_mean >= 0.9 * EPISODE
