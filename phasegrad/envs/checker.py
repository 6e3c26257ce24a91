"""Runs an environment through the contract and names the first violation in one sentence.

For users' own environments as much as for the backends' tests; `check("MyEnv-v0")` is all it takes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from phasegrad.envs.contract import Observation, Step, VectorEnv
from phasegrad.envs.seeding import env_seeds
from phasegrad.errors import EnvError

_ENOUGH_RESTARTS = 5


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
    """
    from phasegrad.envs import make

    if isinstance(source, VectorEnv):
        return _run(source, steps, seed)[0]
    if isinstance(source, gym.vector.VectorEnv):
        env = make(source, num_envs=source.num_envs, seeds=env_seeds(seed, 0, source.num_envs))
        return _close_after(env, steps, seed)[0]

    def run(env_seed: int) -> tuple[CheckReport, list[np.ndarray]]:
        seeds = env_seeds(env_seed, 0, num_envs)
        made = make(
            source, num_envs=num_envs, seeds=seeds, backend=backend, vectorization=vectorization, options=options
        )
        return _close_after(made, steps, seed)  # the same actions each time

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


def _close_after(env: VectorEnv, steps: int, seed: int) -> tuple[CheckReport, list[np.ndarray]]:
    try:
        return _run(env, steps, seed)
    finally:
        env.close()


def _run(env: VectorEnv, steps: int, seed: int) -> tuple[CheckReport, list[np.ndarray]]:
    random = np.random.default_rng(seed)
    observation, mask = env.reset()
    _check_observation(observation, env.observation_space, env.num_envs, "The first observation")
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
        step = env.step(random_actions(env, random, mask))
        mask = step.action_mask
        when = f"on step {time}"
        _check_step(step, env, when)
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


def random_actions(env: VectorEnv, random: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
    """Actions [N, ...] of a random agent that keeps to the mask."""
    space = env.action_space
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(size) for size in space.nvec]
        allowed = np.ones((env.num_envs, sum(sizes)), bool) if mask is None else mask
        columns, start = [], 0
        for size in sizes:
            part = allowed[:, start : start + size]
            columns.append([random.choice(np.flatnonzero(row)) for row in part])
            start += size
        actions = np.array(columns, np.int64).T  # [N, choices]
        return actions[:, 0] if isinstance(space, spaces.Discrete) else actions
    if isinstance(space, spaces.MultiBinary):
        return random.integers(0, 2, (env.num_envs, *space.shape)).astype(np.int8)
    assert isinstance(space, spaces.Box)
    low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
    return random.uniform(low, high, (env.num_envs, *space.shape)).astype(np.float32)


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
        if isinstance(entry, spaces.Discrete) and (np.any(array < 0) or np.any(array >= entry.n)):
            raise EnvError(f"{label} leaves the range 0 to {entry.n - 1}.")


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
