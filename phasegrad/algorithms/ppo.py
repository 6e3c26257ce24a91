"""Proximal Policy Optimization (Schulman et al. 2017), with every objective the paper studies; its settings are in ppo_settings.py.

for iteration = 1, 2, ... do
    run pi_old in N environments for T timesteps, compute advantage estimates
    optimise the surrogate wrt theta, with K epochs and minibatch size M <= N T
    pi_old <- pi
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.estimates import estimate_advantages, normalized
from phasegrad.algorithms.interference import interference
from phasegrad.algorithms.ppo_settings import PPOConfig
from phasegrad.algorithms.settings import adams
from phasegrad.algorithms.surrogate import (
    adapt_learning_rate,
    epoch_of_minibatches,
    first_scalars,
    logged_rates,
    scheduled_weights,
    surrogate_loss,
    warmed_up_rates,
)
from phasegrad.compute.optimizers import Adam
from phasegrad.data.minibatches import Batch
from phasegrad.losses import adapted_kl_beta, value_loss


class PPO(Algorithm):
    """Proximal Policy Optimization."""

    name = "ppo"
    config_class = PPOConfig
    config: PPOConfig

    def build_optimizers(self) -> dict[str, Adam]:
        optimizers = adams(self.flat, self.config.adam_eps)
        self.stepper = self.computation.stepper(optimizers, self.config.max_grad_norm)
        self.scalars |= {"kl_beta": self.config.kl_beta} | first_scalars(self.config)
        return optimizers

    def iterations(self) -> Iterator[dict[str, Any]]:
        config = self.config
        while self.steps_left():
            left, shuffle = self.remaining_fraction(), self.generator("minibatches")
            rates = warmed_up_rates(config, left, self.flat.slices, self.scalars, self.progress.iteration)
            scheduled = scheduled_weights(config, self.scalars, left)
            with self.collected() as rollout:
                scheduled |= self.leash.hold(rollout)
                coefficients = config.weights() | scheduled
                estimate_advantages(rollout, config)
                metrics = self.rollout_metrics(rollout)
                for epoch in range(config.epochs):
                    if epoch and config.recompute_advantages:
                        self.experience.revalue(rollout)
                        estimate_advantages(rollout, config)
                    if config.normalize_advantage == "batch":
                        rollout.advantages.copy_(normalized(rollout.advantages, self.ranks))
                    steps_before = self.stepper.count
                    minibatches = epoch_of_minibatches(rollout, config, shuffle, self.device, self.ranks)
                    if epoch == 0 and config.measure_interference:
                        first = next(iter(minibatches))
                        metrics |= interference(self.model, first, config, coefficients, self.ranks)
                    self.stepper.epoch("ppo", self.loss, minibatches, coefficients, rates)
                    if config.kl_stop and float(self.stepper.mean_since("kl", steps_before)) > config.kl_stop:
                        break  # where it is set, this waits for the device once an epoch
                kl = self.stepper.mean_since("kl", steps_before)  # of the last epoch: how far the update went
                moved = self.mean_kl(rollout) if config.kl_target and rates["policy"] else None
            metrics = self.stepper.take_all(metrics | {"last": kl, "moved": moved})
            kl, moved = metrics.pop("last"), metrics.pop("moved")
            if moved is not None:
                self.scalars["kl_beta"] = adapted_kl_beta(scheduled["kl_beta"], moved, config.kl_target)
            adapt_learning_rate(config, self.scalars, kl, rates)
            yield metrics | {"kl": kl, "epochs": epoch + 1} | scheduled | logged_rates(rates)

    def loss(self, batch: Batch, coefficients: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-(L_policy + beta_S S[pi]) + c_v L_value over one minibatch."""
        params, values = self.model.policy_and_value(batch.seen, batch.masks)
        policy_loss, metrics = surrogate_loss(self.distribution, params, batch, self.config, coefficients)
        errors = value_loss(values, batch.value_targets, batch.old_values, self.config.value_clip or None)
        return policy_loss + coefficients["value_coef"] * errors, metrics | {"value_loss": errors}
