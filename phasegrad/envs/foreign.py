"""Environments of other libraries: what an object is that is no gymnasium environment, and how to bring it here.

They are told by their classes' modules and by what they can do; none of those libraries is imported.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import gymnasium as gym

_V26 = "GymV26CompatibilityV0"
_V21 = "GymV21CompatibilityV0"


def foreign_kind(thing: Any) -> str | None:
    """'a PettingZoo environment (...): wrap it ...' of an instance or a class; None for what is not recognised."""
    if isinstance(thing, str | gym.Env | gym.vector.VectorEnv) or thing is None:
        return _several_agents(thing.unwrapped if isinstance(thing, gym.Env) else thing)
    if isinstance(thing, types.ModuleType):
        return f"the module {thing.__name__}, no environment: give its id, or the class or function that makes one"
    made_by = _packages(thing)
    for package, told in _KINDS:
        if package in made_by:
            return told(thing)
    return _by_its_shape(thing)


def _by_its_shape(thing: Any) -> str | None:
    """Of an object whose classes say nothing of where they come from."""
    if _has(thing, "possible_agents") or _has(thing, "agent_iter"):
        return _pettingzoo(thing)
    if _has(thing, "step_async", "step_wait", "num_envs"):
        return _vec_env(thing)
    if _has(thing, "observation_spec", "action_spec"):
        return _dm_env(thing)
    if _has(thing, "observation_size", "action_size") or _has(thing, "default_params") or _has(thing, "transition"):
        return _functional(thing)
    if not isinstance(thing, type) and _has(thing, "step"):
        return _old_gym(thing)
    return None


def _several_agents(thing: Any) -> str | None:
    """Ray's environments of several agents are gymnasium's by class, but answer with a dict of agents."""
    if any(kind.__name__ == "MultiAgentEnv" for kind in _kinds(thing)):
        return f"an environment of several agents (MultiAgentEnv), of which one policy cannot be trained: {_ONE_AGENT}"
    return None


_ONE_AGENT = (
    "write a gymnasium.Env in which one agent acts and the others follow rules, or a gymnasium.vector.VectorEnv in which "
    "each agent is one of the environments"
)


def _pettingzoo(thing: Any) -> str:
    kind = "AECEnv" if _has(thing, "agent_iter") else "ParallelEnv"
    return (
        f"a PettingZoo environment ({kind}), which has several agents: {_ONE_AGENT} (for that, docs/own_environment.md has a "
        "class; supersuit's pettingzoo_env_to_vec_env_v1 and shimmy convert too)"
    )


def _vec_env(thing: Any) -> str:
    count = getattr(thing, "num_envs", None)
    made = f", num_envs={count}" if isinstance(count, int) else ""
    return (
        "a VecEnv of Stable-Baselines3, whose steps lose how an episode ended: give the id or the function that makes one "
        f"environment{made and f' and{made[1:]}'}; VecNormalize is normalize_observation and normalize_reward, VecFrameStack "
        "is frame_stack"
    )


def _dm_env(thing: Any) -> str:
    return (
        "a dm_env environment, whose steps are TimeSteps: wrap it by shimmy's DmControlCompatibilityV0(env), or use the id "
        "that envpool has for a task of dm_control, such as CheetahRun-v1"
    )


def _functional(thing: Any) -> str:
    return (
        "a functional environment of JAX (Brax, gymnax and the like), whose state is the caller's: wrap it in a "
        "gymnasium.Env, or in a gymnasium.vector.VectorEnv, that keeps the state and returns numpy arrays"
    )


def _old_gym(thing: Any) -> str:
    wrapper = _V26 if _takes_seed(thing) else _V21
    return (
        "an environment of the old package gym, whose classes and spaces are not gymnasium's: wrap it by shimmy's "
        f"{wrapper}(env=...), or derive it from gymnasium.Env"
    )


_KINDS = (
    ("pettingzoo", _pettingzoo),
    ("stable_baselines3", _vec_env),
    ("dm_env", _dm_env),
    ("dm_control", _dm_env),
    ("brax", _functional),
    ("gymnax", _functional),
    ("jumanji", _functional),
    ("gym", _old_gym),
)


def _takes_seed(thing: Any) -> bool:
    """Whether `reset` takes a seed, as it does from Gym 0.26 on."""
    try:
        return "seed" in inspect.signature(thing.reset).parameters
    except (AttributeError, TypeError, ValueError):
        return False


def _kinds(thing: Any) -> tuple[type, ...]:
    return (thing if isinstance(thing, type) else type(thing)).__mro__


def _packages(thing: Any) -> set[str]:
    """The packages that the classes of an object come from; an Env of gymnasium's functional ones is none."""
    return {str(kind.__module__).split(".")[0] for kind in _kinds(thing)}


def _has(thing: Any, *names: str) -> bool:
    return all(inspect.getattr_static(thing, name, None) is not None or _given(thing, name) for name in names)


def _given(thing: Any, name: str) -> bool:
    """Also of what __getattr__ hands on, as wrappers do; a property that fails counts as missing."""
    try:
        return getattr(thing, name, None) is not None
    except Exception:
        return False
