"""Running normalisers: their moments against those of all data at once, and that only training moves them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.compute.plain import PlainSteps
from phasegrad.data.reward_scaling import RewardNormalizer
from phasegrad.distributed.moments import merged_moments
from phasegrad.models.scaling import EPSILON, ObservationNormalizer


def rollouts(count: int, *shape: int, seed: int = 0) -> list[np.ndarray]:
    """Rollouts of different lengths [T, 3, *shape] whose mean is large beside their spread, which tests the arithmetic."""
    rng = np.random.default_rng(seed)
    return [rng.normal(50.0 + i, 0.5, (5 + 7 * i, 3, *shape)).astype(np.float32) for i in range(count)]


def test_merged_moments_are_those_of_all_rows() -> None:
    rows = torch.from_numpy(np.random.default_rng(1).normal(1e4, 1.0, (101, 2)))
    moments = torch.zeros(3, 2, dtype=torch.float64)
    for part in (rows[:1], rows[1:8], rows[8:]):
        moments = merged_moments(moments, part)
    assert moments[0].tolist() == [101.0, 101.0]
    torch.testing.assert_close(moments[1], rows.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(moments[2] / 101, rows.var(0, correction=0), rtol=1e-9, atol=0)


def test_observation_moments_over_several_updates() -> None:
    normalizer = ObservationNormalizer(spaces.Box(-np.inf, np.inf, (4,)), True, 1e9)
    parts = rollouts(4, 4)
    for part in parts:
        normalizer.update(torch.from_numpy(part))
    everything = np.concatenate([part.reshape(-1, 4) for part in parts]).astype(np.float64)
    expected = (everything - everything.mean(0)) / np.sqrt(everything.var(0) + EPSILON)
    got = normalizer(torch.from_numpy(everything.astype(np.float32))).numpy()
    np.testing.assert_allclose(got, expected, atol=2e-4)  # float32 on values near 50
    count, mean, squares = normalizer.moments_0.numpy()
    assert (count == len(everything)).all()
    np.testing.assert_allclose(mean, everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(squares / count, everything.var(0), rtol=1e-9)


def test_observations_pass_unchanged_before_the_first_update() -> None:
    normalizer = ObservationNormalizer(spaces.Box(-np.inf, np.inf, (2,)), True, 10.0)
    observation = torch.tensor([[3.0, -4.0]])
    assert torch.equal(normalizer(observation), observation)


def test_normalised_observations_are_clipped() -> None:
    normalizer = ObservationNormalizer(spaces.Box(-np.inf, np.inf, (2,)), True, 1.5)
    normalizer.update(torch.tensor([[-1.0, 10.0], [1.0, 30.0]]))
    got = normalizer(torch.tensor([[100.0, -100.0], [0.5, 25.0]]))
    torch.testing.assert_close(got, torch.tensor([[1.5, -1.5], [0.5, 0.5]]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8)),
        (spaces.Discrete(5), torch.tensor([4, 0])),
        (spaces.MultiDiscrete([3, 4]), torch.tensor([[2, 3]])),
        (spaces.MultiBinary(3), torch.tensor([[0, 1, 1]], dtype=torch.int8)),
    ],
)
def test_images_choices_and_bits_are_untouched(space: gym.Space, observation: torch.Tensor) -> None:
    normalizer = ObservationNormalizer(space, True, 0.1)
    normalizer.update(observation)
    assert normalizer(observation) is observation
    assert not list(normalizer.buffers())


def test_dict_observations_are_normalised_entry_by_entry() -> None:
    space = spaces.Dict(
        {
            "wide": spaces.Box(-np.inf, np.inf, (2,)),
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "choice": spaces.Discrete(3),
            "angle": spaces.Box(-np.inf, np.inf, (1,)),
        }
    )
    normalizer = ObservationNormalizer(space, True, 10.0)
    observation = {
        "wide": torch.tensor([[0.0, 100.0], [2.0, 300.0]]),
        "image": torch.ones((2, 4, 4, 3), dtype=torch.uint8),
        "choice": torch.tensor([0, 2]),
        "angle": torch.tensor([[-7.0], [-5.0]]),
    }
    normalizer.update(observation)
    got = normalizer(observation)
    torch.testing.assert_close(got["wide"], torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    torch.testing.assert_close(got["angle"], torch.tensor([[-1.0], [1.0]]))
    assert got["image"] is observation["image"]
    assert got["choice"] is observation["choice"]
    assert list(got) == list(observation)


def test_switched_off_it_does_nothing() -> None:
    normalizer = ObservationNormalizer(spaces.Box(-1, 1, (2,)), False, 0.1)
    observation = torch.tensor([[5.0, 6.0]])
    normalizer.update(observation)
    assert normalizer(observation) is observation
    rewards = RewardNormalizer(False, 0.9, 0.1)
    assert rewards(torch.tensor([[5.0]], dtype=torch.float64), torch.tensor([[False]])).tolist() == [[5.0]]
    assert rewards.std == 1.0


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.999])
def test_reward_normaliser_is_the_recursion_of_each_environment(gamma: float) -> None:
    """Three rollouts; episodes end inside, on the last step of one rollout and on the first of the next."""
    rng = np.random.default_rng(4)
    normalizer = RewardNormalizer(True, gamma, 3.0)
    running, returns = np.zeros(3), []
    for rollout in range(3):
        rewards = rng.normal(0.3, 2.0, (9, 3))
        done = rng.random((9, 3)) < 0.2
        done[-1, 0], done[-1, 1], done[0, 2] = True, False, True
        for t in range(9):
            running = gamma * running + rewards[t]
            returns.append(running.copy())
            running = np.where(done[t], 0.0, running)
        got = normalizer(torch.from_numpy(rewards), torch.from_numpy(done))
        std = np.sqrt(np.var(returns) + EPSILON)
        assert normalizer.std == pytest.approx(std, rel=1e-9), rollout
        np.testing.assert_allclose(got.numpy(), np.clip(rewards / std, -3, 3), rtol=1e-6)
        assert got.dtype == torch.float32


def test_reward_normaliser_clips_and_keeps_zeros_and_signs() -> None:
    normalizer = RewardNormalizer(True, 0.5, 1.25)
    rewards = torch.tensor([[0.0], [0.1], [-0.1], [50.0], [-50.0]], dtype=torch.float64)
    got = normalizer(rewards, torch.zeros(5, 1, dtype=torch.bool)).flatten()
    assert got[0] == 0
    assert got[3:].tolist() == [1.25, -1.25]
    assert torch.equal(got.sign(), rewards.flatten().sign().float())


def test_a_new_leg_forgets_the_returns_under_way_but_not_the_moments() -> None:
    never = torch.zeros(1, 1, dtype=torch.bool)
    normalizer, other = RewardNormalizer(True, 1.0, 10.0), RewardNormalizer(True, 1.0, 10.0)
    for each in (normalizer, other):
        each(torch.tensor([[4.0]], dtype=torch.float64), never)
    normalizer.start_leg()
    for each in (normalizer, other):
        each(torch.tensor([[2.0]], dtype=torch.float64), never)
    assert normalizer.std == pytest.approx(np.std([4, 2]), rel=1e-6)
    assert other.std == pytest.approx(np.std([4, 6]), rel=1e-6)
    assert normalizer.moments[0] == 2


def test_evaluating_and_predicting_leave_every_tensor_alone() -> None:
    agent = pg.PPO(
        "Pendulum-v1",
        seed=3,
        preset="none",
        num_envs=4,
        num_steps=32,
        epochs=1,
        normalize_observation=True,
        normalize_reward=True,
    )
    agent.learn(256)
    before = {name: tensor.clone() for name, tensor in agent.tensors().items()}
    assert before["model.normalizer.moments_0"][0, 0] == 256
    assert before["reward_normalizer.moments"][0] == 256
    agent.evaluate(3)
    agent.evaluate(3, deterministic=False)
    observation = np.full((5, 3), 9.0, np.float32)
    agent.predict(observation)
    agent.predict(observation, deterministic=False)
    agent.value(observation)
    after = agent.tensors()
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), name
    agent.close()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_rollout_is_learnt_from_once_and_only_after_it_was_used(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the algorithm does with a rollout sees the scaling that it was acted with."""
    fields = {"preset": "none", "num_envs": 4, "num_steps": 8, "normalize_observation": True, "compile": "off"}
    agent: Any = ALGORITHMS[name]("CartPole-v1", **fields, **({"num_minibatches": 2} if name[0] == "p" else {}))
    seen: list[torch.Tensor] = []
    counts: list[float] = []
    collect, gradient = agent.experience.collect, PlainSteps.gradient

    def collected(*arguments: Any) -> Any:
        rollout = collect(*arguments)
        seen.append(rollout.observations.flatten(0, 1).clone())
        return rollout

    def watched(*arguments: Any) -> Any:
        counts.append(float(agent.model.normalizer.moments_0[0].max()) - 32 * (len(seen) - 1))
        return gradient(*arguments)

    monkeypatch.setattr(agent.experience, "collect", collected)
    monkeypatch.setattr(PlainSteps, "gradient", watched)
    agent.learn(32 * 3)
    every = torch.cat(seen).double()
    count, mean, _ = agent.model.normalizer.moments_0
    assert (count == len(every)).all()
    torch.testing.assert_close(mean, every.mean(0))
    in_rollouts = [
        extra for extra in counts if extra != 32
    ]  # PPG's auxiliary phase comes after the rollout was learnt from
    assert in_rollouts
    assert set(in_rollouts) == {0.0}
