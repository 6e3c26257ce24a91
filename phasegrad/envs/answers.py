"""What single environments answer: a reset of two values, a step of five, one number for a reward.

Says in one sentence what is wrong with an answer, and how to put an environment of the old Gym right. Knows no backend.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from phasegrad.envs.foreign import foreign_kind
from phasegrad.errors import EnvError

_WRAP = "wrap it by shimmy's GymV21CompatibilityV0(env=...)"
_RESET = f"return (observation, info) from reset(*, seed=None, options=None), or {_WRAP}"
_STEP = f"return (observation, reward, terminated, truncated, info) from step, or {_WRAP}"


def require_env(env: Any) -> gym.Env:
    """An environment that says what it observes and what it can do, or a sentence."""
    foreign = foreign_kind(env)
    if foreign is not None:
        raise EnvError(f"The environment factory returned a {type(env).__name__}, {foreign}.")
    if not isinstance(env, gym.Env):
        raise EnvError(f"The environment factory must return a gymnasium.Env, but returned {_shown_kind(env)}.")
    for name in ("observation_space", "action_space"):
        require_space(env, name)
    return env


def require_space(env: Any, name: str) -> None:
    """Refuse an environment without the space `name`."""
    space = getattr(env, name, None)
    of = type(getattr(env, "unwrapped", env)).__name__
    if space is None:
        raise EnvError(f"{of} has no {name}: set it, in its __init__ or on the class, to a space of gymnasium.spaces.")
    if not isinstance(space, gym.Space):
        old = type(space).__module__.split(".")[0] == "gym"
        more = ", but of the old package gym: import spaces from gymnasium" if old else ""
        raise EnvError(f"The {name} of {of} is a {type(space).__name__}, which is no space of gymnasium.spaces{more}.")


def checked_reset(answer: Any, index: int) -> tuple[Any, dict[str, Any]]:
    """(observation, info) of environment `index`."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict | None):
        raise EnvError(
            f"The reset of environment {index} returned {_described(answer)}, as in the old Gym interface, not "
            f"(observation, info): {_RESET}."
        )
    if answer[1] is None:
        raise EnvError(f"The reset of environment {index} returned None for its info: return a dict, empty if need be.")
    return answer


def reset_mistake(error: BaseException, index: int) -> str | None:
    """The sentence for a `reset` that takes no seed, or None where `error` is of another kind."""
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error) and "reset" in str(error):
        return f"The reset of environment {index} takes no seed, as in the old Gym interface ({error}): {_RESET}."
    return None


def step_mistake(answer: Any, index: int, when: str) -> str | None:
    """The sentence for what is wrong with the answer of a step, or None where nothing is."""
    of = f"environment {index}"
    if isinstance(answer, tuple) and len(answer) == 4:
        return f"The step of {of} returned 4 values on {when}, as in the old Gym interface: {_STEP}."
    if not isinstance(answer, tuple) or len(answer) != 5:
        return f"The step of {of} returned {_described(answer)} on {when}: {_STEP}."
    _, reward, terminated, truncated, info = answer
    if as_number(reward) is None:
        return f"{of.capitalize()} gave the reward {_shown(reward)} on {when}: it must be one number."
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if np.size(flag) != 1:
            return f"{of.capitalize()} returned {_shown(flag)} for {name} on {when}: it must be True or False."
    if not isinstance(info, dict):
        return f"The step of {of} returned {_shown(info)} for its info on {when}: return a dict, empty if need be."
    return None


def vector_reset(answer: Any) -> tuple[Any, dict[str, Any]]:
    """(observations, info) of a vector environment."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
        raise EnvError(
            "The reset of the vector environment must return (observations, info), with a dict for info, not "
            f"{_described(answer)}."
        )
    return answer


def vector_answer(
    answer: Any, num_envs: int, when: str
) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """The answer of a vector environment's step, with a number and two flags for each environment, copied."""
    if not isinstance(answer, tuple) or len(answer) != 5 or not isinstance(answer[4], dict):
        raise EnvError(
            "The step of the vector environment must return (observations, rewards, terminations, truncations, info), "
            f"with a dict for info, not {_described(answer)} on {when}."
        )
    batch, *columns, info = answer
    arrays = []
    for name, column, dtype in zip(
        ("rewards", "terminations", "truncations"), columns, (float, bool, bool), strict=True
    ):
        array = np.asarray(column)
        if array.size != num_envs or array.dtype.kind not in "fiub":
            raise EnvError(
                f"The vector environment returned {name} of {array.dtype} {array.shape} on {when}, but one number for "
                f"each of its {num_envs} environments is needed."
            )
        arrays.append(np.array(array, dtype).reshape(num_envs))
    reward, terminated, truncated = arrays
    return batch, reward, terminated, truncated, info


def as_number(reward: Any) -> float | None:
    """A reward as a float, also where it is an array of one; None where it is no number."""
    if isinstance(reward, float | int | np.number):
        return float(reward)
    try:
        array = np.asarray(reward)
        return float(array.item()) if array.size == 1 and array.dtype.kind in "fiub" else None
    except (TypeError, ValueError):
        return None


def _shown_kind(env: Any) -> str:
    if isinstance(env, gym.vector.VectorEnv):
        return f"a {type(env).__name__}: give a VectorEnv itself, not a function that makes it"
    return "nothing" if env is None else type(env).__name__


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _described(answer: Any) -> str:
    if isinstance(answer, tuple):
        return f"{len(answer)} values"
    if answer is None:
        return "nothing"
    return "only an observation" if isinstance(answer, np.ndarray | dict) else f"one {type(answer).__name__}"
