"""What PPO and PPG's policy phase share: the surrogate loss of a minibatch, an epoch's minibatches, the schedules."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from phasegrad.advantages import normalized
from phasegrad.algorithms.settings import AdaptiveConfig, PolicyGradientConfig, SurrogateConfig
from phasegrad.data.minibatches import Batch, Minibatches, epoch_indices
from phasegrad.data.storage import Rollout
from phasegrad.data.transfers import send
from phasegrad.distributed.moments import pooled_moments
from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.distributions import Distribution
from phasegrad.losses import policy_objective
from phasegrad.schedules import adapted_learning_rate

NOTHING: Mapping[str, float] = {}


def surrogate_loss(
    distribution: Distribution, params: Tensor, batch: Batch, config: SurrogateConfig, coefficients: Mapping[str, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """-(L_policy + beta_S S[pi]) over one minibatch, from the new distribution's parameters [B, P].

    Where training is held to a cloned policy, c KL[pi_clone, pi] is added to it.
    """
    log_prob = distribution.log_prob(params, batch.actions)
    kl = distribution.kl(batch.behaviour_params, params)
    entropy = distribution.entropy(params).mean()
    surrogate = policy_objective(
        config.objective,
        log_prob,
        batch.old_log_probs,
        batch.advantages,
        clip_range=coefficients["clip_range"],
        kl=kl,
        kl_beta=coefficients["kl_beta"],
    ).mean()
    with torch.no_grad():
        moved = ((log_prob - batch.old_log_probs).exp() - 1).abs()
        clipped = (moved > coefficients["clip_range"]).to(moved.dtype).mean()
    metrics = {"policy_loss": -surrogate, "entropy": entropy, "kl": kl.mean(), "clip_fraction": clipped}
    loss = -(surrogate + coefficients["entropy_coef"] * entropy)
    if batch.leash_params is None:
        return loss, metrics
    away = distribution.kl(batch.leash_params, params).mean()
    return loss + coefficients["leash"] * away, metrics | {"leash_kl": away}


def epoch_of_minibatches(
    rollout: Rollout, config: SurrogateConfig, shuffle: torch.Generator, device: torch.device, ranks: Ranks = ALONE
) -> Minibatches[Batch]:
    """One pass over a rollout in random minibatches, with advantages as the policy loss wants them.

    A minibatch of several processes is what each of them draws from its own part of the rollout, taken together.
    """
    indices = epoch_indices(rollout, config.num_minibatches, config.whole_segments, shuffle)
    prepare = with_normalized_advantages if config.normalize_advantage == "minibatch" else None
    if prepare is not None and ranks.size > 1:  # all minibatches at once, so that the processes meet once an epoch
        advantages = normalized_by_minibatch(rollout.advantages, indices, ranks)
        rollout, prepare = dataclasses.replace(rollout, advantages=advantages), None
    return Minibatches(rollout, indices, device, Batch, prepare, usual=rollout.num_steps == config.num_steps)


def with_normalized_advantages(batch: Batch) -> Batch:
    return dataclasses.replace(batch, advantages=normalized(batch.advantages))


def normalized_by_minibatch(advantages: Tensor, indices: list[Tensor], ranks: Ranks) -> Tensor:
    """Advantages [T, N] standardised over the minibatches at `indices`, each together with the other processes' own."""
    order, count = torch.cat([index.flatten() for index in indices]), len(indices)
    sizes = torch.tensor([index.numel() for index in indices])
    minibatch = torch.repeat_interleave(torch.arange(count), sizes)  # that each of `order` belongs to
    order, sizes, minibatch = send([order, sizes, minibatch], advantages.device)
    ordered = advantages.flatten()[order].double()
    means = torch.zeros(count, dtype=torch.float64, device=advantages.device).index_add_(0, minibatch, ordered) / sizes
    squares = torch.zeros_like(means).index_add_(0, minibatch, (ordered - means[minibatch]).square())
    moments = pooled_moments(torch.stack([sizes.double(), means, squares]), ranks)  # [3, count]
    result = torch.empty_like(advantages)
    result.view(-1)[order] = normalized(ordered, moments[:, minibatch]).to(result.dtype)
    return result


def learning_rates(
    config: PolicyGradientConfig, left: float, groups: Collection[str], carried: Mapping[str, float] = NOTHING
) -> dict[str, float]:
    """Step sizes of the parameter `groups` when `left` (1 to 0) of the run remains; `carried` has one that adapts."""
    scale = left if config.anneal_learning_rate else 1.0
    rate = carried.get("learning_rate", config.learning_rate)
    critic = rate if config.critic_learning_rate is None else config.critic_learning_rate
    rates = {"policy": scale * rate, "value": scale * critic}
    return {group: rates[group] for group in groups}


def first_scalars(config: AdaptiveConfig) -> dict[str, float]:
    """What adapts from one iteration to the next, as a run begins with it."""
    return {"learning_rate": config.learning_rate} if config.kl_learning_rate else {}


def adapt_learning_rate(
    config: AdaptiveConfig, carried: dict[str, float], kl: float, rates: Mapping[str, float]
) -> None:
    """Have the next iteration's rate follow the KL of this one's update, where it is to and the policy was updated."""
    if config.kl_learning_rate and rates["policy"]:
        carried["learning_rate"] = adapted_learning_rate(carried["learning_rate"], kl, config.kl_learning_rate)


def warmed_up_rates(
    config: SurrogateConfig, left: float, groups: Collection[str], carried: Mapping[str, float], iteration: int
) -> dict[str, float]:
    """`learning_rates` in an iteration of the run, in the first of which only the value network may be to learn."""
    rates = learning_rates(config, left, groups, carried)
    return rates | {"policy": 0.0} if iteration < config.critic_warmup else rates


def logged_rates(rates: Mapping[str, float]) -> dict[str, float]:
    """Step sizes by the names of their settings."""
    named = {"policy": "learning_rate", "value": "critic_learning_rate"}
    return {named[group]: rate for group, rate in rates.items()}


def scheduled_weights(config: SurrogateConfig, carried: dict[str, float], left: float) -> dict[str, float]:
    """Clip range and KL weight when `left` of the run remains; `carried` has the weight, which adapts to `kl_target`."""
    if not config.kl_target:
        carried["kl_beta"] = config.kl_beta
    clip_range = config.clip_range * (left if config.anneal_clip_range else 1.0)
    return {"kl_beta": carried["kl_beta"], "clip_range": clip_range}
