"""Objectives and losses: values and gradients against formulas derived by hand, in float64.

For a softmax policy d log pi(a) / d logits = onehot(a) - pi, and d KL[old, pi] / d logits = pi - old. For a Gaussian
d log pi / d mean = (a - mean) / std^2, and d KL[old, pi] / d mean = (mean - mean_old) / std^2.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from phasegrad.distributions import Categorical, DiagonalGaussian
from phasegrad.losses import adapted_kl_beta, auxiliary_loss, explained_variance, policy_objective, value_loss

SAMPLES, ACTIONS, CLIP, BETA = 200, 5, 0.2, 0.7


class Case:
    """A minibatch of a categorical and of a Gaussian policy, with old policies that lie some way off."""

    def __init__(self, kind: str) -> None:
        generator = torch.Generator().manual_seed(7)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.kind = kind
        self.advantages = normal(SAMPLES)
        if kind == "categorical":
            self.distribution = Categorical(ACTIONS)
            self.old_params = normal(SAMPLES, ACTIONS)
            self.actions = torch.randint(ACTIONS, (SAMPLES,), generator=generator)
            self.free = self.old_params + 0.4 * normal(SAMPLES, ACTIONS)
        else:
            self.distribution = DiagonalGaussian(2)
            old_mean, self.log_std = normal(SAMPLES, 2), 0.3 * normal(SAMPLES, 2)
            self.old_params = torch.cat([old_mean, 0.3 * normal(SAMPLES, 2)], 1)
            self.actions = old_mean + normal(SAMPLES, 2)
            self.free = old_mean + 0.3 * normal(SAMPLES, 2)
        self.free.requires_grad_()

    @property
    def params(self) -> Tensor:
        return self.free if self.kind == "categorical" else torch.cat([self.free, self.log_std], 1)

    def objective(self, name: str) -> Tensor:
        log_prob = self.distribution.log_prob(self.params, self.actions)
        old = self.distribution.log_prob(self.old_params, self.actions)
        kl = self.distribution.kl(self.old_params, self.params)
        return policy_objective(name, log_prob, old, self.advantages, clip_range=CLIP, kl=kl, kl_beta=BETA)

    # The independent side: plain formulas that use nothing of the library.

    def log_probs(self, params: Tensor) -> Tensor:
        if self.kind == "categorical":
            shifted = params - params.max(-1, keepdim=True).values
            return shifted[range(SAMPLES), self.actions] - shifted.exp().sum(-1).log()
        mean, log_std = params[:, :2], params[:, 2:]
        return (-((self.actions - mean) ** 2) / (2 * (2 * log_std).exp()) - log_std - 0.5 * math.log(2 * math.pi)).sum(
            -1
        )

    def score(self) -> Tensor:
        """d log pi(a) / d (logits or mean), [B, K]."""
        free = self.free.detach()
        if self.kind == "categorical":
            return torch.nn.functional.one_hot(self.actions, ACTIONS) - self.probabilities(free)
        return (self.actions - free) / (2 * self.log_std).exp()

    def kl_gradient(self) -> Tensor:
        free = self.free.detach()
        if self.kind == "categorical":
            return self.probabilities(free) - self.probabilities(self.old_params)
        return (free - self.old_params[:, :2]) / (2 * self.log_std).exp()

    def kl_value(self) -> Tensor:
        if self.kind == "categorical":
            old, new = self.probabilities(self.old_params), self.probabilities(self.free.detach())
            return (old * (old / new).log()).sum(-1)
        old_mean, old_std = self.old_params[:, :2], self.old_params[:, 2:].exp()
        std = self.log_std.exp()
        moved = (old_std**2 + (old_mean - self.free.detach()) ** 2) / (2 * std**2)
        return ((std / old_std).log() + moved - 0.5).sum(-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        weights = (logits - logits.max(-1, keepdim=True).values).exp()
        return weights / weights.sum(-1, keepdim=True)

    def ratio(self) -> Tensor:
        return (self.log_probs(self.params.detach()) - self.log_probs(self.old_params)).exp()


def expected(case: Case, name: str) -> tuple[Tensor, Tensor]:
    """Value [B] and gradient [B, K] of each sample's objective."""
    advantages, ratio, score = case.advantages, case.ratio(), case.score()
    if name == "pg":
        return case.log_probs(case.params.detach()) * advantages, advantages[:, None] * score
    surrogate, gradient = ratio * advantages, (ratio * advantages)[:, None] * score
    if name == "cpi":
        return surrogate, gradient
    if name == "kl":
        return surrogate - BETA * case.kl_value(), gradient - BETA * case.kl_gradient()
    # Clipped where the ratio has already gone too far in the direction the advantage asks for, and only there.
    stopped = ((advantages > 0) & (ratio > 1 + CLIP)) | ((advantages < 0) & (ratio < 1 - CLIP))
    edge = 1 + CLIP * advantages.sign()
    return torch.where(stopped, edge * advantages, surrogate), torch.where(stopped[:, None], 0.0, gradient)


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
@pytest.mark.parametrize("name", ["pg", "cpi", "clip", "kl"])
def test_objective_value_and_gradient(name: str, kind: str) -> None:
    case = Case(kind)
    result = case.objective(name)
    (gradient,) = torch.autograd.grad(result.sum(), case.free)
    value, slope = expected(case, name)
    torch.testing.assert_close(result.detach(), value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-9)


