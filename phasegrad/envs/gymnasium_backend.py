"""The gymnasium backend: environments from an id or a factory, stepped one after another or in a process each.

The loop of its own resets an environment on the very step it ended and copies its last observation first, since an
environment may reuse its observation's memory.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from phasegrad.envs.actions import ActionAdapter
from phasegrad.envs.answers import as_number, checked_reset, require_env, reset_mistake, step_mistake
from phasegrad.envs.contract import Episode, Observation, Step, VectorEnv
from phasegrad.envs.families import EnvSpec
from phasegrad.envs.foreign import foreign_kind
from phasegrad.envs.making import being_made
from phasegrad.envs.needs import installing
from phasegrad.envs.options import Keywords, gymnasium_takes, no_option, refused_option
from phasegrad.envs.spaces import ACTION_MASK, Leaf, ObservationAdapter, fits_dtype, follow
from phasegrad.envs.successes import success_in
from phasegrad.envs.watching import (
    SECONDS_TO_CLOSE,
    Alarm,
    StepTimeout,
    close_each,
    describe_crash,
    describe_timeout,
    is_fault,
    time_limit,
)
from phasegrad.errors import ConfigError, EnvError, PhasegradError, words_of
from phasegrad.machine.orphans import leave_if_forked

EnvFactory = Callable[[], gym.Env]

NOBODY = np.empty(0, np.int64)
NOBODY.flags.writeable = False
UNANSWERED = object()
_EXTRAS = {"minigrid": "minigrid", "box2d": "box2d", "mujoco": "mujoco", "classic": "video"}


class GymnasiumVectorEnv(VectorEnv):
    """Single environments in one process, stepped in turn."""

    backend = "gymnasium"

    def __init__(
        self,
        envs: Sequence[gym.Env],
        seeds: Sequence[int],
        render: bool = False,
        timeout: float | None = None,
        factory: EnvFactory | None = None,
        first: int = 0,
    ) -> None:
        """`factory` makes one more of `envs`; without it an environment to be made anew is only reset on its new seed.

        `first` is the number of the first of them among all environments of the run, by which sentences name them.
        """
        if len({id(env.unwrapped) for env in envs}) != len(envs):
            raise EnvError(
                "The environment factory returned the same environment twice; it must make a new one each time."
            )
        self._envs = list(envs)
        self._factory, self._first = factory, first
        self._next_seeds: dict[int, int] = {}  # of the environments to be made anew when their episode ends
        self.num_envs = len(self._envs)
        self._seeds = list(seeds)
        self._render, self._timeout, self._limit = render, timeout, time_limit(timeout)
        self._adapter = ObservationAdapter(self._envs[0].observation_space)
        self._promised = [(env.observation_space, env.action_space) for env in self._envs]
        self._actions = ActionAdapter(self._envs[0].action_space)
        for index, env in enumerate(self._envs):
            if env.observation_space != self._envs[0].observation_space or env.action_space != self._actions.original:
                raise EnvError(
                    f"Environment {first + index} has other spaces than environment {first}; all must be the same."
                )
        self.observation_space, self.original_observation_space = self._adapter.space, self._adapter.original
        self.action_space = self._actions.space
        self.original_action_space = self._actions.original
        if self._adapter.mask_leaves:
            self._actions.masks.check_space(self._adapter.mask_leaves)
        self._leaves = self._adapter.all_leaves
        only = self._adapter.leaves[0]
        # dtype and shape of an observation that is one array: what needs no further check on every step
        self._usual = (None, None) if self._adapter.nested else (np.dtype(only.original.dtype), only.shape)
        self._step_functions: list[Callable[[Any], Any]] = [env.step for env in self._envs]
        self._steps = 0
        self._ready = False
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        # Whether infos carry masks shows only once an environment has been reset.
        _, info = self._reset_one(0, self._seeds[0])
        self._mask_in_info = not self._adapter.mask_leaves and self._actions.masks.size > 0 and ACTION_MASK in info
        self.has_action_mask = self._mask_in_info or bool(self._adapter.mask_leaves)

    def renew(self, seeds: Sequence[int], chosen: np.ndarray) -> None:
        self._next_seeds = {index: seeds[index] for index in np.flatnonzero(chosen).tolist()}

    def _reset_waiting(self, starts: np.ndarray) -> tuple[Observation, np.ndarray | None]:
        firsts = self._reset_all()
        for index in np.flatnonzero(starts).tolist():
            self._step_functions[index] = self._waiting(index, int(starts[index]), firsts[index])
        self._lengths -= starts  # a step spent waiting is none of the episode's
        return self._observe(firsts)

    def _waiting(self, index: int, left: int, first: tuple[Any, dict[str, Any]]) -> Callable[[Any], Any]:
        """For `left` steps in the place of an environment's step function."""

        def step(action: Any) -> Any:
            nonlocal left
            if left:
                left -= 1
                return first[0], 0.0, False, False, first[1]
            self._step_functions[index] = self._envs[index].step
            return self._envs[index].step(action)

        return step

    def reset(self) -> tuple[Observation, np.ndarray | None]:
        return self._observe(self._reset_all())

    def _reset_all(self) -> list[tuple[Any, dict[str, Any]]]:
        self._steps = 0
        self._ready = True
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self._next_seeds = {}
        return [self._reset_one(index, seed) for index, seed in enumerate(self._seeds)]

    def _observe(self, firsts: list[tuple[Any, dict[str, Any]]]) -> tuple[Observation, np.ndarray | None]:
        """What the resets of all environments gave, as a batch."""
        buffers = self._buffers(self.num_envs)
        masks: list[Any] = []
        for index, (observation, info) in enumerate(firsts):
            self._write(buffers, index, observation, index)
            self._keep_mask(masks, info, index)
        return self._collect(buffers), self._collect_mask(buffers, masks)

    def step(self, actions: np.ndarray) -> Step:
        if not self._ready:
            raise EnvError("The environments must be reset before the first step.")
        rows = self._actions.rows(self._actions.to_environment(actions, self.num_envs), self.num_envs)
        self._steps += 1
        self._lengths += 1
        buffers = self._buffers(self.num_envs)
        reward = np.empty(self.num_envs)
        terminated = np.zeros(self.num_envs, bool)
        truncated = np.zeros(self.num_envs, bool)
        masks: list[Any] = []
        ended: list[int] = []
        finals: list[list[np.ndarray]] = []
        successes: list[bool | None] = []
        index, (usual_dtype, usual_shape) = 0, self._usual
        first, process = buffers[0], os.getpid()
        answer: Any = UNANSWERED
        try:
            for index, step_one in enumerate(self._step_functions):
                answer = UNANSWERED
                if self._timeout is None:
                    answer = step_one(rows[index])
                else:
                    with self._limit:
                        answer = step_one(rows[index])
                observation, amount, over, cut, info = answer
                if type(amount) is not float:
                    amount = as_number(amount)
                if amount is None or type(info) is not dict:
                    self._require_step(answer, index)
                reward[index] = amount
                if over or cut:
                    terminated[index], truncated[index] = over, cut
                    final = self._buffers(1)
                    self._write(final, 0, observation, index)
                    finals.append(final)
                    ended.append(index)
                    successes.append(success_in(info))
                    observation, info = self._reset_one(index, self._renewed_seed(index))
                if (
                    type(observation) is np.ndarray
                    and observation.dtype is usual_dtype
                    and observation.shape == usual_shape
                ):
                    first[index] = observation
                else:
                    self._write(buffers, index, observation, index)
                if self._mask_in_info:
                    self._keep_mask(masks, info, index)
        except PhasegradError:
            raise
        except BaseException as error:
            leave_if_forked(process)
            if not is_fault(error):
                raise
            if answer is not UNANSWERED:  # the environment answered, but not as it should
                self._require_step(answer, index)
            raise EnvError(self._crash(index, f"step {self._steps}", error)) from error
        leave_if_forked(process)
        self._returns += reward
        step = Step(
            self._collect(buffers), reward, terminated, truncated, np.array(ended, np.int64) if ended else NOBODY
        )
        step.action_mask = self._collect_mask(buffers, masks)
        if ended:
            step.renewed = [index for index in ended if self._next_seeds.pop(index, None) is not None]
            step.final_observation = self._collect([np.concatenate(rows) for rows in zip(*finals, strict=True)])
            step.episodes = [
                Episode(i, float(self._returns[i]), int(self._lengths[i]), success)
                for i, success in zip(ended, successes, strict=True)
            ]
            self._returns[ended] = 0.0
            self._lengths[ended] = 0
        return step

    def render(self, indices: Sequence[int] | None = None) -> np.ndarray | None:
        if not self._render:
            return None
        chosen = range(self.num_envs) if indices is None else indices
        return stack_frames(lambda: [self._drawn(index) for index in chosen])

    def _drawn(self, index: int) -> Any:
        try:
            return self._envs[index].render()
        except Exception:
            raise  # drawing libraries fail in their own ways, which `stack_frames` tells
        except BaseException as error:
            if not is_fault(error):
                raise
            raise EnvError(self._crash(index, f"render after step {self._steps}", error)) from error

    @property
    def time_limit(self) -> int | None:
        spec = self._envs[0].spec
        return None if spec is None else spec.max_episode_steps

    @property
    def frames_per_second(self) -> float:
        return float(self._envs[0].metadata.get("render_fps") or 30.0)

    def close(self) -> None:
        envs, self._envs, self._step_functions = self._envs, [], []
        close_each([env.close for env in envs], self._names()[: len(envs)], self._timeout)

    def _names(self) -> list[tuple[int, int]]:
        return [(self._first + index, seed) for index, seed in enumerate(self._seeds)]

    def _renewed_seed(self, index: int) -> int | None:
        """The seed of an environment that is now made anew; None where the one there is goes on."""
        seed = self._next_seeds.get(index)
        if seed is None:
            return None
        if self._factory is not None:
            close_each([self._envs[index].close], [self._names()[index]], self._timeout)
            self._envs[index] = build_limited(self._factory, self._first + index, seed, self._timeout)
            self._step_functions[index] = self._envs[index].step
        self._seeds[index] = seed
        return seed

    def _reset_one(self, index: int, seed: int | None) -> tuple[Any, dict[str, Any]]:
        number, process = self._first + index, os.getpid()
        try:
            with self._limit:
                observation, info = checked_reset(self._envs[index].reset(seed=seed), number)
        except PhasegradError:
            raise
        except BaseException as error:
            if not is_fault(error):
                raise
            when = f"the reset after step {self._steps}" if self._steps else "its first reset"
            raise EnvError(reset_mistake(error, number) or self._crash(index, when, error)) from error
        finally:
            leave_if_forked(process)
        env, promised = self._envs[index], self._promised[index]
        if env.observation_space is not promised[0] or env.action_space is not promised[1]:
            if (env.observation_space, env.action_space) != promised:
                raise EnvError(
                    f"Environment {number} (seed {self._seeds[index]}) changed its spaces, to {env.observation_space} and "
                    f"{env.action_space}: they must stay as they were."
                )
            self._promised[index] = (env.observation_space, env.action_space)
        return observation, info

    def _require_step(self, answer: Any, index: int) -> None:
        mistake = step_mistake(answer, self._first + index, f"step {self._steps}")
        if mistake is not None:
            raise EnvError(mistake)

    def _crash(self, index: int, when: str, error: BaseException) -> str:
        number, seed = self._names()[index]
        if isinstance(error, StepTimeout):
            return describe_timeout(number, seed, when, self._timeout)
        return describe_crash(number, seed, when, error)

    def _buffers(self, count: int) -> list[np.ndarray]:
        return [np.empty((count, *leaf.shape), leaf.original.dtype) for leaf in self._leaves]

    def _write(self, buffers: list[np.ndarray], row: int, observation: Any, index: int) -> None:
        if (
            type(observation) is np.ndarray
            and observation.dtype == self._usual[0]
            and observation.shape == self._usual[1]
        ):
            buffers[0][row] = observation
            return
        for buffer, leaf in zip(buffers, self._leaves, strict=True):
            buffer[row] = checked_entry(observation, leaf, self._first + index)

    def _collect(self, buffers: list[np.ndarray]) -> Observation:
        leaves = self._adapter.leaves
        if not self._adapter.nested:
            return leaves[0].convert(buffers[0])
        return {leaf.name: leaf.convert(buffer) for leaf, buffer in zip(leaves, buffers, strict=False)}

    def _keep_mask(self, masks: list[Any], info: dict[str, Any], index: int) -> None:
        if not self._mask_in_info:
            return
        if ACTION_MASK not in info:
            raise EnvError(
                f"Environment {self._first + index} gave an action_mask in its first info, but not on step {self._steps}."
            )
        masks.append(self._actions.masks.row(info[ACTION_MASK], self._first + index))

    def _collect_mask(self, buffers: list[np.ndarray], masks: list[Any]) -> np.ndarray | None:
        if not self.has_action_mask:
            return None
        mask = np.stack(masks) if self._mask_in_info else self._adapter.mask_of(buffers[len(self._adapter.leaves) :])
        return self._actions.masks.batch(mask, self.num_envs, first=self._first)


