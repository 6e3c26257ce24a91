"""Named settings for families of environments and for the papers' experiments.

A preset is data: for each algorithm the fields that differ from the plain defaults. `auto` finds the one that fits an
environment id; what a user sets always wins over a preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasegrad.config import Config, algorithm_name, coerce_fields, documented_fields, make_config, short, started
from phasegrad.errors import ConfigError, PhasegradError, unknown
from phasegrad.machine.data_files import parse_json, read_text
from phasegrad.machine.gpus import has_gpu
from phasegrad.machine.paths import as_path
from phasegrad.presets.preset import ACER, ANNEALED, CONTINUOUS_A2C, NORMALISED, OFTEN, Preset
from phasegrad.presets.simulators import SIMULATORS
from phasegrad.schedules import LostFunction, Schedule, Scheduled, is_scheduled

NOT_IN_FILES = ("env", "preset", "track")  # of a preset: what to train on, and who is told, is the user's to say
PROCGEN = {
    "num_envs": 64, "num_steps": 256, "gamma": 0.999, "gae_lambda": 0.95, "encoder": "impala", "normalize_reward": True,
    "learning_rate": 5e-4, "entropy_coef": 0.01, "max_grad_norm": 0.0, "adam_eps": 1e-8, "normalize_advantage": "batch",
    "num_minibatches": 8, "value_coef": 1.0,
}  # fmt: skip
PROCGEN_PPO = {"arch": "shared", "epochs": 3}
PROCGEN_PPG = {
    "arch": "dual",
    "n_pi": 32,
    "e_pi": 1,
    "e_v": 1,
    "e_aux": 6,
    "beta_clone": 1.0,
    "aux_learning_rate": 5e-4,
}
MUJOCO = {
    "num_envs": 64, "num_steps": 32, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 3e-4, "num_minibatches": 32,
    "initial_std": 0.6, **NORMALISED, **ANNEALED,
}  # fmt: skip
MUJOCO_EACH: dict[str, Mapping[str, Any]] = {
    "ppo": {"epochs": 10, "recompute_advantages": True},
    "ppg": {"n_pi": 8, "e_pi": 10, "e_v": 10, "e_aux": 3, "aux_minibatches": 64, "aux_learning_rate": 3e-4},
    "a2c": CONTINUOUS_A2C,
    "vpg": OFTEN,
}

PRESETS: dict[str, Preset] = {
    "cartpole": Preset(
        "CartPole-v1 to 500 within 100k steps",
        {"num_envs": 8, "num_steps": 128, "gamma": 0.98, "gae_lambda": 0.9, "learning_rate": 1e-3,
         "num_minibatches": 4, "anneal_clip_range": True, **ANNEALED},
        {"ppo": {"epochs": 10},
         "ppg": {"n_pi": 4, "e_pi": 10, "e_v": 10, "e_aux": 2, "aux_minibatches": 16, "aux_learning_rate": 1e-3},
         "a2c": {"learning_rate": 2e-3, **ANNEALED}, "acer": ACER,
         "vpg": {"num_steps": 128, "learning_rate": 1e-2, "critic_learning_rate": 3e-3, "value_steps": 20, **ANNEALED}},
    ),
    "acrobot": Preset(
        "Acrobot-v1 to -90 within 300k steps",
        {"num_envs": 32, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 2e-3,
         "normalize_observation": True, "num_minibatches": 8, **ANNEALED},
        {"ppo": {"epochs": 8},
         "ppg": {"n_pi": 8, "e_pi": 6, "e_v": 6, "e_aux": 2, "aux_minibatches": 32, "aux_learning_rate": 1e-3},
         "a2c": {"learning_rate": 2e-3, **ANNEALED}, "vpg": OFTEN, "trpo": {"num_envs": 16}, "acer": ACER},
    ),
    "classic": Preset(
        "classic control: MountainCar and its kin",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "normalize_observation": True, "num_minibatches": 8, **ANNEALED},
        {"ppo": {"epochs": 8},
         "ppg": {"n_pi": 8, "e_pi": 6, "e_v": 6, "e_aux": 2, "aux_minibatches": 32, "aux_learning_rate": 1e-3},
         "a2c": {"learning_rate": 2e-3, **ANNEALED}, "vpg": OFTEN, "trpo": {"num_envs": 16}, "acer": ACER},
    ),
    "pendulum": Preset(
        "Pendulum-v1 to -200 within 100k steps",
        {"num_envs": 8, "num_steps": 128, "gamma": 0.95, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "action_bounds": "rescale", "num_minibatches": 16, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10, "gamma": 0.97},
         "ppg": {"n_pi": 4, "e_pi": 10, "e_v": 10, "e_aux": 2, "aux_minibatches": 32, "aux_learning_rate": 3e-4,
                 "beta_clone": 5.0},
         "a2c": CONTINUOUS_A2C, "vpg": OFTEN, "trpo": {"gae_lambda": 0.95}},
    ),
    "box2d": Preset(
        "Box2D: LunarLander-v3 to 200 within 400k steps",
        {"num_envs": 32, "num_steps": 128, "gamma": 0.995, "gae_lambda": 0.98, "learning_rate": 2e-3,
         "entropy_coef": 0.01, "normalize_reward": True, "num_minibatches": 8, **ANNEALED},
        {"ppo": {"epochs": 8},
         "ppg": {"gamma": 0.998, "entropy_coef": 0.003, "n_pi": 8, "e_pi": 8, "e_v": 8, "e_aux": 2,
                 "aux_minibatches": 32, "aux_learning_rate": 1e-3},
         "a2c": {"num_steps": 8, "gae_lambda": 0.95, "learning_rate": 1e-3, "critic_learning_rate": 5e-4,
                 "optimizer": "adam", "hidden_sizes": (128, 128), "entropy_coef": 1e-3, "normalize_reward": False,
                 "normalize_advantage": "batch", "normalize_observation": True, **ANNEALED},
         "vpg": OFTEN,
         "trpo": {"num_envs": 16, "num_steps": 128, "max_kl": 0.02}, "acer": {**ACER, "entropy_coef": 1e-3}},
    ),
    "bipedal-walker": Preset(
        "BipedalWalker-v3 to 300 within 2M steps: a far horizon, rollouts of 512 steps, minibatches of 64",
        {"num_envs": 32, "num_steps": 512, "gamma": 0.999, "gae_lambda": 0.95, "learning_rate": 3e-4,
         "num_minibatches": 256, "initial_std": 0.6, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10, "recompute_advantages": True},
         "ppg": {"n_pi": 4, "e_pi": 10, "e_v": 10, "e_aux": 2, "aux_minibatches": 256, "aux_learning_rate": 3e-4},
         "a2c": CONTINUOUS_A2C, "vpg": OFTEN},
    ),
    "mujoco": Preset(
        "MuJoCo with 64 environments: a small initial deviation, advantages computed anew in every epoch",
        MUJOCO,
        MUJOCO_EACH,
        many=True,
    ),
    "walker2d": Preset(
        "Walker2d: like mujoco with layers of 128 units",
        {**MUJOCO, "hidden_sizes": (128, 128)},
        MUJOCO_EACH,
        many=True,
    ),
    "ant": Preset(
        "Ant-v5 and Humanoid-v5, which observe contact forces: mujoco with larger minibatches, observations clipped at 3",
        {**MUJOCO, "num_minibatches": 8, "clip_observation": 3.0},
        MUJOCO_EACH,
        many=True,
    ),
    "mujoco-paper": Preset(
        "MuJoCo as in the PPO paper: one environment, 2048 steps, 10 epochs of minibatches of 64; normalised",
        {"num_envs": 1, "num_steps": 2048, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 3e-4,
         "num_minibatches": 32, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10},
         "ppg": {"n_pi": 8, "e_pi": 10, "e_v": 10, "e_aux": 3, "aux_minibatches": 64, "aux_learning_rate": 3e-4}},
    ),
    "inverted-pendulum": Preset(
        "InvertedPendulum to 1000 within 100k steps",
        {"num_envs": 8, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 2e-3,
         "num_minibatches": 4, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10},
         "ppg": {"n_pi": 4, "e_pi": 10, "e_v": 10, "e_aux": 2, "aux_minibatches": 16, "aux_learning_rate": 1e-3},
         "a2c": CONTINUOUS_A2C, "vpg": OFTEN},
    ),
    "inverted-double-pendulum": Preset(
        "InvertedDoublePendulum: like mujoco with larger minibatches, but advantages keep their scale",
        {**MUJOCO, "num_minibatches": 8, "learning_rate": 6e-4, "normalize_advantage": "none"},
        MUJOCO_EACH,
        many=True,
    ),
    "reacher": Preset(
        "Reacher to -6 within 100k steps",
        {"num_envs": 8, "num_steps": 128, "gamma": 0.9, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "num_minibatches": 8, "initial_std": 0.3, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10},
         "ppg": {"n_pi": 4, "e_pi": 10, "e_v": 10, "e_aux": 2, "aux_minibatches": 32, "aux_learning_rate": 1e-3},
         "a2c": CONTINUOUS_A2C, "vpg": OFTEN},
    ),
    "swimmer": Preset(
        "Swimmer: a far horizon, rollouts of 1,024 steps",
        {"num_envs": 4, "num_steps": 1024, "gamma": 0.9999, "gae_lambda": 0.98, "learning_rate": 6e-4,
         "num_minibatches": 16, "initial_std": 0.6, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10},
         "ppg": {"n_pi": 4, "e_pi": 10, "e_v": 10, "e_aux": 3, "aux_minibatches": 64, "aux_learning_rate": 3e-4},
         "a2c": CONTINUOUS_A2C, "vpg": OFTEN},
    ),
    "atari": Preset(
        "Atari as in the PPO paper: 8 x 128, 4 stacked frames, Nature CNN",
        {"num_envs": 8, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 2.5e-4,
         "entropy_coef": 0.01, "encoder": "nature", "num_minibatches": 4, "clip_range": 0.1, "value_coef": 1.0,
         "anneal_clip_range": True, **ANNEALED},
        {"ppo": {"arch": "shared", "epochs": 3},
         "ppg": {"arch": "detach", "n_pi": 32, "e_aux": 6, "aux_learning_rate": 2.5e-4}},
    ),
    "atari-fast": Preset(
        "Atari on a CPU within 2M steps: 16 environments, a strided stem before two narrow IMPALA stacks",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "entropy_coef": 0.01, "encoder": "impala", "impala_stem": 16, "impala_stem_stride": 4,
         "impala_channels": (16, 16), "num_minibatches": 8, "value_coef": 1.0, **ANNEALED},
        {"ppo": {"arch": "shared", "epochs": 3},
         "ppg": {"arch": "shared", "e_pi": 2, "e_v": 2, "aux_interval": 1, "aux_buffer": 16, "aux_steps": 8,
                 "aux_minibatch_size": 256, "beta_clone": 4.0, "aux_learning_rate": 5e-4}},
    ),
    "procgen": Preset(
        "Procgen on 64 environments, otherwise with the PPG authors' settings",
        PROCGEN,
        {"ppo": PROCGEN_PPO, "ppg": PROCGEN_PPG},
    ),
    "procgen-paper": Preset(
        "Procgen as published: hard levels, 100M steps, 256 environments, time-outs as terminations",
        {**PROCGEN, "env_options": {"distribution": "hard"}, "total_steps": 100_000_000, "num_envs": 256,
         "whole_segments": True, "bootstrap_truncated": False, "reward_gamma": 0.99},
        {"ppo": PROCGEN_PPO, "ppg": PROCGEN_PPG},
    ),
    "procgen-easy": Preset(
        "Procgen, easy levels, 25M steps, 64 environments",
        {**PROCGEN, "env_options": {"distribution": "easy"}, "total_steps": 25_000_000},
        {"ppo": PROCGEN_PPO, "ppg": PROCGEN_PPG},
    ),
    "procgen-fast": Preset(
        "Procgen on a CPU within 2M steps: a strided stem before narrow IMPALA stacks, PPG with one network, Reloaded",
        {**PROCGEN, "env_options": {"distribution": "easy"}, "total_steps": 2_000_000, "num_steps": 128,
         "num_minibatches": 16, "impala_stem": 8, "impala_stem_stride": 2, "impala_channels": (8, 16, 16),
         "learning_rate": 1e-3, **ANNEALED},
        {"ppo": PROCGEN_PPO,
         "ppg": {"arch": "shared", "e_pi": 2, "e_v": 2, "aux_interval": 1, "aux_buffer": 16, "aux_steps": 8,
                 "aux_minibatch_size": 512, "beta_clone": 4.0, "aux_learning_rate": 5e-4}},
    ),
    "minigrid": Preset(
        "MiniGrid's small symbolic views",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "entropy_coef": 0.01, "encoder": "grid", "num_minibatches": 8},
        {"ppo": {"arch": "shared", "epochs": 4},
         "ppg": {"arch": "detach", "n_pi": 8, "e_pi": 3, "e_v": 3, "e_aux": 3, "aux_minibatches": 64}},
    ),
    **SIMULATORS,
}  # fmt: skip

BY_ENVIRONMENT = {
    "CartPole": "cartpole", "Acrobot": "acrobot", "Pendulum": "pendulum", "InvertedPendulum": "inverted-pendulum",
    "InvertedDoublePendulum": "inverted-double-pendulum",
    "Reacher": "reacher", "Swimmer": "swimmer", "Walker2d": "walker2d", "BipedalWalker": "bipedal-walker",
    "Ant-v5": "ant", "Humanoid-v5": "ant",  # not Ant-v4, whose observations lack what the preset is for
}  # fmt: skip
BY_FAMILY = {name: name for name in ("classic", "box2d", "mujoco", "atari", "procgen", "minigrid", *SIMULATORS)}
BY_FAMILY["dm_control"] = BY_FAMILY.pop("dmc")
# What takes a preset's place where there is no GPU, by preset and algorithm: a phase of the published PPG takes hours there.
ON_CPU = {("procgen", "ppg"): "procgen-fast"}
EITHER_WAY = {"env_options", "total_steps", "learning_rate", "anneal_learning_rate"}  # set with any preset in mind


def preset_for(env: str, options: Mapping[str, Any] | None = None) -> str:
    """The preset that fits an environment id, or none."""
    if env.startswith("custom:") or not env:
        return "none"
    if own := _by_environment(env):
        return own
    from phasegrad import envs  # takes a second to import, and most commands need not know families

    try:
        family = envs.listed_family_of(env, options)
    except PhasegradError:
        return "none"  # making the environment will say what is wrong with it
    named = family in ("classic", "box2d", "mujoco")  # gymnasium:CartPole-v1
    own = _by_environment(env.rpartition(":")[2]) if named else None
    return own or BY_FAMILY.get(family, "none")


def _by_environment(name: str) -> str | None:
    """The preset of one environment, by its name with or without the version."""
    return BY_ENVIRONMENT.get(name) or BY_ENVIRONMENT.get(name.rsplit("-v", 1)[0])


def preset_for_cpu(name: str, algorithm: str) -> str | None:
    """The preset for CPUs that is like `name`; None where there is none."""
    return ON_CPU.get((name, algorithm))


def fitting_machine(name: str, algorithm: str, explicit: Mapping[str, Any]) -> str:
    """The preset that `auto` has found, or the one for CPUs in its place where the networks will live on one.

    A user who sets something that the two have different has the first in mind, and gets it.
    """
    other = preset_for_cpu(name, algorithm)
    if other is None:
        return name
    mine, theirs = PRESETS[name].fields(algorithm), PRESETS[other].fields(algorithm)
    differing = {field for field in {*mine, *theirs} if mine.get(field) != theirs.get(field)} - EITHER_WAY
    if any(field in explicit for field in (*differing, "encoder")):
        return name
    device = str(explicit.get("device", "auto"))
    on_gpu = has_gpu() if device == "auto" else device != "cpu"
    return name if on_gpu else other


def tuned_algorithm(config_class: type[Config]) -> str:
    """The algorithm whose part of a preset a config takes: its own, or that of the one it was derived from."""
    names = [algorithm_name(kind) for kind in config_class.__mro__ if issubclass(kind, Config)]
    tuned = {algorithm for preset in PRESETS.values() for algorithm in preset.by_algorithm}
    return next((name for name in names if name in tuned), names[0])


def preset_fields(name: str, algorithm: str) -> dict[str, Any]:
    """Fields of a named preset, or of a preset file."""
    if name == "none":
        return {}
    if name in PRESETS:
        return PRESETS[name].fields(algorithm)
    if name.endswith(".json"):
        return read_preset_file(as_path(name))
    raise no_such_preset(name)


def no_such_preset(name: str) -> ConfigError:
    """The sentence on a name that is no preset's; a family's name leads to its preset."""
    if name in BY_FAMILY:
        return ConfigError(f"Unknown preset {name!r}: the environments of that family use {BY_FAMILY[name]!r}.")
    return ConfigError(unknown("preset", name, PRESETS, "`phasegrad presets` lists them"))


def read_preset_file(path: Path) -> dict[str, Any]:
    """A JSON object of field names and values."""
    return parse_preset(read_text("Preset file", path), f"Preset file {path}")


def parse_preset(text: str, where: str) -> dict[str, Any]:
    """The settings in a preset file's text: how to learn, and nothing on whose behalf."""
    fields = parse_json(where, text)
    if not isinstance(fields, dict):
        raise ConfigError(f"{where} must hold one JSON object of settings.")
    for name in NOT_IN_FILES:
        if name in fields:
            raise ConfigError(f"{where} has {name}, which is not a preset's to say: give --{name} yourself.")
    if not isinstance(fields.get("env_options", {}), dict):
        raise ConfigError(f"{where} has env_options that are no object of names and values.")
    return {name: value for name, value in fields.items() if name != "algorithm"}


