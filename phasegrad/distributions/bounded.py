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

    def above_one(self, params: Tensor) -> Tensor:
        """alpha - 1, then beta - 1, [..., 2 n]."""
        return F.softplus(params) + self.LEAST

    def described(self, params: Tensor) -> dict[str, Tensor]:
        alpha, beta = (1 + self.above_one(params)).chunk(2, -1)
        return {"alpha": alpha, "beta": beta}

    def within(self, actions: Tensor) -> Tensor:
        return 2 * actions - 1

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """The quantiles at uniform `noise`: one number of noise for each of the action, with no trial and error."""
        alpha, beta = (1 + self.above_one(params)).chunk(2, -1)
        return beta_quantile(alpha, beta, noise).clamp(self.SMALLEST, self.LARGEST)

    def mode(self, params: Tensor) -> Tensor:
        first, second = self.above_one(params).chunk(2, -1)
        return (first / (first + second)).clamp(self.SMALLEST, self.LARGEST)

    # In the formulas below alphas, betas and then their sums stand side by side: one function of all is one operation.

    def _joined(self, params: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """alpha - 1, beta - 1 and alpha + beta - 1 [..., 3 n]; the same plus 1; means of x and of 1 - x [..., 2 n]."""
        above = self.above_one(params)
        first, second = above.chunk(2, -1)
        less = torch.cat([above, 1 + first + second], -1)
        return less, 1 + less, torch.cat(shares_of(1 + first, 2 + first + second), -1)

    def _parts(self, joined: Tensor) -> tuple[Tensor, Tensor]:
        """What belongs to alphas and betas, and what to their sums."""
        counts, totals = joined.split([self.parameter_size, self.noise_size], -1)
        return counts, totals

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        less, counts, means = self._joined(params)
        apart = self._parts(less)[0] * log_ratio(torch.cat([actions, 1 - actions], -1), means)
        logs = less.log1p()
        own, totals = self._parts(0.5 * logs + binet(counts))
        at_mean = totals + self._parts(logs)[1] - (HALF_LOG_2_PI + LOG_2)
        return apart.sum(-1) + at_mean.sum(-1) - own.sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        less, counts, _ = self._joined(params)
        logs, inverse, slopes = less.log1p(), 0.5 / counts, binet_slope(counts)
        own, totals = self._parts(0.5 * logs + binet(counts) - inverse - less * slopes)
        digamma = self._parts(logs - inverse + slopes)[1]
        return own.sum(-1) - (totals + digamma - (HALF_LOG_2_PI + 0.5 + LOG_2)).sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        (_, here, means), (_, there, others) = self._joined(params), self._joined(other)
        step = there - here
        # log Gamma(there) - log Gamma(here) - step digamma(here), without its terms in x log x, which all cancel
        apart = 0.5 * (step / here - log_ratio(there, here)) + binet(there) - binet(here) - step * binet_slope(here)
        own, totals = self._parts(apart)
        return (self._parts(there)[0] * log_ratio(others, means)).sum(-1) + own.sum(-1) - totals.sum(-1)