class GuardedEnv(gym.Wrapper):
    """An environment in a process of its own, which names itself in errors and sends observations that last."""

    def __init__(
        self, factory: EnvFactory, index: int, seed: int, timeout: float | None = None, parent: int = 0
    ) -> None:
        """In the process `parent`, where one is made for its spaces, `timeout` holds; the others are waited for there."""
        made = (
            build_limited(factory, index, seed, timeout) if os.getpid() == parent else build_env(factory, index, seed)
        )
        super().__init__(made)
        self._factory, self._index, self._seed, self._steps = factory, index, seed, 0
        self._finished = False
        self._adapter = ObservationAdapter(self.env.observation_space)
        self._masks = ActionAdapter(self.env.action_space).masks
        self._first: Any = None  # what the last reset on a seed gave
        self.next_seed: int | None = None  # to be made anew on when the episode ends
        self.steps_to_wait = 0  # before the first step counts

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        when = f"the reset after step {self._steps}" if self._steps else "its first reset"
        if seed is None and self.next_seed is not None:
            with contextlib.suppress(Exception):  # it is replaced: whether it closes well changes nothing any more
                self.env.close()
            self.env = build_env(self._factory, self._index, self.next_seed)
            seed = self._seed = self.next_seed
            self.next_seed = None
        elif seed is not None:
            self._steps, self._seed = 0, seed
        try:
            with self._unforked():
                answer = self.env.reset(seed=seed, options=options)
            observation, info = checked_reset(answer, self._index)
        except PhasegradError:
            raise
        except BaseException as error:  # no signal raises in a worker: whatever comes is the environment's
            crash = describe_crash(self._index, self._seed, when, error)
            raise EnvError(reset_mistake(error, self._index) or crash) from error
        self._check(observation)
        info = self._with_flat_mask(info)
        if seed is not None:
            self._first = copy.deepcopy((observation, info))
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.steps_to_wait:
            self.steps_to_wait -= 1
            return self._first[0], 0.0, False, False, self._first[1]
        self._steps += 1
        try:
            with self._unforked():
                answer: Any = self.env.step(action)
        except PhasegradError:
            raise
        except BaseException as error:
            raise EnvError(describe_crash(self._index, self._seed, f"step {self._steps}", error)) from error
        mistake = step_mistake(answer, self._index, f"step {self._steps}")
        if mistake is not None:
            raise EnvError(mistake)
        observation, reward, terminated, truncated, info = answer
        self._check(observation)
        if terminated or truncated:  # the reset that follows may write into the same memory
            observation = copy.deepcopy(observation)
        return observation, as_number(reward) or 0.0, bool(terminated), bool(truncated), self._with_flat_mask(info)

    def render(self) -> Any:
        try:
            with self._unforked():
                return self.env.render()
        except BaseException as error:
            when = f"render after step {self._steps}"
            raise EnvError(describe_crash(self._index, self._seed, when, error)) from error

    @contextlib.contextmanager
    def _unforked(self) -> Iterator[None]:
        """A call after which two processes would answer, had it forked: the child goes."""
        process = os.getpid()
        try:
            yield
        finally:
            leave_if_forked(process)

    def finish(self) -> str:
        """Close the environment, once; what there is to tell of that, '' for nothing."""
        if self._finished:
            return ""
        self._finished = True
        try:
            with self._unforked():
                self.env.close()
        except BaseException as error:
            return describe_crash(self._index, self._seed, "close", error)
        return ""

    def close(self) -> None:
        """After `finish` nothing; otherwise, of one that failed or was made to be looked at only, without a word."""
        with contextlib.suppress(StepTimeout), Alarm(SECONDS_TO_CLOSE):
            self.finish()

    def _with_flat_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        """The info with its action mask, if that is a nested one, as one array: gymnasium would take it apart."""
        if not isinstance(info.get(ACTION_MASK), dict | tuple) or not self._masks.size:
            return info
        return {**info, ACTION_MASK: self._masks.row(info[ACTION_MASK], self._index)}

    def _check(self, observation: Any) -> None:
        for leaf in self._adapter.all_leaves:
            checked_entry(observation, leaf, self._index)


