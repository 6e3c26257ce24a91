"""A2C, vanilla policy gradient and TRPO: gradients, optimisers, the trust region, step counts, resume, refusals."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from identity_envs import FACTORIES, MaskedIdentityEnv
from interrupted import resumed_to_the_same_bits
from machine import needs_compiler
from torch import Tensor, nn

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.base import Algorithm
from phasegrad.cli.main import main
from phasegrad.compute.natural_gradient import FisherProduct, conjugate_gradient
from phasegrad.compute.optimizers import RMSProp
from phasegrad.config import documented_fields
from phasegrad.data.minibatches import Batch
from phasegrad.errors import ConfigError
from phasegrad.models import FlatParameters
from phasegrad.presets import PRESETS, resolve_config

NAMES = ("a2c", "vpg", "trpo")
TINY: dict[str, Any] = {
    "preset": "none",
    "seed": 3,
    "hidden_sizes": (5,),
    "checkpoint_every": 1_000_000,
    "compile": "off",
}
SIZES: dict[str, dict[str, Any]] = {
    "a2c": {"num_envs": 4, "num_steps": 5, "updates_per_iteration": 3},
    "vpg": {"num_envs": 4, "num_steps": 15, "value_steps": 3, "learning_rate": 1e-2},
    "trpo": {"num_envs": 4, "num_steps": 15, "num_minibatches": 3, "value_epochs": 2},
}  # an iteration is 60 steps each time


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def tiny(name: str, env: Any = "CartPole-v1", **fields: Any) -> Algorithm:
    agent: Algorithm = ALGORITHMS[name](env, **TINY | SIZES.get(name, {}) | fields)
    return agent


def random_batch(agent: Algorithm, size: int = 7, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    observations = normal(size, *(agent.agent.observation_space.shape or ()))
    with torch.no_grad():
        params = agent.model.policy(observations)
    if agent.distribution.noise_is_normal:
        actions = normal(size, *agent.distribution.action_shape)
    else:
        actions = torch.randint(agent.distribution.parameter_size, (size,), generator=generator)
    log_probs = agent.distribution.log_prob(params, actions)
    return Batch(observations, None, normal(size), actions, params, log_probs, normal(size), normal(size))


# A2C


@pytest.mark.parametrize("arch", ["dual", "shared"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_gradient_of_a2c_is_the_first_of_ppo_with_objective_pg(float64: None, env: str, arch: str) -> None:
    shared = {"arch": arch, "entropy_coef": 0.02, "value_coef": 0.7}
    a2c = tiny("a2c", env, **shared)
    ppo = tiny("ppo", env, num_envs=4, num_steps=5, objective="pg", num_minibatches=1, **shared)
    assert torch.equal(a2c.flat.data, ppo.flat.data), "the same seed gives the same weights"
    batch = random_batch(a2c)
    gradients = []
    for agent, scalars in ((a2c, {}), (ppo, {"clip_range": 0.2, "kl_beta": 1.0})):
        loss, _ = agent.loss(batch, agent.config.weights() | scalars)  # type: ignore[attr-defined]
        gradients.append(agent.flat.gradient(loss))
    assert gradients[0].norm() > 1e-3
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-14)


def test_one_update_of_a2c_with_adam_is_one_of_ppo() -> None:
    """From the environment to the moved parameters: advantages, loss, clipping and optimiser agree."""
    shared = {"num_envs": 4, "num_steps": 5, "gae_lambda": 1.0, "entropy_coef": 0.01, "learning_rate": 7e-4}
    a2c = tiny("a2c", optimizer="adam", updates_per_iteration=1, **shared).learn(20)
    ppo = tiny("ppo", objective="pg", epochs=1, num_minibatches=1, normalize_advantage="none", **shared).learn(20)
    torch.testing.assert_close(a2c.flat.data, ppo.flat.data, rtol=1e-4, atol=1e-6)
    assert not torch.equal(a2c.flat.data, tiny("a2c").flat.data)


def test_advantages_of_a2c_are_n_step_returns() -> None:
    agent = tiny("a2c", gamma=0.9, updates_per_iteration=1).learn(20)
    rollout = agent.experience.storage().rollouts[0]
    steps, envs = rollout.rewards.shape
    for n in range(envs):
        expected = rollout.next_values[-1, n].item()
        for t in reversed(range(steps)):
            if rollout.terminated[t, n]:
                expected = 0.0
            elif rollout.truncated[t, n]:
                expected = rollout.next_values[t, n].item()
            expected = rollout.rewards[t, n].item() + 0.9 * expected
            assert rollout.value_targets[t, n].item() == pytest.approx(expected, abs=1e-4)
            assert rollout.advantages[t, n].item() == pytest.approx(expected - rollout.values[t, n].item(), abs=1e-4)


def test_an_iteration_covers_many_updates_and_totals_are_exact() -> None:
    rows: list[dict[str, Any]] = []
    agent = tiny("a2c")
    taken: list[int] = []
    step = agent.stepper.step  # type: ignore[attr-defined]
    agent.stepper.step = lambda *a: (taken.append(len(a[2])), step(*a))[1]  # type: ignore[attr-defined]
    agent.learn(168, callback=rows.append)
    assert [row["step"] for row in rows] == [60, 120, 168]
    assert [row["updates"] for row in rows] == [3, 3, 3]
    assert taken == [20] * 8 + [8], "the last rollout has the two steps of four environments that were left"
    assert all(np.isfinite(row[name]) for row in rows for name in ("kl", "entropy", "value_loss", "explained_variance"))
    assert all(row["kl"] > 0 for row in rows)


def test_updates_per_iteration_only_changes_the_noise_and_how_often_rates_are_read() -> None:
    agent = tiny("a2c")
    whole = agent.draw_noise(15)
    agent.config.total_steps = 12 * 4
    agent.experience.be_ready()
    parts = [rollout.num_steps for rollout in agent.rollouts(3)]
    assert parts == [5, 5, 2]
    assert agent.progress.step == 12 * 4
    assert torch.equal(agent.draw_noise(15), whole), "noise is a function of seed and iteration"


# RMSProp


def flat_vector(size: int = 6) -> tuple[nn.Parameter, FlatParameters]:
    parameter = nn.Parameter(torch.linspace(-1, 1, size))
    return parameter, FlatParameters({"policy": [parameter]})


def test_rmsprop_is_torchs(float64: None) -> None:
    parameter, flat = flat_vector()
    reference = nn.Parameter(parameter.detach().clone())
    mine = RMSProp(flat, slice(0, 6), eps=1e-5, alpha=0.9)
    theirs = torch.optim.RMSprop([reference], lr=1e-2, alpha=0.9, eps=1e-5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        gradient = torch.randn(6, generator=generator)
        reference.grad = gradient.clone()
        mine.step(2 * gradient, 1e-2, torch.tensor(2.0))
        theirs.step()
    torch.testing.assert_close(parameter.detach(), reference.detach(), rtol=1e-12, atol=1e-14)


def test_rmsprop_with_epsilon_inside_the_root_follows_its_formula(float64: None) -> None:
    parameter, flat = flat_vector()
    optimizer = RMSProp(flat, slice(0, 6), eps=0.01, alpha=0.9, inside_root=True)
    expected, square = parameter.detach().numpy().copy(), np.ones(6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        gradient = torch.randn(6, generator=generator)
        optimizer.step(gradient, 0.1)
        square = 0.9 * square + 0.1 * gradient.numpy() ** 2
        expected -= 0.1 * gradient.numpy() / np.sqrt(square + 0.01)
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "fields",
    [{"optimizer": "adam"}, {"rmsprop_inside_root": True}, {"rmsprop_alpha": 0.5}, {"rmsprop_eps": 0.1},
     {"normalize_advantage": "batch"}, {"entropy_coef": 0.5}, {"value_coef": 0.0}, {"gae_lambda": 0.5}],
    ids=str,
)  # fmt: skip
def test_each_option_of_a2c_changes_what_is_learnt(fields: dict[str, Any]) -> None:
    assert not torch.equal(tiny("a2c", **fields).learn(60).flat.data, tiny("a2c").learn(60).flat.data)


# Vanilla policy gradient


def test_vpg_takes_one_policy_step_and_many_value_steps() -> None:
    agent = tiny("vpg", value_steps=7)
    kinds: Counter[str] = Counter()
    step = agent.stepper.step  # type: ignore[attr-defined]

    def counted(name: str, loss: Any, batch: Batch, scalars: Any, rates: dict[str, float], *rest: Any) -> None:
        kinds[name] += 1
        assert len(batch) == 60, "every step sees the whole rollout"
        assert list(rates) == [name], "a step moves its own network alone"
        step(name, loss, batch, scalars, rates, *rest)

    agent.stepper.step = counted  # type: ignore[attr-defined]
    agent.learn(120)
    assert kinds == {"policy": 2, "value": 14}
    assert agent.optimizers["policy"].state()["steps"].item() == 2
    assert agent.optimizers["value"].state()["steps"].item() == 14


def test_the_policy_gradient_of_vpg_is_the_mean_of_score_times_advantage(float64: None) -> None:
    agent = tiny("vpg", "Pendulum-v1")
    batch = random_batch(agent)
    loss, _ = agent.policy_loss(batch, agent.config.weights())  # type: ignore[attr-defined]
    found = agent.flat.gradient(loss)
    expected = torch.zeros_like(found)
    for i in range(len(batch)):  # sample by sample, with torch's own normal distribution
        mean, log_std = agent.model.policy(batch.observations[i : i + 1]).chunk(2, -1)
        score = torch.distributions.Normal(mean, log_std.exp()).log_prob(batch.actions[i]).sum()
        expected -= agent.flat.gradient(score) * batch.advantages[i] / len(batch)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert expected[agent.flat.slices["policy"]].norm() > 1e-3
    assert expected[agent.flat.slices["value"]].norm() == 0


# TRPO: the Fisher matrix


def explicit_fisher(agent: Algorithm, observations: Tensor) -> Tensor:
    """E[score score^T] over states and actions: exact over discrete actions, by the Gaussian's closed form otherwise."""
    size = agent.flat.data.numel()
    fisher = torch.zeros(size, size)
    for observation in observations:
        params = agent.model.policy(observation[None])[0]
        rows = torch.stack(
            [agent.flat.gradient(agent.model.policy(observation[None])[0, i]) for i in range(len(params))]
        )
        if agent.distribution.noise_is_normal:  # of (mean, log std): 1 / std^2 and 2
            std = params.detach().chunk(2)[1].exp()
            middle = torch.diag(torch.cat([std**-2, torch.full_like(std, 2.0)]))
        else:
            p = params.detach().softmax(0)
            middle = torch.diag(p) - torch.outer(p, p)
        fisher += rows.T @ middle @ rows / len(observations)
    where = agent.flat.slices["policy"]
    return fisher[where, where]


