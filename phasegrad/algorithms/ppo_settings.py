"""Settings of PPO."""

from __future__ import annotations

from dataclasses import dataclass

from phasegrad.algorithms.settings import SurrogateConfig
from phasegrad.config import setting


@dataclass(kw_only=True)
class PPOConfig(SurrogateConfig):
    """Settings of PPO."""

    epochs: int = setting(10, "passes over each rollout [K]", low=1)
    kl_stop: float = setting(
        0.0,
        "stop an update's epochs early once the mean KL to the old policy reaches this; 0 for never",
        low=0,
        live=True,
    )
    recompute_advantages: bool = setting(False, "recompute advantages before each epoch")
