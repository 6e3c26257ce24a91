"""Distributions over a bounded interval: a Gaussian squashed by tanh, and Beta distributions.

Both give densities in the units of [-1, 1]: the constant of rescaling to a space's own bounds is left out of every
log-probability and every entropy, as it is for a Gaussian with `action_bounds rescale`. Nothing here knows those bounds.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from phasegrad.distributions.base import Distribution
from phasegrad.distributions.beta_functions import beside, beta_quantile, binet, binet_slope, log_ratio, shares_of
from phasegrad.distributions.gaussian import DiagonalGaussian

LOG_2 = math.log(2.0)
HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)

# log(2 cosh u) as a mean of E|u + width z|, z normal: the logistic distribution is a mixture of normals, and these six come
# within 2.1e-7 of it everywhere (2.9e-7 in the slope, 1.5e-6 in the curvature). Of such a term the mean over a normal u is
# again one, of a larger width, so that the expectation has no other error, whatever the mean and the standard deviation.
SHARES = (0.017504350004228935, 0.16938199497970285, 0.3755799485862191, 0.3208765145950675, 0.10820590566868232,
          0.008451286166099248)  # fmt: skip
WIDTHS = (0.4109678198299314, 0.5546963185900265, 0.7457397420644482, 1.0086800269340703, 1.3682040268246372,
          1.8680585478981782)  # fmt: skip


class SquashedGaussian(DiagonalGaussian):
    """n independent normals squashed by tanh; the parameters are those of the normals: means, then log deviations.

    The stored action is the sample u before squashing, so that no probability needs atanh of a rounded number. The KL is
    that of the normals, since both are squashed alike. `mode` is the mean, squashed like any action: the median of the
    squashed distribution, and what SAC and its kin take as the greedy action.
    """

    bounded = True

    def within(self, actions: Tensor) -> Tensor:
        return actions.tanh()

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """log pi of tanh(u): that of u less log |d tanh(u) / du|, in a form that does not cancel for large u."""
        log_slope = 2 * (LOG_2 - actions - F.softplus(-2 * actions))
        return super().log_prob(params, actions) - log_slope.sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """S of the normal plus E[log |d tanh(u) / du|], which is 2 log 2 - 2 E[log(2 cosh u)], to 4.2e-7 for each number."""
        mean, log_std = params.chunk(2, -1)
        deviation = ((2 * log_std).exp() + beside([width * width for width in WIDTHS], mean)).sqrt()  # [6, ..., n]
        standardized = mean / deviation
        near = deviation * (math.sqrt(2 / math.pi) * (-0.5 * standardized.square()).exp())
        folded = near + mean * (math.sqrt(0.5) * standardized).erf()
        expected = (folded * beside(SHARES, mean)).sum(0)  # E[log(2 cosh u)]
        return super().entropy(params) + 2 * (LOG_2 - expected).sum(-1)


class Beta(Distribution):
    """n independent Beta distributions over (0, 1), each with one peak.

    The parameters are what a network puts out, n for alpha, then n for beta: alpha = 1 + LEAST + softplus(output), and so
    is beta. log-probabilities, entropy and KL are the closed forms, arranged so that the logarithms of large gamma
    functions, which would cancel, never appear: they keep their digits in float32 for alpha and beta of 10^4 and more.
    """

    LEAST = 1e-5  # alpha and beta exceed 1 by at least this, in float32 too, so that there is always one peak
    SMALLEST, LARGEST = 1e-30, 1.0 - 2.0**-24  # stored actions: both logarithms of them are finite in float32

    action_dtype = torch.float32
    bounded = True

    def __init__(self, n: int) -> None:
        self.parameter_size = 2 * n
        self.noise_size = n
        self.action_shape = (n,)

    def above_one(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """alpha - 1 and beta - 1, [..., n] each."""
        first, second = (F.softplus(params) + self.LEAST).chunk(2, -1)
        return first, second

    def described(self, params: Tensor) -> dict[str, Tensor]:
        first, second = self.above_one(params)
        return {"alpha": 1 + first, "beta": 1 + second}

    def within(self, actions: Tensor) -> Tensor:
        return 2 * actions - 1

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """The quantiles at uniform `noise`: one number of noise for each of the action, with no trial and error."""
        first, second = self.above_one(params)
        return beta_quantile(1 + first, 1 + second, noise).clamp(self.SMALLEST, self.LARGEST)

    def mode(self, params: Tensor) -> Tensor:
        first, second = self.above_one(params)
        return (first / (first + second)).clamp(self.SMALLEST, self.LARGEST)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        first, second = self.above_one(params)
        alpha, beta, total = 1 + first, 1 + second, 2 + first + second
        p, q = shares_of(alpha, total)
        from_mean = first * log_ratio(actions, p) + second * log_ratio(1 - actions, q)
        at_mean = 1.5 * (1 + first + second).log1p() - 0.5 * (first.log1p() + second.log1p()) - (HALF_LOG_2_PI + LOG_2)
        return (from_mean + at_mean + binet(total) - binet(alpha) - binet(beta)).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        first, second = self.above_one(params)
        alpha, beta, total = 1 + first, 1 + second, 2 + first + second
        spread = 0.5 * (first.log1p() + second.log1p()) - 1.5 * (1 + first + second).log1p()
        small = 1 / total - 0.5 / alpha - 0.5 / beta + (HALF_LOG_2_PI + 0.5 + LOG_2)
        rest = binet(alpha) + binet(beta) - binet(total)
        slopes = (first + second) * binet_slope(total) - first * binet_slope(alpha) - second * binet_slope(beta)
        return (spread + small + rest + slopes).sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        (first, second), (others_first, others_second) = self.above_one(params), self.above_one(other)
        alpha, beta, alpha_q, beta_q = 1 + first, 1 + second, 1 + others_first, 1 + others_second
        total, total_q = alpha + beta, alpha_q + beta_q
        (p, q), (p_q, q_q) = shares_of(alpha, total), shares_of(alpha_q, total_q)
        means = alpha_q * log_ratio(p_q, p) + beta_q * log_ratio(q_q, q)
        return (means + _apart(alpha, alpha_q) + _apart(beta, beta_q) - _apart(total, total_q)).sum(-1)


def _apart(here: Tensor, there: Tensor) -> Tensor:
    """log Gamma(there) - log Gamma(here) - (there - here) digamma(here), without the terms in x log x, which cancel."""
    step = (there - here) / here
    return 0.5 * (step - log_ratio(there, here)) + binet(there) - binet(here) - (there - here) * binet_slope(here)
