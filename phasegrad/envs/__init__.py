"""Environments: one same-step contract, an envpool and a gymnasium backend, and a checker.

Importing this imports neither envpool nor any family's package; `make` does, for what it is asked to make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym

from phasegrad.envs.actions import ActionAdapter, flat_actions
from phasegrad.envs.another import kept_options, name_of, setting_of
from phasegrad.envs.asked_by_files import beyond_files, require_harmless
from phasegrad.envs.checker import CheckReport, check
from phasegrad.envs.contract import Episode, Observation, Step, VectorEnv
from phasegrad.envs.families import EnvSpec, resolve
from phasegrad.envs.foreign import foreign_kind
from phasegrad.envs.given import as_batch, missing_entry
from phasegrad.envs.listing import Listed, all_envs, list_envs, listed_family_of
from phasegrad.envs.seeding import env_seeds
from phasegrad.envs.spaces import ObservationAdapter, flatten, flatten_observation, same_form
from phasegrad.envs.tensor_contract import TensorVectorEnv
from phasegrad.envs.tensor_libraries import from_brax, from_isaac_lab, from_maniskill, tensor_env_of
from phasegrad.errors import ConfigError, EnvError

__all__ = [
    "ActionAdapter",
    "CheckReport",
    "EnvSpec",
    "Episode",
    "Listed",
    "Observation",
    "ObservationAdapter",
    "Step",
    "TensorVectorEnv",
    "VectorEnv",
    "all_envs",
    "alone",
    "as_batch",
    "backend_notice",
    "beyond_files",
    "check",
    "env_seeds",
    "flat_actions",
    "flatten",
    "flatten_observation",
    "from_brax",
    "from_isaac_lab",
    "from_maniskill",
    "kept_options",
    "list_envs",
    "listed_family_of",
    "make",
    "maker_of",
    "missing_entry",
    "name_of",
    "require_harmless",
    "resolve",
    "same_form",
    "setting_of",
    "tensor_env_of",
]

EnvSource = str | Callable[[], gym.Env] | gym.vector.VectorEnv


def make(
    source: EnvSource,
    *,
    num_envs: int,
    seeds: Sequence[int],
    backend: str = "auto",
    vectorization: str = "sync",
    num_threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    render: bool = False,
    evaluation: bool = False,
    timeout: float | None = None,
    first: int = 0,
) -> VectorEnv:
    """Make `num_envs` environments that keep the contract of `VectorEnv`.

    source: an id ("CartPole-v1", "procgen/coinrun", "module:Id-v0"), a function that makes one gymnasium environment,
        or a gymnasium VectorEnv, which is used up.
    seeds: one for each environment, as `env_seeds` gives them.
    backend: "envpool", "gymnasium", or "auto": envpool for what it knows.
    vectorization: "sync" steps gymnasium environments in turn, "async" in a process each; envpool has its own threads.
    num_threads: envpool's; by default as many as there are processors, fewer for environments too cheap to share out.
    options: keyword arguments of the environment; Procgen: `distribution`, `num_levels`, `start_level`.
    evaluation: score as published: on Atari whole games and unclipped rewards. `source` may be a single environment,
        which is then the only one.
    timeout: seconds that making, a step, reset or close of a gymnasium environment may take; envpool's C++ code cannot be
        interrupted.
    first: the number of the first of them among all environments of the run, by which sentences name them.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs must be 1 or more, got {num_envs}.")
    if len(seeds) != num_envs:
        raise ConfigError(f"{num_envs} environments need as many seeds, got {len(seeds)}; env_seeds makes them.")
    if vectorization not in ("sync", "async"):
        raise ConfigError(f"Unknown vectorization {vectorization!r}; use sync or async.")
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"num_threads must be 1 or more, got {num_threads}.")
    if isinstance(source, str):
        spec = resolve(source, options, backend=backend, evaluation=evaluation, render=render)
        if spec.backend == "envpool":
            from phasegrad.envs.envpool_backend import EnvpoolVectorEnv

            return EnvpoolVectorEnv(spec, seeds, num_threads, render)
        from phasegrad.envs.gymnasium_backend import factory_of_id

        return _from_factory(factory_of_id(spec, render), seeds, vectorization, render, timeout, first)
    if backend == "envpool":
        raise ConfigError("The envpool backend makes environments from ids only; leave the backend at auto.")
    if isinstance(source, gym.Env) and num_envs == 1:
        source = alone(source)
    if isinstance(source, gym.vector.VectorEnv):
        if source.num_envs != num_envs:
            raise ConfigError(f"num_envs is {num_envs}, but the vector environment holds {source.num_envs}.")
        if isinstance(source, TensorVectorEnv):
            from phasegrad.envs.tensor_adapter import TensorAdapter

            return TensorAdapter(source, seeds)
        from phasegrad.envs.vector_adapter import adapt

        return adapt(source, seeds, render, timeout, first)
    if isinstance(source, gym.Env) and evaluation and num_envs == 1:
        from phasegrad.envs.gymnasium_backend import GymnasiumVectorEnv, without_mission

        return GymnasiumVectorEnv([without_mission(source)], seeds, render, timeout)
    if isinstance(source, gym.Env):
        raise EnvError(
            f"Pass a function that makes the environment, such as `{maker_of(source)}`, not an environment: each of the "
            "parallel ones must be its own; with num_envs=1 the one given is used."
        )
    foreign = None if isinstance(source, type) else foreign_kind(source)
    if foreign is not None:
        raise EnvError(f"A {type(source).__name__} was given for the environment, {foreign}.")
    if not callable(source):
        raise EnvError(f"An environment is an id, a function or a gymnasium VectorEnv, not a {type(source).__name__}.")
    factory = partial(source, **options) if options else source
    return _from_factory(factory, seeds, vectorization, render, timeout, first)


def backend_notice(source: EnvSource, options: Mapping[str, Any], backend: str = "auto") -> str:
    """The sentence where an environment's options have decided its backend; '' where they have not."""
    if not isinstance(source, str) or ":" in source or not options:
        return ""  # an id of a module is gymnasium's, and must not be imported here
    return resolve(source, options, backend=backend).notice


def alone(env: gym.Env) -> gym.vector.VectorEnv:
    """An environment that is there already as the only one of a VectorEnv: it cannot be made a second time."""
    return gym.vector.SyncVectorEnv([lambda: env])


def maker_of(env: gym.Env) -> str:
    """How to write a function that makes such an environment."""
    if env.spec is not None:
        return f'lambda: gymnasium.make("{env.spec.id}")'
    return f"lambda: {type(env.unwrapped).__name__}()"


def _from_factory(
    factory: Callable[[], gym.Env],
    seeds: Sequence[int],
    vectorization: str,
    render: bool,
    timeout: float | None,
    first: int,
) -> VectorEnv:
    if vectorization == "async":
        from phasegrad.envs.vector_adapter import in_processes

        return in_processes([factory] * len(seeds), seeds, render, timeout, first)
    from phasegrad.envs.gymnasium_backend import GymnasiumVectorEnv, build_all

    return GymnasiumVectorEnv(build_all(factory, seeds, timeout, first), seeds, render, timeout, factory, first)
