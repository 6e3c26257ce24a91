"""The envpool backend: many environments in C++ threads, turned from next-step to same-step autoreset.

An ended environment is stepped once more on its own, which envpool answers with the first observation of the next
episode. `reset` is not used for that: on Atari it would restart the game at every lost life.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from phasegrad.envs import qt
from phasegrad.envs.actions import ActionAdapter
from phasegrad.envs.contract import Episode, Observation, Step, VectorEnv
from phasegrad.envs.envpool_ids import package_of
from phasegrad.envs.families import EnvSpec
from phasegrad.envs.joint import joint_choices
from phasegrad.envs.pools import Homes, merged
from phasegrad.envs.spaces import ACTION_MASK, Leaf, ObservationAdapter
from phasegrad.envs.successes import KEYS, as_success
from phasegrad.envs.vizdoom_leftovers import remove_leftovers
from phasegrad.errors import ConfigError, EnvError, nearest
from phasegrad.machine.forks import settle
from phasegrad.machine.processors import own_processors

# Waking a second thread costs more than stepping these: CartPole with 8 environments runs several times faster on one.
_CHEAP_PACKAGES = ("envpool.classic_control", "envpool.toy_text", "envpool.minigrid")
_CHEAP_ENVS_PER_THREAD = 64
_MAX_RESET_STEPS = 10
_UNLIMITED = 2**31 - 1  # envpool's max_episode_steps where there is no limit
_FRAMES_PER_SECOND = {"classic": 50.0, "box2d": 50.0, "atari": 15.0, "procgen": 15.0}  # Atari: 60 over 4 skipped frames


class EnvpoolVectorEnv(VectorEnv):
    """`num_envs` environments of one envpool id in synchronous mode, which is deterministic for any thread count."""

    backend = "envpool"

    def __init__(
        self, spec: EnvSpec, seeds: Sequence[int], num_threads: int | None = None, render: bool = False
    ) -> None:
        self.spec, self.family = spec, spec.family
        self.num_envs = len(seeds)
        self._seeds = list(seeds)
        self._render = render
        self._package = _package(spec)
        if num_threads is None:
            num_threads = min(self.num_envs, own_processors())
            if self._package in _CHEAP_PACKAGES:
                num_threads = min(num_threads, -(-self.num_envs // _CHEAP_ENVS_PER_THREAD))
        self._num_threads = num_threads
        self._pool: Any = self._make_pool(self._seeds)
        self._fresh = True
        self._homes: Homes | None = None  # where each environment is, while they are not all in `_pool`
        self._index_state(self._pool)
        drop = ("mission",) if spec.family == "minigrid" else ()
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", ".*precision lowered.*"
            )  # of envpool's own bounds: nothing a user can mend
            self._adapter = ObservationAdapter(_honest_bounds(self._pool.observation_space), drop)
            self._joint = joint_choices(self._adapter.original, self._pool.action_space)
            self._actions = ActionAdapter(self._pool.action_space if self._joint is None else self._joint.space)
        self._action_dtype = np.dtype(self._pool._spec._action_spec[-1][0])
        if self._joint is None:
            self._actions.parts[0].dtype = self._action_dtype
        self.observation_space, self.original_observation_space = self._adapter.space, self._adapter.original
        self.action_space = self._actions.space
        self.original_action_space = self._actions.original
        self.has_action_mask = bool(self._adapter.mask_leaves)
        if self._adapter.mask_leaves:
            self._actions.masks.check_space(self._adapter.mask_leaves)
        # The common case by far, kept free of any conversion.
        plain = self._adapter.leaves[0]
        simple = not self._adapter.nested and not np.any(plain.start) and plain.space.shape == plain.shape
        self._plain_dtype = plain.space.dtype if simple else None
        self._ids = np.arange(self.num_envs, dtype=np.int32)
        self._returns = np.zeros(self.num_envs)  # [N] raw, of the running episodes
        self._lengths = np.zeros(self.num_envs, np.int64)

    def reset(self) -> tuple[Observation, np.ndarray | None]:
        return self._observe(self._reset_all(), self.num_envs)

    def _reset_all(self) -> list[np.ndarray]:
        if not self._fresh:  # envpool seeds when it makes: only a new pool starts on the seeds again
            self._pool = self._make_pool(self._seeds)
        self._fresh, self._homes = False, None
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self._pool._reset(self._ids)
        state: list[np.ndarray] = self._pool._recv()
        return state

    def renew(self, seeds: Sequence[int], chosen: np.ndarray) -> None:
        if self._homes is None:
            self._homes = Homes(self._pool, self.num_envs)
        self._homes.prepare(self._make_pool(seeds), list(seeds), chosen)

    def _reset_waiting(self, starts: np.ndarray) -> tuple[Observation, np.ndarray | None]:
        state = self._reset_all()
        if starts.any():
            self._homes = Homes(self._pool, self.num_envs, [array.copy() for array in state], starts)
            self._lengths -= starts  # a step spent waiting is none of the episode's
        return self._observe(state, self.num_envs)

    def step(self, actions: np.ndarray) -> Step:
        if self._fresh:
            raise EnvError("The environments must be reset before the first step.")
        if self.checks_actions:
            self._actions.require(actions, self.num_envs)
        actions = self._actions.to_environment(actions, self.num_envs)
        if self._joint is not None:
            actions = self._joint.divided(actions).astype(self._action_dtype)
        state = self._exchange(self._ids, actions)
        reward = state[self._at_reward].astype(np.float64)
        done, truncated = state[self._at_done], state[self._at_truncated]
        self._returns += reward if self._at_raw_reward is None else state[self._at_raw_reward]
        self._lengths += 1
        if self._plain_dtype is not None:
            observation: Observation = state[self._at_observation].astype(self._plain_dtype, copy=False)
            mask = None
        else:
            observation, mask = self._observe(state, self.num_envs, validate=False)
        ended = (done | truncated).nonzero()[0]
        if ended.size == 0:
            if mask is not None:
                mask = self._actions.masks.batch(mask, self.num_envs)
            return Step(observation, reward, done, truncated, ended, action_mask=mask)
        return self._finish(state, actions, observation, mask, reward, ended)

    def _finish(
        self,
        state: list[np.ndarray],
        actions: np.ndarray,
        observation: Observation,
        mask: np.ndarray | None,
        reward: np.ndarray,
        ended: np.ndarray,
    ) -> Step:
        """The step of a batch in which environments ended: keep their last observations, begin their next episodes."""
        done, truncated = state[self._at_done], state[self._at_truncated]
        terminated = done & ~truncated
        over = ended
        if self._at_game_over is not None:  # Atari: a lost life ends an episode for the agent, not the game
            game_over = state[self._at_game_over] > 0
            terminated |= game_over & done  # envpool hides an end exactly on the time limit behind the truncation
            over = (game_over | truncated).nonzero()[0]
        told = None if self._at_success is None else state[self._at_success]
        episodes = [
            Episode(
                int(i), float(self._returns[i]), int(self._lengths[i]), None if told is None else as_success(told[i])
            )
            for i in over
        ]
        self._returns[over] = 0.0
        self._lengths[over] = 0
        renewed = [] if self._homes is None else self._homes.to_renew(np.intersect1d(over, ended))
        final, first, first_mask = self._restart(actions, observation, ended, renewed)
        if isinstance(observation, dict):
            assert isinstance(first, dict)
            for name, array in observation.items():
                array[ended] = first[name]
        else:
            observation[ended] = first
        if mask is not None:
            mask = np.array(mask)
            mask[ended] = first_mask
            mask = self._actions.masks.batch(mask, self.num_envs)
        return Step(observation, reward, terminated, truncated, ended, final, episodes, mask, renewed)

    def _restart(
        self, actions: np.ndarray, observation: Observation, ended: np.ndarray, renewed: list[int]
    ) -> tuple[Observation, Observation, np.ndarray | None]:
        if isinstance(observation, dict):
            final: Observation = {name: array[ended] for name, array in observation.items()}
        else:
            final = observation[ended]
        ids = ended.astype(np.int32)
        state = self._restart_renewed(ids, actions, renewed) if renewed else self._exchange(ids, actions[ended])
        for _ in range(_MAX_RESET_STEPS):
            if not np.array_equal(state[self._at_env_id], ids):
                raise EnvError(
                    f"envpool answered for other environments than the ended {ids.tolist()} of {self.spec.id}."
                )
            if self._at_raw_reward is not None:  # points made while a new life is being started belong to the game
                self._returns[ended] += state[self._at_raw_reward]
            again = state[self._at_done] | state[self._at_truncated]
            if not again.any():
                first, mask = self._observe(state, len(ended), validate=False)
                return final, first, mask
            # only those, since what another one goes through must not depend on which ended beside it
            state = merged(
                [
                    (~again, [array[~again] for array in state]),
                    (again, self._exchange(ids[again], actions[ended[again]])),
                ],
                len(ids),
            )
            if self._at_raw_reward is not None:
                state[self._at_raw_reward][~again] = 0.0
        raise EnvError(f"{self.spec.id} ends again as soon as it starts, in one of the environments {ids.tolist()}.")

    def render(self, indices: Sequence[int] | None = None) -> np.ndarray | None:
        if not self._render:
            return None
        ids = self._ids if indices is None else np.asarray(indices, np.int32)
        try:
            return np.asarray(self._pool.render(env_ids=ids), dtype=np.uint8)
        except RuntimeError as error:  # a family whose C++ code draws nothing
            raise EnvError(f"envpool cannot draw {self.spec.id} ({error}); use backend gymnasium.") from error

    @property
    def time_limit(self) -> int | None:
        most = int(self._pool.config.get("max_episode_steps", _UNLIMITED))
        return most if most < _UNLIMITED else None

    @property
    def frames_per_second(self) -> float:
        return _FRAMES_PER_SECOND.get(self.spec.family, 30.0)

    def close(self) -> None:
        pool, homes, self._pool, self._homes = self._pool, self._homes, None, None
        if homes is not None:
            homes.close()
        elif pool is not None:
            pool.close()

    def _restart_renewed(self, ids: np.ndarray, actions: np.ndarray, renewed: list[int]) -> list[np.ndarray]:
        """Begin the next episodes where some of the ended environments move to another pool, whose reset begins them."""
        assert self._homes is not None
        moving = np.isin(ids, renewed)
        states = []
        if not moving.all():
            states.append((~moving, self._exchange(ids[~moving], actions[ids[~moving]])))
        for index in renewed:
            self._seeds[index] = self._homes.seeds[index]
        states.append((moving, self._homes.move(ids[moving])))
        self._live_together()
        return merged(states, len(ids))

    def _live_together(self) -> None:
        """Where all environments are in one pool, stepping them needs no more thought."""
        if self._homes is not None and self._homes.only is not None:
            self._pool, self._homes = self._homes.only, None

    def _exchange(self, ids: np.ndarray, actions: np.ndarray) -> list[np.ndarray]:
        # The public step() rebuilds nested dictionaries of infos nobody reads, at ten times the price of this.
        if self._homes is not None:
            exchanged = self._homes.exchange(ids, actions)
            self._live_together()
            return exchanged
        self._pool._send([ids, ids, actions])
        state: list[np.ndarray] = self._pool._recv()  # in the order of `ids`; every call gives new arrays
        return state

    def _observe(
        self, state: list[np.ndarray], count: int, validate: bool = True
    ) -> tuple[Observation, np.ndarray | None]:
        batch: Any = state[self._at_observation] if self._at_observation >= 0 else {}
        for name, position in self._entries.items():
            batch[name] = state[position]
        if not self._adapter.nested:
            return self._adapter.leaves[0].convert(batch), None
        observation = {leaf.name: leaf.convert(batch[_key(leaf)]) for leaf in self._adapter.leaves}
        mask = batch[ACTION_MASK] if self.has_action_mask else None
        return observation, self._actions.masks.batch(mask, count) if validate and mask is not None else mask

    def _make_pool(self, seeds: Sequence[int]) -> Any:
        if self._package == "envpool.procgen":
            qt.require()
        if self._package.startswith("envpool.vizdoom"):
            remove_leftovers()
            settle()  # its games are started by several threads at a time
        import envpool

        kwargs = dict(self.spec.kwargs)
        if self._package == "envpool.jumanji":  # which looks for its puzzles among the assets, but brings them itself
            kwargs["base_path"] = str(Path(envpool.__file__).parent)
        if self._render:
            if self._package.startswith("envpool.mujoco"):
                raise EnvError(f"envpool cannot draw {self.spec.id} reliably; render it with backend='gymnasium'.")
            kwargs["render_mode"] = "rgb_array"
        try:
            return envpool.make(
                self.spec.id,
                env_type="gymnasium",
                num_envs=self.num_envs,
                num_threads=self._num_threads,
                seed=list(seeds),
                **kwargs,
            )
        except TypeError as error:
            known = envpool.make(self.spec.id, env_type="gymnasium").config
            wrong = [name for name in self.spec.kwargs if name not in known]
            if wrong:
                raise ConfigError(
                    f"envpool's {self.spec.id} has no option {wrong[0]!r}.{nearest(wrong[0], known)}"
                ) from error
            said = "" if "incompatible constructor" in str(error) else f": {error}"
            raise ConfigError(f"envpool's {self.spec.id} refuses its options {self.spec.kwargs}{said}.") from error
        except Exception as error:
            raise EnvError(f"envpool could not make {self.spec.id}: {error}.") from error

    def _index_state(self, pool: Any) -> None:
        if pool.config.get("max_num_players", 1) != 1:
            raise EnvError(f"{self.spec.id} has several players; only single-agent environments are supported.")
        keys: list[str] = list(pool._state_keys)
        if list(pool._action_keys[:2]) != ["env_id", "players.env_id"] or len(pool._action_keys) != 3:
            raise EnvError(f"{self.spec.id} takes several actions at once, which is not supported.")
        self._at_env_id = keys.index("info:env_id")
        self._at_reward, self._at_done, self._at_truncated = (keys.index(key) for key in ("reward", "done", "trunc"))
        self._at_observation = keys.index("obs") if "obs" in keys else -1
        # Keys within keys are divided by colons in some games, by dots in others.
        self._entries = {key[4:].replace(":", "."): at for at, key in enumerate(keys) if key.startswith("obs:")}
        if len(self._entries) == 1 and not isinstance(pool.observation_space, spaces.Dict):
            self._at_observation = self._entries.popitem()[1]
        atari = self.spec.family == "atari"
        self._at_raw_reward = keys.index("info:reward") if atari else None
        self._at_game_over = keys.index("info:terminated") if atari else None
        self._at_success = next((keys.index(f"info:{key}") for key in KEYS if f"info:{key}" in keys), None)


def _key(leaf: Leaf) -> str:
    """Where the batch has an entry, whatever it is called here."""
    return ".".join(map(str, leaf.path))


def _package(spec: EnvSpec) -> str:
    package = package_of(spec.id)
    assert package is not None, "what was resolved to envpool is in it"
    return package


def _honest_bounds(space: gym.Space) -> gym.Space:
    """Boxes without bounds as such: some of envpool's say `smallest positive float` where they mean `none`."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _honest_bounds(entry) for name, entry in space.spaces.items()})
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    low = np.where((space.low == limits.tiny) | (space.low <= limits.min), -np.inf, space.low).astype(space.dtype)
    high = np.where(space.high >= limits.max, np.inf, space.high).astype(space.dtype)
    return spaces.Box(low, high, space.shape, space.dtype.type)
