"""Generalised advantage estimation and Retrace as pure functions on time-major tensors [T, N]."""

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


def retrace(
    rewards: Tensor,
    q_taken: Tensor,
    next_values: Tensor,
    ratios: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float = 1.0,
) -> Tensor:
    """Retrace targets of Q(s, a) along trajectories of another policy (Munos et al. 2016), all arguments [T, N].

    Qret[t] = r[t] + gamma V(s[t + 1]) + gamma lam min(1, ratio[t + 1]) (Qret[t + 1] - Q(s[t + 1], a[t + 1]))

    `q_taken` is Q of the action taken, `ratios` pi(a|s) / mu(a|s), and `next_values` as for `gae`: V of what really
    followed, 0 after a termination. The last term stops at the end of an episode and of the trajectory.
    """
    delta = rewards + gamma * next_values * (~terminated) - q_taken
    following = torch.cat([ratios[1:].clamp(max=1), torch.zeros_like(ratios[:1])])
    discounts = gamma * lam * following * (~(terminated | truncated)).to(delta.dtype)
    return q_taken + discounted_suffix_sum(delta, discounts)


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


def normalized(advantages: Tensor, moments: Tensor | None = None) -> Tensor:
    """Zero mean, unit standard deviation over all entries; a single entry is only centred.

    `moments`: count, mean and sum of squared deviations [3, ...] of the entries of several processes, in float64.
    """
    if moments is not None:
        count, mean, squares = moments.unbind(0)
        return ((advantages - mean) / ((squares / count).sqrt() + 1e-8)).to(advantages.dtype)
    centred = advantages - advantages.mean()
    return centred / (centred.square().mean().sqrt() + 1e-8)
