"""What an algorithm is called with: an environment first, then settings as keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from phasegrad import envs
from phasegrad.config import Config
from phasegrad.distributed import joining
from phasegrad.errors import ConfigError


def require_environment_first(name: str, env: Any, others: tuple[Any, ...], fields: Mapping[str, Any]) -> None:
    """Refuse Stable-Baselines3's habit of naming a policy first, and what else cannot be meant."""
    named = isinstance(env, str) and env.endswith("Policy") and env.isidentifier()
    if named or (others and isinstance(others[0], str)) or (env is not None and "env" in fields) or "policy" in fields:
        meant = env
        if named or env is None:
            meant = others[0] if others else fields.get("env", "CartPole-v1")
        raise ConfigError(
            f"{name} takes the environment first and no policy name, since the spaces decide the networks: "
            f"{name}({_written(meant)}), with settings as keywords."
        )
    if others:
        raise ConfigError(f"{name} takes the environment and then settings as keywords, such as num_envs=8.")


def source_and_fields(env: Any, fields: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Where the environments come from, and the settings with what that implies."""
    fields = dict(fields)
    if env is None:
        env = fields.get("env")
    if not env:
        raise ConfigError("env is missing: give an environment id such as CartPole-v1.")
    if isinstance(env, str):
        return env, fields | {"env": env}
    env = envs.tensor_env_of(env)
    if isinstance(env, gym.Env) and fields.get("num_envs") != 1:
        raise ConfigError(
            f"A {type(env.unwrapped).__name__} that is made already is one environment: give a function that makes it, such "
            f"as `{envs.maker_of(env)}`, for num_envs of them, or num_envs=1 to train in this one alone."
        )
    fields["env"] = envs.setting_of(env)
    if isinstance(env, gym.vector.VectorEnv):
        if not hasattr(env, "num_envs"):  # gymnasium's own class has none until a subclass sets it
            raise ConfigError(
                f"{type(env).__name__} has no num_envs: set it in its __init__ to how many it steps at once."
            )
        found = env.num_envs * joining.current().size  # each process brings its own
        if fields.setdefault("num_envs", found) != found:
            raise ConfigError(
                f"num_envs is {fields['num_envs']}, but the VectorEnv given has {found}: leave num_envs out."
            )
    return env, fields


def source_of(config: Config, env: Any) -> Any:
    """Where the environments come from: what is given, else the id; one that is made already as a VectorEnv of one."""
    if isinstance(env, gym.Env):
        return envs.alone(env)
    return config.env if env is None else env


def _written(meant: Any) -> str:
    """An environment as one writes it in a call."""
    if isinstance(meant, gym.Env):
        return repr(meant.spec.id) if meant.spec is not None else envs.maker_of(meant)
    if isinstance(meant, str):
        return repr(meant)
    return str(meant.__name__) if isinstance(meant, type) else "env"
