"""Vanilla policy gradient: REINFORCE with a learnt baseline (Sutton et al. 2000) and GAE (Schulman et al. 2016).

Its settings are in vpg_settings.py.

for k = 0, 1, 2, ... do
    collect trajectories under pi_k
    compute advantage estimates A and lambda-returns R = A + V from the current value function
    one step on the policy:      theta <- theta + alpha_k E[grad log pi(a|s) A]
    several steps on the value:  phi <- argmin E[(V_phi(s) - R)^2]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.estimates import estimate_advantages, normalized
from phasegrad.algorithms.settings import adams
from phasegrad.algorithms.surrogate import adapt_learning_rate, first_scalars, learning_rates, logged_rates
from phasegrad.algorithms.vpg_settings import VPGConfig
from phasegrad.compute.optimizers import Adam
from phasegrad.data.minibatches import Batch, everything
from phasegrad.losses import policy_objective, value_loss


class VPG(Algorithm):
    """Vanilla policy gradient."""

    name = "vpg"
    config_class = VPGConfig
    config: VPGConfig

    def build_optimizers(self) -> dict[str, Adam]:
        optimizers = adams(self.flat, self.config.adam_eps)
        self.stepper = self.computation.stepper(optimizers, self.config.max_grad_norm)
        self.scalars |= first_scalars(self.config)
        return optimizers

    def iterations(self) -> Iterator[dict[str, Any]]:
        config, step = self.config, self.stepper.step
        while self.steps_left():
            rates = learning_rates(config, self.remaining_fraction(), self.flat.slices, self.scalars)
            coefficients = config.weights()
            with self.collected() as rollout:
                estimate_advantages(rollout, config)
                metrics = self.rollout_metrics(rollout)
                batch = everything(rollout, self.device, Batch)
                if config.normalize_advantage == "batch":
                    batch.advantages = normalized(batch.advantages, self.ranks)
                usual = rollout.num_steps == config.num_steps
                step("policy", self.policy_loss, batch, coefficients, {"policy": rates["policy"]}, usual)
                for _ in range(config.value_steps):
                    step("value", self.value_loss, batch, coefficients, {"value": rates["value"]}, usual)
                metrics |= {"kl": self.mean_kl(rollout)}
            metrics = self.stepper.take_all(metrics)
            adapt_learning_rate(config, self.scalars, metrics["kl"], rates)
            yield metrics | logged_rates(rates)

    def policy_loss(self, batch: Batch, coefficients: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-(log pi(a|s) A + beta S[pi]) over a rollout."""
        params = self.model.policy(batch.seen, batch.masks)
        log_prob = self.distribution.log_prob(params, batch.actions)
        objective = policy_objective("pg", log_prob, batch.old_log_probs, batch.advantages).mean()
        entropy = self.distribution.entropy(params).mean()
        bonus = coefficients["entropy_coef"] * entropy
        return -(objective + bonus), {"policy_loss": -objective, "entropy": entropy}

    def value_loss(self, batch: Batch, _: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """L_value over a rollout."""
        errors = value_loss(self.model.value(batch.seen), batch.value_targets)
        return errors, {"value_loss": errors}
