"""Means and variances over the samples of all processes, from the moments of each, in float64."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from phasegrad.distributed.ranks import ALONE, Ranks


def moments_of(batch: Tensor) -> Tensor:
    """(count, mean, sum of squared deviations) [3, ...] of the rows of `batch` [B, ...]."""
    mean = batch.mean(0)
    return torch.stack([torch.full_like(mean, batch.shape[0]), mean, (batch - mean).square().sum(0)])


def combined_moments(moments: Tensor, others: Tensor) -> Tensor:
    """The moments [3, ...] of two sets of rows together."""
    count, mean, squares = moments.unbind(0)
    size, other_mean, other_squares = others.unbind(0)
    shift = other_mean - mean
    total = count + size
    squares = squares + other_squares + shift.square() * count * size / total
    return torch.stack([total, mean + shift * size / total, squares])


def pooled_moments(own: Tensor, ranks: Ranks) -> Tensor:
    """The moments [3, ...] of the rows of all processes, from those of each."""
    return functools.reduce(combined_moments, ranks.gather(own)) if ranks.size > 1 else own


def merged_moments(moments: Tensor, batch: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Running moments [3, ...] extended by the rows of `batch` [B, ...] of every process."""
    others = pooled_moments(moments_of(batch), ranks)
    if moments.device.type == "cuda" and others.device.type == "cpu":  # pinned, so that nobody waits for the copy
        others = others.pin_memory().to(moments.device, non_blocking=True)
    return combined_moments(moments, others.to(moments.device))