@pytest.mark.parametrize("microbatch", [1 << 30, 2])
@pytest.mark.parametrize(
    ("env", "fields"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
        ("Pendulum-v1", {"std": "state_dependent"}),
        *(("CartPole-v1", {"activation": name}) for name in ("relu", "leaky_relu", "elu", "gelu", "silu")),
        ("Pendulum-v1", {"layer_norm": True}),
    ],
)
def test_fisher_products_are_those_of_the_explicit_matrix(
    float64: None, env: str, fields: dict[str, Any], microbatch: int
) -> None:
    agent = tiny("trpo", env, policy_gain=1.0, hidden_sizes=(3,), **fields)
    batch = random_batch(agent, 5)
    where = agent.flat.slices["policy"]
    product = FisherProduct(agent.flat, where, agent.kl_from_itself, batch, 0.3, microbatch)  # type: ignore[attr-defined]
    explicit = explicit_fisher(agent, batch.observations) + 0.3 * torch.eye(where.stop - where.start)
    for seed in range(3):
        vector = torch.randn(where.stop - where.start, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(product(vector), explicit @ vector, rtol=1e-9, atol=1e-11)
    assert (explicit - 0.3 * torch.eye(len(explicit))).norm() > 1e-2


def test_conjugate_gradient_solves(float64: None) -> None:
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(8, 8, generator=generator)
    matrix, target = root @ root.T + 0.1 * torch.eye(8), torch.randn(8, generator=generator)
    solution, residual = conjugate_gradient(lambda v: matrix @ v, target, 40, 1e-24)
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, target), rtol=1e-6, atol=1e-8)
    assert residual <= 1e-24
    early, residual = conjugate_gradient(lambda v: matrix @ v, target, 3)
    assert residual.item() == pytest.approx((target - matrix @ early).square().sum().item(), rel=1e-6)
    assert residual > 1e-6
    nothing, _ = conjugate_gradient(lambda v: matrix @ v, torch.zeros(8), 3)
    assert torch.equal(nothing, torch.zeros(8))


