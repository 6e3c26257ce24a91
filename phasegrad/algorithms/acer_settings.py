"""Settings of ACER; the paper's symbols stand in brackets."""

from __future__ import annotations

from dataclasses import dataclass

from phasegrad.algorithms.settings import RMSPropConfig
from phasegrad.config import setting
from phasegrad.errors import ConfigError


@dataclass(kw_only=True)
class ACERConfig(RMSPropConfig):
    """Settings of ACER; the paper's symbols stand in brackets."""

    num_envs: int = setting(16, "N: environments stepped together, and trajectories of a replay update", low=1)
    num_steps: int = setting(20, "T: steps of each environment before each update [k]", low=1)
    gae_lambda: float = setting(1.0, "lambda of Retrace's traces, 1 in the paper", low=0, high=1)
    updates_per_iteration: int = setting(
        8, "rollouts, each with its updates, per line of metrics; schedules are read once for all of them", low=1
    )
    entropy_coef: float = setting(
        0.01, "weight of the entropy bonus, or its schedule", low=0, live=True, scheduled=True
    )
    q_coef: float = setting(
        0.5, "weight of the loss of Q, 1/2 (Qret - Q)^2, or its schedule", low=0, live=True, scheduled=True
    )
    max_grad_norm: float = setting(10.0, "maximum gradient norm, for each network separately; 0 for no clipping", low=0)
    replay_ratio: float = setting(
        4.0, "mean number of replay updates per rollout (Poisson-distributed) [r]; 0 is on-policy", low=0
    )
    replay_capacity: int = setting(50_000, "environment steps that the replay memory holds", low=1)
    replay_start: int = setting(10_000, "environment steps in the memory before the first replay update", low=0)
    importance_clip: float = setting(
        10.0, "where importance weights are truncated, with a bias correction [c]", low=1, live=True
    )
    trust_region: bool = setting(True, "keep each update near the average policy")
    trust_region_delta: float = setting(
        1.0, "how far an update may move from the average policy [delta]", low=0, live=True
    )
    average_decay: float = setting(0.99, "how slowly the average policy follows [alpha]", low=0, high=1)

    def validate(self) -> None:
        super().validate()
        if self.replay_ratio and self.replay_capacity < self.batch_size:
            raise ConfigError(
                f"replay_capacity {self.replay_capacity} is less than one rollout of num_envs x num_steps = "
                f"{self.batch_size} steps: raise it, or set replay_ratio 0."
            )
        if self.replay_ratio and self.replay_start > self.replay_capacity:
            raise ConfigError(
                f"replay_start {self.replay_start} is more than replay_capacity {self.replay_capacity}: lower it."
            )
        if self.memory != "none":
            raise ConfigError(
                f"memory {self.memory} is not for acer, whose replayed trajectories begin with states of old networks: use "
                "ppo, ppg, a2c, vpg or trpo, or frame_stack."
            )
        if self.critic_only:
            raise ConfigError(
                "critic_only is not for acer, whose value is the mean of Q under the policy: use ppo, ppg, a2c, vpg or trpo."
            )
        if self.policy_gae_lambda is not None:
            raise ConfigError("policy_gae_lambda has no meaning for acer, which has one target for both: leave it out.")
