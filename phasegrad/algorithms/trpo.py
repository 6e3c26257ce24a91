"""Trust Region Policy Optimization (Schulman et al. 2015); its settings are in trpo_settings.py.

for iteration = 1, 2, ... do
    run pi_old in N environments for T timesteps, compute advantage estimates
    g = gradient of L(theta) = E[pi(a|s) / pi_old(a|s) A] at theta_old
    x = F^-1 g by conjugate gradient, F the Hessian of E[KL[pi_old, pi]] at theta_old
    theta <- theta_old + 0.8^k sqrt(2 delta / x^T F x) x   for the first k at which L improves and E[KL] <= delta,
             theta_old where there is none
    fit V to the value targets by regression
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.estimates import estimate_advantages, normalized
from phasegrad.algorithms.trpo_settings import TRPOConfig
from phasegrad.compute.natural_gradient import FisherProduct, conjugate_gradient
from phasegrad.compute.optimizers import Adam
from phasegrad.data.minibatches import Batch, Minibatch, Minibatches, epoch_indices, everything, gather, some_indices
from phasegrad.data.storage import Rollout
from phasegrad.data.transfers import fetched
from phasegrad.errors import NonFiniteError
from phasegrad.losses import policy_objective, value_loss


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
                if config.normalize_advantage == "batch":
                    rollout.advantages.copy_(normalized(rollout.advantages, self.ranks))
                metrics |= self.policy_step(rollout, shuffle)
                self.value_regression(rollout, shuffle)
            metrics = self.stepper.take_all(metrics, by_epoch=False)
            yield metrics | {"critic_learning_rate": float(config.critic_learning_rate)}

    def policy_step(self, rollout: Rollout, shuffle: torch.Generator) -> dict[str, float]:
        """The longest step along the natural gradient that improves L within the trust region, or none."""
        config, where = self.config, self.flat.slices["policy"]
        batch = everything(rollout, self.device, Batch)
        usual = rollout.num_steps == config.num_steps
        descent, described = self.stepper.gradient("policy", self.policy_loss, batch, config.weights(), usual)
        gradient = -self.ranks.mean_(descent[where])  # L is maximised
        sampled: Minibatch = batch
        samples = self.ranks.share(config.fisher_samples)
        if 0 < samples < len(batch):
            sampled = gather(rollout, some_indices(rollout, samples, shuffle), self.device, Batch)
        product = FisherProduct(
            self.flat, where, self.kl_from_itself, sampled, config.cg_damping, self.computation.microbatch, self.ranks
        )
        direction, residual = conjugate_gradient(product, gradient, config.cg_iterations)
        curvature = direction @ product(direction)
        step = (2 * float(config.max_kl) / curvature.clamp(min=1e-20)).sqrt() * direction
        loss, entropy = self.ranks.mean_of(described["policy_loss"], described["entropy"])
        numbers = {"policy_grad_norm": gradient.norm(), "policy_loss": loss, "entropy": entropy}
        return self.line_search(rollout, step, numbers | {"cg_residual": residual.sqrt()})

    def line_search(self, rollout: Rollout, step: Tensor, known: Mapping[str, Any]) -> dict[str, float]:
        """Move the policy by the first of the ever shorter steps that is acceptable; else leave it as it was.

        What is `known` of the step comes with the first answer of the device, for which each try waits.
        """
        config, policy = self.config, self.flat.data[self.flat.slices["policy"]]
        before, tried = policy.clone(), 0
        surrogate, _ = self.surrogate_and_kl(rollout)
        metrics = fetched({**known, "start": surrogate})
        start = metrics.pop("start")
        if not math.isfinite(metrics["policy_grad_norm"]):
            raise NonFiniteError("The policy's gradient became NaN or infinite: training has diverged; lower max_kl.")
        for tried in range(1, config.line_search_tries + 1):
            policy.copy_(before + config.line_search_decay ** (tried - 1) * step)
            surrogate, kl = fetched({"pair": list(self.surrogate_and_kl(rollout))})["pair"]
            if surrogate > start and kl <= config.max_kl:  # false for NaN too
                found = {"step_accepted": 1.0, "surrogate_improvement": surrogate - start, "kl": kl}
                return metrics | found | {"line_search_steps": tried}
        policy.copy_(before)
        return metrics | {"step_accepted": 0.0, "surrogate_improvement": 0.0, "kl": 0.0, "line_search_steps": tried}

    def surrogate_and_kl(self, rollout: Rollout) -> tuple[Any, Any]:
        """L and E[KL[pi_old, pi]] over a rollout, of the policy as it now is."""
        params = self.experience.policy(rollout)
        log_prob = self.distribution.log_prob(params, rollout.actions)
        surrogate = policy_objective("cpi", log_prob, rollout.log_probs, rollout.advantages).mean()
        bonus = float(self.config.entropy_coef) * self.distribution.entropy(params).mean()
        kl = self.distribution.kl(rollout.behaviour_params, params).mean()
        improvement, moved = self.ranks.mean_of(surrogate + bonus, kl)
        return improvement, moved

    def policy_loss(self, batch: Batch, coefficients: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-L over a batch."""
        params = self.model.policy(batch.seen, batch.masks)
        log_prob = self.distribution.log_prob(params, batch.actions)
        surrogate = policy_objective("cpi", log_prob, batch.old_log_probs, batch.advantages).mean()
        entropy = self.distribution.entropy(params).mean()
        bonus = coefficients["entropy_coef"] * entropy
        return -(surrogate + bonus), {"policy_loss": -surrogate, "entropy": entropy}

    def kl_from_itself(self, batch: Minibatch) -> Tensor:
        """E[KL[pi, pi]], whose first argument is held: zero, with the Fisher matrix as its Hessian."""
        params = self.model.policy(batch.seen, batch.masks)
        return self.distribution.kl(params.detach(), params).mean()

    def value_regression(self, rollout: Rollout, shuffle: torch.Generator) -> None:
        config = self.config
        rates = {"value": float(config.critic_learning_rate)}
        for _ in range(config.value_epochs):
            indices = epoch_indices(rollout, config.num_minibatches, False, shuffle)
            usual = rollout.num_steps == config.num_steps
            minibatches = Minibatches(rollout, indices, self.device, Minibatch, usual=usual)
            self.stepper.epoch("value", self.value_loss, minibatches, config.weights(), rates)

    def value_loss(self, batch: Minibatch, _: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """L_value over one minibatch."""
        errors = value_loss(self.model.value(batch.seen), batch.value_targets)
        return errors, {"value_loss": errors}
