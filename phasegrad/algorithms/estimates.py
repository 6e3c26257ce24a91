"""What algorithms estimate from a rollout: advantages, value targets, and how good the values were.

Where several processes share a run, each calls these with its own samples and gets what holds for all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phasegrad import advantages as formulas
from phasegrad import losses
from phasegrad.config import Config
from phasegrad.data.storage import Rollout
from phasegrad.distributed.moments import moments_of, pooled_moments
from phasegrad.distributed.ranks import Ranks


def estimate_advantages(rollout: Rollout, config: Config) -> None:
    """Fill in advantages and value targets by GAE, from the stored values."""
    terminated = rollout.terminated if config.bootstrap_truncated else rollout.terminated | rollout.truncated
    arguments = (rollout.rewards, rollout.values, rollout.next_values, terminated, rollout.truncated, config.gamma)
    advantages, targets = formulas.gae(*arguments, config.gae_lambda)
    if config.policy_gae_lambda is not None:  # DNA: the policy's advantages with a lambda of their own
        advantages, _ = formulas.gae(*arguments, config.policy_gae_lambda)
    rollout.advantages.copy_(advantages)
    rollout.value_targets.copy_(targets)


def normalized(advantages: Tensor, ranks: Ranks) -> Tensor:
    """Zero mean and unit standard deviation over the samples of all processes."""
    if ranks.size == 1:
        return formulas.normalized(advantages)
    return formulas.normalized(advantages, pooled_moments(moments_of(advantages.flatten().double()), ranks))


def explained_variance(values: Tensor, value_targets: Tensor, ranks: Ranks) -> Tensor:
    """1 - Var[V_targ - V] / Var[V_targ] over the samples of all processes."""
    if ranks.size == 1:
        return losses.explained_variance(values, value_targets)
    pairs = torch.stack([(value_targets - values).flatten(), value_targets.flatten()], 1).double()  # [B, 2]
    unexplained, whole = pooled_moments(moments_of(pairs), ranks)[2]
    return 1 - unexplained / whole


def value_metrics(values: Tensor, value_targets: Tensor, ranks: Ranks) -> dict[str, Any]:
    """How values compare with their targets; numbers that are read with the iteration's other metrics."""
    explained = explained_variance(values, value_targets, ranks)
    means = ranks.mean_of(values.mean(), value_targets.mean())
    return {"explained_variance": explained, "value_mean": means[0], "value_target_mean": means[1]}
