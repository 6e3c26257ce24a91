"""Vanilla policy gradient: REINFORCE with a learnt baseline (Sutton et al. 2000) and GAE (Schulman et al. 2016).

for k = 0, 1, 2, ... do
    collect trajectories under pi_k
    compute advantage estimates A and lambda-returns R = A + V from the current value function
    one step on the policy:      theta <- theta + alpha_k E[grad log pi(a|s) A]
    several steps on the value:  phi <- argmin E[(V_phi(s) - R)^2]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.surrogate import PolicyGradientConfig, learning_rates
from phasegrad.compute.optimizers import Adam
from phasegrad.config import require_dual, setting
from phasegrad.data.minibatches import Batch, everything
from phasegrad.losses import policy_objective, value_loss


@dataclass(kw_only=True)
class VPGConfig(PolicyGradientConfig):
    """Settings of vanilla policy gradient."""

    arch: str = setting("dual", "separate policy and value networks; no other")
    num_steps: int = setting(500, "T: steps of each environment in a rollout", low=1)
    gae_lambda: float = setting(0.97, "lambda of generalised advantage estimation", low=0, high=1)
    critic_learning_rate: float = setting(1e-3, "Adam's step size on the value network", low=0)
    value_steps: int = setting(80, "steps on the value network after each step on the policy", low=0)
    max_grad_norm: float = setting(0.0, "longest gradient, of each network by itself; 0 for no clipping", low=0)
    normalize_advantage: str = setting(
        "batch", "standardise advantages over each rollout (batch), or none", choices=("batch", "none")
    )

    def validate(self) -> None:
        super().validate()
        require_dual(self, "the value's many steps must leave the policy alone")


class VPG(Algorithm):
    """Vanilla policy gradient."""

    name = "vpg"
    config_class = VPGConfig
    config: VPGConfig

    def build_optimizers(self) -> dict[str, Adam]:
        config = self.config
        optimizers = {group: Adam(self.flat, where, config.adam_eps) for group, where in self.flat.slices.items()}
        self.stepper = self.stepper_for(optimizers, config.max_grad_norm)
        return optimizers

    def iterate(self, num_steps: int) -> dict[str, float]:
        config = self.config
        rates = self.rates(learning_rates(config, self.remaining_fraction()))
        rollout = self.collect(num_steps)
        self.estimate_advantages(rollout)
        metrics = self.rollout_metrics(rollout)
        with self.clock.section("update"):
            batch = everything(rollout, self.device, Batch)
            if config.normalize_advantage == "batch":
                batch.advantages = self.normalized(batch.advantages)
            usual = rollout.num_steps == config.num_steps
            self.stepper.step("policy", self.policy_loss, batch, {}, {"policy": rates["policy"]}, usual)
            for _ in range(config.value_steps):
                self.stepper.step("value", self.value_errors, batch, {}, {"value": rates["value"]}, usual)
            metrics |= {"kl": self.mean_kl(rollout)}
            self.model.normalizer.update(rollout.observations)  # last, so that this iteration saw one scaling
            metrics |= self.stepper.take_metrics()
        return metrics | {"learning_rate": rates["policy"], "critic_learning_rate": rates["value"]}

    def policy_loss(self, batch: Batch, scalars: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-(log pi(a|s) A + beta S[pi]) over a rollout."""
        params = self.model.policy(batch.observations, batch.masks)
        log_prob = self.distribution.log_prob(params, batch.actions)
        objective = policy_objective("pg", log_prob, batch.old_log_probs, batch.advantages).mean()
        entropy = self.distribution.entropy(params).mean()
        bonus = self.config.weight("entropy_coef", scalars) * entropy
        return -(objective + bonus), {"policy_loss": -objective, "entropy": entropy}

    def value_errors(self, batch: Batch, _: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """L_value over a rollout."""
        errors = value_loss(self.model.value(batch.observations), batch.value_targets)
        return errors, {"value_loss": errors}