# TRPO: the trust region


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_no_accepted_step_leaves_the_trust_region(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tiny("trpo", env, num_envs=8, num_steps=32, hidden_sizes=(16,), max_kl=0.02, cg_damping=1e-3)
    rows: list[dict[str, Any]] = []
    measured: list[tuple[float, float]] = []
    regression = agent.value_regression  # type: ignore[attr-defined]

    def measure(rollout: Any, shuffle: Any) -> None:  # anew, from the networks as the policy step left them
        with torch.no_grad():
            params = agent.model.policy(rollout.observations.flatten(0, 1))
        old = rollout.behaviour_params.flatten(0, 1)
        if env == "CartPole-v1":
            kinds = [torch.distributions.Categorical(logits=p) for p in (old, params)]
        else:
            kinds = [torch.distributions.Normal(p[:, :1], p[:, 1:].exp()) for p in (old, params)]
        kl = torch.distributions.kl_divergence(*kinds).double().mean().item()
        ratio = (kinds[1].log_prob(_squeezed(rollout)) - kinds[0].log_prob(_squeezed(rollout))).exp()
        gain = (ratio.flatten() * rollout.advantages.flatten()).mean() - rollout.advantages.mean()
        measured.append((kl, gain.item()))
        regression(rollout, shuffle)

    def _squeezed(rollout: Any) -> Tensor:
        return rollout.actions.flatten(0, 1)

    monkeypatch.setattr(agent, "value_regression", measure)
    agent.learn(256 * 12, callback=rows.append)
    assert sum(row["step_accepted"] for row in rows) >= 9, "the test needs steps"
    for row, (kl, gain) in zip(rows, measured, strict=True):
        assert row["kl"] <= 0.02
        assert kl <= 0.02 + 1e-6
        assert row["kl"] == pytest.approx(kl, abs=1e-6)
        assert gain > -1e-6
        assert row["surrogate_improvement"] == pytest.approx(gain, abs=1e-5)
        assert 1 <= row["line_search_steps"] <= 10
        assert row["step_accepted"] == (row["surrogate_improvement"] > 0)
    assert max(kl for kl, _ in measured) > 0.005, "steps that are far too short would pass the rest"


@pytest.mark.parametrize("why", ["no improvement", "too far", "not a number"])
def test_a_rejected_line_search_restores_the_policy_bit_for_bit(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tiny("trpo", "Pendulum-v1").learn(60)
    before = agent.flat.data[agent.flat.slices["policy"]].clone()
    tried: list[Tensor] = []
    answers = {"no improvement": (0.0, 0.001), "too far": (1.0, 0.0101), "not a number": (float("nan"), 0.001)}

    def pretend(rollout: Any) -> tuple[float, float]:
        tried.append(agent.flat.data[agent.flat.slices["policy"]].clone())
        return answers[why] if len(tried) > 1 else (0.0, 0.0)

    monkeypatch.setattr(agent, "surrogate_and_kl", pretend)
    rows: list[dict[str, Any]] = []
    value_before = agent.flat.data[agent.flat.slices["value"]].clone()
    agent.learn(120, callback=rows.append)
    assert len(tried) == 11
    assert torch.equal(tried[0], before)
    assert torch.equal(agent.flat.data[agent.flat.slices["policy"]], before)
    assert not torch.equal(agent.flat.data[agent.flat.slices["value"]], value_before), "the value is still fitted"
    assert rows[0]["step_accepted"] == 0
    assert rows[0]["line_search_steps"] == 10
    steps = [(each - before).norm().item() for each in tried[1:]]
    assert [b / a for a, b in itertools.pairwise(steps)] == pytest.approx([0.8] * 9, rel=1e-3)


def test_the_full_step_has_the_kl_of_the_trust_region() -> None:
    """Where the quadratic model holds, 1/2 step^T F step is max_kl: the first try lands about there."""
    agent = tiny("trpo", "Pendulum-v1", num_envs=8, num_steps=64, max_kl=1e-4, cg_damping=1e-4)
    rows: list[dict[str, Any]] = []
    agent.learn(512, callback=rows.append)
    tries = rows[0]["line_search_steps"]
    assert tries in (1, 2), "a first try just beyond the limit is shortened once"
    assert rows[0]["kl"] == pytest.approx(1e-4 * 0.64 ** (tries - 1), rel=0.1)


@pytest.mark.parametrize(
    "fields",
    [{"max_kl": 0.001}, {"cg_iterations": 1}, {"cg_damping": 10.0}, {"fisher_samples": 10}, {"entropy_coef": 0.1},
     {"normalize_advantage": "none"}, {"value_epochs": 1}, {"critic_learning_rate": 1e-2}],
    ids=str,
)  # fmt: skip
def test_each_option_of_trpo_changes_what_is_learnt(fields: dict[str, Any]) -> None:
    assert not torch.equal(tiny("trpo", **fields).learn(120).flat.data, tiny("trpo").learn(120).flat.data)


class Pictures(gym.Env):
    """Small random images; the first of three actions pays."""

    observation_space = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (16, 16, 3), np.uint8), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.np_random.integers(0, 256, (16, 16, 3), np.uint8), float(action == 0), False, False, {}


def test_trpo_on_images_is_the_same_in_micro_batches() -> None:
    results = []
    small = {"encoder": "impala", "impala_channels": (4,), "num_steps": 6, "value_epochs": 1, "cg_iterations": 3}
    untrained = tiny("trpo", Pictures, **small).flat
    for microbatch in (1 << 30, 10):
        agent = tiny("trpo", Pictures, torch_threads=1, **small)
        agent.computation.microbatch = agent.stepper.plain.microbatch = microbatch  # type: ignore[attr-defined]
        rows: list[dict[str, Any]] = []
        agent.learn(24, callback=rows.append)
        assert rows[0]["step_accepted"] == 1
        results.append(agent.flat.data[agent.flat.slices["policy"]].clone())
    assert not torch.equal(results[0], untrained.data[untrained.slices["policy"]])
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-4)