def require_harmless(path: str, preset: Mapping[str, Any], explicit: Mapping[str, Any]) -> None:
    """Refuse options in a preset file that may name files or code, where the user has not given them too."""
    options = preset.get("env_options", {})
    if not options or not explicit.get("env"):
        return
    from phasegrad import envs

    backend = explicit.get("backend", preset.get("backend", "auto"))
    given = explicit.get("env_options", {})
    for name in envs.beyond_files(explicit["env"], options, backend):
        if name not in given:
            raise ConfigError(
                f"Preset file {path} gives the environment the option {name} {short(options[name])}, which may be a path or "
                f"code: where you want that, give it yourself with --env.{name} VALUE (Python: env_options)."
            )


def resolve_config(config_class: type[Config], fields: Mapping[str, Any]) -> Any:
    """Defaults, then the preset, then what the user set; sizes the user did not set are made to fit those they did."""
    explicit = coerce_fields(config_class, fields)
    name = explicit.get("preset", "auto")
    if name == "auto":
        name = preset_for(explicit.get("env", ""), explicit.get("env_options"))
        name = fitting_machine(name, tuned_algorithm(config_class), explicit)
    known = documented_fields(config_class)
    preset = preset_fields(name, tuned_algorithm(config_class))
    if name in PRESETS:  # its common part serves algorithms that lack some of the fields
        preset = {key: value for key, value in preset.items() if key in known}
    else:
        require_harmless(name, preset, explicit)
    preset_values = coerce_fields(config_class, preset)
    preset_values |= started(config_class, preset_values, {})
    values = {**preset_values, **explicit, **started(config_class, explicit, preset_values), "preset": name}
    require_functions(values)
    values |= without_annealing({name: field.default for name, field in known.items()} | values, explicit)
    values["env_options"] = {**preset.get("env_options", {}), **explicit.get("env_options", {})}
    if name in PRESETS and "num_envs" in explicit and "num_steps" not in explicit:
        longer = PRESETS[name].num_steps(tuned_algorithm(config_class), explicit["num_envs"])
        values |= {} if longer is None else {"num_steps": longer}
    draft = config_class(**values)
    if "num_minibatches" not in explicit and "num_minibatches" in known:
        units = draft.num_envs if getattr(draft, "whole_segments", False) else draft.batch_size
        values["num_minibatches"] = min(vars(draft)["num_minibatches"], units)
    return make_config(config_class, values)


