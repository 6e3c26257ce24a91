"""What Beta distributions need of the gamma and the incomplete beta function, in operations that every computation has.

All are smooth functions of their parameters in plain tensor arithmetic, so that autograd, traced kernels, compiled code and
an exported file compute them alike. Right for alpha, beta >= 1 alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

# Binet's function J(x) = log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2 is the integral of x / (x^2 + s) over a
# positive measure of s; these four points of it come within 2.2e-11 of it for all x >= 1, and its slope within 5.5e-10.
WEIGHTS = (0.07355896325851885, 0.00896726927192519, 0.0007844489126177667, 2.2651890271521702e-05)
POINTS = (0.008263838156717752, 0.1733689685559335, 0.7201118962760077, 2.2228860688054803)

GRID = 64  # points at which the density is known
TAIL = 14.0  # how far, in the logarithm of the density, the grid reaches at least: less than 1e-6 lies beyond
SOLVING = 3  # Newton's steps within a cell of the grid


def binet(x: Tensor) -> Tensor:
    """J(x) = log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2, for x >= 1."""
    return x * (beside(WEIGHTS, x) / (x.square() + beside(POINTS, x))).sum(0)


def binet_slope(x: Tensor) -> Tensor:
    """J'(x) = digamma(x) - log x + 1 / (2 x), for x >= 1: the derivative of `binet` as it is computed."""
    square, points = x.square(), beside(POINTS, x)
    return (beside(WEIGHTS, x) * (points - square) * (square + points).square().reciprocal()).sum(0)


def beside(numbers: Sequence[float], x: Tensor) -> Tensor:
    """Constants [K, 1, ...] to combine with every element of `x`: in front, where sums over them run side by side."""
    if x.device.type != "cpu":
        return _held(tuple(numbers), x.dtype, x.device).view(-1, *[1] * x.dim())
    return torch.tensor(numbers, dtype=x.dtype, device=x.device).view(-1, *[1] * x.dim())


@functools.cache
def _held(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Constants that lie on a device from their first use on: to copy them there in every loss would wait each time."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=dtype, device=device)


def shares_of(part: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """part / total and what is left of 1, which add up to 1 without a rounding, so that errors of them cancel."""
    rest = 1 - part / total
    return 1 - rest, rest


def log_ratio(x: Tensor, y: Tensor) -> Tensor:
    """log(x / y) of positive numbers, with all its digits whether they are close or far apart."""
    less = x < y
    size = (torch.where(less, y - x, x - y) / torch.where(less, x, y)).log1p()
    return torch.where(less, -size, size)


def beta_quantile(alpha: Tensor, beta: Tensor, level: Tensor) -> Tensor:
    """x with I_x(alpha, beta) = level, to some 1e-6 of the level, by a fixed number of operations.

    The density of y = log(x / (1 - x)) is smooth and falls off on both sides, so its sum over an even grid is its integral
    to a correction (Euler and Maclaurin's). The cell in which the level is reached is inverted as a cubic.
    """
    total = alpha + beta
    p, q = shares_of(alpha, total)
    spread = 2 * TAIL * total / (alpha * beta)
    below, above = (
        (TAIL / side).square().add(spread).sqrt() for side in (alpha, beta)
    )  # the grid's reach from the peak
    step = (below + above) / (GRID - 1)
    counts = torch.arange(GRID, dtype=alpha.dtype, device=alpha.device)
    at = step.unsqueeze(-1) * counts - below.unsqueeze(-1)  # [..., n, GRID]
    grown = p.unsqueeze(-1) * at.expm1()
    density = (total.unsqueeze(-1) * (p.unsqueeze(-1) * at - grown.log1p())).exp()  # 1 at the peak
    x = (p.unsqueeze(-1) + grown) / (1 + grown)
    slope = step.unsqueeze(-1) * (alpha.unsqueeze(-1) - total.unsqueeze(-1) * x)  # of the logarithm of the density
    reached = density.cumsum(-1) - density * (0.5 + slope / 12)  # the integral up to each point, in units of a step
    wanted = level.unsqueeze(-1) * reached[..., -1:]
    cell = ((reached <= wanted).sum(-1, keepdim=True) - 1).clamp(0, GRID - 2)
    start, end = reached.gather(-1, cell), reached.gather(-1, cell + 1)
    width = (end - start).clamp(min=torch.finfo(alpha.dtype).tiny)
    share = ((wanted - start) / width).clamp(0.0, 1.0)
    left, right = density.gather(-1, cell) / width, density.gather(-1, cell + 1) / width
    place = _cubic_root(left, right, share)
    y = (at.gather(-1, cell) + step.unsqueeze(-1) * place).squeeze(-1)
    grown = p * y.exp()
    return grown / (q + grown)


def _cubic_root(left: Tensor, right: Tensor, share: Tensor) -> Tensor:
    """Where a cubic from (0, 0) to (1, 1) with these slopes at its ends reaches `share`."""
    square, cube = 3 - 2 * left - right, left + right - 2
    place = share
    for _ in range(SOLVING):
        value = place * (left + place * (square + place * cube))
        rise = left + place * (2 * square + 3 * cube * place)
        place = (place - (value - share) / rise.clamp(min=0.05)).clamp(0.0, 1.0)
    return place
