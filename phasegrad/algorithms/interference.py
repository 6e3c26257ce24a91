"""The interference between the policy's and the value's objective on a trunk they share, measured.

PPG exists because the two gradients compete for one trunk: their cosine and the ratio of their lengths show how much.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from phasegrad.algorithms.settings import SurrogateConfig
from phasegrad.algorithms.surrogate import surrogate_loss
from phasegrad.data.minibatches import Batch
from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.losses import value_loss
from phasegrad.models import ActorCritic

SAMPLES = 512  # one pass over these an iteration costs little beside the update


def interference(
    model: ActorCritic, batch: Batch, config: SurrogateConfig, coefficients: Mapping[str, float], ranks: Ranks = ALONE
) -> dict[str, Tensor]:
    """Cosine and length ratio (value over policy) of the two losses' gradients on the trunk, weighted as in training.

    For a detached trunk it is what the value loss would do to it: the gradient that detaching keeps away.
    """
    batch = next(batch.split(ranks.share(SAMPLES)))
    params, values = model.policy_and_auxiliary_value(batch.seen, batch.masks)
    policy_loss, _ = surrogate_loss(model.distribution, params, batch, config, coefficients)
    errors = value_loss(values, batch.value_targets, batch.old_values, config.value_clip or None)
    errors = coefficients["value_coef"] * errors
    trunk = [p for part in (model.policy_encoder, model.policy_memory) if part is not None for p in part.parameters()]
    policy_gradient, value_gradient = (
        ranks.mean_(
            torch.cat([part.flatten() for part in torch.autograd.grad(loss, trunk, retain_graph=loss is policy_loss)])
        )
        for loss in (policy_loss, errors)
    )
    policy_norm, value_norm = policy_gradient.norm(), value_gradient.norm()
    cosine = (policy_gradient @ value_gradient) / (policy_norm * value_norm + 1e-12)
    return {
        "interference_cosine": cosine,
        "interference_norm_ratio": value_norm / (policy_norm + 1e-12),
    }
