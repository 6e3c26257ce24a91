"""Advantage Actor-Critic: the synchronous form of A3C (Mnih et al. 2016).

for update = 1, 2, ... do
    run pi in N environments for t_max timesteps
    R <- 0 where the episode terminated, V(s_last) otherwise
    for each step backwards: R <- r + gamma R, A = R - V(s)
    one step on   log pi(a|s) A + beta S[pi] - c_v 1/2 (R - V(s))^2   over all N t_max samples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.surrogate import RMSPropConfig, learning_rates
from phasegrad.compute.optimizers import Optimizer
from phasegrad.config import setting
from phasegrad.data.minibatches import Batch, everything
from phasegrad.losses import policy_objective, value_loss


@dataclass(kw_only=True)
class A2CConfig(RMSPropConfig):
    """Settings of A2C; the paper's symbols stand in brackets."""

    num_envs: int = setting(16, "N: environments stepped together", low=1)
    num_steps: int = setting(5, "T: steps of each environment before each update [t_max]", low=1)
    gae_lambda: float = setting(
        1.0, "lambda of generalised advantage estimation; 1 is the n-step return", low=0, high=1
    )
    updates_per_iteration: int = setting(
        32, "rollouts, each with its update, between two lines of metrics; rates are read once for all of them", low=1
    )
    entropy_coef: float = setting(0.01, "weight of the entropy bonus [beta]", low=0)
    value_coef: float = setting(0.5, "weight of the value loss 1/2 (R - V)^2", low=0)
    normalize_advantage: str = setting(
        "none", "standardise advantages over each rollout (batch), or none", choices=("batch", "none")
    )


class A2C(Algorithm):
    """Advantage Actor-Critic."""

    name = "a2c"
    config_class = A2CConfig
    config: A2CConfig

    def build_optimizers(self) -> dict[str, Optimizer]:
        config = self.config
        optimizers = config.optimizers(self.flat)
        self.stepper = self.stepper_for(optimizers, config.max_grad_norm)
        return optimizers

    def iteration_steps(self) -> int:
        return self.config.num_steps * self.config.updates_per_iteration

    def iterate(self, num_steps: int) -> dict[str, float]:
        config = self.config
        rates = self.rates(learning_rates(config, self.remaining_fraction()))
        values, targets = [], []
        for rollout in self.rollouts(num_steps):
            self.estimate_advantages(rollout)
            with self.clock.section("update"):
                batch = everything(rollout, self.device, Batch)
                if config.normalize_advantage == "batch":
                    batch.advantages = self.normalized(batch.advantages)
                usual = rollout.num_steps == config.num_steps
                self.stepper.step("a2c", self.loss, batch, {}, rates, usual)
            values.append(rollout.values.flatten().clone())  # the next rollout takes their place
            targets.append(rollout.value_targets.flatten().clone())
            kl = self.mean_kl(rollout) if len(values) * config.num_steps >= num_steps else 0.0  # of the last update
            self.model.normalizer.update(rollout.observations)  # last, so that a rollout and its update saw one scaling
        metrics = self.value_metrics(torch.cat(values), torch.cat(targets)) | self.stepper.take_metrics()
        return metrics | {"kl": kl, "updates": len(values), "learning_rate": rates["policy"]}

    def loss(self, batch: Batch, scalars: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-(log pi(a|s) A + beta S[pi]) + c_v L_value over one rollout."""
        config = self.config
        params, values = self.model.policy_and_value(batch.observations, batch.masks)
        log_prob = self.distribution.log_prob(params, batch.actions)
        objective = policy_objective("pg", log_prob, batch.old_log_probs, batch.advantages).mean()
        entropy = self.distribution.entropy(params).mean()
        errors = value_loss(values, batch.value_targets)
        bonus = config.weight("entropy_coef", scalars) * entropy
        loss = -(objective + bonus) + config.weight("value_coef", scalars) * errors
        return loss, {"policy_loss": -objective, "entropy": entropy, "value_loss": errors}
