"""An agent in training goes on in another environment with spaces of the same form: fresh episodes, in a leg of their own.

What it has learnt and counted stays. What it knew of the episodes there does not: running returns, recent scores, what
a memory held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from phasegrad import envs
from phasegrad.algorithms.experience import make_training_envs
from phasegrad.config import coerce_fields
from phasegrad.errors import ConfigError, EnvError
from phasegrad.runs.changing import make_change

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm


def move(algorithm: Algorithm, env: Any, env_options: Mapping[str, Any] | None = None) -> None:
    """Make the environments, see that they fit, and go on there; nothing is changed where they do not fit."""
    config, agent, legs = algorithm.config, algorithm.agent, algorithm.run.legs
    options = dict(envs.kept_options(config.env, config.env_options, env, env_options))
    values = coerce_fields(type(config), {"env": envs.setting_of(env), "env_options": options})
    if isinstance(env, gym.Env):
        env = envs.alone(env)
    if isinstance(env, gym.vector.VectorEnv) and env.num_envs != algorithm.experience.num_envs:
        raise ConfigError(
            f"The VectorEnv given has {env.num_envs} environments, but this agent trains in "
            f"{algorithm.experience.num_envs}: give one of that size, an id or a function."
        )
    begun = algorithm.progress.step > 0
    numbers = np.full_like(legs.numbers, legs.targets.max() + 1) if begun else legs.numbers
    made = make_training_envs(env, config, algorithm.ranks, numbers, options)
    try:
        agent.require_likeness(made, envs.name_of(env))
    except EnvError:
        if not isinstance(env, gym.vector.VectorEnv):
            made.close()
        raise
    algorithm.experience.close()
    agent.live_in(env, made)
    algorithm.experience.move(made)
    make_change(algorithm, values, lambda settings: config.settle(**settings))
    algorithm.run.unsaved = True


def move_back(algorithm: Algorithm, settings: Mapping[str, Any]) -> None:
    """Go on where a run had moved to before it was killed, by what its files say: they may not ask for everything."""
    env = settings.get("env", algorithm.config.env)
    options = settings.get("env_options", algorithm.config.env_options)
    algorithm.agent.require_source(env, options)
    move(algorithm, env, options)