def build_env(factory: EnvFactory, index: int, seed: int) -> gym.Env:
    """One environment of a user's factory: the one with the number `index` of the run, to begin on `seed`."""
    process = os.getpid()
    try:
        env = factory()
    except (PhasegradError, StepTimeout):
        raise
    except BaseException as error:
        if not is_fault(error):
            raise
        options = factory.keywords if isinstance(factory, partial) else {}
        refused = refused_option(error, options) if isinstance(error, Exception) else None
        if refused is not None:
            raise ConfigError(no_option(_name(factory), refused, Keywords(factory.func).names)) from error  # type: ignore[attr-defined]
        said = words_of(error)
        told = f"Making environment {index} (seed {seed}) raised {type(error).__name__}"
        raise EnvError(f"{told}{f': {said}' if said else ''}.") from error
    finally:
        leave_if_forked(process)
    return without_mission(require_env(env))


def build_limited(factory: EnvFactory, index: int, seed: int, timeout: float | None) -> gym.Env:
    """The same in the run's own process: given up after `timeout` seconds, or told of where there is no limit."""
    with being_made(index, seed, timeout):
        return build_env(factory, index, seed)


def build_all(factory: EnvFactory, seeds: Sequence[int], timeout: float | None, first: int) -> list[gym.Env]:
    """An environment for each of `seeds`; where one cannot be made, those before it are closed."""
    made: list[gym.Env] = []
    try:
        for index, seed in enumerate(seeds):
            made.append(build_limited(factory, first + index, seed, timeout))
    except BaseException:
        names = [(first + index, seed) for index, seed in enumerate(seeds)]
        close_each([env.close for env in made], names[: len(made)], timeout)
        raise
    return made


