"""Learning from another policy's actions, as pure functions: ACER's corrected policy gradient and its trust region.

The gradients here are with respect to the statistics of the distribution, which for a categorical one are its
probabilities [..., A] (Wang et al. 2017, section 3.3); a network's parameters follow by the chain rule. Nothing here
knows about networks or memories. Retrace, the other half of ACER, stands beside GAE in `advantages`.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST = 1e-8  # of a probability that is divided by: its square must stay within float32


def corrected_policy_gradient(
    probabilities: Tensor,
    behaviour: Tensor,
    actions: Tensor,
    q_values: Tensor,
    q_targets: Tensor,
    importance_clip: float,
    entropy_coef: float = 0.0,
) -> Tensor:
    """The gradient g [..., A] of ACER's objective with respect to pi(.|s), to go up (equation 9 and Algorithm 2).

    `probabilities` pi(.|s), `behaviour` mu(.|s) and `q_values` Q(s, .) are [..., A]; the taken `actions` and their
    Retrace `q_targets` [...]. With rho = pi / mu, V = sum_a pi(a) Q(a) and c = `importance_clip`:

        g = min(c, rho(a_t)) grad log pi(a_t) (Qret - V)                  the weight, truncated
          + sum_a [1 - c / rho(a)]_+ grad pi(a) (Q(a) - V)                and the correction of what that cut off
          + entropy_coef grad S[pi]

    It is 0 at actions that pi cannot take.
    """
    values = (probabilities * q_values).sum(-1, keepdim=True)
    taken = actions.unsqueeze(-1)
    # min(c, pi / mu) / pi, put so that a vanishing pi does not matter: mu is positive where an action was taken
    weight = torch.minimum(importance_clip / probabilities.gather(-1, taken), 1 / behaviour.gather(-1, taken))
    possible = probabilities > 0
    safe = torch.where(possible, probabilities, 1.0)
    correction = (1 - importance_clip * behaviour / safe).clamp(min=0) * (q_values - values)
    entropy = -(safe.log() + 1)
    is_taken = taken == torch.arange(probabilities.shape[-1], device=actions.device)
    gradient = is_taken * (weight * (q_targets.unsqueeze(-1) - values)) + correction + entropy_coef * entropy
    return torch.where(possible, gradient, 0.0)


def kl_gradient(probabilities: Tensor, average: Tensor) -> Tensor:
    """k = grad KL[pi_average, pi] with respect to pi(.|s), [..., A]; 0 at actions that pi cannot take."""
    return torch.where(probabilities > 0, -average / probabilities.clamp(min=SMALLEST), 0.0)


def projected(gradient: Tensor, constraint: Tensor, delta: float) -> Tensor:
    """The z nearest to `gradient` g with k.z <= delta for the `constraint` k, all [..., A] (equation 12).

    The quadratic program min 1/2 |g - z|^2 subject to k.z <= delta is solved by z = g - max(0, (k.g - delta) / |k|^2) k.
    """
    excess = ((constraint * gradient).sum(-1, keepdim=True) - delta).clamp(min=0)
    length = constraint.square().sum(-1, keepdim=True)
    return gradient - torch.where(length > 0, excess / length, 0.0) * constraint