def require_functions(values: Mapping[str, Any]) -> None:
    """Refuse the name of a function in its place: only who trained with it has it."""
    for name, value in values.items():
        if isinstance(value, Scheduled) and isinstance(value.schedule, LostFunction):
            raise ConfigError(
                f"{name} {str(value.schedule)[:80]} names a function that was given in Python, which no file holds: start "
                f"the run from Python, with {name} as that function."
            )


def without_annealing(values: Mapping[str, Any], explicit: Mapping[str, Any]) -> dict[str, Any]:
    """What changes where the user asks for a schedule, or an adaptive rate, and the preset anneals: the user's wish counts.

    The other learning rate, if it is a number, goes on falling, by a schedule of its own.
    """
    changed: dict[str, Any] = {}
    rates = ("learning_rate", "critic_learning_rate")
    adapts = bool(explicit.get("kl_learning_rate"))
    wished = adapts or any(is_scheduled(explicit.get(name)) for name in rates)
    if wished and values.get("anneal_learning_rate") and "anneal_learning_rate" not in explicit:
        changed["anneal_learning_rate"] = False
        for name in rates[adapts:]:
            if values.get(name) and not is_scheduled(values[name]):
                changed[name] = Scheduled(Schedule("linear", values[name]))
    annealed = values.get("anneal_clip_range") and "anneal_clip_range" not in explicit
    if annealed and is_scheduled(explicit.get("clip_range")):
        changed["anneal_clip_range"] = False
    return changed