def _name(factory: EnvFactory) -> str:
    inner = factory.func if isinstance(factory, partial) else factory
    return str(getattr(inner, "__name__", type(inner).__name__))


def without_mission(env: gym.Env) -> gym.Env:
    """A MiniGrid environment without its mission: a sentence, which no array holds and no network here reads."""
    space = env.observation_space
    if not type(env.unwrapped).__module__.startswith("minigrid.") or not isinstance(space, spaces.Dict):
        return env
    return gym.wrappers.FilterObservation(env, [key for key in space if key != "mission"])


def factory_of_id(spec: EnvSpec, render: bool) -> EnvFactory:
    """A factory for a registered id, whose failures are told in the words of our extras."""
    kwargs = dict(spec.kwargs)
    taken = gymnasium_takes(spec.id) if kwargs else None
    if taken is not None:
        kwargs = taken.as_declared(kwargs)
    if render:
        kwargs["render_mode"] = "rgb_array"

    def make_one() -> gym.Env:
        try:
            env = gym.make(spec.id, disable_env_checker=True, **kwargs)
        except (gym.error.DependencyNotInstalled, ImportError) as error:
            extra = _EXTRAS.get(spec.family)
            command = installing(gym.registry[spec.id].entry_point)
            advice = command or (f'pip install "phasegrad[{extra}]"' if extra else "install what it names")
            raise EnvError(f"{spec.id} needs a package that is not installed ({error}): {advice}.") from error
        except TypeError as error:
            refused = refused_option(error, spec.kwargs)
            if refused is not None:
                known = taken.names if taken is not None else ()
                raise ConfigError(no_option(f"gymnasium's {spec.id}", refused, known)) from error
            foreign = foreign_kind(gym.registry[spec.id].entry_point)
            if foreign is not None:
                raise EnvError(f"{spec.id} is {foreign}.") from error
            if spec.kwargs:
                raise ConfigError(
                    f"gymnasium's {spec.id} refuses its options {spec.kwargs}: {words_of(error)}."
                ) from error
            raise EnvError(f"gymnasium could not make {spec.id}: {words_of(error)}.") from error
        except PhasegradError:
            raise
        except BaseException as error:
            if not is_fault(error):
                raise
            given = f" with {spec.kwargs}" if spec.kwargs else ""
            told = words_of(error)
            if not isinstance(error, gym.error.Error):
                told = f"{type(error).__name__}: {told}" if told else type(error).__name__
            raise EnvError(f"gymnasium could not make {spec.id}{given} ({told}).") from error
        return env

    return make_one


