"""ACER: its formulas against brute force, its memory, its determinism and resume, and that it learns."""

from __future__ import annotations

import copy
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from identity_envs import EPISODE, FACTORIES, MaskedIdentityEnv
from scipy.optimize import minimize
from torch import Tensor

import phasegrad as pg
from phasegrad.advantages import retrace
from phasegrad.algorithms.acer import ACER, ReplayBatch
from phasegrad.cli.main import main
from phasegrad.data.replay_memory import ReplayMemory, Trajectories
from phasegrad.errors import ConfigError, DamagedError, EnvError
from phasegrad.losses import corrected_policy_gradient, kl_gradient, projected
from phasegrad.models.q_critic import expected_value
from phasegrad.runs.metrics import read_metrics

SMALL: dict[str, Any] = {
    "preset": "none", "seed": 3, "num_envs": 4, "num_steps": 5, "updates_per_iteration": 2, "hidden_sizes": (16,),
    "replay_capacity": 200, "replay_start": 60, "replay_ratio": 2.0, "checkpoint_every": 1_000_000,
    "compile": "off",  # tracing takes longer than such runs; one test compares both ways
}  # fmt: skip


class Corridor(gym.Env):
    """Walk left or right; past the third cell an episode terminates, after six steps it is cut. Observes its clock."""

    LIMIT = 6

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10, 10, (2,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.place = self.clock = 0

    def look(self) -> np.ndarray:
        return np.array([self.place, self.clock], np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.clock = int(self.np_random.integers(-1, 2)), 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += int(action) - 1
        self.clock += 1
        over = abs(self.place) > 3
        return self.look(), float(self.place) + 0.1 * self.clock, over, self.clock >= self.LIMIT and not over, {}


def small_agent(env: Any = Corridor, **fields: Any) -> ACER:
    return pg.ACER(env, **SMALL | fields)


def same(first: ACER, second: ACER) -> bool:
    mine, theirs = first.tensors(), second.tensors()
    assert mine.keys() == theirs.keys()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


# Retrace


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000), steps=st.integers(1, 12), envs=st.integers(1, 4), ends=st.floats(0, 0.6),
    lam=st.sampled_from([1.0, 0.9]),
)  # fmt: skip
def test_retrace_agrees_with_the_recursion_of_the_paper(
    seed: int, steps: int, envs: int, ends: float, lam: float
) -> None:
    rng = np.random.default_rng(seed)
    rewards, q_taken, values, following = rng.normal(size=(4, steps, envs))
    ratios = rng.exponential(size=(steps, envs)) * 2
    terminated = rng.random((steps, envs)) < ends / 2
    truncated = (rng.random((steps, envs)) < ends / 2) & ~terminated
    last = np.arange(steps) == steps - 1
    next_values = np.where(truncated | terminated | last[:, None], following, np.roll(values, -1, 0))
    gamma = 0.97
    expected = np.zeros((steps, envs))
    for n in range(envs):  # Algorithm 2, backwards, one episode's end at a time
        q_ret = next_values[-1, n]
        for t in reversed(range(steps)):
            if terminated[t, n]:
                q_ret = 0.0
            elif truncated[t, n]:
                q_ret = next_values[t, n]  # V of the true final observation
            q_ret = rewards[t, n] + gamma * q_ret
            expected[t, n] = q_ret
            q_ret = lam * min(1.0, ratios[t, n]) * (q_ret - q_taken[t, n]) + values[t, n]
    found = retrace(*map(torch.from_numpy, (rewards, q_taken, next_values, ratios, terminated, truncated)), gamma, lam)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-10, atol=1e-10)


def test_retrace_with_exact_action_values_keeps_them() -> None:
    """Where Q is the fixed point of a deterministic chain, no ratio moves the target."""
    rewards = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    q_taken = torch.tensor([[1 + 0.5 * 4], [2 + 0.5 * 4.0], [4.0]], dtype=torch.float64)
    next_values = torch.tensor([[4.0], [4.0], [99.0]], dtype=torch.float64)
    never = torch.zeros(3, 1, dtype=torch.bool)
    ends = torch.tensor([[False], [False], [True]])
    found = retrace(rewards, q_taken, next_values, torch.tensor([[5.0], [0.1], [3.0]]), ends, never, 0.5)
    torch.testing.assert_close(found, q_taken)


# The trust region


