"""Advantage estimation against the explicit sum of its definition, episode by episode."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phasegrad.advantages import discounted_suffix_sum, gae, normalized

settings.register_profile("phasegrad", deadline=None)  # a shared machine is no reason to fail
settings.load_profile("phasegrad")


def random_rollout(seed: int, steps: int, envs: int, rate: float) -> tuple[torch.Tensor, ...]:
    """rewards, values, next_values, terminated, truncated; ends are frequent and sometimes of both kinds at once."""
    rng = np.random.default_rng(seed)
    rewards, values, next_values = (torch.from_numpy(rng.normal(size=(steps, envs)) * 3) for _ in range(3))
    terminated, truncated = (torch.from_numpy(rng.random((steps, envs)) < rate) for _ in range(2))
    return rewards, values, next_values, terminated, truncated


def explicit_advantage(rollout: tuple[torch.Tensor, ...], t: int, n: int, gamma: float, lam: float) -> float:
    """sum_l (gamma lambda)^l delta_{t+l}, up to and including the step that ends the episode."""
    rewards, values, next_values, terminated, truncated = (x[:, n].tolist() for x in rollout)
    total, weight = 0.0, 1.0
    for k in range(t, len(rewards)):
        following = 0.0 if terminated[k] else next_values[k]
        total += weight * (rewards[k] + gamma * following - values[k])
        weight *= gamma * lam
        if terminated[k] or truncated[k]:
            break
    return total


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 40),
    envs=st.integers(1, 4),
    rate=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_gae_is_the_explicit_sum_within_each_episode(
    seed: int, steps: int, envs: int, rate: float, gamma: float, lam: float
) -> None:
    rollout = random_rollout(seed, steps, envs, rate)
    advantages, targets = gae(*rollout, gamma, lam)
    expected = [[explicit_advantage(rollout, t, n, gamma, lam) for n in range(envs)] for t in range(steps)]
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(targets, advantages + rollout[1], rtol=1e-12, atol=1e-12)


def one_step(terminated: bool, truncated: bool) -> float:
    column = [torch.tensor([[x]], dtype=torch.float64) for x in (1.0, 3.0, 7.0)]
    flags = [torch.tensor([[x]]) for x in (terminated, truncated)]
    return gae(*column, *flags, 0.5, 0.9)[0].item()


def test_termination_counts_what_follows_as_zero_and_truncation_bootstraps() -> None:
    assert one_step(terminated=True, truncated=False) == pytest.approx(1 - 3)
    assert one_step(terminated=False, truncated=True) == pytest.approx(1 + 0.5 * 7 - 3)
    assert one_step(terminated=False, truncated=False) == pytest.approx(1 + 0.5 * 7 - 3)
    assert one_step(terminated=True, truncated=True) == pytest.approx(1 - 3), "a termination wins over a truncation"


@pytest.mark.parametrize("kind", ["terminated", "truncated", "both"])
def test_nothing_leaks_across_the_end_of_an_episode(kind: str) -> None:
    """What happens after step 4 leaves the advantages up to step 4 alone, to the last bit."""
    rewards, values, next_values, terminated, truncated = random_rollout(3, 11, 2, 0.0)
    terminated[4] = kind in ("terminated", "both")
    truncated[4] = kind in ("truncated", "both")
    before, _ = gae(rewards, values, next_values, terminated, truncated, 0.99, 0.95)
    for changed in (rewards, values, next_values):
        changed[5:] += 1e6
    after, _ = gae(rewards, values, next_values, terminated, truncated, 0.99, 0.95)
    assert torch.equal(before[:5], after[:5])
    assert not torch.isclose(before[5:], after[5:]).any()


def test_environments_do_not_mix() -> None:
    rollout = random_rollout(5, 9, 3, 0.2)
    together, _ = gae(*rollout, 0.97, 0.9)
    for n in range(3):
        alone, _ = gae(*(x[:, n : n + 1] for x in rollout), 0.97, 0.9)
        torch.testing.assert_close(together[:, n : n + 1], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 257, 1000])
def test_discounted_suffix_sum_is_the_recursion(steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    terms = torch.randn((steps, 3), generator=generator, dtype=torch.float64)
    discounts = torch.rand((steps, 3), generator=generator, dtype=torch.float64)
    discounts[torch.rand((steps, 3), generator=generator) < 0.1] = 0.0
    expected, following = torch.zeros_like(terms), torch.zeros(3, dtype=torch.float64)
    for t in reversed(range(steps)):
        following = expected[t] = terms[t] + discounts[t] * following
    kept = terms.clone(), discounts.clone()
    torch.testing.assert_close(discounted_suffix_sum(terms, discounts), expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(terms, kept[0]), "the arguments must not be changed"
    assert torch.equal(discounts, kept[1])


def test_normalized_advantages_have_zero_mean_and_unit_deviation() -> None:
    advantages = torch.randn(64, 4, dtype=torch.float64) * 7 + 3
    result = normalized(advantages)
    assert result.mean().item() == pytest.approx(0, abs=1e-12)
    assert result.std(correction=0).item() == pytest.approx(1, abs=1e-7)
    torch.testing.assert_close(
        result, (advantages - advantages.mean()) / advantages.std(correction=0), rtol=1e-7, atol=1e-7
    )
    assert normalized(torch.tensor([5.0])).tolist() == [0.0]
    assert normalized(torch.full((3,), 2.0)).tolist() == [0.0, 0.0, 0.0]
