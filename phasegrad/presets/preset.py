"""What a preset is, and the groups of settings that several presets share.

Data only: which preset fits which environment is decided in the package's __init__.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SHARE_COMMON = ("ppo", "ppg")  # for whom the common part of the presets below was chosen
OF_THE_TASK = {
    "env_options", "total_steps", "gamma", "bootstrap_truncated", "action_bounds", "normalize_observation",
    "normalize_reward", "reward_gamma", "encoder", "impala_channels", "impala_stem", "impala_stem_stride",
    "impala_pooling", "initial_std",
}  # fmt: skip


@dataclass(frozen=True)
class Preset:
    """Settings that PPO and PPG share (`common`), and what each algorithm adds.

    The others take from `common` what belongs to the task, not the sizes and rates that were chosen for PPO.
    """

    about: str
    common: Mapping[str, Any]
    by_algorithm: Mapping[str, Mapping[str, Any]]
    many: bool = False  # so many environments that rollouts are short: those of fewer environments have to be longer

    def fields(self, algorithm: str) -> dict[str, Any]:
        whole = algorithm in SHARE_COMMON
        common = {name: value for name, value in self.common.items() if whole or name in OF_THE_TASK}
        return {**common, **self.by_algorithm.get(algorithm, {})}

    def num_steps(self, algorithm: str, num_envs: int) -> int | None:
        """Steps of a rollout that has at least the preset's samples, for a user with fewer environments; else None."""
        fields = self.fields(algorithm)
        if not self.many or algorithm not in SHARE_COMMON:
            return None
        return max(fields["num_steps"], fields["num_envs"] * fields["num_steps"] // max(num_envs, 1))


NORMALISED = {"normalize_observation": True, "normalize_reward": True}
ANNEALED = {"anneal_learning_rate": True}
ACER = {"num_envs": 8, "learning_rate": 2e-3, "replay_start": 2_000, "normalize_reward": True, **ANNEALED}
# Vanilla policy gradient with more and larger steps than the published 4,000 samples for a step of 3e-4
OFTEN = {
    "num_envs": 16, "num_steps": 128, "learning_rate": 1e-2, "critic_learning_rate": 3e-3, "value_steps": 20, **ANNEALED,
}  # fmt: skip
CONTINUOUS_A2C = {
    "num_envs": 8, "num_steps": 8, "gae_lambda": 0.9, "learning_rate": 1e-3, "entropy_coef": 0.0, **ANNEALED,
}  # fmt: skip
