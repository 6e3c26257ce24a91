"""Settings of A2C; the paper's symbols stand in brackets."""

from __future__ import annotations

from dataclasses import dataclass

from phasegrad.algorithms.settings import AdaptiveConfig, RMSPropConfig
from phasegrad.config import setting


@dataclass(kw_only=True)
class A2CConfig(RMSPropConfig, AdaptiveConfig):
    """Settings of A2C; the paper's symbols stand in brackets."""

    num_envs: int = setting(16, "N: environments stepped together", low=1)
    num_steps: int = setting(5, "T: steps of each environment before each update [t_max]", low=1)
    gae_lambda: float = setting(
        1.0, "lambda of generalised advantage estimation; 1 is the n-step return", low=0, high=1
    )
    updates_per_iteration: int = setting(
        32, "rollouts, each with its update, per line of metrics; schedules are read once for all of them", low=1
    )
    entropy_coef: float = setting(
        0.01, "weight of the entropy bonus, or its schedule [beta]", low=0, live=True, scheduled=True
    )
    value_coef: float = setting(
        0.5, "weight of the value loss 1/2 (R - V)^2, or its schedule", low=0, live=True, scheduled=True
    )
    normalize_advantage: str = setting(
        "none", "standardise advantages over each rollout (batch), or none", choices=("batch", "none")
    )
