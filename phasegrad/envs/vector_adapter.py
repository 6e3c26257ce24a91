"""Adapts a gymnasium VectorEnv to the contract, whatever its autoreset mode, and checks that mode by what it does.

The metadata of third-party vector environments is often wrong, so only behaviour counts: an ended environment either
brings its `final_obs`, or can be reset alone, or is refused before a made-up row could be trained on.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from multiprocessing import TimeoutError as MpTimeout
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from phasegrad.envs.actions import ActionAdapter, random_actions
from phasegrad.envs.answers import require_env, require_space, vector_answer, vector_reset
from phasegrad.envs.contract import Episode, Observation, Step, VectorEnv
from phasegrad.envs.gymnasium_backend import (
    EnvFactory,
    GymnasiumVectorEnv,
    build_limited,
    checked_entry,
    stack_frames,
    without_mission,
)
from phasegrad.envs.spaces import ACTION_MASK, ObservationAdapter, fits_dtype
from phasegrad.envs.successes import success_in_batch
from phasegrad.envs.watching import (
    Alarm,
    StepTimeout,
    close_each,
    close_limit,
    describe_death,
    describe_timeout,
    end_workers,
    is_fault,
    time_limit,
    unanswering,
    warn_of_close,
)
from phasegrad.envs.workers import Workers
from phasegrad.errors import EnvError, words_of
from phasegrad.machine.orphans import leave_if_forked

_FINAL_KEYS = ("final_obs", "final_observation")  # the second is the name before gymnasium 1.1
_PROBE_STEPS = 200
_ADVICE = "make it with autoreset_mode=AutoresetMode.SAME_STEP, or pass a function that makes one environment"


def adapt(
    source: gym.vector.VectorEnv,
    seeds: Sequence[int],
    render: bool = False,
    timeout: float | None = None,
    first: int = 0,
) -> VectorEnv:
    """The contract over a user's VectorEnv, which is used up; its first environment is number `first` of the run.

    gymnasium's own are taken apart: theirs lose the last observation of an environment that reuses its memory.
    """
    if type(source) is SyncVectorEnv:  # exactly: a wrapper around it would be lost
        single = [without_mission(require_env(env)) for env in source.envs]
        return GymnasiumVectorEnv(single, seeds, render, timeout, first=first)
    if type(source) is AsyncVectorEnv:
        factories = list(source.env_fns)
        close_source(source, timeout)
        return in_processes(factories, seeds, render, timeout, first)
    for name in ("single_observation_space", "single_action_space"):
        require_space(source, name)
    adapted = AdaptedVectorEnv(source, seeds, render, timeout, first)
    adapted.probe()
    return adapted


def in_processes(
    factories: Sequence[EnvFactory],
    seeds: Sequence[int],
    render: bool = False,
    timeout: float | None = None,
    first: int = 0,
) -> VectorEnv:
    """One process for each of `factories`."""
    sample = build_limited(
        factories[0], first, seeds[0], timeout
    )  # refuses here, in words, what a worker would only crash on
    try:
        ObservationAdapter(sample.observation_space)
        ActionAdapter(sample.action_space)
    finally:
        close_each([sample.close], [(first, seeds[0])], timeout)
    workers = Workers(factories, seeds, first, timeout)
    try:
        return ProcessVectorEnv(workers, seeds, render, timeout, first)
    except BaseException:
        end_workers(workers)
        raise


def close_source(source: gym.vector.VectorEnv, timeout: float | None, failed: bool = False) -> None:
    """Close a vector environment, within the time limit; one whose workers have `failed` is not asked any more."""
    if isinstance(source, Workers) and not failed:
        source.finish(timeout)
        return
    limit, of = close_limit(timeout)
    try:
        if not failed or not isinstance(source, AsyncVectorEnv):
            with Alarm(limit):
                source.close()
    except BaseException as error:
        if not is_fault(error):
            raise
        said = f"raised {type(error).__name__} on close: {words_of(error)}"
        late = f"took longer than the {limit:g} s of {of} on close"
        warn_of_close(f"The vector environment {late if isinstance(error, StepTimeout) else said}.")
    finally:
        if isinstance(source, AsyncVectorEnv):
            end_workers(source, gently=not isinstance(source, Workers))


class AdaptedVectorEnv(VectorEnv):
    """A VectorEnv that resets on the same step, or lets single environments be reset by `reset_mask`."""

    backend = "gymnasium"

    def __init__(
        self,
        source: gym.vector.VectorEnv,
        seeds: Sequence[int],
        render: bool = False,
        timeout: float | None = None,
        first: int = 0,
    ) -> None:
        self._source, self._timeout, self._first = source, timeout, first
        self._failed, self._takes_seeds = False, True
        self.num_envs = len(seeds)
        self._seeds = list(seeds)
        self._render = render
        self._closed = False
        self._steps = 0
        self._label = source.metadata.get("autoreset_mode") if isinstance(source.metadata, dict) else None
        self._adapter = ObservationAdapter(source.single_observation_space)
        self._actions = ActionAdapter(source.single_action_space)
        self.observation_space, self.original_observation_space = self._adapter.space, self._adapter.original
        self.action_space = self._actions.space
        self.original_action_space = self._actions.original
        if self._adapter.mask_leaves:
            self._actions.masks.check_space(self._adapter.mask_leaves)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        _, info = vector_reset(self._first_reset())
        self._mask_in_info = not self._adapter.mask_leaves and self._actions.masks.size > 0 and ACTION_MASK in info
        self.has_action_mask = self._mask_in_info or bool(self._adapter.mask_leaves)

    def reset(self) -> tuple[Observation, np.ndarray | None]:
        self._steps = 0
        self._returns[:] = 0.0
        self._lengths[:] = 0
        batch, info = vector_reset(self._first_reset())
        mask = self._raw_mask(batch, info)
        return self._observe(batch), None if mask is None else self._actions.masks.batch(
            mask, self.num_envs, first=self._first
        )

    def _first_reset(self) -> Any:
        """With a seed for each environment, or one for all where it takes no more, as gymnasium's own CartPole does."""
        when = "its first reset"
        if not self._takes_seeds:
            return self._call(when, self._source.reset, seed=self._seeds[0])
        try:
            return self._call(when, self._source.reset, seed=self._seeds)
        except EnvError as refused:
            if isinstance(self._source, AsyncVectorEnv) or self._steps:
                raise
            try:
                answer = self._call(when, self._source.reset, seed=self._seeds[0])
            except EnvError:
                raise refused from None
            self._takes_seeds, self._failed = False, False
            return answer

    def step(self, actions: np.ndarray) -> Step:
        self._steps += 1
        rows = self._actions.to_environment(actions, self.num_envs)
        answer = self._call(f"step {self._steps}", self._source.step, rows)
        batch, reward, terminated, truncated, info = vector_answer(answer, self.num_envs, f"step {self._steps}")
        observation = self._observe(batch)
        mask = self._raw_mask(batch, info)
        self._returns += reward
        self._lengths += 1
        ended = np.flatnonzero(terminated | truncated)
        step = Step(observation, reward, terminated, truncated, ended)
        if ended.size:
            final = self._final_from_info(info, ended)
            if final is not None:
                step.final_observation = final
            elif self._label == AutoresetMode.DISABLED:
                mask = self._reset_ended(step, mask)
            else:
                raise EnvError(self._refusal(ended))
            step.episodes = [
                Episode(int(i), float(self._returns[i]), int(self._lengths[i]), success_in_batch(info, int(i)))
                for i in ended
            ]
            self._returns[ended] = 0.0
            self._lengths[ended] = 0
        step.action_mask = None if mask is None else self._actions.masks.batch(mask, self.num_envs, first=self._first)
        return step

    def probe(self) -> None:
        """Act at random for a little while so that an autoreset that cannot be used is refused before training."""
        random = np.random.default_rng(0)
        self._actions.space.seed(0)
        _, mask = self.reset()
        for _ in range(_PROBE_STEPS):
            step = self.step(self._random_actions(random, mask))
            mask = step.action_mask
            if step.ended.size:
                break
        self.reset()

    def render(self, indices: Sequence[int] | None = None) -> np.ndarray | None:
        if not self._render:
            return None
        frames = stack_frames(self._draw)
        return frames if indices is None else frames[list(indices)]

    def _draw(self) -> Any:
        level, gym.logger.min_level = gym.logger.min_level, gym.logger.ERROR + 1
        try:
            return self._source.render()
        except BaseException as error:
            self._failed = True
            if isinstance(error, Exception) or not is_fault(error):
                raise  # drawing libraries fail in their own ways, which `stack_frames` tells
            raise EnvError(self._failure(f"render after step {self._steps}", error)) from error
        finally:
            gym.logger.min_level = level

    @property
    def frames_per_second(self) -> float:
        return float((self._source.metadata or {}).get("render_fps") or 30.0)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            close_source(self._source, self._timeout, self._failed)

    def _random_actions(self, random: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
        space = self._actions.space
        if isinstance(space, gym.spaces.Dict) or mask is not None:
            return random_actions(space, self.num_envs, random, mask)
        return np.stack([space.sample() for _ in range(self.num_envs)])

    def _call(self, when: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        in_time = isinstance(self._source, AsyncVectorEnv) and self._timeout is not None
        process = os.getpid()
        level, gym.logger.min_level = gym.logger.min_level, gym.logger.ERROR + 1  # it would print a worker's traceback
        try:
            if in_time:  # gymnasium has these calls in two halves, of which the second takes a time limit
                getattr(self._source, f"{function.__name__}_async")(*args, **kwargs)
                return getattr(self._source, f"{function.__name__}_wait")(timeout=self._timeout)
            with time_limit(self._timeout):
                return function(*args, **kwargs)
        except EnvError as error:  # a worker's, which gymnasium wraps in another of its kind
            self._failed = True
            raise EnvError(str(error)) from error
        except BaseException as error:
            self._failed = True  # also where a signal came between a question and its answers
            if not is_fault(error):
                raise
            raise EnvError(self._failure(when, error)) from error
        finally:
            gym.logger.min_level = level
            leave_if_forked(process)

    def _failure(self, when: str, error: BaseException) -> str:
        silent = isinstance(error, (TimeoutError, MpTimeout))
        hung_up = isinstance(error, (EOFError, OSError)) and not silent
        found = unanswering(self._source, hung_up) if hung_up or silent else None
        if found is not None and (found[1] or isinstance(error, MpTimeout)):
            index, seed = self._first + found[0], self._seeds[found[0]]
            if found[1]:
                return describe_death(index, seed, when, self._source.processes[found[0]].exitcode)  # type: ignore[attr-defined]
            return describe_timeout(index, seed, when, self._timeout)
        if isinstance(error, StepTimeout):
            return f"The vector environment took longer than the {self._timeout:g} s of env_timeout on {when}."
        return (
            f"The vector environment (seeds {self._seeds[:3]}...) raised {type(error).__name__} on {when}: "
            f"{words_of(error)}."
        )

    def _observe(self, batch: Any) -> Observation:
        """A flat copy of the batch, which vector environments write over on the next step."""
        for leaf in self._adapter.leaves:
            array = np.asarray(batch) if not leaf.path else _entry(batch, leaf.path)
            if array.shape != (self.num_envs, *leaf.shape) or not fits_dtype(array, leaf):
                entry = f" entry {leaf.name!r}" if leaf.name else ""
                raise EnvError(
                    f"The vector environment returned observations{entry} of {array.dtype} {array.shape}, but its space "
                    f"promises {leaf.original.dtype} {(self.num_envs, *leaf.shape)}."
                )
        return copy.deepcopy(self._adapter.observation(batch))

    def _raw_mask(self, batch: Any, info: dict[str, Any]) -> np.ndarray | None:
        if self._adapter.mask_leaves:
            return np.array(self._actions.masks.gathered(self._adapter.mask(batch), self.num_envs))
        if not self._mask_in_info:
            return None
        given = info.get(f"_{ACTION_MASK}", np.ones(self.num_envs, bool))
        if ACTION_MASK not in info or not np.all(given):
            missing = int(np.flatnonzero(~np.asarray(given))[0]) if ACTION_MASK in info else 0
            raise EnvError(
                f"Environment {self._first + missing} gave an action_mask in its first info, but not on step {self._steps}."
            )
        return self._actions.masks.rows(info[ACTION_MASK], self.num_envs, self._first)

    def _final_from_info(self, info: dict[str, Any], ended: np.ndarray) -> Observation | None:
        """The last observations [K, ...] a same-step environment left in its info, or None where it left none."""
        final = next((info[key] for key in _FINAL_KEYS if info.get(key) is not None), None)
        if final is None:
            return None
        if isinstance(final, np.ndarray) and final.dtype == object:
            rows = [final[index] for index in ended]
            if any(row is None for row in rows):
                missing = [self._first + int(index) for index in ended if final[index] is None]
                raise EnvError(f"The vector environment ended {missing} without a final_obs for them.")
            # One batch an entry: `rows` are single observations.
            entries = [
                np.stack([checked_entry(row, leaf, self._first + int(i)) for row, i in zip(rows, ended, strict=True)])
                for leaf in self._adapter.leaves
            ]
            arrays = [leaf.convert(entry) for leaf, entry in zip(self._adapter.leaves, entries, strict=True)]
            if not self._adapter.nested:
                return arrays[0]
            return {leaf.name: array for leaf, array in zip(self._adapter.leaves, arrays, strict=True)}
        return _rows(self._observe(final), ended)  # a whole batch, as some vector environments give it

    def _reset_ended(self, step: Step, mask: np.ndarray | None) -> np.ndarray | None:
        """Reset just the ended environments of one without autoreset, and check that it did just that."""
        step.final_observation = _rows(step.observation, step.ended)
        chosen = np.zeros(self.num_envs, bool)
        chosen[step.ended] = True
        when = f"the reset after step {self._steps}"
        batch, info = vector_reset(self._call(when, self._source.reset, options={"reset_mask": chosen.copy()}))
        first = self._observe(batch)
        others = np.flatnonzero(~chosen)
        if not _equal(_rows(first, others), _rows(step.observation, others)):
            raise EnvError(
                "The vector environment says it does not autoreset, but reset(options={'reset_mask': ...}) also "
                f"changed environments that had not ended; {_ADVICE}."
            )
        step.observation = first
        if mask is not None:
            masks = self._actions.masks
            given = self._adapter.mask(batch) if self._adapter.mask_leaves else info.get(ACTION_MASK)
            if given is None:
                raise EnvError(f"The reset of environments {step.ended.tolist()} gave no action_mask.")
            rows = masks.rows(given, self.num_envs, self._first) if isinstance(given, dict) else given
            for index in step.ended:
                mask[index] = masks.row(rows[index], self._first + int(index))
        return mask

    def _refusal(self, ended: np.ndarray) -> str:
        if self._label == AutoresetMode.SAME_STEP:
            return (
                f"The vector environment says it resets on the same step, but environment {self._first + int(ended[0])} ended on "
                f"step {self._steps} without a final_obs in its info; {_ADVICE}."
            )
        return (
            f"The vector environment ended environment {self._first + int(ended[0])} on step {self._steps} without a final_obs in "
            "its info, so it resets on the next step, whose row is no experience and cannot be skipped from outside; "
            f"{_ADVICE}{self._or_its_id()}."
        )

    def _or_its_id(self) -> str:
        spec = getattr(self._source, "spec", None)
        return f", or the id {spec.id!r}" if isinstance(spec, EnvSpec) else ""


class ProcessVectorEnv(AdaptedVectorEnv):
    """Workers of our own, each with a `GuardedEnv`, which can be made anew and left waiting one by one."""

    _source: AsyncVectorEnv

    def __init__(
        self,
        source: AsyncVectorEnv,
        seeds: Sequence[int],
        render: bool = False,
        timeout: float | None = None,
        first: int = 0,
    ) -> None:
        self._next_seeds: dict[int, int] = {}
        super().__init__(source, seeds, render, timeout, first)

    @property
    def is_lost(self) -> bool:
        return self._failed

    def reset(self) -> tuple[Observation, np.ndarray | None]:
        if self._next_seeds:
            self.renew(self._seeds, np.zeros(self.num_envs, bool))
        return super().reset()

    def renew(self, seeds: Sequence[int], chosen: np.ndarray) -> None:
        self._next_seeds = {index: seeds[index] for index in np.flatnonzero(chosen).tolist()}
        self._tell_each("next_seed", [self._next_seeds.get(index) for index in range(self.num_envs)])

    def _reset_waiting(self, starts: np.ndarray) -> tuple[Observation, np.ndarray | None]:
        self._tell_each("steps_to_wait", starts.tolist())
        first = self.reset()
        self._lengths -= starts  # a step spent waiting is none of the episode's
        return first

    def _tell_each(self, name: str, values: list[Any]) -> None:
        try:
            self._source.set_attr(name, values)
        except BaseException as error:  # a worker that has ended, or a signal between a question and its answers
            self._failed = True
            if not is_fault(error):
                raise
            raise EnvError(self._failure("being told what comes next", error)) from error

    def step(self, actions: np.ndarray) -> Step:
        step = super().step(actions)
        for index in step.ended.tolist():
            seed = self._next_seeds.pop(index, None)
            if seed is not None:
                self._seeds[index] = seed
                step.renewed.append(index)
        return step


def _entry(batch: Any, path: tuple[str | int, ...]) -> np.ndarray:
    try:
        for key in path:
            batch = batch[key]
    except (KeyError, IndexError, TypeError) as error:
        raise EnvError(f"The observations have no entry {'.'.join(map(str, path))!r}.") from error
    return np.asarray(batch)


def _rows(observation: Observation, indices: np.ndarray) -> Observation:
    if isinstance(observation, dict):
        return {name: array[indices] for name, array in observation.items()}
    return observation[indices]


def _equal(left: Observation, right: Observation) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return all(np.array_equal(left[name], right[name], equal_nan=left[name].dtype.kind == "f") for name in left)
    assert isinstance(left, np.ndarray)
    assert isinstance(right, np.ndarray)
    return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
