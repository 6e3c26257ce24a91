"""Encoders with dropout or batch norm: in training mode for updates only, by every way of computing, resumed to the bit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.base import Algorithm
from phasegrad.compute import native
from phasegrad.data.phase_buffer import BufferedStates
from phasegrad.errors import PhasegradWarning
from phasegrad.models.modes import TrainingMode

SMALL: dict[str, Any] = {"preset": "none", "num_envs": 4, "num_steps": 16, "seed": 3}
OBSERVATIONS = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)


class Layers(nn.Module):
    features = 8

    def __init__(self, space: gym.Space, *middle: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(int(np.prod(space.shape)), 8), *middle, nn.Tanh())

    def forward(self, observation: Tensor) -> Tensor:
        return self.layers(observation)


def dropout(space: gym.Space) -> nn.Module:
    return Layers(space, nn.Dropout(0.5))


def batch_norm(space: gym.Space) -> nn.Module:
    return Layers(space, nn.BatchNorm1d(8))


class Replacing(Layers):
    """A statistic of its own, which it replaces in place of changing it."""

    mean: Tensor

    def __init__(self, space: gym.Space) -> None:
        super().__init__(space)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, observation: Tensor) -> Tensor:
        features = self.layers[0](observation)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * features.detach().mean(0)
        return torch.tanh(features - self.mean)


def made(name: str, encoder: Any, **fields: Any) -> Any:
    sizes = {"ppg": {"n_pi": 2, "aux_minibatches": 3}, "acer": {"replay_start": 0, "updates_per_iteration": 2}}
    sizes["a2c"] = {"updates_per_iteration": 2}
    return ALGORITHMS[name]("CartPole-v1", encoder=encoder, **SMALL | sizes.get(name, {}) | fields)


def quiet(agent: Algorithm, total: int, **how: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PhasegradWarning)
        return agent.learn(total, **how)


def statistics(agent: Algorithm) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in agent.model.named_buffers()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_network_is_in_training_mode_for_updates_only(name: str) -> None:
    modes: dict[bool, set[bool]] = {True: set(), False: set()}  # by whether gradients were asked for

    class Watching(Layers):
        def forward(self, observation: Tensor) -> Tensor:
            modes[torch.is_grad_enabled() and not torch.is_inference_mode_enabled()].add(self.training)
            return super().forward(observation)

    agent = made(name, lambda space: Watching(space))
    quiet(agent, 256)
    agent.evaluate(1)
    agent.predict(OBSERVATIONS)
    agent.value(OBSERVATIONS)
    assert modes[False] == {False}, "acting, valuing and evaluating are no training"
    assert True in modes[True]
    assert modes[True] == (
        {True, False} if name == "trpo" else {True}
    )  # TRPO's Fisher matrix is that of the policy acting
    assert not agent.model.training


def test_a_policy_with_dropout_is_one_policy() -> None:
    agent = made("ppo", dropout, learning_rate=0.0)
    quiet(agent, 128)
    assert np.array_equal(agent.value(OBSERVATIONS), agent.value(OBSERVATIONS))
    continuous = pg.PPO("Pendulum-v1", encoder=dropout, **SMALL)
    several = np.random.default_rng(0).normal(size=(9, 3))
    assert np.array_equal(continuous.predict(several)[0], continuous.predict(several)[0])
    rollout = agent.rollout
    with torch.no_grad():  # the policy has not changed since it acted
        params = agent.model.policy(rollout.observations.flatten(0, 1))
        values = agent.model.value(rollout.observations.flatten(0, 1))
    found = agent.distribution.log_prob(params, rollout.actions.flatten())
    torch.testing.assert_close(rollout.log_probs.flatten(), found)
    torch.testing.assert_close(rollout.values.flatten(), values)


def test_the_policy_kept_for_the_auxiliary_phase_is_the_one_that_acts() -> None:
    agent = made("ppg", dropout)
    kept: list[bool] = []
    store = agent.buffer.store_policy

    def watched(*args: Any) -> BufferedStates:
        states = store(*args)
        with torch.no_grad():
            now = agent.model.policy(states.observations.flatten(0, 2))
        kept.append(torch.allclose(states.old_params.flatten(0, 2), now, atol=1e-6))
        return states

    agent.buffer.store_policy = watched
    quiet(agent, 128)
    assert kept == [True]


def test_statistics_of_batch_norm_change_in_updates_only_and_are_saved(tmp_path: Path) -> None:
    agent = made("ppo", batch_norm)
    fresh = statistics(agent)
    agent.predict(OBSERVATIONS)
    agent.value(OBSERVATIONS)
    agent.evaluate(2)
    assert same(fresh, statistics(agent))
    quiet(agent, 128)
    learnt = statistics(agent)
    assert not same(fresh, learnt)
    agent.predict(OBSERVATIONS)
    agent.evaluate(2)
    assert same(learnt, statistics(agent))
    agent.save(tmp_path / "agent")
    loaded = pg.load(tmp_path / "agent", encoder=batch_norm)
    assert same(learnt, statistics(loaded))
    assert np.array_equal(agent.value(OBSERVATIONS), loaded.value(OBSERVATIONS))


def test_the_average_policy_has_the_statistics_of_the_network_it_follows() -> None:
    agent = made("acer", batch_norm)
    quiet(agent, 256)
    mine, theirs = agent.average.encoder.layers[1], agent.model.policy_encoder.layers[1]
    assert torch.equal(mine.running_mean, theirs.running_mean)
    assert theirs.running_mean.any()
    assert not mine.training


WAYS = ["replay", pytest.param("on", marks=pytest.mark.skipif(native.compiler() is None, reason="no C compiler"))]


@pytest.mark.parametrize("encoder", [dropout, batch_norm, Replacing])
@pytest.mark.parametrize("how", WAYS)
def test_what_cannot_be_recorded_goes_by_plain_autograd_to_the_same_end(encoder: Any, how: str) -> None:
    def trained(compile: str) -> Any:
        return made("ppo", encoder, compile=compile, num_minibatches=2, epochs=2)

    plain, other = trained("off"), trained(how)
    plain.learn(192)
    with pytest.warns(PhasegradWarning, match=r"without (compiled code|traced kernels).*in training"):
        other.learn(192)
    assert other.stepper.way == "plain"
    assert same(statistics(plain), statistics(other))
    torch.testing.assert_close(plain.flat.data, other.flat.data, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoder", [dropout, batch_norm])
@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_runs_with_dropout_or_batch_norm_resume_to_the_bit(tmp_path: Path, encoder: Any, name: str) -> None:
    def run(folder: str) -> Any:
        return made(name, encoder, run_dir=tmp_path / folder, checkpoint_every=128)

    whole = run("whole")
    quiet(whole, 384)
    torch.manual_seed(99)  # what the caller draws elsewhere must not matter
    quiet(run("cut"), 384, callback=lambda row: row["step"] < 192)
    torch.rand(7)
    resumed = pg.load(tmp_path / "cut", encoder=encoder)
    quiet(resumed, 384)
    assert all(torch.equal(tensor, resumed.tensors()[key]) for key, tensor in whole.tensors().items())


def test_dropout_differs_from_minibatch_to_minibatch_and_leaves_the_callers_numbers_alone() -> None:
    seen: list[Tensor] = []

    class Noted(nn.Dropout):
        def forward(self, features: Tensor) -> Tensor:
            dropped = super().forward(features)
            if self.training:
                seen.append((dropped == 0).flatten()[:64].clone())
            return dropped

    agent = made("ppo", lambda space: Layers(space, Noted(0.5)), arch="shared", num_minibatches=2, epochs=2)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    agent.learn(128)
    assert torch.equal(torch.rand(3), wanted)
    assert len(seen) == 8  # two iterations of two epochs of two minibatches
    assert len({tuple(mask.tolist()) for mask in seen}) == 8


def test_several_processes_share_their_statistics() -> None:
    agent = made("ppo", batch_norm, normalize_observation=True)
    shared: list[Tensor] = []

    class Two:
        size = 2

        def mean_(self, tensor: Tensor) -> Tensor:
            shared.append(tensor)
            return tensor

    mode = TrainingMode(agent.model, True, lambda: 1, Two())  # type: ignore[arg-type]
    with mode:
        assert agent.model.training
    norms = [module for module in agent.model.modules() if isinstance(module, nn.BatchNorm1d)]
    wanted = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)]
    assert len(norms) == 2
    assert [id(tensor) for tensor in shared] == [id(tensor) for tensor in wanted], "the normaliser shares its own"
