"""Trust Region Policy Optimization (Schulman et al. 2015).

for iteration = 1, 2, ... do
    run pi_old in N environments for T timesteps, compute advantage estimates
    g = gradient of L(theta) = E[pi(a|s) / pi_old(a|s) A] at theta_old
    x = F^-1 g by conjugate gradient, F the Hessian of E[KL[pi_old, pi]] at theta_old
    theta <- theta_old + 0.8^k sqrt(2 delta / x^T F x) x   for the first k at which L improves and E[KL] <= delta,
             theta_old where there is none
    fit V to the value targets by regression
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.estimates import estimate_advantages, normalized
from phasegrad.compute.natural_gradient import FisherProduct, conjugate_gradient
from phasegrad.compute.optimizers import Adam
from phasegrad.config import Config, require_dual, require_minibatches, setting
from phasegrad.data.minibatches import Batch, Minibatch, Minibatches, everything, gather, minibatch_indices
from phasegrad.data.storage import Rollout
from phasegrad.errors import ConfigError, NonFiniteError
from phasegrad.losses import policy_objective, value_loss


@dataclass(kw_only=True)
class TRPOConfig(Config):
    """Settings of TRPO; the paper's symbols stand in brackets."""

    arch: str = setting("dual", "separate policy and value networks; no other")
    gae_lambda: float = setting(0.97, "lambda of generalised advantage estimation", low=0, high=1)
    max_kl: float = setting(0.01, "mean KL that no update of the policy exceeds [delta]", low=0, live=True)
    cg_iterations: int = setting(10, "iterations of the conjugate gradient method", low=1)
    cg_damping: float = setting(0.1, "multiple of the identity that is added to the Fisher matrix", low=0)
    fisher_samples: int = setting(0, "samples of a rollout in the Fisher matrix, drawn at random; 0 for all", low=0)
    line_search_tries: int = setting(10, "step lengths to try before an update is given up", low=1)
    line_search_decay: float = setting(0.8, "each length as a share of the one before", low=0, high=1)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus in L", low=0, live=True)
    normalize_advantage: str = setting(
        "batch", "standardise advantages over each rollout (batch), or none", choices=("batch", "none")
    )
    critic_learning_rate: float = setting(1e-3, "Adam's step size on the value network", low=0, live=True)
    adam_eps: float = setting(1e-5, "Adam's epsilon", low=0)
    value_epochs: int = setting(5, "passes of the value regression over each rollout", low=0)
    num_minibatches: int = setting(32, "gradient steps of each such pass", low=1)
    max_grad_norm: float = setting(0.0, "longest gradient of the value network; 0 for no clipping", low=0)

    def validate(self) -> None:
        super().validate()
        require_dual(self, "a step within the policy's trust region must leave the value function alone")
        if self.num_minibatches > self.batch_size:
            raise ConfigError(
                f"num_minibatches {self.num_minibatches} is more than the {self.batch_size} samples "
                "(num_envs x num_steps) of a rollout: lower it."
            )

    def require_share(self, processes: int) -> None:
        super().require_share(processes)
        require_minibatches("num_minibatches", self.num_minibatches, self.batch_size // processes, processes)


class TRPO(Algorithm):
    """Trust Region Policy Optimization."""

    name = "trpo"
    config_class = TRPOConfig
    config: TRPOConfig
    second_derivatives = True  # Fisher products differentiate the gradient of a KL

    def build_optimizers(self) -> dict[str, Adam]:
        value = Adam(self.flat, self.flat.slices["value"], self.config.adam_eps)
        self.stepper = self.computation.stepper({"value": value}, self.config.max_grad_norm)
        return {"value": value}

    def iterations(self) -> Iterator[dict[str, Any]]:
        config = self.config
        while self.steps_left():
            shuffle = self.generator("minibatches")
            with self.collected() as rollout:
                estimate_advantages(rollout, config)
                metrics = self.rollout_metrics(rollout)
                with self.clock.section("update"):
                    if config.normalize_advantage == "batch":
                        rollout.advantages.copy_(normalized(rollout.advantages, self.ranks))
                    metrics |= self.policy_step(rollout, shuffle)
                    self.value_regression(rollout, shuffle)
            yield metrics | self.stepper.take_metrics() | {"critic_learning_rate": config.critic_learning_rate}

    def policy_step(self, rollout: Rollout, shuffle: torch.Generator) -> dict[str, float]:
        """The longest step along the natural gradient that improves L within the trust region, or none."""
        config, where = self.config, self.flat.slices["policy"]
        batch = everything(rollout, self.device, Batch)
        usual = rollout.num_steps == config.num_steps
        descent, described = self.stepper.gradient("policy", self.policy_loss, batch, config.weights(), usual)
        gradient = -self.ranks.mean_(descent[where])  # L is maximised
        if not torch.isfinite(gradient).all():
            raise NonFiniteError("The policy's gradient became NaN or infinite: training has diverged; lower max_kl.")
        sampled: Minibatch = batch
        samples = self.ranks.share(config.fisher_samples)
        if 0 < samples < len(batch):
            index = torch.randperm(len(batch), generator=shuffle)[:samples]
            sampled = gather(rollout, index, self.device, Batch)
        product = FisherProduct(
            self.flat, where, self.kl_from_itself, sampled, config.cg_damping, self.computation.microbatch, self.ranks
        )
        direction, residual = conjugate_gradient(product, gradient, config.cg_iterations)
        curvature = direction @ product(direction)
        step = (2 * config.max_kl / curvature.clamp(min=1e-20)).sqrt() * direction
        loss, entropy = self.ranks.mean(float(described["policy_loss"]), float(described["entropy"]))
        return {
            "policy_grad_norm": float(gradient.norm()),
            "policy_loss": loss,
            "entropy": entropy,
            "cg_residual": float(residual.sqrt()),
        } | self.line_search(rollout, step)

    def line_search(self, rollout: Rollout, step: Tensor) -> dict[str, float]:
        """Move the policy by the first of the ever shorter steps that is acceptable; else leave it as it was."""
        config, policy = self.config, self.flat.data[self.flat.slices["policy"]]
        before, start = policy.clone(), self.surrogate_and_kl(rollout)[0]
        tried = 0
        for tried in range(1, config.line_search_tries + 1):
            policy.copy_(before + config.line_search_decay ** (tried - 1) * step)
            surrogate, kl = self.surrogate_and_kl(rollout)
            if surrogate > start and kl <= config.max_kl:  # false for NaN too
                found = {"step_accepted": 1.0, "surrogate_improvement": surrogate - start, "kl": kl}
                return found | {"line_search_steps": tried}
        policy.copy_(before)
        return {"step_accepted": 0.0, "surrogate_improvement": 0.0, "kl": 0.0, "line_search_steps": tried}

    def surrogate_and_kl(self, rollout: Rollout) -> tuple[float, float]:
        """L and E[KL[pi_old, pi]] over a rollout, of the policy as it now is."""
        params = self.experience.policy(rollout)
        log_prob = self.distribution.log_prob(params, rollout.actions)
        surrogate = policy_objective("cpi", log_prob, rollout.log_probs, rollout.advantages).mean()
        bonus = self.config.entropy_coef * self.distribution.entropy(params).mean()
        kl = self.distribution.kl(rollout.behaviour_params, params).mean()
        improvement, moved = self.ranks.mean(float(surrogate + bonus), float(kl))
        return improvement, moved

    def policy_loss(self, batch: Batch, coefficients: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-L over a batch."""
        params = self.model.policy(batch.observations, batch.masks)
        log_prob = self.distribution.log_prob(params, batch.actions)
        surrogate = policy_objective("cpi", log_prob, batch.old_log_probs, batch.advantages).mean()
        entropy = self.distribution.entropy(params).mean()
        bonus = coefficients["entropy_coef"] * entropy
        return -(surrogate + bonus), {"policy_loss": -surrogate, "entropy": entropy}

    def kl_from_itself(self, batch: Minibatch) -> Tensor:
        """E[KL[pi, pi]], whose first argument is held: zero, with the Fisher matrix as its Hessian."""
        params = self.model.policy(batch.observations, batch.masks)
        return self.distribution.kl(params.detach(), params).mean()

    def value_regression(self, rollout: Rollout, shuffle: torch.Generator) -> None:
        config = self.config
        count, rates = (
            min(config.num_minibatches, rollout.num_steps * rollout.num_envs),
            {"value": config.critic_learning_rate},
        )
        for _ in range(config.value_epochs):
            indices = minibatch_indices(rollout.num_steps, rollout.num_envs, count, False, shuffle)
            usual = rollout.num_steps == config.num_steps
            minibatches = Minibatches(rollout, indices, self.device, Minibatch, usual=usual)
            self.stepper.epoch("value", self.value_loss, minibatches, config.weights(), rates)

    def value_loss(self, batch: Minibatch, _: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """L_value over one minibatch."""
        errors = value_loss(self.model.value(batch.observations), batch.value_targets)
        return errors, {"value_loss": errors}
