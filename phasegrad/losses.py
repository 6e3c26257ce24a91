"""Every objective and loss of PPO and PPG as pure functions on tensors of one minibatch [B].

Objectives are maximised and losses minimised, as the papers write them. Nothing here knows about networks.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST = 1e-8  # of a probability that is divided by: its square must stay within float32
OBJECTIVES = ("pg", "cpi", "clip", "kl")


def policy_objective(
    objective: str,
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    *,
    clip_range: float = 0.2,
    kl: Tensor | None = None,
    kl_beta: float = 1.0,
) -> Tensor:
    """The surrogate of each sample [B], to be maximised in its mean.

    pg    log pi(a|s) A                                     vanilla policy gradient
    cpi   ratio A                                           conservative policy iteration, no clipping or penalty
    clip  min(ratio A, clip(ratio, 1 - eps, 1 + eps) A)     PPO equation 7, eps = clip_range
    kl    ratio A - beta KL[pi_old, pi]                     PPO equation 8; fixed or adaptive beta = kl_beta
    """
    if objective == "pg":
        return log_prob * advantages
    ratio = (log_prob - old_log_prob).exp()
    surrogate = ratio * advantages
    if objective == "cpi":
        return surrogate
    if objective == "clip":
        clipped = torch.clamp(ratio, 1 - clip_range, 1 + clip_range) * advantages
        return torch.where(surrogate < clipped, surrogate, clipped)
    if objective == "kl":
        if kl is None:
            raise ValueError("objective 'kl' needs kl, the analytic KL[pi_old, pi] of each sample.")
        return surrogate - kl_beta * kl
    raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, not {objective!r}.")


def adapted_kl_beta(kl_beta: float, kl: float, kl_target: float) -> float:
    """The next KL coefficient after a policy update that moved by `kl` (PPO section 4)."""
    if kl < kl_target / 1.5:
        return kl_beta / 2
    if kl > kl_target * 1.5:
        return kl_beta * 2
    return kl_beta


def value_loss(
    values: Tensor, value_targets: Tensor, old_values: Tensor | None = None, value_clip: float | None = None
) -> Tensor:
    """1/2 E[(V - V_targ)^2]; with `value_clip` the larger error of V and of V kept within that range of `old_values`."""
    error = (values - value_targets).square()
    if value_clip is not None and old_values is not None:
        clipped = old_values + torch.clamp(values - old_values, -value_clip, value_clip)
        error = torch.maximum(error, (clipped - value_targets).square())
    return 0.5 * error.mean()


def auxiliary_loss(
    auxiliary_values: Tensor,
    value_targets: Tensor,
    clone_kl: Tensor,
    beta_clone: float,
    *,
    value_weight: float = 0.5,
) -> Tensor:
    """L_joint = 1/2 E[(V_pi - V_targ)^2] + beta_clone E[KL[pi_old, pi]] (PPG section 2), tensors [B].

    The distillation form, whose target is the value network's output, has a `value_weight` of 1.
    """
    return value_weight * (auxiliary_values - value_targets).square().mean() + beta_clone * clone_kl.mean()


def explained_variance(values: Tensor, value_targets: Tensor) -> Tensor:
    """1 - Var[V_targ - V] / Var[V_targ]: 1 is perfect, 0 is no better than a constant; NaN or -inf where the targets are constant."""
    return 1 - (value_targets - values).var(correction=0) / value_targets.var(correction=0)


# Learning from another policy's actions: ACER (Wang et al. 2017, section 3.3). Its gradients are with respect to the
# statistics of the distribution, which for a categorical one are its probabilities [..., A].


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
