"""Squashed Gaussians and Beta distributions against torch.distributions, scipy and numerical integration."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch import distributions as td

from phasegrad.distributions import Beta, DiagonalGaussian, SquashedGaussian, box_distribution, distribution_for
from phasegrad.distributions.beta_functions import beta_quantile, binet, binet_slope, log_ratio
from phasegrad.errors import ConfigError

LOG_2 = math.log(2.0)
MEANS = st.floats(-10, 10)
LOG_STDS = st.floats(math.log(1e-3), math.log(20))
COUNTS = st.floats(math.log(1e-4), math.log(1e4)).map(lambda log: 1 + math.exp(log))  # 1.0001 to 10,001
KINDS = {"tanh": SquashedGaussian(2), "beta": Beta(2)}


def gaussian(*pairs: tuple[float, float]) -> Tensor:
    """Parameters [2 n] of means and logarithms of deviations, in double precision."""
    return torch.tensor([mean for mean, _ in pairs] + [log_std for _, log_std in pairs], dtype=torch.float64)


def raw(*counts: float) -> Tensor:
    """The outputs of a network that stand for alphas and betas."""
    above = torch.tensor(counts, dtype=torch.float64) - 1 - Beta.LEAST
    return above + torch.log(-torch.expm1(-above))


def torch_beta(params: Tensor) -> td.Beta:
    alpha, beta = Beta(params.shape[-1] // 2).described(params).values()
    return td.Beta(alpha, beta)


# The squashed Gaussian


@settings(deadline=None)
@given(MEANS, LOG_STDS, st.floats(-4, 4))
def test_log_probs_of_a_squashed_gaussian_are_those_of_torch(mean: float, log_std: float, z: float) -> None:
    params, u = gaussian((mean, log_std)), torch.tensor([mean + math.exp(log_std) * z], dtype=torch.float64)
    squashing = td.TanhTransform(cache_size=1)
    wanted = td.TransformedDistribution(td.Normal(params[:1], params[1:].exp()), [squashing])
    found = SquashedGaussian(1).log_prob(params, u)
    torch.testing.assert_close(found, wanted.log_prob(squashing(u)).sum(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.3), (-1.5, 0.8), (0.0, 0.05)])
def test_the_squashed_density_integrates_to_one(mean: float, std: float) -> None:
    """With the density as a function of the action in (-1, 1), found by atanh."""
    edges = torch.linspace(-1, 1, 400_001, dtype=torch.float64)
    action = 0.5 * (edges[1:] + edges[:-1])
    params = gaussian((mean, math.log(std))).expand(len(action), 2)
    density = SquashedGaussian(1).log_prob(params, action.atanh().unsqueeze(-1)).exp()
    assert float(density.sum() * (edges[1] - edges[0])) == pytest.approx(1, abs=1e-4)


def expectation(params: Tensor, function: object) -> Tensor:
    """E of a function of u, by a sum over 12 deviations so fine that it is exact to ten digits."""
    z = torch.linspace(-12, 12, 40_001, dtype=torch.float64)
    weights = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    return (weights * function(params[0] + params[1].exp() * z)).sum()  # type: ignore[operator]


def log_2_cosh(u: Tensor) -> Tensor:
    return u.abs() + torch.log1p(torch.exp(-2 * u.abs()))


@settings(deadline=None, max_examples=60)
@given(MEANS, LOG_STDS)
def test_entropy_of_a_squashed_gaussian_is_within_its_bound(mean: float, log_std: float) -> None:
    params = gaussian((mean, log_std)).requires_grad_()
    normal = 0.5 * math.log(2 * math.pi * math.e) + log_std
    wanted = normal + 2 * LOG_2 - 2 * float(expectation(params.detach(), log_2_cosh))
    found = SquashedGaussian(1).entropy(params)
    assert float(found.detach()) == pytest.approx(wanted, abs=4.3e-7)
    (slope,) = torch.autograd.grad(found, params, create_graph=True)
    tanh = float(expectation(params.detach(), torch.tanh))
    bend = float(expectation(params.detach(), lambda u: 1 - u.tanh().square()))
    variance = math.exp(2 * log_std)
    assert float(slope[0].detach()) == pytest.approx(-2 * tanh, abs=6e-7)
    # E[(1 - tanh^2)] times the variance: Stein's identity; the error of the mixture's curvature falls off as it spreads
    assert float(slope[1].detach()) == pytest.approx(1 - 2 * variance * bend, abs=1e-5)
    (second,) = torch.autograd.grad(slope[0], params)
    assert float(second[0]) == pytest.approx(-2 * bend, abs=3e-6)


@pytest.mark.parametrize("mean", [-10.0, -1.0, 0.0, 0.3, 10.0])
@pytest.mark.parametrize("std", [1e-3, 0.1, 1.0, 20.0])
def test_a_squashed_gaussian_in_float32_is_that_in_float64(mean: float, std: float) -> None:
    exact, kind = gaussian((mean, math.log(std))).requires_grad_(), SquashedGaussian(1)
    rounded = exact.detach().float().requires_grad_()
    u = (exact.detach()[0] + std * torch.linspace(-3, 3, 7, dtype=torch.float64)).unsqueeze(-1).float()
    for function in (kind.entropy, lambda params: kind.log_prob(params.expand(7, 2), u.to(params.dtype)).mean()):
        wanted, found = function(exact), function(rounded)
        assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5, abs=2e-5 + 1e-6 / std)
        (a,), (b,) = torch.autograd.grad(wanted, exact), torch.autograd.grad(found, rounded)
        torch.testing.assert_close(b.double(), a, rtol=1e-2, atol=2e-5 / std)
        assert torch.isfinite(b).all()


def test_kl_mode_and_samples_of_a_squashed_gaussian_are_the_gaussians() -> None:
    params, other = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    squashed, plain = SquashedGaussian(2), DiagonalGaussian(2)
    noise = torch.randn(5, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.equal(squashed.kl(params, other), plain.kl(params, other))
    assert torch.equal(squashed.sample(params, noise), plain.sample(params, noise))
    assert torch.equal(squashed.within(squashed.mode(params)), params[:, :2].tanh())
    mean = expectation(
        torch.stack([params[0, 0], params[0, 2]]),
        lambda u: (
            SquashedGaussian(1).log_prob(params[0, [0, 2]].expand(len(u), 2), u.unsqueeze(-1))
            - SquashedGaussian(1).log_prob(other[0, [0, 2]].expand(len(u), 2), u.unsqueeze(-1))
        ),
    )
    assert float(mean) == pytest.approx(float(SquashedGaussian(1).kl(params[0, [0, 2]], other[0, [0, 2]])), abs=1e-9)


@pytest.mark.parametrize("u", [-1e4, -50.0, -9.0, 9.0, 50.0, 1e4])
def test_log_probs_far_out_are_finite_in_float32(u: float) -> None:
    params = torch.tensor([u, 0.0])
    found = float(SquashedGaussian(1).log_prob(params, torch.tensor([u])))
    assert found == pytest.approx(-0.5 * math.log(2 * math.pi) + 2 * abs(u) - 2 * LOG_2, rel=1e-6)


# The Beta distribution


@settings(deadline=None)
@given(COUNTS, COUNTS, COUNTS, COUNTS, st.floats(0.01, 0.99))
def test_a_beta_is_that_of_torch(a: float, b: float, other_a: float, other_b: float, level: float) -> None:
    params, other, kind = raw(a, b).requires_grad_(), raw(other_a, other_b), Beta(1)
    x = torch.tensor([stats.beta.ppf(level, a, b)]).clamp(Beta.SMALLEST, Beta.LARGEST)
    p, q = torch_beta(params), torch_beta(other)
    pairs = [
        (kind.log_prob(params, x), p.log_prob(x).sum() - LOG_2),
        (kind.entropy(params), p.entropy().sum() + LOG_2),
        (kind.kl(params, other), td.kl_divergence(p, q).sum()),
        (kind.kl(other, params), td.kl_divergence(q, p).sum()),
    ]
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=2e-8)
        (mine,) = torch.autograd.grad(found, params, retain_graph=True)
        (theirs,) = torch.autograd.grad(wanted, params, retain_graph=True)
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


@settings(deadline=None)
@given(COUNTS, COUNTS)
def test_second_derivatives_of_the_kl_are_the_fisher_matrix(a: float, b: float) -> None:
    """trigamma of alpha and beta on its diagonal, less that of their sum everywhere, in the units of the raw outputs."""
    params = raw(a, b).requires_grad_()
    alpha, beta = torch_beta(params.detach()).concentration1, torch_beta(params.detach()).concentration0
    trigamma = torch.polygamma(1, torch.cat([alpha, beta, alpha + beta]))
    wanted = (torch.diag(trigamma[:2]) - trigamma[2]) * torch.outer(*2 * [params.detach().sigmoid()])
    found = torch.autograd.functional.hessian(lambda own: Beta(1).kl(params.detach(), own), params.detach())
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7 * float(wanted.abs().max()))


def test_what_stands_for_the_gamma_function_is_within_its_bound() -> None:
    x = torch.cat([torch.linspace(1, 30, 3_000), torch.logspace(1, 8, 500)]).double()
    half_log = 0.5 * math.log(2 * math.pi)
    gamma = torch.lgamma(x) - (x - 0.5) * x.log() + x - half_log
    near = x < 100  # beyond it the difference of large numbers has no digits left
    assert (binet(x) - gamma)[near].abs().max() < 1e-12 * 100 + 2.2e-11
    assert (binet_slope(x) - (torch.digamma(x) - x.log() + 0.5 / x))[near].abs().max() < 5.6e-10
    assert (binet(x) * 12 * x - 1)[x > 1e4].abs().max() < 1e-9
    torch.testing.assert_close(log_ratio(x, x.flip(0)), x.log() - x.flip(0).log())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_beta_has_finite_numbers_wherever_its_outputs_go(dtype: torch.dtype) -> None:
    levels = [-300.0, -20.0, -5.0, 0.0, 5.0, 100.0, 1e4, 1e6]
    params = torch.cartesian_prod(*2 * [torch.tensor(levels, dtype=dtype)]).requires_grad_()
    kind = Beta(1)
    noise = torch.tensor([0.0, 1e-8, 0.3, 1 - 2.0**-24, 1.0], dtype=dtype).view(-1, 1, 1).expand(-1, len(params), 1)
    actions = kind.sample(params.detach().expand(5, -1, -1), noise)
    assert ((actions > 0) & (actions < 1)).all()
    assert ((kind.mode(params) > 0) & (kind.mode(params) < 1)).all()
    other = params.detach().flip(0)
    total = kind.log_prob(params, actions).sum() + kind.entropy(params).sum()
    total = total + kind.kl(params, params.detach() + 0.1).sum() + kind.kl(other, params).sum()
    (gradient,) = torch.autograd.grad(total, params)
    assert torch.isfinite(total)
    assert torch.isfinite(gradient).all()
    assert (kind.kl(params, params) == 0).all()
    alpha, beta = kind.described(params).values()
    assert ((alpha > 1) & (beta > 1)).all()


@pytest.mark.parametrize(("a", "b"), [(1.0001, 1.0001), (1.5, 1.0001), (2, 30), (50, 70), (1000, 3), (1e4, 1e4)])
def test_a_beta_in_float32_is_that_in_float64(a: float, b: float) -> None:
    params, kind = raw(a, b).float().expand(9, 2), Beta(1)  # rounded once, so that both have the same alpha and beta
    actions = kind.sample(params, torch.linspace(0.02, 0.98, 9).unsqueeze(-1))
    other = params + 0.02 * params.abs()
    close = {"rtol": 1e-5, "atol": 3e-6 + 2e-7 * (a + b)}
    for function in (
        lambda p, q, x: kind.log_prob(p, x), lambda p, q, x: kind.entropy(p), lambda p, q, x: kind.kl(p, q),
    ):  # fmt: skip
        found, wanted = (function(*(x.to(t) for x in (params, other, actions))) for t in (torch.float32, torch.float64))
        torch.testing.assert_close(found.double(), wanted, **close)


@settings(deadline=None, max_examples=60)
@given(COUNTS, COUNTS)
def test_quantiles_of_a_beta_are_right(a: float, b: float) -> None:
    levels = torch.linspace(0, 1, 501, dtype=torch.float64)[1:-1]
    x = beta_quantile(torch.full_like(levels, a), torch.full_like(levels, b), levels)
    assert np.abs(stats.beta.cdf(x.numpy(), a, b) - levels.numpy()).max() < 6e-5
    assert (x.diff() >= 0).all()


@pytest.mark.parametrize(("a", "b"), [(1.0001, 1.0001), (1.693, 1.693), (1.1, 9), (40, 12), (900, 1.2), (5e3, 5e3)])
def test_samples_of_a_beta_have_its_distribution(a: float, b: float) -> None:
    """By Kolmogorov and Smirnov, and two of one action are independent."""
    kind = Beta(2)
    noise = kind.draw_noise((100_000,), torch.Generator().manual_seed(3))
    drawn = kind.sample(raw(a, 3.0, b, 2.0).float().expand(100_000, 4), noise).double().numpy()
    assert stats.kstest(drawn[:, 0], stats.beta(a, b).cdf).pvalue > 1e-3
    assert stats.kstest(drawn[:, 1], stats.beta(3.0, 2.0).cdf).pvalue > 1e-3
    assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(0, abs=0.015)


def test_samples_of_a_squashed_gaussian_have_its_distribution() -> None:
    kind, params = SquashedGaussian(1), torch.tensor([0.4, math.log(0.9)])
    noise = kind.draw_noise((100_000,), torch.Generator().manual_seed(3))
    drawn = kind.within(kind.sample(params.expand(100_000, 2), noise))[:, 0].double().numpy()
    assert stats.kstest(drawn, lambda x: stats.norm.cdf(np.arctanh(x), 0.4, 0.9)).pvalue > 1e-3


def test_the_mode_of_a_beta_is_its_peak() -> None:
    params = 3 * torch.randn(40, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    kind = Beta(2)
    best = kind.log_prob(params, kind.mode(params))
    for level in torch.linspace(1e-4, 1 - 1e-4, 200, dtype=torch.float64):
        assert (kind.log_prob(params, level.expand(40, 2)) <= best + 1e-12).all()
    alpha, beta = kind.described(params).values()
    torch.testing.assert_close(kind.mode(params), (alpha - 1) / (alpha + beta - 2), rtol=1e-6, atol=1e-9)


# Both


@pytest.mark.parametrize("name", KINDS)
def test_entropy_is_the_mean_of_minus_the_log_prob(name: str) -> None:
    """Of [-1, 1] in both: of a uniform distribution it would be log 2 for each number of the action."""
    kind = KINDS[name]
    params = 0.5 * torch.randn(4, generator=torch.Generator().manual_seed(5))
    noise = kind.draw_noise((400_000,), torch.Generator().manual_seed(6))
    spread = params.expand(400_000, 4)
    estimate = -kind.log_prob(spread, kind.sample(spread, noise)).double().mean()
    assert float(estimate) == pytest.approx(float(kind.entropy(params)), abs=0.01)
    assert float(kind.entropy(params)) < 2 * LOG_2


def test_a_flat_beta_has_the_entropy_of_its_interval() -> None:
    assert float(Beta(2).entropy(torch.full((4,), -40.0))) == pytest.approx(2 * LOG_2, abs=1e-6)
    assert float(Beta(1).log_prob(torch.full((2,), -40.0), torch.tensor([0.3]))) == pytest.approx(-LOG_2, abs=1e-4)


def test_a_box_gets_the_distribution_of_its_name() -> None:
    space = gym.spaces.Box(-2.0, 1.0, (2, 3))
    wanted = {"auto": DiagonalGaussian, "gaussian": DiagonalGaussian, "tanh": SquashedGaussian, "beta": Beta}
    for name, kind in wanted.items():
        for made in (distribution_for(space, name), box_distribution(space, name)):
            assert type(made) is kind
            assert made.action_shape == (6,)


@pytest.mark.parametrize("name", KINDS)
def test_a_space_without_bounds_is_refused(name: str) -> None:
    half = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32))
    widest = float(np.finfo(np.float32).max)
    for space in (half, gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(-widest, widest, (1,))):
        with pytest.raises(
            ConfigError, match=rf"^action_distribution {name} needs finite action bounds.* use gaussian\.$"
        ):
            distribution_for(space, name)
    for other in (gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 2]), gym.spaces.MultiBinary(2)):
        with pytest.raises(
            ConfigError, match=rf"^action_distribution {name} needs a Box action space, not .*: use auto\.$"
        ):
            distribution_for(other, name)
