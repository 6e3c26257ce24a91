"""Proximal Policy Optimization (Schulman et al. 2017), with every objective the paper studies.

    for iteration = 1, 2, ... do
        run pi_old in N environments for T timesteps, compute advantage estimates
        optimise the surrogate wrt theta, with K epochs and minibatch size M <= N T
        pi_old <- pi
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from phasegrad.advantages import normalized
from phasegrad.algorithms.base import Algorithm
from phasegrad.config import Config, setting
from phasegrad.errors import ConfigError
from phasegrad.losses import OBJECTIVES, adapted_kl_beta, policy_objective, value_loss
from phasegrad.optimize import Adam, Stepper
from phasegrad.rollout import Batch, Segment, gather, minibatch_indices


@dataclass(kw_only=True)
class PPOConfig(Config):
    """Settings of PPO; the paper's symbols stand in brackets."""

    objective: str = setting("clip", "surrogate: pg, cpi (no clipping), clip, kl (fixed, or adaptive with kl_target)", choices=OBJECTIVES)
    clip_range: float = setting(0.2, "how far the ratio may move the clipped objective [epsilon]", low=0)
    anneal_clip_range: bool = setting(False, "clip range falls linearly to 0 over the run")
    kl_beta: float = setting(1.0, "weight of the KL penalty of objective kl; the first one where it adapts [beta]", low=0)
    kl_target: float = setting(0.0, "KL that an adaptive penalty aims at; 0 keeps kl_beta fixed [d_targ]", low=0)
    kl_stop: float = setting(0.0, "end the epochs of an update when one has moved the policy by this mean KL; 0 never", low=0)
    epochs: int = setting(10, "passes over each rollout [K]", low=1)
    num_minibatches: int = setting(32, "gradient steps an epoch", low=1)
    whole_segments: bool = setting(False, "minibatches of whole environment segments in place of random steps")
    learning_rate: float = setting(3e-4, "Adam's step size", low=0)
    critic_learning_rate: float | None = setting(None, "step size of the value network (arch dual); none for learning_rate", low=0)
    anneal_learning_rate: bool = setting(False, "learning rates fall linearly to 0 over the run")
    adam_eps: float = setting(1e-5, "Adam's epsilon", low=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus [c_2, beta_S]", low=0)
    value_coef: float = setting(0.5, "weight of the value loss [c_1]", low=0)
    value_clip: float = setting(0.0, "keep V within this range of its old value in the value loss; 0 for no clipping", low=0)
    max_grad_norm: float = setting(0.5, "longest gradient, of each network by itself; 0 for no clipping", low=0)
    normalize_advantage: str = setting("minibatch", "standardise advantages over each minibatch, the whole batch, or none", choices=("minibatch", "batch", "none"))
    recompute_advantages: bool = setting(False, "estimate advantages anew before each epoch")

    def validate(self) -> None:
        super().validate()
        units = self.num_envs if self.whole_segments else self.batch_size
        if self.num_minibatches > units:
            what = "environments (whole_segments)" if self.whole_segments else "samples (num_envs x num_steps)"
            raise ConfigError(f"num_minibatches {self.num_minibatches} is more than the {units} {what} of a rollout: lower it.")
        if self.critic_learning_rate is not None and self.arch == "shared":
            raise ConfigError("critic_learning_rate needs a value network of its own: set arch dual or leave it out.")
        if self.kl_target and self.objective != "kl":
            raise ConfigError(f"kl_target belongs to objective kl, not {self.objective}: set objective kl, or use kl_stop.")


class PPO(Algorithm):
    """Proximal Policy Optimization."""

    name = "ppo"
    config_class = PPOConfig
    config: PPOConfig

    def build_optimizers(self) -> dict[str, Adam]:
        config = self.config
        config.validate()  # again: arch may have been decided by the observation space
        self.scalars["kl_beta"] = config.kl_beta
        optimizers = {group: Adam(self.flat, where, config.adam_eps) for group, where in self.flat.slices.items()}
        self.stepper = Stepper(optimizers, config.max_grad_norm, self.microbatch)
        return optimizers

    def iterate(self, num_steps: int) -> dict[str, float]:
        config = self.config
        left = self.remaining_fraction()
        rates = self.learning_rates(left)
        scalars = {"clip_range": config.clip_range * (left if config.anneal_clip_range else 1.0)} | self.scalars
        self.allocate_segments(1)
        rollout = self.collect(num_steps)
        self.estimate_advantages(rollout)
        metrics = self.rollout_metrics(rollout)

        with self.clock.section("update"):
            shuffle = self.generator("minibatches")
            minibatches = min(config.num_minibatches, config.num_envs if config.whole_segments else num_steps * config.num_envs)
            for epoch in range(config.epochs):
                if epoch and config.recompute_advantages:
                    self.collector.revalue(rollout)
                    self.estimate_advantages(rollout)
                if config.normalize_advantage == "batch":
                    rollout.advantages.copy_(normalized(rollout.advantages))
                for index in minibatch_indices(num_steps, config.num_envs, minibatches, config.whole_segments, shuffle):
                    batch = gather(rollout, index, self.device)
                    if config.normalize_advantage == "minibatch":
                        batch.advantages = normalized(batch.advantages)
                    self.stepper.step(self.loss, batch, scalars, rates)
                if config.kl_stop and self.stepper.latest("kl", minibatches) > config.kl_stop:
                    break
            moved = self.stepper.latest("kl", minibatches)  # by the end of the update, not on the average of it
            if config.kl_target:
                self.scalars["kl_beta"] = adapted_kl_beta(self.scalars["kl_beta"], self.mean_kl(rollout), config.kl_target)
            self.model.normalizer.update(rollout.observations)  # last, so that this iteration saw one scaling
            metrics |= self.stepper.take_metrics() | {"kl": moved, "epochs": epoch + 1}
        return metrics | scalars | {"learning_rate": rates["policy"]}

    def loss(self, batch: Batch, scalars: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-(L_policy + beta_S S[pi]) + c_v L_value over one minibatch."""
        config = self.config
        params, values = self.model.policy_and_value(batch.observations, batch.masks)
        log_prob = self.family.log_prob(params, batch.actions)
        kl = self.family.kl(batch.old_params, params)
        entropy = self.family.entropy(params).mean()
        surrogate = policy_objective(
            config.objective, log_prob, batch.old_log_probs, batch.advantages,
            clip_range=scalars["clip_range"], kl=kl, kl_beta=scalars["kl_beta"],
        ).mean()  # fmt: skip
        errors = value_loss(values, batch.value_targets, batch.old_values, config.value_clip or None)
        loss = -(surrogate + config.entropy_coef * entropy) + config.value_coef * errors
        with torch.no_grad():
            moved = ((log_prob - batch.old_log_probs).exp() - 1).abs()
            clipped = (moved > scalars["clip_range"]).to(moved.dtype).mean()
        metrics = {"policy_loss": -surrogate, "value_loss": errors, "entropy": entropy, "kl": kl.mean(), "clip_fraction": clipped}
        return loss, metrics

    def learning_rates(self, left: float) -> dict[str, float]:
        """Step sizes of this iteration by parameter group."""
        config = self.config
        scale = left if config.anneal_learning_rate else 1.0
        critic = config.learning_rate if config.critic_learning_rate is None else config.critic_learning_rate
        return {"policy": scale * config.learning_rate, "value": scale * critic}

    def mean_kl(self, rollout: Segment) -> float:
        """E[KL[pi_old, pi]] over the whole rollout: how far the finished update moved the policy."""
        assert self.collector is not None
        return float(self.family.kl(rollout.policy_params, self.collector.policy(rollout)).mean())
