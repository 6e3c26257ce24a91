"""Settings of TRPO; the paper's symbols stand in brackets."""

from __future__ import annotations

from dataclasses import dataclass

from phasegrad.algorithms.settings import SCHEDULES
from phasegrad.config import Config, require_dual, require_minibatches, setting
from phasegrad.errors import ConfigError


@dataclass(kw_only=True)
class TRPOConfig(Config):
    """Settings of TRPO; the paper's symbols stand in brackets."""

    arch: str = setting("dual", "separate policy and value networks: the only choice")
    gae_lambda: float = setting(0.97, "lambda of generalised advantage estimation", low=0, high=1)
    max_kl: float = setting(
        0.01, "mean KL that no update of the policy exceeds, or its schedule [delta]", low=0, live=True, scheduled=True
    )
    cg_iterations: int = setting(10, "iterations of the conjugate gradient method", low=1)
    cg_damping: float = setting(0.1, "multiple of the identity that is added to the Fisher matrix", low=0)
    fisher_samples: int = setting(0, "samples of a rollout in the Fisher matrix, drawn at random; 0 for all", low=0)
    line_search_tries: int = setting(10, "step lengths to try before an update is given up", low=1)
    line_search_decay: float = setting(0.8, "each length as a share of the one before", low=0, high=1)
    entropy_coef: float = setting(
        0.0, "weight of the entropy bonus in L, or its schedule", low=0, live=True, scheduled=True
    )
    normalize_advantage: str = setting(
        "batch", "standardise advantages over each rollout (batch), or none", choices=("batch", "none")
    )
    critic_learning_rate: float = setting(
        1e-3, f"Adam's step size on the value network; {SCHEDULES}", low=0, live=True, scheduled=True
    )
    adam_eps: float = setting(1e-5, "Adam's epsilon", low=0)
    value_epochs: int = setting(5, "passes of the value regression over each rollout", low=0)
    num_minibatches: int = setting(32, "gradient steps of each such pass", low=1)
    max_grad_norm: float = setting(0.0, "maximum gradient norm of the value network; 0 for no clipping", low=0)

    def validate(self) -> None:
        super().validate()
        require_dual(self, "a step within the policy's trust region must leave the value function alone")
        if self.num_minibatches > self.units_a_rollout:
            raise ConfigError(
                f"num_minibatches {self.num_minibatches} is more than the {self.units_a_rollout} {self.unit} of a "
                "rollout: lower it."
            )

    def require_share(self, processes: int) -> None:
        super().require_share(processes)
        require_minibatches(self, "num_minibatches", self.num_minibatches, self.units_a_rollout, processes)
