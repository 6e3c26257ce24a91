"""The four families against torch.distributions, their sampling against their probabilities, and masks."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch import distributions as td

from phasegrad.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    distribution_for,
)
from phasegrad.distributions.discrete import LARGEST_UNIFORM
from phasegrad.errors import EnvError

SIZES = [2, 3, 5]
DISTRIBUTIONS: dict[str, Distribution] = {
    "categorical": Categorical(4),
    "multicategorical": MultiCategorical(SIZES),
    "bernoulli": Bernoulli(3),
    "gaussian": DiagonalGaussian(2),
}
DISCRETE = ["categorical", "multicategorical", "bernoulli"]


def normal(*shape: int, seed: int = 0, scale: float = 1.5) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(name: str, params: Tensor) -> list[td.Distribution]:
    """Independent parts whose log-probabilities, entropies and KLs add up."""
    if name == "categorical":
        return [td.Categorical(logits=params)]
    if name == "multicategorical":
        return [td.Categorical(logits=part) for part in params.split(SIZES, -1)]
    if name == "bernoulli":
        return [td.Bernoulli(logits=params[..., i]) for i in range(3)]
    return [td.Normal(params[..., i], params[..., 2 + i].exp()) for i in range(2)]


def parts_of(name: str, actions: Tensor) -> list[Tensor]:
    if name == "categorical":
        return [actions]
    return [part if name != "bernoulli" else part.double() for part in actions.unbind(-1)]


def draw(distribution: Distribution, params: Tensor, seed: int = 1) -> Tensor:
    return distribution.sample(params, distribution.draw_noise(params.shape[:-1], torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_log_prob_entropy_and_kl_are_those_of_torch(name: str, seed: int) -> None:
    distribution = DISTRIBUTIONS[name]
    params, other = (normal(6, 7, distribution.parameter_size, seed=10 * seed + i) for i in range(2))
    actions = draw(distribution, params, seed)
    assert actions.shape == (6, 7, *distribution.action_shape)
    p, q = reference(name, params), reference(name, other)
    log_prob = sum(d.log_prob(a) for d, a in zip(p, parts_of(name, actions), strict=True))
    torch.testing.assert_close(distribution.log_prob(params, actions), log_prob, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(distribution.entropy(params), sum(d.entropy() for d in p), rtol=1e-9, atol=1e-9)
    kl = sum(td.kl_divergence(a, b) for a, b in zip(p, q, strict=True))
    torch.testing.assert_close(distribution.kl(params, other), kl, rtol=1e-9, atol=1e-9)
    assert distribution.kl(params, params).abs().max() < 1e-12


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_gradients_are_those_of_torch(name: str) -> None:
    """Entropy and KL are differentiated in the losses; a detached target would give the right value and no slope."""
    distribution = DISTRIBUTIONS[name]
    params = normal(8, distribution.parameter_size, seed=3).requires_grad_()
    old = normal(8, distribution.parameter_size, seed=4)
    kl = sum(td.kl_divergence(a, b) for a, b in zip(reference(name, old), reference(name, params), strict=True))
    entropy = sum(d.entropy() for d in reference(name, params))
    for mine, theirs in ((distribution.kl(old, params), kl), (distribution.entropy(params), entropy)):
        (got,), (wanted,) = (torch.autograd.grad(x.sum(), params, retain_graph=True) for x in (mine, theirs))
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * counts.sum()
    return ((counts - expected).square() / expected).sum().item()


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_samples_have_their_probabilities(name: str) -> None:
    distribution = DISTRIBUTIONS[name]
    params = normal(distribution.parameter_size, seed=5, scale=1.0).float()
    actions = draw(distribution, params.expand(100_000, -1))
    for part, column in zip(reference(name, params.double()), parts_of(name, actions), strict=True):
        assert isinstance(part, td.Categorical | td.Bernoulli)
        probabilities = part.probs if name != "bernoulli" else torch.stack([1 - part.probs, part.probs])
        counts = torch.bincount(column.long(), minlength=len(probabilities))
        assert chi_square(counts.double(), probabilities) < 20, "p < 0.001 even with 4 degrees of freedom"


def test_choices_of_a_multicategorical_are_independent() -> None:
    distribution = MultiCategorical([2, 2])
    actions = draw(distribution, torch.zeros(100_000, 4))
    counts = torch.bincount(2 * actions[:, 0] + actions[:, 1], minlength=4)
    assert chi_square(counts.double(), torch.full((4,), 0.25, dtype=torch.float64)) < 16.3


def test_gaussian_samples_have_their_moments() -> None:
    params = torch.tensor([1.0, -2.0, np.log(0.5), np.log(3.0)], dtype=torch.float32)
    actions = draw(DISTRIBUTIONS["gaussian"], params.expand(200_000, -1))
    torch.testing.assert_close(actions.mean(0), torch.tensor([1.0, -2.0]), atol=0.02, rtol=0)
    torch.testing.assert_close(actions.std(0), torch.tensor([0.5, 3.0]), atol=0.02, rtol=0)
    assert np.corrcoef(actions.T.numpy())[0, 1] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mode_is_the_most_likely_action(name: str) -> None:
    distribution = DISTRIBUTIONS[name]
    params = normal(50, distribution.parameter_size, seed=8)
    mode = distribution.mode(params)
    best = distribution.log_prob(params, mode)
    for seed in range(30):
        assert (distribution.log_prob(params, draw(distribution, params, seed)) <= best + 1e-12).all()


def edges_of_noise(distribution: Distribution, count: int) -> Tensor:
    """0, what rand can give at most, 1 itself, and the value that sampling clamps to."""
    levels = torch.tensor([0.0, 1e-12, 0.5, LARGEST_UNIFORM, 1 - 2**-24, 1.0])
    return levels[:, None, None].expand(len(levels), count, distribution.noise_size)


def random_masks(name: str, count: int) -> Tensor:
    """Masks that allow at least one action of every choice; the first rows allow only the first or only the last."""
    distribution = DISTRIBUTIONS[name]
    mask = torch.rand((count, distribution.mask_size), generator=torch.Generator().manual_seed(2)) < 0.5
    if name == "bernoulli":
        return mask
    start = 0
    for size in [4] if name == "categorical" else SIZES:
        block = mask[:, start : start + size]
        block[torch.arange(count), torch.arange(count) % size] = True
        block[0], block[1] = False, False
        block[0, 0], block[1, -1] = True, True
        start += size
    return mask


def allowed(name: str, mask: Tensor, actions: Tensor) -> Tensor:
    """Whether each action is one that its mask allows."""
    if name == "categorical":
        return mask.gather(-1, actions[..., None]).squeeze(-1)
    if name == "bernoulli":
        return (mask | (actions == 0)).all(-1)
    blocks = mask.split(SIZES, -1)
    return torch.stack([b.gather(-1, actions[..., i, None]).squeeze(-1) for i, b in enumerate(blocks)]).all(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.1, 5.0, 60.0])
@pytest.mark.parametrize("name", DISCRETE)
def test_masked_actions_are_never_taken(name: str, scale: float, dtype: torch.dtype) -> None:
    distribution, count = DISTRIBUTIONS[name], 400
    mask = random_masks(name, count)
    params = distribution.masked(normal(count, distribution.parameter_size, seed=9, scale=scale).to(dtype), mask)
    noise = edges_of_noise(distribution, count).to(dtype)
    actions = distribution.sample(params.expand(len(noise), -1, -1), noise)
    assert allowed(name, mask.expand(len(noise), -1, -1), actions).all()
    for seed in range(50):
        assert allowed(name, mask, draw(distribution, params, seed).long()).all()
    assert allowed(name, mask, distribution.mode(params)).all()


@pytest.mark.parametrize("name", ["categorical", "multicategorical"])
def test_samples_stay_in_range_at_the_edges_of_the_noise(name: str) -> None:
    distribution = DISTRIBUTIONS[name]
    params = normal(300, distribution.parameter_size, seed=12, scale=30.0).float()
    noise = edges_of_noise(distribution, 300)
    actions = distribution.sample(params.expand(len(noise), -1, -1), noise)
    limits = torch.tensor(4 if name == "categorical" else SIZES)
    assert (actions >= 0).all()
    assert (actions < limits).all()


@pytest.mark.parametrize("name", DISCRETE)
def test_masked_distribution_is_the_one_restricted_to_what_is_allowed(name: str) -> None:
    """Entropy, KL and log-probabilities equal those of torch's distributions over only the allowed actions."""
    distribution, count = DISTRIBUTIONS[name], 40
    mask = random_masks(name, count)
    raw, raw_other = (normal(count, distribution.parameter_size, seed=s) for s in (20, 21))
    params, other = distribution.masked(raw, mask), distribution.masked(raw_other, mask)
    actions = draw(distribution, params).long()
    entropy, kl, log_prob = (
        distribution.entropy(params),
        distribution.kl(params, other),
        distribution.log_prob(params, actions),
    )
    blocks = {"categorical": [4], "multicategorical": SIZES, "bernoulli": [1, 1, 1]}[name]
    for row in range(count):
        wanted = np.zeros(3)
        start = 0
        for i, size in enumerate(blocks):
            block = slice(start, start + size)
            start += size
            action = actions[row] if name == "categorical" else actions[row, i]
            if name == "bernoulli":
                if not mask[row, i]:
                    continue  # that bit is 0 for certain: it adds nothing
                p, q = td.Bernoulli(logits=raw[row, i]), td.Bernoulli(logits=raw_other[row, i])
                chosen = action.double()
            else:
                keep = mask[row, block]
                p, q = (td.Categorical(logits=x[row, block][keep]) for x in (raw, raw_other))
                chosen = keep[: int(action)].sum()  # its place among the allowed
            wanted += [p.entropy(), td.kl_divergence(p, q), p.log_prob(chosen)]
        assert [entropy[row].item(), kl[row].item(), log_prob[row].item()] == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("name", DISCRETE)
