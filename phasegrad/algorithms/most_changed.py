"""The settings that are changed most, by algorithm: what help and docstrings show first. Data only; needs no torch."""

from __future__ import annotations

EVERYONES = ("env", "env_options", "total_steps", "seed", "preset", "num_envs", "num_steps", "gamma", "gae_lambda")
SCALED = ("normalize_observation", "normalize_reward")
MOST_CHANGED = {
    "ppo": (
        *EVERYONES, "learning_rate", "epochs", "num_minibatches", "objective", "clip_range", "entropy_coef", *SCALED,
    ),
    "ppg": (
        *EVERYONES, "n_pi", "e_pi", "e_v", "e_aux", "beta_clone", "learning_rate", "aux_learning_rate", "entropy_coef",
        "arch",
    ),
    "a2c": (*EVERYONES, "learning_rate", "optimizer", "entropy_coef", "value_coef", "hidden_sizes", *SCALED),
    "vpg": (*EVERYONES, "learning_rate", "critic_learning_rate", "value_steps", "entropy_coef", "hidden_sizes", *SCALED),
    "trpo": (
        *EVERYONES, "max_kl", "cg_iterations", "critic_learning_rate", "value_epochs", "entropy_coef", "hidden_sizes",
        *SCALED,
    ),
    "acer": (
        *EVERYONES, "learning_rate", "replay_ratio", "replay_capacity", "trust_region", "trust_region_delta",
        "importance_clip", "entropy_coef", "hidden_sizes",
    ),
}  # fmt: skip
