"""Distributions over choices: one, several, bits. The parameters are logits, and masks apply to them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from phasegrad.distributions.base import Distribution

MASKED_LOGIT = -1e8  # finite, so that 0 * log 0 stays 0 in entropy and KL instead of NaN
LARGEST_UNIFORM = 1.0 - 1e-6  # below 1 in float32, so that the inverse CDF never runs past the last possible action


class Categorical(Distribution):
    """One choice of n; the parameters are logits."""

    action_shape = ()
    action_dtype = torch.int64
    noise_size = 1

    def __init__(self, n: int) -> None:
        self.parameter_size = self.mask_size = n

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        cumulative = params.softmax(-1).cumsum(-1)
        level = noise.clamp(max=LARGEST_UNIFORM) * cumulative[..., -1:]
        return (cumulative <= level).sum(-1)  # the first action whose cumulative probability passes the level

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return params.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        log_probs = params.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        log_p = params.log_softmax(-1)
        return (log_p.exp() * (log_p - other.log_softmax(-1))).sum(-1)

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return params if mask is None else params.masked_fill(~mask, MASKED_LOGIT)


class MultiCategorical(Distribution):
    """Several independent choices; the parameters are their logits side by side."""

    action_dtype = torch.int64

    def __init__(self, sizes: list[int]) -> None:
        self.parts = [Categorical(n) for n in sizes]
        self.sizes = list(sizes)
        self.parameter_size = self.mask_size = sum(sizes)
        self.action_shape = (len(sizes),)
        self.noise_size = len(sizes)

    @property
    def mask_sizes(self) -> tuple[int, ...]:
        return tuple(self.sizes)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        pieces = zip(self.parts, params.split(self.sizes, -1), noise.split(1, -1), strict=True)
        return torch.stack([part.sample(logits, u) for part, logits, u in pieces], -1)

    def mode(self, params: Tensor) -> Tensor:
        return torch.stack([logits.argmax(-1) for logits in params.split(self.sizes, -1)], -1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        pieces = zip(self.parts, params.split(self.sizes, -1), actions.unbind(-1), strict=True)
        return torch.stack([part.log_prob(logits, action) for part, logits, action in pieces]).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        pieces = zip(self.parts, params.split(self.sizes, -1), strict=True)
        return torch.stack([part.entropy(logits) for part, logits in pieces]).sum(0)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        pieces = zip(self.parts, params.split(self.sizes, -1), other.split(self.sizes, -1), strict=True)
        return torch.stack([part.kl(p, q) for part, p, q in pieces]).sum(0)

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return params if mask is None else params.masked_fill(~mask, MASKED_LOGIT)


class Bernoulli(Distribution):
    """n independent bits; the parameters are the logits of a 1. A mask entry forbids that bit's 1."""

    action_dtype = torch.int64

    def __init__(self, n: int) -> None:
        self.parameter_size = self.mask_size = self.noise_size = n
        self.action_shape = (n,)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return (noise < params.sigmoid()).long()

    def mode(self, params: Tensor) -> Tensor:
        return (params > 0).long()

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return -F.binary_cross_entropy_with_logits(params, actions.to(params.dtype), reduction="none").sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(params, params.sigmoid(), reduction="none").sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        p = params.sigmoid()
        on = p * (F.logsigmoid(params) - F.logsigmoid(other))
        off = (1 - p) * (F.logsigmoid(-params) - F.logsigmoid(-other))
        return (on + off).sum(-1)

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return params if mask is None else params.masked_fill(~mask, MASKED_LOGIT)