@pytest.mark.parametrize("seed", range(20))
def test_projection_solves_its_quadratic_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    gradient, constraint = rng.normal(size=(2, size)) * rng.choice([0.3, 1.0, 3.0], size=(2, 1))
    delta = float(rng.choice([0.0, 0.5, 1.0]))
    found = projected(torch.from_numpy(gradient), torch.from_numpy(constraint), delta).numpy()
    solved = minimize(
        lambda z: 0.5 * np.sum((gradient - z) ** 2),
        np.zeros(size),
        jac=lambda z: z - gradient,
        constraints={"type": "ineq", "fun": lambda z: delta - constraint @ z, "jac": lambda z: -constraint},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert solved.success
    np.testing.assert_allclose(found, solved.x, atol=1e-6)


def test_projection_satisfies_the_optimality_conditions() -> None:
    generator = torch.Generator().manual_seed(1)
    gradient, constraint = torch.randn(2, 500, 4, generator=generator, dtype=torch.float64) * 2
    constraint[0] = 0.0  # no direction at all
    z = projected(gradient, constraint, 1.0)
    slack = 1.0 - (constraint * z).sum(-1)
    assert slack.min() >= -1e-12
    multiplier = ((gradient - z) * constraint).sum(-1) / constraint.square().sum(-1).clamp(min=1e-12)
    assert multiplier.min() >= 0
    torch.testing.assert_close(gradient - z, multiplier[:, None] * constraint)  # stationary
    assert (multiplier * slack).abs().max() < 1e-12  # complementary
    active = multiplier > 0
    assert 0.1 < active.double().mean() < 0.9, "both cases must occur"
    assert torch.equal(z[~active], gradient[~active])
    assert torch.equal(z[0], gradient[0])


# The policy gradient


def probabilities_like(generator: torch.Generator, *shape: int) -> Tensor:
    return (2 * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(-1)


@pytest.mark.parametrize("clip", [1.0, 2.0, 10.0])
def test_truncation_and_correction_add_up_to_the_policy_gradient(clip: float) -> None:
    """In the mean over the behaviour policy's actions nothing is lost: sum_a grad pi(a) (Q(a) - V)."""
    generator = torch.Generator().manual_seed(2)
    pi, mu = (probabilities_like(generator, 50, 4) for _ in range(2))
    q_values = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    mean = sum(
        mu[:, a : a + 1] * corrected_policy_gradient(pi, mu, torch.full((50,), a), q_values, q_values[:, a], clip)
        for a in range(4)
    )
    torch.testing.assert_close(mean, q_values - (pi * q_values).sum(-1, keepdim=True))
    assert ((pi / mu) > clip).any(), "some weights must be truncated"


def test_gradients_by_probability_agree_with_autograd() -> None:
    generator = torch.Generator().manual_seed(3)
    pi, mu, average = (probabilities_like(generator, 30, 3) for _ in range(3))
    pi.requires_grad_()
    q_values = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(30, generator=generator, dtype=torch.float64)
    actions = torch.randint(3, (30,), generator=generator)
    held = pi.detach()
    ratios, values = held / mu, (held * q_values).sum(-1)
    rows = torch.arange(30)
    objective = ratios[rows, actions].clamp(max=1.5) * pi.log()[rows, actions] * (targets - values)
    objective = objective + ((1 - 1.5 / ratios).clamp(min=0) * held * pi.log() * (q_values - values[:, None])).sum(-1)
    objective = objective - 0.1 * (pi * pi.log()).sum(-1)
    (wanted,) = torch.autograd.grad(objective.sum(), pi)
    found = corrected_policy_gradient(held, mu, actions, q_values, targets, 1.5, 0.1)
    torch.testing.assert_close(found, wanted)
    (wanted,) = torch.autograd.grad((average * (average.log() - pi.log())).sum(), pi)
    torch.testing.assert_close(kl_gradient(held, average), wanted)


def test_impossible_actions_and_vanishing_probabilities_stay_finite() -> None:
    pi = torch.tensor([[0.0, 1.0, 0.0], [1e-30, 1.0, 0.0], [0.0, 1.0, 0.0]])
    mu = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
    actions = torch.tensor([1, 0, 0])  # the last was possible once, and its probability has vanished since
    gradient = corrected_policy_gradient(pi, mu, actions, torch.randn(3, 3), torch.randn(3), 10.0, 0.01)
    direction = kl_gradient(pi, torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]))
    assert projected(gradient, direction, 1.0).isfinite().all()
    assert (gradient[pi == 0] == 0).all()
    assert (direction[pi == 0] == 0).all()


