"""Every objective and loss of PPO and PPG as pure functions on tensors of one minibatch [B].

Objectives are maximised and losses minimised, as the papers write them. Nothing here knows about networks.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
