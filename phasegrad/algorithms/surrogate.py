"""What PPO and PPG's policy phase share: the surrogate's settings, its loss over a minibatch, its schedules.

The settings of any policy gradient come first: A2C and vanilla policy gradient take only those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from phasegrad.advantages import normalized
from phasegrad.compute.optimizers import Adam, Optimizer, RMSProp
from phasegrad.config import Config, require_minibatches, setting
from phasegrad.data.minibatches import Batch, Minibatches, minibatch_indices
from phasegrad.data.storage import Rollout
from phasegrad.distributed.joining import ALONE, Ranks
from phasegrad.distributed.moments import pooled_moments
from phasegrad.distributions import Distribution
from phasegrad.errors import ConfigError
from phasegrad.losses import OBJECTIVES, policy_objective
from phasegrad.models import FlatParameters


@dataclass(kw_only=True)
class PolicyGradientConfig(Config):
    """Settings of any gradient step on policy and value; the papers' symbols stand in brackets."""

    learning_rate: float = setting(3e-4, "Adam's step size", low=0)
    critic_learning_rate: float | None = setting(
        None, "step size of the value network (not with arch shared); none for learning_rate", low=0
    )
    anneal_learning_rate: bool = setting(False, "learning rates fall linearly to 0 over the run")
    adam_eps: float = setting(1e-5, "Adam's epsilon", low=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus [c_2, beta_S]", low=0)
    max_grad_norm: float = setting(0.5, "longest gradient, of each network by itself; 0 for no clipping", low=0)

    def validate(self) -> None:
        super().validate()
        if self.critic_learning_rate is not None and self.arch == "shared":
            raise ConfigError(
                "critic_learning_rate needs a value network of its own: set arch dual or leave critic_learning_rate out."
            )


@dataclass(kw_only=True)
class RMSPropConfig(PolicyGradientConfig):
    """Settings of the algorithms whose papers step by RMSProp."""

    optimizer: str = setting("rmsprop", "what takes the steps", choices=("rmsprop", "adam"))
    learning_rate: float = setting(7e-4, "the optimiser's step size", low=0)
    rmsprop_alpha: float = setting(0.99, "decay of RMSProp's mean square [alpha]", low=0, high=1)
    rmsprop_eps: float = setting(1e-5, "RMSProp's epsilon", low=0)
    rmsprop_inside_root: bool = setting(
        False, "epsilon under the root and a mean square that starts at 1, as the original code has it"
    )

    def optimizers(self, flat: FlatParameters) -> dict[str, Optimizer]:
        """The chosen optimiser for each parameter group."""
        if self.optimizer == "adam":
            return {group: Adam(flat, where, self.adam_eps) for group, where in flat.slices.items()}
        settings = (self.rmsprop_eps, self.rmsprop_alpha, self.rmsprop_inside_root)
        return {group: RMSProp(flat, where, *settings) for group, where in flat.slices.items()}


@dataclass(kw_only=True)
class SurrogateConfig(PolicyGradientConfig):
    """Settings of a policy update by a surrogate objective; the papers' symbols stand in brackets."""

    objective: str = setting(
        "clip", "surrogate: pg, cpi (no clipping), clip, kl (fixed, or adaptive with kl_target)", choices=OBJECTIVES
    )
    clip_range: float = setting(0.2, "how far the ratio may move the clipped objective [epsilon]", low=0)
    anneal_clip_range: bool = setting(False, "clip range falls linearly to 0 over the run")
    kl_beta: float = setting(
        1.0, "weight of the KL penalty of objective kl; the first one where it adapts [beta, beta_pi]", low=0
    )
    kl_target: float = setting(0.0, "KL that an adaptive penalty aims at; 0 keeps kl_beta fixed [d_targ]", low=0)
    num_minibatches: int = setting(32, "gradient steps an epoch", low=1)
    whole_segments: bool = setting(False, "minibatches of whole environment segments in place of random steps")
    value_coef: float = setting(0.5, "weight of the value loss 1/2 (V - V_targ)^2 [c_1]", low=0)
    value_clip: float = setting(
        0.0, "keep V within this range of its old value in the value loss; 0 for no clipping", low=0
    )
    normalize_advantage: str = setting(
        "minibatch",
        "standardise advantages over each minibatch, the whole batch, or none",
        choices=("minibatch", "batch", "none"),
    )
    measure_interference: bool = setting(
        False, "each iteration, compare the policy's and the value's gradient on a trunk they share"
    )

    def validate(self) -> None:
        super().validate()
        units = self.num_envs if self.whole_segments else self.batch_size
        if self.num_minibatches > units:
            what = "environments (whole_segments)" if self.whole_segments else "samples (num_envs x num_steps)"
            raise ConfigError(
                f"num_minibatches {self.num_minibatches} is more than the {units} {what} of a rollout: lower it."
            )
        if self.kl_target and self.objective != "kl":
            raise ConfigError(f"kl_target belongs to objective kl, not {self.objective}: set objective kl too.")
        if self.measure_interference and self.arch == "dual":
            raise ConfigError("measure_interference needs a trunk that policy and value share: set arch shared.")

    def require_share(self, processes: int) -> None:
        super().require_share(processes)
        units = (self.num_envs if self.whole_segments else self.batch_size) // processes
        require_minibatches("num_minibatches", self.num_minibatches, units, processes, self.whole_segments)


def surrogate_loss(
    distribution: Distribution, params: Tensor, batch: Batch, config: SurrogateConfig, scalars: Mapping[str, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """-(L_policy + beta_S S[pi]) over one minibatch, from the new distribution's parameters [B, P]."""
    log_prob = distribution.log_prob(params, batch.actions)
    kl = distribution.kl(batch.old_params, params)
    entropy = distribution.entropy(params).mean()
    surrogate = policy_objective(
        config.objective,
        log_prob,
        batch.old_log_probs,
        batch.advantages,
        clip_range=scalars["clip_range"],
        kl=kl,
        kl_beta=scalars["kl_beta"],
    ).mean()
    with torch.no_grad():
        moved = ((log_prob - batch.old_log_probs).exp() - 1).abs()
        clipped = (moved > scalars["clip_range"]).to(moved.dtype).mean()
    metrics = {"policy_loss": -surrogate, "entropy": entropy, "kl": kl.mean(), "clip_fraction": clipped}
    return -(surrogate + config.weight("entropy_coef", scalars) * entropy), metrics


def epoch_of_minibatches(
    rollout: Rollout, config: SurrogateConfig, shuffle: torch.Generator, device: torch.device, ranks: Ranks = ALONE
) -> Minibatches[Batch]:
    """One pass over a rollout in random minibatches, with advantages as the policy loss wants them.

    A minibatch of several processes is what each of them draws from its own part of the rollout, taken together.
    """
    steps, num_envs = rollout.num_steps, rollout.num_envs
    count = min(config.num_minibatches, num_envs if config.whole_segments else steps * num_envs)
    indices = minibatch_indices(steps, num_envs, count, config.whole_segments, shuffle)
    prepare = with_normalized_advantages if config.normalize_advantage == "minibatch" else None
    if prepare is not None and ranks.size > 1:  # all minibatches at once, so that the processes meet once an epoch
        advantages = normalized_by_minibatch(rollout.advantages, indices, ranks)
        rollout, prepare = dataclasses.replace(rollout, advantages=advantages), None
    return Minibatches(rollout, indices, device, Batch, prepare, usual=steps == config.num_steps)


def with_normalized_advantages(batch: Batch) -> Batch:
    return dataclasses.replace(batch, advantages=normalized(batch.advantages))


def normalized_by_minibatch(advantages: Tensor, indices: list[Tensor], ranks: Ranks) -> Tensor:
    """Advantages [T, N] standardised over the minibatches at `indices`, each together with the other processes' own."""
    order, count = torch.cat(indices), len(indices)
    sizes = torch.tensor([len(index) for index in indices])
    minibatch = torch.repeat_interleave(torch.arange(count), sizes)  # that each of `order` belongs to
    ordered = advantages.flatten()[order].double()
    means = torch.zeros(count, dtype=torch.float64).index_add_(0, minibatch, ordered) / sizes
    squares = torch.zeros_like(means).index_add_(0, minibatch, (ordered - means[minibatch]).square())
    moments = pooled_moments(torch.stack([sizes.double(), means, squares]), ranks)  # [3, count]
    result = torch.empty_like(advantages)
    result.view(-1)[order] = normalized(ordered, moments[:, minibatch]).to(result.dtype)
    return result


def learning_rates(config: PolicyGradientConfig, left: float) -> dict[str, float]:
    """Step sizes by parameter group when `left` (1 to 0) of the run remains."""
    scale = left if config.anneal_learning_rate else 1.0
    critic = config.learning_rate if config.critic_learning_rate is None else config.critic_learning_rate
    return {"policy": scale * config.learning_rate, "value": scale * critic}


def logged_rates(rates: Mapping[str, float]) -> dict[str, float]:
    """Step sizes by the names of their settings."""
    named = {"policy": "learning_rate", "value": "critic_learning_rate"}
    return {named[group]: rate for group, rate in rates.items()}


def current_scalars(config: SurrogateConfig, carried: dict[str, float], left: float) -> dict[str, float]:
    """Clip range and KL weight when `left` of the run remains; `carried` has the weight, which adapts to `kl_target`."""
    if not config.kl_target:
        carried["kl_beta"] = config.kl_beta
    return carried | {"clip_range": config.clip_range * (left if config.anneal_clip_range else 1.0)}