# All three


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", FACTORIES)
def test_every_action_space_trains(name: str, space: str) -> None:
    agent = tiny(name, FACTORIES[space])
    before = agent.flat.data.clone()
    agent.learn(120)
    assert agent.progress.step == 120
    for where in agent.flat.slices.values():
        assert not torch.equal(agent.flat.data[where], before[where])
    assert torch.isfinite(agent.flat.data).all()


@pytest.mark.parametrize("name", NAMES)
def test_masked_actions_are_never_taken(name: str) -> None:
    made: list[MaskedIdentityEnv] = []

    def factory() -> gym.Env:
        made.append(MaskedIdentityEnv())
        return made[-1]

    tiny(name, factory).learn(120)
    assert sum(env.taken for env in made) == 120
    assert sum(env.forbidden_taken for env in made) == 0


@pytest.mark.parametrize("how", [pytest.param("on", marks=needs_compiler), "replay"])
@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_compute_ends_at_the_same_parameters(name: str, how: str) -> None:
    quick, plain = (tiny(name, "Pendulum-v1", normalize_observation=True, compile=way) for way in (how, "off"))
    start = plain.flat.data.clone()
    for agent in (quick, plain):
        agent.learn(180)
    stepper: Any = quick.stepper  # type: ignore[attr-defined]
    assert stepper.way == {"on": "compiled", "replay": "traced"}[how], "nothing in these losses defies the tracing"
    assert (quick.flat.data - plain.flat.data).norm() < 1e-3 * (plain.flat.data - start).norm()


