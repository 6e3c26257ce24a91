"""Independent normals over real numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phasegrad.distributions.base import Distribution


class DiagonalGaussian(Distribution):
    """n independent normals; the parameters are the means, then the logarithms of the standard deviations."""

    action_dtype = torch.float32
    noise_is_normal = has_std = True

    def __init__(self, n: int) -> None:
        self.parameter_size = 2 * n
        self.noise_size = n
        self.action_shape = (n,)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        return mean + log_std.exp() * noise

    def mode(self, params: Tensor) -> Tensor:
        return params.chunk(2, -1)[0]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        standardized = (actions - mean) * (-log_std).exp()
        return (-0.5 * standardized.square() - log_std).sum(-1) - 0.5 * math.log(2 * math.pi) * self.noise_size

    def entropy(self, params: Tensor) -> Tensor:
        return params.chunk(2, -1)[1].sum(-1) + 0.5 * math.log(2 * math.pi * math.e) * self.noise_size

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        mean_p, log_std_p = params.chunk(2, -1)
        mean_q, log_std_q = other.chunk(2, -1)
        ratio = (2 * (log_std_p - log_std_q)).exp()
        distance = ((mean_p - mean_q) * (-log_std_q).exp()).square()
        return (0.5 * (ratio + distance - 1) + log_std_q - log_std_p).sum(-1)
