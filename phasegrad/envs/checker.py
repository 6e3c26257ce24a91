"""Runs an environment through the contract and names the first violation in one sentence.

For users' own environments as much as for the backends' tests; `check("MyEnv-v0")` is all it takes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from phasegrad.envs.actions import random_actions
from phasegrad.envs.contract import Observation, Step, VectorEnv
from phasegrad.envs.families import resolve
from phasegrad.envs.seeding import env_seeds
from phasegrad.envs.spaces import CHOICES, describe_outside, outside_choices
from phasegrad.errors import EnvError

_ENOUGH_RESTARTS = 5
_ROUNDING = 1e-5  # of a bound, or of 1 where that is larger: what single precision may add


@dataclass(slots=True)
class CheckReport:
    """What a check saw."""

    backend: str
    observation_space: gym.Space
    action_space: gym.Space
    steps: int
    episodes: int
    terminated: int
    truncated: int
    mean_return: float | None  # of the finished episodes, under random actions
    has_action_mask: bool
    deterministic: bool | None  # None where it could not be repeated


def check(
    source: str | Callable[[], gym.Env] | gym.vector.VectorEnv | VectorEnv,
    steps: int = 200,
    *,
    num_envs: int = 2,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    backend: str = "auto",
    vectorization: str = "sync",
) -> CheckReport:
    """Act at random for `steps` steps and raise `EnvError` on the first breach of the contract.

    Ids and factories are made again to see whether the same seeds give the same trajectory and others another one.
    What training bears in an environment that has an id, and so is somebody else's to mend, is only warned of.
    """
    from phasegrad.envs import make

    if isinstance(source, VectorEnv):
        return _run(source, steps, seed, _Teller(source.backend == "envpool"))[0]
    if isinstance(source, gym.Env):  # as Stable-Baselines3's check_env takes it
        from phasegrad.envs import alone

        source = alone(source)
    if isinstance(source, gym.vector.VectorEnv):
        env = make(source, num_envs=source.num_envs, seeds=env_seeds(seed, 0, source.num_envs))
        return _close_after(env, steps, seed, _Teller(False))[0]
    tell = _Teller(isinstance(source, str))
    made_from, given = _watched(source, options, backend, tell)

    def run(env_seed: int) -> tuple[CheckReport, list[np.ndarray]]:
        seeds = env_seeds(env_seed, 0, num_envs)
        made = make(
            made_from, num_envs=num_envs, seeds=seeds, backend=backend, vectorization=vectorization, options=given
        )
        return _close_after(made, steps, seed, tell)  # the same actions each time

    report, trajectory = run(seed)
    _, repeated = run(seed)
    for time, (first, second) in enumerate(zip(trajectory, repeated, strict=True)):
        if not np.array_equal(first, second, equal_nan=True):
            raise EnvError(f"The same seeds and actions gave another trajectory: it differs from step {time} on.")
    report.deterministic = True
    _, other = run(seed + 1)
    if all(np.array_equal(first, second, equal_nan=True) for first, second in zip(trajectory, other, strict=True)):
        warnings.warn("Different seeds gave the same trajectory: the environment may ignore its seed.", stacklevel=2)
    return report


class _Teller:
    """Raises a sentence, or with `warn` warns of it once a check."""

    def __init__(self, warn: bool) -> None:
        self.warn, self.told = warn, False

    def __call__(self, sentence: str) -> None:
        if not self.warn:
            raise EnvError(sentence)
        if not self.told:
            self.told = True
            warnings.warn(sentence, stacklevel=2)


class _KeptObservations(gym.Wrapper):
    """Keeps the last observation, and says so where the environment changes it after it was returned."""

    def __init__(self, env: gym.Env, tell: _Teller) -> None:
        super().__init__(env)
        self._tell = tell
        self._last: Any = None
        self._as_it_was: Any = None

    def reset(self, **kwargs: Any) -> Any:
        return self._kept(self.env.reset(**kwargs))

    def step(self, action: Any) -> Any:
        return self._kept(self.env.step(action))

    def _kept(self, answer: Any) -> Any:
        before = zip(_arrays(self._last), _arrays(self._as_it_was), strict=True)
        if not all(np.array_equal(now, then, equal_nan=now.dtype.kind == "f") for now, then in before):
            self._last = self._as_it_was = None
            self._tell(
                "The environment changed an observation after it was returned: it writes into the same array again; "
                "training copies it in time, but other code may not, so return a copy."
            )
        self._last = answer[0] if isinstance(answer, tuple) and answer else None
        self._as_it_was = copy.deepcopy(self._last)
        return answer


def _arrays(nested: Any) -> list[np.ndarray]:
    if isinstance(nested, dict):
        return [array for name in nested for array in _arrays(nested[name])]
    if isinstance(nested, tuple):
        return [array for entry in nested for array in _arrays(entry)]
    return [nested] if isinstance(nested, np.ndarray) else []


def _watched(source: Any, options: Mapping[str, Any] | None, backend: str, tell: _Teller) -> tuple[Any, Any]:
    """The source, and its options, with each environment made under watch; envpool's need none."""
    factory = source
    if isinstance(source, str):
        from phasegrad.envs.gymnasium_backend import factory_of_id

        spec = resolve(source, options, backend=backend)
        if spec.backend == "envpool":
            return source, options
        factory = factory_of_id(spec, render=False)
    elif not callable(source):
        return source, options  # `make` says what is wrong with it
    elif options:
        factory = partial(source, **options)

    def make_one() -> Any:
        env = factory()
        return _KeptObservations(env, tell) if isinstance(env, gym.Env) else env

    return make_one, None