@pytest.mark.parametrize(
    ("name", "fields"),
    [("a2c", {}), ("a2c", {"optimizer": "adam", "arch": "shared"}), ("a2c", {"rmsprop_inside_root": True, "compile": "on"}),
     ("vpg", {}),
     ("trpo", {}), ("trpo", {"fisher_samples": 20})],
    ids=str,
)  # fmt: skip
def test_a_resumed_run_ends_with_the_same_bits(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    more = {"normalize_observation": True, "normalize_reward": True, "checkpoint_every": 60, **fields}
    agent = tiny(name, "Pendulum-v1", run_dir=tmp_path / "whole", **more)
    resumed_to_the_same_bits(agent, 252, 180)


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_trains_and_evaluates(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    sizes = ["--num-envs", "4", "--num-steps", "8", "--total-steps", "96", "--hidden-sizes", "8", "--seed", "2"]
    assert main(["train", name, "--env", "CartPole-v1", "--run-dir", run, "--quiet", *sizes]) == 0
    assert main(["eval", run, "--episodes", "2", "--deterministic", "--json"]) == 0
    assert '"return_mean"' in capsys.readouterr().out
    loaded = pg.load(run)
    assert type(loaded) is ALGORITHMS[name]
    assert loaded.progress.step == 96


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid_and_keeps_the_rates_of_ppo_to_ppo(name: str, preset: str) -> None:
    config_class = ALGORITHMS[name].config_class
    known = documented_fields(config_class)
    assert set(PRESETS[preset].by_algorithm.get(name, {})) <= set(known), "a misspelt field would be dropped in silence"
    config = resolve_config(config_class, {"env": "custom:Env", "preset": preset})
    own = PRESETS[preset].by_algorithm.get(name, {})
    for field in ("num_envs", "num_steps", "learning_rate", "gae_lambda"):
        if field in known:
            assert getattr(config, field) == own.get(field, known[field].default), field
    assert config.gamma == own.get("gamma", PRESETS[preset].common["gamma"])


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_documented_and_none_is_a_stranger(name: str) -> None:
    fields = documented_fields(ALGORITHMS[name].config_class)
    assert all(len(field.metadata.get("help", "")) > 5 for field in fields.values())
    assert not {"clip_range", "kl_beta", "kl_target", "epochs", "objective"} & set(fields)


def test_defaults_are_the_published_ones() -> None:
    defaults = {name: ALGORITHMS[name].config_class() for name in NAMES}
    wanted = {
        "a2c": {"num_envs": 16, "num_steps": 5, "gae_lambda": 1.0, "optimizer": "rmsprop", "learning_rate": 7e-4,
                "rmsprop_alpha": 0.99, "rmsprop_eps": 1e-5, "value_coef": 0.5, "entropy_coef": 0.01,
                "max_grad_norm": 0.5, "normalize_advantage": "none"},
        "vpg": {"gae_lambda": 0.97, "learning_rate": 3e-4, "critic_learning_rate": 1e-3, "value_steps": 80,
                "batch_size": 4000, "normalize_advantage": "batch", "arch": "dual"},
        "trpo": {"max_kl": 0.01, "cg_iterations": 10, "cg_damping": 0.1, "line_search_decay": 0.8,
                 "line_search_tries": 10, "critic_learning_rate": 1e-3, "fisher_samples": 0, "arch": "dual"},
    }  # fmt: skip
    for name, values in wanted.items():
        assert {field: getattr(defaults[name], field) for field in values} == values


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("trpo", {"arch": "shared"}, "arch must be dual for trpo, not 'shared': a step"),
        ("vpg", {"arch": "auto"}, "arch must be dual for vpg, not 'auto': the value's"),
        ("trpo", {"num_minibatches": 61}, "num_minibatches 61 is more than the 60 samples"),
        ("a2c", {"clip_range": 0.2}, "Unknown setting 'clip_range' for a2c"),
        ("a2c", {"optimizer": "sgd"}, "optimizer must be one of rmsprop, adam, not 'sgd'"),
        ("a2c", {"arch": "shared", "critic_learning_rate": 1e-3}, "critic_learning_rate needs a value network"),
        ("trpo", {"learning_rate": 1e-3}, "Unknown setting 'learning_rate' for trpo"),
    ],
)
def test_contradictions_are_refused_in_a_sentence(name: str, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        tiny(name, **fields)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