def checked_entry(observation: Any, leaf: Leaf, index: int) -> np.ndarray:
    """The array of one leaf, once it has the shape and dtype its space promises."""
    try:
        found = follow(observation, leaf.path)
    except (KeyError, IndexError, TypeError) as error:
        raise EnvError(f"The observation of environment {index} has no entry {leaf.name!r}.") from error
    entry = f" entry {leaf.name!r}" if leaf.name else ""
    try:
        array = np.asarray(found)
    except ValueError as error:  # rows of unlike length
        raise EnvError(
            f"Environment {index} returned an observation{entry} that is no array of {leaf.original}: {error}."
        ) from error
    if array.size == 1 and array.shape != leaf.shape and set(leaf.shape) <= {1}:
        array = array.reshape(leaf.shape)  # one number is one number, in however many brackets
    if array.shape != leaf.shape:
        raise EnvError(
            f"Environment {index} returned an observation{entry} of shape {array.shape}, but its space "
            f"{leaf.original} promises {leaf.shape}."
        )
    if not fits_dtype(array, leaf):
        raise EnvError(
            f"Environment {index} returned an observation{entry} of dtype {array.dtype}, but its space "
            f"{leaf.original} promises {leaf.original.dtype}."
        )
    return array


def stack_frames(draw: Callable[[], Sequence[Any] | None]) -> np.ndarray:
    """Frames [N, H, W, 3] of the single ones that `draw` gives."""
    try:
        frames = draw()
    except EnvError as error:
        raise EnvError(str(error)) from error
    except Exception as error:  # drawing libraries fail in their own ways where there is no display
        raise EnvError(f"The environment could not be drawn ({type(error).__name__}: {words_of(error)}).") from error
    if frames is None or any(frame is None for frame in frames):
        raise EnvError("The environment draws nothing; make it with render_mode='rgb_array'.")
    return np.stack([np.asarray(frame, dtype=np.uint8) for frame in frames])
