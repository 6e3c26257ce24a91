"""How help arranges the settings: those changed most for each algorithm, and all of them in groups. Data only."""

from __future__ import annotations

from collections.abc import Iterable

from phasegrad.algorithms.most_changed import EVERYONES, MOST_CHANGED

GROUPS: dict[str, tuple[str, ...]] = {
    "run": (
        "total_steps", "seed", "preset", "stop_at", "device", "storage", "compile", "act_precision", "torch_threads", "checkpoint_every",
        "keep_checkpoints",
    ),
    "environment": (
        "env", "env_options", "backend", "vectorization", "env_threads", "env_timeout", "restart_every", "action_bounds",
        "normalize_observation", "clip_observation", "normalize_reward", "clip_reward", "reward_gamma",
    ),
    "rollout": (
        "num_envs", "num_steps", "updates_per_iteration", "gamma", "gae_lambda", "policy_gae_lambda",
        "bootstrap_truncated", "replay_ratio", "replay_capacity", "replay_start",
    ),
    "network": (
        "arch", "encoder", "hidden_sizes", "value_hidden_sizes", "activation", "layer_norm", "images", "critic_only",
        "impala_channels", "impala_stem", "impala_stem_stride", "impala_pooling", "frame_stack", "memory", "memory_size", "sequence_length", "action_distribution", "policy_gain", "std", "initial_std", "std_floor", "fixed_std_fraction",
        "mean_tanh",
    ),
    "optimiser": (
        "learning_rate", "critic_learning_rate", "anneal_learning_rate", "kl_learning_rate", "epochs", "num_minibatches", "whole_segments",
        "recompute_advantages", "value_epochs", "value_steps", "max_grad_norm", "optimizer", "adam_eps", "rmsprop_alpha",
        "rmsprop_eps", "rmsprop_inside_root", "cg_iterations", "cg_damping", "fisher_samples", "line_search_tries",
        "line_search_decay",
    ),
    "objective": (
        "objective", "clip_range", "anneal_clip_range", "kl_beta", "kl_target", "kl_stop", "max_kl", "entropy_coef",
        "value_coef", "value_clip", "q_coef", "normalize_advantage", "importance_clip", "trust_region",
        "trust_region_delta", "average_decay", "leash", "leash_steps", "critic_warmup",
    ),
    "phases": (
        "n_pi", "e_pi", "e_v", "e_aux", "beta_clone", "aux_learning_rate", "aux_minibatches", "aux_minibatch_size",
        "aux_steps", "aux_interval", "aux_buffer", "aux_target", "aux_value_loss", "aux_head", "aux_precision", "hold_value",
    ),
    "logging": ("eval_every", "eval_episodes", "eval_checkpoints", "log_steps", "track", "measure_interference"),
}  # fmt: skip
GROUPED = {name: group for group, names in GROUPS.items() for name in names}

TRAIN_EXAMPLES = {
    "ppo": (
        "phasegrad train ppo --env CartPole-v1 --total-steps 1e5 --seed 1 --run-dir runs/cartpole",
        "phasegrad train ppo --env CartPole-v1 --total-steps 1e5 --objective kl --kl-target 0.01",
        "phasegrad train ppo --env CartPole-v1 --total-steps 1e5 --learning-rate warmup:0.05:cosine:1e-3:1e-5",
        "phasegrad train ppo --env procgen/coinrun --env.distribution hard --env.num-levels 500 --total-steps 25e6",
    ),
    "ppg": (
        "phasegrad train ppg --env LunarLander-v3 --total-steps 400_000 --seed 1 --run-dir runs/lander",
        "phasegrad train ppg --env CartPole-v1 --total-steps 1e5 --n-pi 8 --e-aux 3 --beta-clone 2",
        "phasegrad train ppg --env procgen/coinrun --preset procgen-fast --total-steps 2e6",
    ),
    "a2c": (
        "phasegrad train a2c --env CartPole-v1 --total-steps 1e5 --seed 1 --run-dir runs/cartpole-a2c",
        "phasegrad train a2c --env Pendulum-v1 --total-steps 1e6 --optimizer adam --learning-rate 1e-3",
    ),
    "vpg": (
        "phasegrad train vpg --env CartPole-v1 --total-steps 2e5 --seed 1 --run-dir runs/cartpole-vpg",
        "phasegrad train vpg --env Acrobot-v1 --total-steps 4e5 --learning-rate 3e-3 --value-steps 40",
    ),
    "trpo": (
        "phasegrad train trpo --env Pendulum-v1 --total-steps 1e5 --seed 1 --run-dir runs/pendulum-trpo",
        "phasegrad train trpo --env HalfCheetah-v5 --total-steps 1e6 --max-kl 0.02",
    ),
    "acer": (
        "phasegrad train acer --env CartPole-v1 --total-steps 1e5 --seed 1 --run-dir runs/cartpole-acer",
        "phasegrad train acer --env Acrobot-v1 --total-steps 3e5 --replay-ratio 8 --no-trust-region",
    ),
}


def in_groups(algorithm: str, names: Iterable[str]) -> dict[str, list[str]]:
    """The settings `names` of an algorithm by group; those of no group are the algorithm's own and have its name."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(GROUPED.get(name, algorithm), []).append(name)
    order = [*GROUPS, algorithm]
    places = {name: place for place, name in enumerate(GROUPED)}
    return {
        group: sorted(found[group], key=lambda name: places.get(name, len(places))) for group in order if group in found
    }


def most_changed(algorithm: str, names: Iterable[str]) -> list[str]:
    """What help shows first; of an algorithm from outside, what all have and what is its own."""
    known = list(names)
    own = [name for name in known if name not in GROUPED]
    return [name for name in MOST_CHANGED.get(algorithm, (*EVERYONES, "learning_rate", *own)) if name in known]


def examples_of(algorithm: str) -> tuple[str, ...]:
    """Commands that train with an algorithm."""
    here = (f"phasegrad train {algorithm} --env CartPole-v1 --total-steps 1e5 --seed 1 --run-dir runs/{algorithm}",)
    return TRAIN_EXAMPLES.get(algorithm, here)