@pytest.fixture
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("arch", ["shared", "dual"])
@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("trust_region", [True, False])
def test_gradient_of_the_loss_agrees_with_the_papers_sums(
    arch: str, on_policy: bool, trust_region: bool, in_float64: None
) -> None:
    """A linear policy and a linear Q of two inputs: the gradient is written down sample by sample in numpy."""
    clip, delta, entropy, q_coef = 1.5, 0.3, 0.05, 0.7
    agent = small_agent(
        arch=arch, hidden_sizes=(), importance_clip=clip, trust_region_delta=delta, entropy_coef=entropy,
        q_coef=q_coef, trust_region=trust_region, policy_gain=1.0,
    )  # fmt: skip
    rng = np.random.default_rng(5)
    size, inputs, choices = 40, 2, 3
    x = rng.normal(size=(size, inputs))
    actions, targets = rng.integers(choices, size=size), rng.normal(size=size)
    average_logits = rng.normal(size=(size, choices))
    behaviour_logits = 2 * rng.normal(size=(size, choices))
    tensors = [torch.from_numpy(array) for array in (x, targets, behaviour_logits, actions, average_logits)]
    batch = ReplayBatch(tensors[0], None, tensors[1], tensors[3], tensors[2], tensors[4])
    agent.model.zero_grad()
    loss, metrics = (agent.on_policy_loss if on_policy else agent.off_policy_loss)(batch, agent.config.weights())
    loss.backward()

    weights, bias, q_weights, q_bias = (
        parameter.detach().numpy()
        for head in (agent.model.policy_head.linear, agent.model.value_head)
        for parameter in (head.weight, head.bias)
    )
    expected = [np.zeros_like(array) for array in (weights, bias, q_weights, q_bias)]

    def softmax(logits: np.ndarray) -> np.ndarray:
        return np.exp(logits) / np.exp(logits).sum()

    projections = 0
    for i in range(size):
        pi, q = softmax(weights @ x[i] + bias), q_weights @ x[i] + q_bias
        mu = pi if on_policy else softmax(behaviour_logits[i])
        average, v, a = softmax(average_logits[i]), pi @ q, actions[i]
        g = np.zeros(choices)
        g[a] += min(clip, pi[a] / mu[a]) / pi[a] * (targets[i] - v)
        for b in range(choices):
            g[b] += max(0.0, 1 - clip * mu[b] / pi[b]) * (q[b] - v) - entropy * (np.log(pi[b]) + 1)
        k = -average / pi
        if k @ g > delta:
            projections += 1
            g = g - trust_region * (k @ g - delta) / (k @ k) * k
        jacobian = np.diag(pi) - np.outer(pi, pi)  # of the probabilities by the logits
        by_logits = jacobian @ g / size
        expected[0] -= np.outer(by_logits, x[i])
        expected[1] -= by_logits
        by_q = q_coef * (q[a] - targets[i]) / size
        expected[2][a] += by_q * x[i]
        expected[3][a] += by_q
    found = [
        parameter.grad.numpy()
        for head in (agent.model.policy_head.linear, agent.model.value_head)
        for parameter in (head.weight, head.bias)
    ]
    for mine, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-12)
    name = "" if on_policy else "replay_"
    assert float(metrics[f"{name}trust_region_fraction"]) == pytest.approx(projections / size)
    assert 0 < projections < size
    weight = float(metrics[f"{name}importance_weight"])
    assert weight == 1.0 if on_policy else abs(weight - 1) > 0.1


# The memory


def gathered(agent: ACER, steps: int, monkeypatch: pytest.MonkeyPatch) -> list[Trajectories]:
    """Copies of all that the agent puts into its memory while it learns for `steps`."""
    kept: list[Trajectories] = []
    original = agent.memory.add

    def add(trajectories: Trajectories) -> int:
        kept.append(copy.deepcopy(trajectories))
        return original(trajectories)

    monkeypatch.setattr(agent.memory, "add", add)
    agent.learn(steps)
    return kept