def _close_after(env: VectorEnv, steps: int, seed: int, tell: _Teller) -> tuple[CheckReport, list[np.ndarray]]:
    try:
        return _run(env, steps, seed, tell)
    finally:
        env.close()


def _run(env: VectorEnv, steps: int, seed: int, tell: _Teller) -> tuple[CheckReport, list[np.ndarray]]:
    random = np.random.default_rng(seed)
    observation, mask = env.reset()
    everyone = np.arange(env.num_envs)
    _check_observation(observation, env.observation_space, env.num_envs, "The first observation")
    _check_values(observation, env.observation_space, everyone, "at its first reset", tell)
    _check_mask(mask, env)
    trajectory = [_flat(observation)]
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    report = CheckReport(
        env.backend, env.observation_space, env.action_space, steps, 0, 0, 0, None, env.has_action_mask, None
    )
    finished: list[float] = []
    # Atari rewards may be clipped for training, while episodes are scored as the game does.
    compare_returns = getattr(getattr(env, "spec", None), "family", None) != "atari"
    moves, stuck, restarts = False, 0, 0
    for time in range(1, steps + 1):
        step = env.step(random_actions(env.action_space, env.num_envs, random, mask))
        mask = step.action_mask
        when = f"on step {time}"
        _check_step(step, env, when)
        _check_values(step.observation, env.observation_space, everyone, when, tell)
        if step.final_observation is not None:
            _check_values(step.final_observation, env.observation_space, step.ended, when, tell)
        returns += step.reward
        lengths += 1
        _check_episodes(step, returns if compare_returns else None, lengths, when)
        report.episodes += len(step.episodes)
        report.terminated += int(step.terminated.sum())
        report.truncated += int(step.truncated.sum())
        finished += [episode.episode_return for episode in step.episodes]
        for episode in step.episodes:
            returns[episode.env], lengths[episode.env] = 0.0, 0
        trajectory.append(np.concatenate([_flat(step.observation), step.reward]))
        going_on = np.flatnonzero(~(step.terminated | step.truncated))
        moves = moves or any(
            not np.array_equal(_row(step.observation, i), _row(observation, i)) for i in going_on.tolist()
        )
        observation = step.observation
        for position, index in enumerate(step.ended):
            restarts += 1
            assert step.final_observation is not None
            stuck += int(np.array_equal(_row(step.final_observation, position), _row(observation, int(index))))
    if restarts >= _ENOUGH_RESTARTS and stuck == restarts and moves:
        raise EnvError(
            f"After each of {restarts} ends the next observation was the final one again: no new episode was begun."
        )
    report.mean_return = float(np.mean(finished)) if finished else None
    return report, trajectory


def _check_step(step: Step, env: VectorEnv, when: str) -> None:
    _check_observation(step.observation, env.observation_space, env.num_envs, f"The observation {when}")
    _check_mask(step.action_mask, env)
    for name, array, dtype in (
        ("reward", step.reward, np.float64), ("terminated", step.terminated, bool), ("truncated", step.truncated, bool)
    ):  # fmt: skip
        if array.shape != (env.num_envs,) or array.dtype != dtype:
            raise EnvError(
                f"The {name} {when} is {array.dtype} {array.shape}, not {np.dtype(dtype)} {(env.num_envs,)}."
            )
    if not np.isfinite(step.reward).all():
        index = int(np.flatnonzero(~np.isfinite(step.reward))[0])
        raise EnvError(f"Environment {index} gave the reward {step.reward[index]} {when}.")
    ended = np.flatnonzero(step.terminated | step.truncated)
    if not np.array_equal(step.ended, ended):
        raise EnvError(f"`ended` is {step.ended.tolist()} {when}, but the flags say {ended.tolist()}.")
    if not ended.size:
        if step.final_observation is not None or step.episodes:
            raise EnvError(f"There is a final observation or an episode {when}, but no environment ended.")
        return
    if step.final_observation is None:
        raise EnvError(f"Environments {ended.tolist()} ended {when} without a final observation.")
    _check_observation(step.final_observation, env.observation_space, len(ended), f"The final observation {when}")
    shared = _share_memory(step.final_observation, step.observation)
    if shared:
        raise EnvError(f"The final observation {when} shares memory with the next observation.")


