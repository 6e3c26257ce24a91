"""Advantage Actor-Critic: the synchronous form of A3C (Mnih et al. 2016); its settings are in a2c_settings.py.

for update = 1, 2, ... do
    run pi in N environments for t_max timesteps
    R <- 0 where the episode terminated, V(s_last) otherwise
    for each step backwards: R <- r + gamma R, A = R - V(s)
    one step on   log pi(a|s) A + beta S[pi] - c_v 1/2 (R - V(s))^2   over all N t_max samples
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from phasegrad.algorithms.a2c_settings import A2CConfig
from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.estimates import estimate_advantages, normalized, value_metrics
from phasegrad.algorithms.surrogate import adapt_learning_rate, first_scalars, learning_rates
from phasegrad.compute.optimizers import Optimizer
from phasegrad.data.minibatches import Batch, everything
from phasegrad.losses import policy_objective, value_loss


class A2C(Algorithm):
    """Advantage Actor-Critic."""

    name = "a2c"
    config_class = A2CConfig
    config: A2CConfig

    def build_optimizers(self) -> dict[str, Optimizer]:
        optimizers = self.config.optimizers(self.flat)
        self.stepper = self.computation.stepper(optimizers, self.config.max_grad_norm)
        self.scalars |= first_scalars(self.config)
        return optimizers

    def iterations(self) -> Iterator[dict[str, Any]]:
        config = self.config
        while self.steps_left():
            rates = learning_rates(config, self.remaining_fraction(), self.flat.slices, self.scalars)
            values, targets = [], []
            for rollout in self.rollouts(config.updates_per_iteration):
                estimate_advantages(rollout, config)
                batch = everything(rollout, self.device, Batch)
                if config.normalize_advantage == "batch":
                    batch.advantages = normalized(batch.advantages, self.ranks)
                usual = rollout.num_steps == config.num_steps
                self.stepper.step("a2c", self.loss, batch, config.weights(), rates, usual)
                values.append(rollout.values.flatten().clone())  # the next rollout takes their place
                targets.append(rollout.value_targets.flatten().clone())
                is_last = len(values) == config.updates_per_iteration or not self.steps_left()
                kl = self.mean_kl(rollout) if is_last else 0.0
            metrics = value_metrics(torch.cat(values), torch.cat(targets), self.ranks)
            metrics = self.stepper.take_all(metrics | {"moved": kl})
            kl = metrics.pop("moved")
            adapt_learning_rate(config, self.scalars, kl, rates)
            yield metrics | {"kl": kl, "updates": len(values), "learning_rate": rates["policy"]}

    def loss(self, batch: Batch, coefficients: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-(log pi(a|s) A + beta S[pi]) + c_v L_value over one rollout."""
        params, values = self.model.policy_and_value(batch.seen, batch.masks)
        log_prob = self.distribution.log_prob(params, batch.actions)
        objective = policy_objective("pg", log_prob, batch.old_log_probs, batch.advantages).mean()
        entropy = self.distribution.entropy(params).mean()
        errors = value_loss(values, batch.value_targets)
        bonus = coefficients["entropy_coef"] * entropy
        loss = -(objective + bonus) + coefficients["value_coef"] * errors
        return loss, {"policy_loss": -objective, "entropy": entropy, "value_loss": errors}
