"""An algorithm of your own: its settings, its optimisers, its loop. It trains, saves, loads and resumes as the others do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import phasegrad as pg
from phasegrad.algorithms.estimates import estimate_advantages, normalized
from phasegrad.algorithms.settings import PolicyGradientConfig, adams
from phasegrad.config import setting
from phasegrad.data.minibatches import Batch, everything
from phasegrad.losses import value_loss


@dataclass(kw_only=True)
class SPMAConfig(PolicyGradientConfig):
    """Settings of SPMA; all others come from the config it extends."""

    steps: int = setting(8, "gradient steps on each rollout", low=1)
    eta: float = setting(0.5, "weight of the KL that keeps the policy near the one that acted", low=0)


@pg.register
class SPMA(pg.Algorithm):
    """A surrogate of the mirror descent kind: E[A log pi(a|s)] - KL[pi_old, pi] / eta, several steps on each rollout."""

    name = "spma"
    config_class = SPMAConfig
    config: SPMAConfig

    def build_optimizers(self) -> Mapping[str, Any]:
        optimizers = adams(self.flat, self.config.adam_eps)
        self.stepper = self.computation.stepper(optimizers, self.config.max_grad_norm)
        return optimizers

    def iterations(self) -> Iterator[dict[str, Any]]:
        config = self.config
        while self.steps_left():
            rates = dict.fromkeys(self.flat.slices, config.learning_rate)
            with self.collected() as rollout:
                estimate_advantages(rollout, config)
                metrics = self.rollout_metrics(rollout)
                batch = everything(rollout, self.device, Batch)
                batch.advantages = normalized(batch.advantages, self.ranks)
                for _ in range(config.steps):
                    usual = rollout.num_steps == config.num_steps  # a shorter last rollout is not worth compiling for
                    self.stepper.step("spma", self.loss, batch, config.weights(), rates, usual)
            yield metrics | self.stepper.take_metrics()

    def loss(self, batch: Batch, coefficients: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """What is minimised over a batch, and the metrics to show."""
        params, values = self.model.policy_and_value(batch.seen, batch.masks)
        log_prob = self.distribution.log_prob(params, batch.actions)
        kl = self.distribution.kl(batch.behaviour_params, params).mean()
        entropy = self.distribution.entropy(params).mean()
        objective = (log_prob * batch.advantages).mean() - kl / self.config.eta
        errors = value_loss(values, batch.value_targets)
        loss = -(objective + coefficients["entropy_coef"] * entropy) + errors
        return loss, {"policy_loss": -objective, "value_loss": errors, "kl": kl, "entropy": entropy}


if __name__ == "__main__":
    agent = SPMA("CartPole-v1", seed=1, learning_rate=3e-3)
    agent.learn(50_000, progress=True)
    print(agent.evaluate(20).summary())
