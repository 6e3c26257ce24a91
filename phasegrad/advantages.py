"""Generalised advantage estimation as pure functions on time-major tensors [T, N]."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of a rollout, all arguments [T, N].

    `next_values[t]` is the value of the observation that really followed step t: of the true final observation where
    an episode ended there. A termination counts it as 0, a truncation uses it; either one stops the sum.
    """
    delta = rewards + gamma * next_values * (~terminated) - values
    advantages = discounted_suffix_sum(delta, gamma * lam * (~(terminated | truncated)).to(delta.dtype))
    return advantages, advantages + values


def discounted_suffix_sum(terms: Tensor, discounts: Tensor) -> Tensor:
    """S[t] = terms[t] + discounts[t] * S[t + 1] along the first dimension, [T, ...].

    Done by doubling: after k rounds each entry holds the sum of its next 2^k terms, so T = 2048 takes 11 rounds of
    vector operations in place of 2048 Python steps.
    """
    total, weight = terms.clone(), discounts.clone()
    reach = 1
    while reach < total.shape[0]:
        total = torch.cat([total[:-reach] + weight[:-reach] * total[reach:], total[-reach:]])
        weight = torch.cat([weight[:-reach] * weight[reach:], torch.zeros_like(weight[-reach:])])
        reach *= 2
    return total


def normalized(advantages: Tensor) -> Tensor:
    """Zero mean, unit standard deviation over all entries; a single entry is only centred."""
    centred = advantages - advantages.mean()
    return centred / (centred.square().mean().sqrt() + 1e-8)