def test_masked_logits_get_no_gradient(name: str) -> None:
    distribution = DISTRIBUTIONS[name]
    mask = random_masks(name, 40)
    raw = normal(40, distribution.parameter_size, seed=22).requires_grad_()
    params = distribution.masked(raw, mask)
    old = distribution.masked(normal(40, distribution.parameter_size, seed=23), mask)
    total = (
        distribution.log_prob(params, draw(distribution, params.detach()).long())
        + distribution.entropy(params)
        + distribution.kl(old, params)
    )
    (gradient,) = torch.autograd.grad(total.sum(), raw)
    assert torch.isfinite(gradient).all()
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).any(), "what is allowed must still learn"


@pytest.mark.parametrize("name", DISCRETE)
def test_masked_functions_stay_finite_in_float32(name: str) -> None:
    distribution = DISTRIBUTIONS[name]
    mask = random_masks(name, 40)
    raw = normal(40, distribution.parameter_size, seed=24, scale=20.0).float().requires_grad_()
    params = distribution.masked(raw, mask)
    old = distribution.masked(normal(40, distribution.parameter_size, seed=25, scale=20.0).float(), mask)
    total = distribution.entropy(params).sum() + distribution.kl(old, params).sum()
    (gradient,) = torch.autograd.grad(total, raw)
    assert torch.isfinite(total)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", DISCRETE)
