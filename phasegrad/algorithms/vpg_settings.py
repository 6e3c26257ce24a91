"""Settings of vanilla policy gradient."""

from __future__ import annotations

from dataclasses import dataclass

from phasegrad.algorithms.settings import AdaptiveConfig
from phasegrad.config import require_dual, setting


@dataclass(kw_only=True)
class VPGConfig(AdaptiveConfig):
    """Settings of vanilla policy gradient."""

    arch: str = setting("dual", "separate policy and value networks: the only choice")
    num_steps: int = setting(500, "T: steps of each environment in a rollout", low=1)
    gae_lambda: float = setting(0.97, "lambda of generalised advantage estimation", low=0, high=1)
    critic_learning_rate: float = setting(
        1e-3, "Adam's step size on the value network, or its schedule", low=0, live=True, scheduled=True
    )
    value_steps: int = setting(80, "steps on the value network after each step on the policy", low=0)
    max_grad_norm: float = setting(0.0, "maximum gradient norm, for each network separately; 0 for no clipping", low=0)
    normalize_advantage: str = setting(
        "batch", "standardise advantages over each rollout (batch), or none", choices=("batch", "none")
    )

    def validate(self) -> None:
        super().validate()
        require_dual(self, "the value's many steps must leave the policy alone")
