"""What an algorithm is called with: an environment first, then settings as keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from phasegrad import envs
from phasegrad.distributed import joining
from phasegrad.errors import ConfigError


def require_environment_first(name: str, env: Any, others: tuple[Any, ...], fields: Mapping[str, Any]) -> None:
    """Refuse Stable-Baselines3's habit of naming a policy first, and what else cannot be meant."""
    named = isinstance(env, str) and env.endswith("Policy") and env.isidentifier()
    if named or (others and isinstance(others[0], str)) or (env is not None and "env" in fields):
        meant = others[0] if others else fields.get("env", "CartPole-v1")
        meant = meant if isinstance(meant, str) else "CartPole-v1"
        raise ConfigError(
            f"{name} takes the environment first and no policy name, since the spaces decide the networks: "
            f"{name}({meant!r}), with settings as keywords."
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
    fields["env"] = envs.setting_of(env)
    if isinstance(env, gym.vector.VectorEnv):
        found = env.num_envs * joining.current().size  # each process brings its own
        if fields.setdefault("num_envs", found) != found:
            raise ConfigError(
                f"num_envs is {fields['num_envs']}, but the VectorEnv given has {found}: leave num_envs out."
            )
    return env, fields
