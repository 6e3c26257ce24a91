"""Proximal Policy Optimization (Schulman et al. 2017), with every objective the paper studies.

for iteration = 1, 2, ... do
    run pi_old in N environments for T timesteps, compute advantage estimates
    optimise the surrogate wrt theta, with K epochs and minibatch size M <= N T
    pi_old <- pi
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.interference import interference
from phasegrad.algorithms.surrogate import (
    SurrogateConfig,
    current_scalars,
    epoch_of_minibatches,
    learning_rates,
    logged_rates,
    surrogate_loss,
)
from phasegrad.compute.optimizers import Adam
from phasegrad.config import setting
from phasegrad.data.minibatches import Batch
from phasegrad.losses import adapted_kl_beta, value_loss


@dataclass(kw_only=True)
class PPOConfig(SurrogateConfig):
    """Settings of PPO."""

    epochs: int = setting(10, "passes over each rollout [K]", low=1)
    kl_stop: float = setting(
        0.0, "end the epochs of an update when one has moved the policy by this mean KL; 0 never", low=0
    )
    recompute_advantages: bool = setting(False, "estimate advantages anew before each epoch")


class PPO(Algorithm):
    """Proximal Policy Optimization."""

    name = "ppo"
    config_class = PPOConfig
    config: PPOConfig

    def build_optimizers(self) -> dict[str, Adam]:
        config = self.config
        optimizers = {group: Adam(self.flat, where, config.adam_eps) for group, where in self.flat.slices.items()}
        self.stepper = self.stepper_for(optimizers, config.max_grad_norm)
        self.scalars["kl_beta"] = config.kl_beta
        return optimizers

    def iterate(self, num_steps: int) -> dict[str, Any]:
        config, left = self.config, self.remaining_fraction()
        rates = self.rates(learning_rates(config, left))
        scalars = current_scalars(config, self.scalars, left)
        shuffle = self.generator("minibatches")

        rollout = self.collect(num_steps)
        self.estimate_advantages(rollout)
        metrics: dict[str, Any] = self.rollout_metrics(rollout)
        with self.clock.section("update"):
            for epoch in range(config.epochs):
                if epoch and config.recompute_advantages:
                    self.revalue(rollout)
                    self.estimate_advantages(rollout)
                if config.normalize_advantage == "batch":
                    rollout.advantages.copy_(self.normalized(rollout.advantages))
                steps_before = self.stepper.count
                minibatches = epoch_of_minibatches(rollout, config, shuffle, self.device, self.ranks)
                if epoch == 0 and config.measure_interference:
                    metrics |= interference(self.model, next(iter(minibatches)), config, scalars, self.ranks)
                self.stepper.epoch("ppo", self.loss, minibatches, scalars, rates)
                if config.kl_stop and self.stepper.mean_since("kl", steps_before) > config.kl_stop:
                    break
            if config.kl_target:
                self.scalars["kl_beta"] = adapted_kl_beta(scalars["kl_beta"], self.mean_kl(rollout), config.kl_target)
            self.model.normalizer.update(rollout.observations)  # last, so that this iteration saw one scaling
            kl = self.stepper.mean_since("kl", steps_before)  # of the last epoch: how far the update went
            metrics |= self.stepper.take_epoch_means()
            metrics |= self.stepper.take_metrics() | {"kl": kl, "epochs": epoch + 1}
        return metrics | scalars | logged_rates(rates)

    def loss(self, batch: Batch, scalars: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-(L_policy + beta_S S[pi]) + c_v L_value over one minibatch."""
        params, values = self.model.policy_and_value(batch.observations, batch.masks)
        policy_loss, metrics = surrogate_loss(self.distribution, params, batch, self.config, scalars)
        errors = value_loss(values, batch.value_targets, batch.old_values, self.config.value_clip or None)
        return policy_loss + self.config.weight("value_coef", scalars) * errors, metrics | {"value_loss": errors}