def test_a_full_mask_changes_nothing(name: str) -> None:
    distribution = DISTRIBUTIONS[name]
    params = normal(5, distribution.parameter_size)
    assert torch.equal(distribution.masked(params, torch.ones(5, distribution.mask_size, dtype=torch.bool)), params)
    assert distribution.masked(params, None) is params


def test_gaussian_actions_cannot_be_masked() -> None:
    distribution = DISTRIBUTIONS["gaussian"]
    assert distribution.masked(torch.zeros(1, 4), None).shape == (1, 4)
    with pytest.raises(EnvError, match="cannot be masked"):
        distribution.masked(torch.zeros(1, 4), torch.ones(1, 2, dtype=torch.bool))


def test_noise_comes_from_the_generator_alone() -> None:
    for distribution in DISTRIBUTIONS.values():
        first, second = (distribution.draw_noise((3, 2), torch.Generator().manual_seed(4)) for _ in range(2))
        assert torch.equal(first, second)
        assert first.shape == (3, 2, distribution.noise_size)
        assert not torch.equal(first, distribution.draw_noise((3, 2), torch.Generator().manual_seed(5)))


def test_family_for_each_action_space() -> None:
    spaces = gym.spaces
    cases = [
        (spaces.Discrete(3), Categorical, 3, ()),
        (spaces.MultiDiscrete([2, 5]), MultiCategorical, 7, (2,)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), MultiCategorical, 14, (4,)),
        (spaces.MultiBinary((2, 3)), Bernoulli, 6, (6,)),
        (spaces.Box(-1, 1, (2, 2)), DiagonalGaussian, 8, (4,)),
    ]
    for space, kind, size, shape in cases:
        distribution = distribution_for(space)
        assert type(distribution) is kind
        assert distribution.parameter_size == size
        assert distribution.action_shape == shape
    with pytest.raises(EnvError, match="is not supported"):
        distribution_for(spaces.Text(3))