def _check_episodes(step: Step, returns: np.ndarray | None, lengths: np.ndarray, when: str) -> None:
    for episode in step.episodes:
        if episode.env not in step.ended:
            raise EnvError(f"An episode of environment {episode.env} is reported {when}, but it did not end.")
        if episode.length != lengths[episode.env]:
            raise EnvError(
                f"Environment {episode.env} reports an episode of {episode.length} steps {when}, but "
                f"{lengths[episode.env]} were seen."
            )
        if returns is not None and not np.isclose(episode.episode_return, returns[episode.env], rtol=1e-6, atol=1e-6):
            raise EnvError(
                f"Environment {episode.env} reports an episode's return of {episode.episode_return} {when}, but its "
                f"rewards add up to {returns[episode.env]}."
            )


def _check_observation(observation: Observation, space: gym.Space, count: int, what: str) -> None:
    entries: dict[str, tuple[Any, gym.Space]] = {}
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, dict) or set(observation) != set(space.spaces):
            raise EnvError(f"{what} does not have the entries {sorted(space.spaces)}.")
        entries = {name: (observation[name], space[name]) for name in space.spaces}
    else:
        entries = {"": (observation, space)}
    for name, (array, entry) in entries.items():
        label = f"{what}, entry {name!r}," if name else what
        if not isinstance(array, np.ndarray) or array.shape != (count, *(entry.shape or ())):
            raise EnvError(f"{label} has shape {np.shape(array)}, but {(count, *(entry.shape or ()))} is promised.")
        if array.dtype != entry.dtype:
            raise EnvError(f"{label} has dtype {array.dtype}, but {entry.dtype} is promised.")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise EnvError(f"{label} holds NaN or infinity.")


def _check_values(observation: Observation, space: gym.Space, envs: np.ndarray, when: str, tell: _Teller) -> None:
    """That the rows [B, ...] of the environments `envs` are in their space."""
    entries = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    for name, entry in entries.items():
        array = observation[name] if isinstance(observation, dict) else observation
        if isinstance(entry, CHOICES) and (outside := outside_choices(array, entry)).any():
            raise EnvError(describe_outside(name, int(envs[outside][0]), when, entry))
        label = f"observation entry {name!r}" if name else "observation"
        if isinstance(entry, spaces.MultiBinary):
            wrong = (array != 0) & (array != 1)
            if wrong.any():
                raise EnvError(
                    f"The {label} of environment {_first(wrong, envs)} holds {array[wrong][0]} {when}, but its space "
                    f"{entry} has 0 and 1 only."
                )
        elif isinstance(entry, spaces.Box):
            for bound, sign, most in ((entry.high, 1, "at most"), (entry.low, -1, "at least")):
                bounds = bound.astype(np.float64)
                slack = _ROUNDING * np.maximum(1.0, np.abs(bounds)) if array.dtype.kind == "f" else 0.0
                with np.errstate(invalid="ignore"):  # inf * 0 where a bound is infinite
                    beyond = sign * (array.astype(np.float64) - bounds) > slack
                if beyond.any():
                    limit = np.broadcast_to(bound, array.shape)[beyond][0]
                    tell(
                        f"The {label} of environment {_first(beyond, envs)} holds {array[beyond][0]} {when}, but its "
                        f"Box has {most} {limit} there: widen the Box, or clip the observation."
                    )


def _first(wrong: np.ndarray, envs: np.ndarray) -> int:
    return int(envs[wrong.reshape(len(wrong), -1).any(1)][0])


def _check_mask(mask: np.ndarray | None, env: VectorEnv) -> None:
    if (mask is not None) != env.has_action_mask:
        raise EnvError(f"has_action_mask is {env.has_action_mask}, but the environment says otherwise.")
    if mask is not None and (mask.dtype != bool or mask.ndim != 2 or len(mask) != env.num_envs):
        raise EnvError(f"The action mask is {mask.dtype} {mask.shape}, not bool [{env.num_envs}, actions].")


def _flat(observation: Observation) -> np.ndarray:
    arrays = observation.values() if isinstance(observation, dict) else [observation]
    return np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in arrays])


def _row(observation: Observation, index: int) -> np.ndarray:
    if isinstance(observation, dict):
        return _flat({name: array[index] for name, array in observation.items()})
    return _flat(observation[index])


def _share_memory(left: Observation, right: Observation) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return any(np.may_share_memory(left[name], right[name]) for name in left)
    return isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and np.may_share_memory(left, right)