def test_targets_of_replayed_trajectories_agree_with_the_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the memory to the loss, with terminated and cut episodes: against the networks asked one state at a time."""
    agent = small_agent(num_steps=8, replay_capacity=320, replay_start=0, replay_ratio=1.0)
    gathered(agent, 384, monkeypatch)
    agent.flat.data += 0.3 * torch.randn(len(agent.flat.data), generator=torch.Generator().manual_seed(2))  # pi, not mu
    trajectories = agent.memory.sample(12, torch.Generator().manual_seed(1))
    batch = agent.batch_of(trajectories, on_policy=False)
    assert bool(trajectories.terminated.any())
    assert len(trajectories.final_positions) >= 3, "cut episodes must be among them"
    assert (trajectories.final_observations[:, 1] == Corridor.LIMIT).all(), "these are the true last observations"

    def heads(observation: Tensor) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            logits, q = agent.model.policy_and_q(observation[None])
        return logits[0].softmax(-1).double().numpy(), q[0].double().numpy()

    finals = dict(zip(trajectories.final_positions.tolist(), trajectories.final_observations, strict=True))
    steps, envs = trajectories.actions.shape
    found = batch.value_targets.reshape(steps, envs)
    for n in range(envs):
        pi, q = heads(trajectories.next_observations[n])
        q_ret = float(pi @ q)
        for t in reversed(range(steps)):
            if trajectories.terminated[t, n]:
                q_ret = 0.0
            elif trajectories.truncated[t, n]:
                pi, q = heads(finals[t * envs + n])
                q_ret = float(pi @ q)
            q_ret = float(trajectories.raw_rewards[t, n]) + agent.config.gamma * q_ret
            assert float(found[t, n]) == pytest.approx(q_ret, rel=1e-4, abs=1e-4)
            pi, q = heads(trajectories.observations[t, n])
            a = int(trajectories.actions[t, n])
            mu = float(trajectories.behaviour_params[t, n].softmax(-1)[a])
            q_ret = min(1.0, float(pi[a]) / mu) * (q_ret - float(q[a])) + float(pi @ q)
    cut = trajectories.truncated.flatten().nonzero().flatten()
    assert set(cut.tolist()) == set(finals)


def test_the_memory_holds_the_latest_rollouts_as_they_were_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small_agent()
    kept = gathered(agent, 20 * 14, monkeypatch)
    memory = agent.memory
    assert len(kept) == 14
    assert (memory.slots, memory.added, memory.steps, memory.numbers()) == (10, 14, 200, range(4, 14))
    for number in memory.numbers():
        held, wanted = memory.rollout_tensors(number), kept[number]
        assert torch.equal(held["observations"].transpose(0, 1), wanted.observations)
        assert torch.equal(held["actions"].transpose(0, 1), wanted.actions)
        assert torch.equal(held["behaviour_params"].transpose(0, 1), wanted.behaviour_params)
        assert torch.equal(held["raw_rewards"].transpose(0, 1), wanted.raw_rewards.float())
        assert torch.equal(held["terminated"].transpose(0, 1), wanted.terminated)
        assert torch.equal(held["truncated"].transpose(0, 1), wanted.truncated)
        assert torch.equal(held["next_observations"], wanted.next_observations)
        assert torch.equal(held["final_positions"], wanted.final_positions)
        assert torch.equal(held["final_observations"], wanted.final_observations)
    for before, after in itertools.pairwise(kept):  # one leg: what followed is where the next begins
        assert torch.equal(before.next_observations, after.observations[0])


def test_rollouts_written_and_read_back_give_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small_agent(FACTORIES["dict"])
    gathered(agent, 20 * 13, monkeypatch)
    other = small_agent(FACTORIES["dict"]).memory
    for number in agent.memory.numbers():
        other.load_rollout(number, agent.memory.rollout_tensors(number))
    other.added = agent.memory.added
    mine, theirs = (memory.sample(9, torch.Generator().manual_seed(4)) for memory in (agent.memory, other))
    assert len(mine.final_positions) > 0
    for name, value in vars(mine).items():
        if isinstance(value, dict):
            for key, leaf in value.items():
                assert torch.equal(leaf, getattr(theirs, name)[key]), (name, key)
        elif value is not None:
            assert torch.equal(value, getattr(theirs, name)), name
    broken = dict(agent.memory.rollout_tensors(5))
    broken["actions"] = broken["actions"][:, :-1]
    with pytest.raises(DamagedError, match="actions"):
        other.load_rollout(5, broken)
    cut = next(n for n in agent.memory.numbers() if len(agent.memory.rollout_tensors(n)["final_positions"]))
    broken = dict(agent.memory.rollout_tensors(cut))
    broken["final_positions"] = broken["final_positions"] * 0 - 1
    with pytest.raises(DamagedError, match="final observations"):
        other.load_rollout(cut, broken)


def test_sampling_is_uniform_over_trajectories() -> None:
    agent = small_agent(replay_ratio=0.1)
    agent.learn(20 * 4)
    memory = agent.memory
    memory.tensors()["raw_rewards"].copy_(torch.arange(40.0).reshape(10, 4, 1).expand(-1, -1, 5))  # its own number
    drawn = memory.sample(16_000, torch.Generator().manual_seed(1)).raw_rewards
    assert torch.equal(drawn, drawn[:1].expand_as(drawn)), "trajectories stay whole"
    counts = torch.bincount(drawn[0].long(), minlength=40)
    assert (counts[16:] == 0).all(), "only what is held"
    assert counts[:16].min() > 850
    assert counts[:16].max() < 1150


@pytest.mark.parametrize(
    ("space", "observation_bytes"),
    [(spaces.Box(0, 255, (64, 64, 3), np.uint8), 64 * 64 * 3), (spaces.Box(-1, 1, (4,), np.float64), 16)],
)
def test_the_stated_bytes_are_what_is_taken(space: gym.Space, observation_bytes: int) -> None:
    from phasegrad.distributions import Categorical

    memory = ReplayMemory(3, 20, 2, space, Categorical(5), has_mask=True)
    assert not memory.is_allocated
    rooms = memory.tensors()
    assert sum(room.numel() * room.element_size() for room in rooms.values()) == memory.storage_bytes()
    of_a_step = observation_bytes + 8 + 4 * 5 + 4 + 2 + 5  # observation, action, mu, reward, flags, mask
    assert memory.storage_bytes() == 3 * 2 * (20 * of_a_step + observation_bytes + 5)


def test_the_memory_counts_in_the_stated_storage_and_is_refused_where_it_does_not_fit() -> None:
    agent = small_agent(replay_capacity=10_000)
    on_policy = small_agent(replay_ratio=0.0)
    assert agent.storage_bytes() == on_policy.storage_bytes() + agent.memory.storage_bytes()
    with pytest.raises(ConfigError, match="replay_capacity"):
        small_agent(replay_capacity=10**13).learn(40)


# On-policy, replay and its randomness


def test_without_replay_it_is_on_policy() -> None:
    rows: list[dict[str, Any]] = []
    agent = small_agent(replay_ratio=0.0)
    agent.learn(800, callback=rows.append)
    assert not agent.memory.is_allocated
    assert agent.memory.storage_bytes() == 0
    for row in rows:
        assert row["importance_weight"] == 1.0
        assert row["replay_updates"] == row["replay_steps"] == row["clip_fraction"] == 0
        assert row["updates"] == 2
        assert "replay_importance_weight" not in row


def test_replay_starts_when_the_memory_is_filled_enough_and_follows_a_poisson_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = small_agent(updates_per_iteration=1, replay_ratio=3.0)
    updates: list[bool] = []

    def learn_from(trajectories: Trajectories, rates: Any, on_policy: bool) -> Tensor:
        updates.append(on_policy)
        assert trajectories.actions.shape == (5, 4)
        return torch.randn(20)

    monkeypatch.setattr(agent, "learn_from", learn_from)
    rows: list[dict[str, Any]] = []
    agent.learn(20 * 300, callback=rows.append)
    counts = np.array([row["replay_updates"] for row in rows])
    assert updates.count(True) == 300
    assert updates.count(False) == counts.sum()
    assert (counts[:2] == 0).all()
    assert rows[2]["replay_steps"] == 60
    assert rows[-1]["replay_steps"] == 200
    assert abs(counts[2:].mean() - 3) < 0.4
    assert abs(counts[2:].var() - 3) < 0.9  # a Poisson variable's variance is its mean


def test_the_average_policy_follows_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small_agent(arch="dual", replay_ratio=0.0, average_decay=0.75, learning_rate=1e-2)
    average = agent.average.parameters.clone()
    assert torch.equal(average, agent.flat.data[agent.flat.slices["policy"]])
    original = agent.stepper.step

    def step(*arguments: Any) -> None:
        nonlocal average
        original(*arguments)
        average = 0.75 * average + 0.25 * agent.flat.data[agent.flat.slices["policy"]]

    monkeypatch.setattr(agent.stepper, "step", step)
    agent.learn(200)
    torch.testing.assert_close(agent.average.parameters, average)
    observation = torch.randn(3, 2)
    assert not torch.allclose(agent.average.policy(observation), agent.model.policy(observation))


@pytest.mark.parametrize(
    ("env", "fields"),
    [
        (Corridor, {}),
        (Corridor, {"arch": "dual", "normalize_observation": True, "normalize_reward": True, "optimizer": "adam"}),
        (MaskedIdentityEnv, {}),
        (FACTORIES["dict"], {"rmsprop_inside_root": True}),
        ("CartPole-v1", {"bootstrap_truncated": False}),
    ],
)
def test_same_seed_same_bits(env: Any, fields: dict[str, Any]) -> None:
    torch.manual_seed(1)
    first = small_agent(env, **fields).learn(400)
    torch.manual_seed(2)  # the global generator must not matter
    second = small_agent(env, **fields).learn(400)
    assert same(first, second)
    assert not same(first, small_agent(env, **fields | {"seed": 4}).learn(400))


def test_traced_and_plain_gradients_end_with_the_same_bits() -> None:
    plain, traced = (small_agent(compile=how).learn(400) for how in ("off", "replay"))
    assert (traced.stepper.way, plain.stepper.way) == ("traced", "plain")
    assert same(plain, traced)


def test_images_train_in_micro_batches() -> None:
    class Screen(gym.Env):
        observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self.observation_space.sample(), 1.0, False, bool(self.np_random.random() < 0.1), {}

    agent = small_agent(Screen, num_envs=2, replay_capacity=80, replay_start=20, torch_threads=1)
    agent.computation.microbatch = agent.stepper.plain.microbatch = 3  # of 10 samples
    agent.learn(60)
    assert agent.memory.tensors()["observations"].dtype == torch.uint8
    assert all(tensor.isfinite().all() for tensor in agent.tensors().values())


# Masks, spaces, settings


def test_forbidden_actions_are_never_taken_and_it_learns_which_to_take() -> None:
    made: list[MaskedIdentityEnv] = []

    def factory() -> MaskedIdentityEnv:
        made.append(MaskedIdentityEnv())
        return made[-1]

    agent = pg.ACER(
        factory, preset="none", seed=1, num_envs=8, gamma=0.5, learning_rate=5e-3, anneal_learning_rate=True,
        replay_start=1_000, replay_ratio=2.0, compile="off",
    )  # fmt: skip
    agent.learn(8_000)
    assert sum(env.taken for env in made) >= 8_000
    assert sum(env.forbidden_taken for env in made) == 0
    assert agent.evaluate(16).return_mean >= 0.9 * EPISODE


def test_values_under_a_mask_leave_out_what_it_forbids() -> None:
    agent = small_agent(MaskedIdentityEnv)
    observation = torch.tensor([2, 3])
    mask = torch.tensor([[True, False, True, False, True, False], [True] * 6])
    logits, q_values = agent.model.policy_and_q(observation, mask)
    values = expected_value(logits, q_values)
    free = agent.model.policy(observation).softmax(-1)
    allowed = free[0] * mask[0] / (free[0] * mask[0]).sum()
    torch.testing.assert_close(values[0], (allowed * q_values[0]).sum())
    torch.testing.assert_close(values[1], agent.model.value(observation)[1])


@pytest.mark.parametrize("env", ["Pendulum-v1", FACTORIES["multi_discrete"]])
def test_other_action_spaces_get_one_sentence(env: Any) -> None:
    with pytest.raises(EnvError, match=r"acer needs a Discrete action space, not .*: use ppo"):
        pg.ACER(env)


def test_the_command_line_refuses_continuous_actions_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "acer", "--env", "Pendulum-v1", "--run-dir", str(tmp_path / "run"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "Discrete" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"replay_capacity": 19}, "less than one rollout"),
        ({"replay_start": 300}, "replay_start 300 is more than replay_capacity 200"),
        ({"policy_gae_lambda": 0.8}, "policy_gae_lambda has no meaning"),
        ({"importance_clip": 0.5}, "importance_clip must be at least 1"),
        ({"arch": "detach"}, "arch must be one of"),
        ({"replay_ration": 1}, "Did you mean replay_ratio"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        small_agent(**fields)


def test_a_short_last_rollout_is_learnt_from_but_not_kept() -> None:
    agent = small_agent()
    agent.learn(20 * 6 + 8)
    assert agent.progress.step == 128
    assert agent.memory.added == 6
    agent.learn(20 * 12)
    assert agent.progress.step == 240
    assert agent.memory.added == 6 + 5  # 112 further steps


# Checkpoints and resume


TIMES = re.compile("sps|seconds|time_.*")
RUN: dict[str, Any] = SMALL | {
    "checkpoint_every": 200, "anneal_learning_rate": True, "normalize_observation": True, "normalize_reward": True,
    "keep_checkpoints": 2,
}  # fmt: skip


def rows_without_times(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not TIMES.fullmatch(k)} for row in read_metrics(folder / "metrics.jsonl")]


def same_memory(first: ACER, second: ACER) -> bool:
    mine, theirs = first.carries.pieces(), second.carries.pieces()
    assert mine.keys() == theirs.keys()
    assert mine
    return all(torch.equal(tensor, theirs[n][name]) for n, piece in mine.items() for name, tensor in piece.items())


@pytest.mark.parametrize(
    ("env", "killed_at"), [("CartPole-v1", 160), ("CartPole-v1", 240), ("CartPole-v1", 520), ("CartPole-v1", 800)]
)
def test_a_killed_run_resumes_to_the_bits_of_one_never_stopped(env: str, killed_at: int, tmp_path: Path) -> None:
    """The run directory as a kill at a step would leave it; the memory (200 steps) turns over several times."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def copy_directory(row: dict[str, Any]) -> None:
        if row["step"] == killed_at:
            shutil.copytree(whole, killed, ignore=shutil.ignore_patterns("*lock*"))

    agent = pg.ACER(env, run_dir=whole, **RUN).learn(1_000, callback=copy_directory)
    if killed_at < 200:  # before the first checkpoint: the run starts again from its config
        assert main(["resume", str(killed), "--quiet"]) == 0
        resumed = pg.load(killed)
        resumed.learn(1_040)
        agent = pg.load(whole).learn(1_040)
    else:
        resumed = pg.load(killed)
        assert 0 < resumed.progress.step < killed_at
        resumed.learn()
    assert same(agent, resumed)
    assert same_memory(agent, resumed)
    assert agent.progress == resumed.progress
    assert rows_without_times(killed) == rows_without_times(whole)


