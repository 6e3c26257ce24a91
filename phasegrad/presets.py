"""Named settings for families of environments and for the papers' experiments.

A preset is data: for each algorithm the fields that differ from the plain defaults. `auto` finds the one that fits an
environment id; what a user sets always wins over a preset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasegrad import envs
from phasegrad.config import Config, algorithm_name, coerce_fields, documented_fields, make_config
from phasegrad.errors import ConfigError, PhasegradError, nearest


@dataclass(frozen=True)
class Preset:
    """Settings shared by the algorithms (`common`), and what each one adds."""

    about: str
    common: Mapping[str, Any]
    by_algorithm: Mapping[str, Mapping[str, Any]]

    def fields(self, algorithm: str) -> dict[str, Any]:
        return {**self.common, **self.by_algorithm.get(algorithm, {})}


MUJOCO_NORMALISED = {"normalize_observation": True, "normalize_reward": True}
PROCGEN = {
    "num_envs": 64, "num_steps": 256, "gamma": 0.999, "gae_lambda": 0.95, "encoder": "impala", "normalize_reward": True,
    "learning_rate": 5e-4, "entropy_coef": 0.01, "max_grad_norm": 0.0, "adam_eps": 1e-8, "normalize_advantage": "batch",
}  # fmt: skip

PRESETS: dict[str, Preset] = {
    "cartpole": Preset(
        "CartPole-v1 to 500 within 100k steps",
        {"num_envs": 8, "num_steps": 64, "gamma": 0.98, "gae_lambda": 0.9, "learning_rate": 1e-3},
        {"ppo": {"epochs": 10, "num_minibatches": 4, "anneal_learning_rate": True, "anneal_clip_range": True}},
    ),
    "classic": Preset(
        "classic control: Acrobot, MountainCar and their kin",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 1e-3, "normalize_observation": True},
        {"ppo": {"epochs": 8, "num_minibatches": 8, "anneal_learning_rate": True}},
    ),
    "pendulum": Preset(
        "Pendulum-v1 within 100k steps",
        {"num_envs": 4, "num_steps": 256, "gamma": 0.9, "gae_lambda": 0.95, "learning_rate": 1e-3, "normalize_reward": True},
        {"ppo": {"epochs": 10, "num_minibatches": 16, "anneal_learning_rate": True}},
    ),
    "box2d": Preset(
        "Box2D: LunarLander, BipedalWalker",
        {"num_envs": 16, "num_steps": 256, "gamma": 0.999, "gae_lambda": 0.98, "learning_rate": 1e-3, "entropy_coef": 0.01, "normalize_reward": True},
        {"ppo": {"epochs": 6, "num_minibatches": 16, "anneal_learning_rate": True}},
    ),
    "mujoco": Preset(
        "MuJoCo with 8 environments: the paper's sizes, normalised",
        {"num_envs": 8, "num_steps": 256, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 3e-4, **MUJOCO_NORMALISED},
        {"ppo": {"epochs": 10, "num_minibatches": 32, "anneal_learning_rate": True}},
    ),
    "mujoco-paper": Preset(
        "MuJoCo as in the PPO paper: one environment, 2048 steps, 10 epochs of minibatches of 64; normalised",
        {"num_envs": 1, "num_steps": 2048, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 3e-4, **MUJOCO_NORMALISED},
        {"ppo": {"epochs": 10, "num_minibatches": 32, "anneal_learning_rate": True}},
    ),
    "inverted-pendulum": Preset(
        "InvertedPendulum within 100k steps",
        {"num_envs": 4, "num_steps": 256, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 1e-3, **MUJOCO_NORMALISED},
        {"ppo": {"epochs": 10, "num_minibatches": 16, "anneal_learning_rate": True}},
    ),
    "atari": Preset(
        "Atari as in the PPO paper: 8 x 128, 4 stacked frames, Nature CNN",
        {"num_envs": 8, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 2.5e-4, "entropy_coef": 0.01, "encoder": "nature", "arch": "shared"},
        {"ppo": {"epochs": 3, "num_minibatches": 4, "clip_range": 0.1, "value_coef": 1.0, "anneal_learning_rate": True, "anneal_clip_range": True}},
    ),
    "procgen": Preset(
        "Procgen with the PPG authors' PPO settings on 64 environments",
        PROCGEN,
        {"ppo": {"arch": "shared", "epochs": 3, "num_minibatches": 8, "value_coef": 0.5}},
    ),
    "minigrid": Preset(
        "MiniGrid's small symbolic views",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 1e-3, "entropy_coef": 0.01, "encoder": "grid"},
        {"ppo": {"arch": "shared", "epochs": 4, "num_minibatches": 8}},
    ),
}  # fmt: skip

BY_ENVIRONMENT = {"CartPole": "cartpole", "Pendulum": "pendulum", "InvertedPendulum": "inverted-pendulum"}
BY_FAMILY = {name: name for name in ("classic", "box2d", "mujoco", "atari", "procgen", "minigrid")}


def preset_for(env: str, options: Mapping[str, Any] | None = None) -> str:
    """The preset that fits an environment id, or none."""
    if env.startswith("custom:") or not env:
        return "none"
    stem = env.rsplit("-v", 1)[0]
    if stem in BY_ENVIRONMENT:
        return BY_ENVIRONMENT[stem]
    try:
        return BY_FAMILY.get(envs.resolve(env, options).family, "none")
    except PhasegradError:
        return "none"  # making the environment will say what is wrong with it


def preset_fields(name: str, algorithm: str) -> dict[str, Any]:
    """Fields of a named preset, or of a preset file."""
    if name == "none":
        return {}
    if name in PRESETS:
        return PRESETS[name].fields(algorithm)
    if name.endswith(".json"):
        return read_preset_file(Path(name), algorithm)
    raise ConfigError(f"Unknown preset {name!r}.{nearest(name, PRESETS)} `phasegrad presets` lists all.")


def read_preset_file(path: Path, algorithm: str) -> dict[str, Any]:
    """A JSON object of field names and values."""
    try:
        fields = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"Preset file {path} cannot be read: {error.strerror}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ConfigError(f"Preset file {path} is not valid JSON.") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"Preset file {path} must hold one JSON object of settings.")
    return {name: value for name, value in fields.items() if name != "algorithm"}


def resolve_config(config_class: type[Config], fields: Mapping[str, Any]) -> Any:
    """Defaults, then the preset, then what the user set; sizes the user did not set are made to fit those they did."""
    explicit = coerce_fields(config_class, fields)
    name = explicit.get("preset", "auto")
    if name == "auto":
        name = preset_for(explicit.get("env", ""), explicit.get("env_options"))
    known = documented_fields(config_class)
    preset = preset_fields(name, algorithm_name(config_class))
    if name in PRESETS:  # its common part serves algorithms that lack some of the fields
        preset = {key: value for key, value in preset.items() if key in known}
    values = {**coerce_fields(config_class, preset), **explicit, "preset": name}
    draft = config_class(**values)
    if "num_minibatches" not in explicit and "num_minibatches" in known:
        units = draft.num_envs if getattr(draft, "whole_segments", False) else draft.batch_size
        values["num_minibatches"] = min(vars(draft)["num_minibatches"], units)
    return make_config(config_class, values)