def test_clip_stops_exactly_the_samples_that_went_too_far() -> None:
    ratios = torch.tensor([0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.0], dtype=torch.float64)
    for sign, stopped in ((1.0, [False] * 5 + [True] * 2), (-1.0, [True] * 2 + [False] * 5)):
        log_prob = ratios.log().requires_grad_()
        result = policy_objective(
            "clip", log_prob, torch.zeros(7, dtype=torch.float64), torch.full((7,), sign, dtype=torch.float64)
        )
        (gradient,) = torch.autograd.grad(result.sum(), log_prob)
        assert (gradient == 0).tolist() == stopped
        moving = ~torch.tensor(stopped)
        torch.testing.assert_close(gradient[moving], sign * ratios[moving], rtol=1e-12, atol=1e-12)


def test_the_case_holds_every_kind_of_sample() -> None:
    """Otherwise the gradient test above would not see the clipped branches."""
    for kind in ("categorical", "gaussian"):
        case = Case(kind)
        ratio, up = case.ratio(), case.advantages > 0
        for group in (ratio > 1 + CLIP, ratio < 1 - CLIP, (ratio - 1).abs() < CLIP):
            assert (group & up).sum() > 5
            assert (group & ~up).sum() > 5


def test_unknown_objective_and_missing_kl_are_refused() -> None:
    zeros = torch.zeros(3)
    with pytest.raises(ValueError, match="objective must be one of pg, cpi, clip, kl, not 'ppo'"):
        policy_objective("ppo", zeros, zeros, zeros)
    with pytest.raises(ValueError, match="needs kl"):
        policy_objective("kl", zeros, zeros, zeros)


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.0, 0.5),
        (0.0199, 0.5),
        (0.02, 1.0),
        (0.0201, 1.0),
        (0.03, 1.0),
        (0.0449, 1.0),
        (0.045, 1.0),
        (0.0451, 2.0),
        (1.0, 2.0),
    ],
)
def test_adaptive_kl_rule(kl: float, factor: float) -> None:
    """d < d_targ / 1.5 halves, d > 1.5 d_targ doubles, both strictly: with d_targ = 0.03 the edges are 0.02 and 0.045."""
    kl = {0.02: 0.03 / 1.5, 0.045: 0.03 * 1.5}.get(kl, kl)  # the edges as the machine rounds them
    assert adapted_kl_beta(0.8, kl, 0.03) == 0.8 * factor


def test_value_loss_is_half_the_mean_square() -> None:
    values = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0.0, 4.0, -1.5], dtype=torch.float64)
    loss = value_loss(values, targets)
    assert loss.item() == pytest.approx((1 + 4 + 0.25) / 6)
    (gradient,) = torch.autograd.grad(loss, values)
    torch.testing.assert_close(gradient, (values - targets).detach() / 3)
    assert value_loss(values, targets, torch.zeros(3), None).item() == loss.item(), (
        "old values without a range change nothing"
    )


def test_value_loss_with_clipping_takes_the_larger_error() -> None:
    """Range 0.5 around the old value: inside it, beyond it towards the target, and beyond it away from the target."""
    old = torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64)
    values = torch.tensor([0.3, 2.0, -2.0], dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([1.0, 3.0, 1.0], dtype=torch.float64)
    loss = value_loss(values, targets, old, 0.5)
    assert loss.item() == pytest.approx(0.5 * ((0.3 - 1) ** 2 + (0.5 - 3) ** 2 + (-2.0 - 1) ** 2) / 3)
    (gradient,) = torch.autograd.grad(loss, values)
    torch.testing.assert_close(gradient, torch.tensor([-0.7, 0.0, -3.0], dtype=torch.float64) / 3)


def test_auxiliary_loss_and_its_gradients() -> None:
    values = torch.tensor([1.0, 3.0], dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([2.0, 0.0], dtype=torch.float64)
    kl = torch.tensor([0.5, 0.1], dtype=torch.float64, requires_grad=True)
    loss = auxiliary_loss(values, targets, kl, 4.0)
    assert loss.item() == pytest.approx(0.5 * (1 + 9) / 2 + 4 * 0.3)
    to_values, to_kl = torch.autograd.grad(loss, (values, kl))
    torch.testing.assert_close(to_values, torch.tensor([-0.5, 1.5], dtype=torch.float64))
    torch.testing.assert_close(to_kl, torch.tensor([2.0, 2.0], dtype=torch.float64))


def test_explained_variance() -> None:
    targets = torch.tensor([1.0, 2.0, 4.0, 7.0], dtype=torch.float64)
    assert explained_variance(targets + 3, targets).item() == pytest.approx(1.0)
    assert explained_variance(torch.full_like(targets, 9.0), targets).item() == pytest.approx(0.0)
    assert explained_variance(-targets, targets).item() == pytest.approx(-3.0)
    assert explained_variance(0.5 * targets, targets).item() == pytest.approx(0.75)
    constant = torch.ones(4, dtype=torch.float64)
    assert math.isnan(explained_variance(constant, constant).item())
    assert not math.isfinite(explained_variance(targets, constant).item())