def test_rollouts_are_written_once_and_removed_when_no_checkpoint_needs_them(tmp_path: Path) -> None:
    written: dict[str, int] = {}

    def look(row: dict[str, Any]) -> None:
        for path in (tmp_path / "run" / "segments").glob("*.safetensors"):
            assert written.setdefault(path.name, path.stat().st_mtime_ns) == path.stat().st_mtime_ns

    pg.ACER("CartPole-v1", run_dir=tmp_path / "run", **RUN).learn(1_600, callback=look)
    left = sorted(path.name for path in (tmp_path / "run" / "segments").glob("*.safetensors"))
    assert len(written) >= 7
    assert 1 <= len(left) <= 4
    state = json.loads(sorted((tmp_path / "run" / "checkpoints").glob("*/state.json"))[-1].read_text())
    assert state["extra"]["carried"]["state"] == {"added": 80}


def test_a_saved_agent_carries_its_memory(tmp_path: Path) -> None:
    agent = small_agent("CartPole-v1", checkpoint_every=200).learn(400)
    agent.save(tmp_path / "saved")
    loaded = pg.load(tmp_path / "saved")
    agent.learn(800)
    loaded.learn(800)
    assert same(agent, loaded)
    assert same_memory(agent, loaded)


def test_a_memory_that_lacks_a_rollout_is_refused() -> None:
    agent = small_agent().learn(100)
    pieces = agent.carries.pieces()
    del pieces[2]
    with pytest.raises(DamagedError, match="rollout"):
        small_agent().memory.restore({"added": 5}, pieces)
    with pytest.raises(DamagedError, match="rollout"):
        small_agent(replay_ratio=0.0).memory.restore({"added": 5}, agent.carries.pieces())


# Learning


@pytest.mark.learning
def test_cartpole_is_solved() -> None:
    agent = pg.ACER("CartPole-v1", seed=1).learn(100_000)
    assert agent.progress.step == 100_000
    assert agent.evaluate(20, deterministic=True).return_mean >= 450
