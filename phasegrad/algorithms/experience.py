"""The environments an agent trains in, from which its rollouts come: made, brought to where the run stands, made anew.

Environments come from (seed, leg, environment index) and are brought on by playing back what they have been through
(data/legs.py), so that a resumed run goes on as if it had never been stopped.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad import envs
from phasegrad.agent import Agent
from phasegrad.algorithms.crowds import require_room_for_envs
from phasegrad.algorithms.placing import kind_of_collector, place_of_storage
from phasegrad.compute.acting import Actor
from phasegrad.config import Config
from phasegrad.data.collecting import Collector
from phasegrad.data.legs import EPISODES_A_LEG, LONGEST_LEG, MOST_BYTES, steps_a_leg, stored_dtype
from phasegrad.data.storage import Rollout, Storage, bytes_a_step, observation_bytes
from phasegrad.distributed.ranks import Ranks
from phasegrad.errors import EnvError, PhasegradWarning
from phasegrad.machine.clock import Clock
from phasegrad.runs.state import RunState
from phasegrad.tree import named_leaves, tree_map


def make_training_envs(
    source: Any, config: Config, ranks: Ranks, numbers: np.ndarray, options: Mapping[str, Any] | None = None
) -> envs.VectorEnv:
    """This process's environments, in the legs `numbers`; with other `options` than the config's where they are given."""
    options = config.env_options if options is None else options
    notice = envs.backend_notice(source, options, config.backend)
    if notice and ranks.is_first:
        warnings.warn(notice, PhasegradWarning, stacklevel=3)
    seeds = leg_seeds(config, ranks, numbers)

    def make(count: int) -> envs.VectorEnv:
        return envs.make(
            source,
            num_envs=count,
            seeds=seeds[:count],
            backend=config.backend,
            vectorization=config.vectorization,
            num_threads=config.env_threads or None,
            options=options,
            timeout=config.env_timeout or None,
            first=ranks.rank * len(numbers),
        )

    if not isinstance(source, gym.vector.VectorEnv):  # which is there already
        require_room_for_envs(config, ranks, len(numbers), make)
    return make(len(numbers))


def leg_seeds(config: Config, ranks: Ranks, numbers: np.ndarray) -> list[int]:
    """The seeds of this process's environments in the legs `numbers` [N], by their place among all."""
    first, legs = ranks.rank * len(numbers), {int(number) for number in numbers}
    by_leg = {leg: envs.env_seeds(config.seed, leg, len(numbers), first) for leg in legs}
    return [by_leg[int(leg)][index] for index, leg in enumerate(numbers)]


class Experience:
    """This process's part of a run's environments, and storage for the `kept` rollouts that are in use at once."""

    def __init__(
        self,
        agent: Agent,
        actor: Actor,
        run: RunState,
        ranks: Ranks,
        clock: Clock,
        kept: int,
        env: envs.VectorEnv | None = None,
    ) -> None:
        self.agent, self.actor, self.run, self.ranks, self.clock, self.kept = agent, actor, run, ranks, clock, kept
        self.config, self.progress = agent.config, run.progress
        self.num_envs = ranks.share(self.config.num_envs)  # of this process
        self.first_env = ranks.rank * self.num_envs
        self.env = env
        self.collector: Collector | None = None
        self.rollout: Rollout | None = None  # the latest, also while it is being filled
        # (place in the run, return, length, success or -1 where nothing is known of it) of own episodes
        self.finished: list[tuple[float, float, float, float]] = []
        self._storage: Storage | None = None
        self._place: torch.device | None = None
        self._borrowed = 0

    # The life of the environments

    def be_ready(self, tell: Callable[[int, int], None] | None = None) -> None:
        """Start the environments if they are not where the run stands; begin other legs where that is due."""
        if self.collector is None or self._borrowed != self.agent.borrowed:
            self._start(tell)
        self._renew()

    def _start(self, tell: Callable[[int, int], None] | None = None) -> None:
        """Environments made anew and brought to where the run's are."""
        agent, run, legs = self.agent, self.run, self.run.legs
        self._borrowed = agent.borrowed
        if self.env is not None and self.env.is_lost:
            self.env.close()
            self.env = None
        if self.env is None:
            self.env = self.make()
        else:
            self.env.reseed(leg_seeds(self.config, self.ranks, legs.numbers))
        total = legs.age(self.progress.step // self.config.num_envs)
        played = None
        if total and legs.actions:
            actions = (agent.bounds(row.to(agent.distribution.action_dtype).numpy()) for row in legs.rows())
            told = None if tell is None else lambda done: tell(done * self.num_envs, total * self.num_envs)
            played = (actions, legs.starts - legs.starts.min(), told)
        kind = kind_of_collector(self.env, self.place(), stacked=agent.model.stacking is not None)
        numbers = (self.first_env, self.config.num_envs)
        self.collector = kind(self.env, self.actor, agent.bounds, self.clock, *numbers, played, run.environment)
        if run.remembered is not None and self.collector.states is not None:
            self.collector.states.copy_(run.remembered)
        if run.stack is not None and self.collector.stack is not None:
            self.collector.stack.load(run.stack)
            self.collector.stack.replace_last(self.collector.observation)
        if not legs.settled:
            self.env.renew(leg_seeds(self.config, self.ranks, legs.targets), legs.numbers < legs.targets)
        if run.played_to and run.played_to != self.observations_digest():
            warnings.warn(
                f"The environments of {self.config.env} did not play back as they were played, so they are not "
                "deterministic: the run continues, but not as if it had never stopped.",
                PhasegradWarning,
                stacklevel=2,
            )
        run.played_to = ""

    def make(self) -> envs.VectorEnv:
        self.agent.require_source()
        env = make_training_envs(self.agent.source, self.config, self.ranks, self.run.legs.numbers)
        try:
            self.agent.require_spaces(env)
        except EnvError:
            env.close()
            raise
        return env

    def _renew(self) -> None:
        """Where playing back has become long, have each environment begin another leg when its episode ends."""
        assert self.env is not None
        config, legs = self.config, self.run.legs
        step = self.progress.step // config.num_envs
        row = config.num_envs * int(np.prod(self.agent.distribution.action_shape)) * self._stored().itemsize
        short = steps_a_leg(config.restart_every, self.env.family, self.env.backend, config.num_envs, row)
        enough = max(short, EPISODES_A_LEG * self.progress.longest_episode)
        age = legs.age(step)
        if age >= LONGEST_LEG * enough or age * row > MOST_BYTES:  # episodes without end: all of them begin anew
            self.close()
            self._restart_legs(step)
            self._start()
        elif age >= enough and legs.settled:
            self.env.renew(leg_seeds(config, self.ranks, legs.announce()), np.ones(self.num_envs, bool))

    def _restart_legs(self, step: int) -> None:
        """All environments begin another leg now: nothing of an episode is under way."""
        self.run.legs.restart(step)
        self.run.remembered = self.run.stack = self.run.environment = None
        self.agent.reward_normalizer.start_leg()

    def move(self, env: envs.VectorEnv) -> None:
        """Go on in environments of another kind; those before are closed already."""
        self.env, self.collector = env, None
        if self.progress.step:
            self._restart_legs(self.progress.step // self.config.num_envs)
        self.run.played_to = ""
        self.run.begin_elsewhere()

    def _stored(self) -> torch.dtype:
        return stored_dtype(self.agent.action_space, self.agent.distribution.action_dtype)

    def observations_digest(self) -> str:
        """A checksum of the observations that all environments, of every process, are at; empty before they start."""
        if self.collector is None:
            return ""
        ranks, whole = self.ranks, self.collector.observation
        if ranks.size > 1:
            whole = tree_map(lambda leaf: ranks.whole(torch.from_numpy(np.ascontiguousarray(leaf)), 0).numpy(), whole)
        return ranks.from_first(lambda: digest(whole))

    def close(self) -> None:
        """Free the environments; the next iteration makes new ones."""
        if self.env is not None and not isinstance(self.agent.source, gym.vector.VectorEnv):
            self.env.close()
            self.env = None
        self.collector = None

    # Rollouts

    def collect(self, num_steps: int, slot: int, noise: Tensor) -> Rollout:
        """`num_steps` of each environment under the current policy, in the storage's `slot`."""
        assert self.collector is not None
        run, progress, num_envs = self.run, self.progress, self.config.num_envs
        rollout = self.rollout = self.storage().rollouts[slot].first(num_steps)
        episodes = self.collector.collect(rollout, noise, progress.step)
        assert self.collector.taken is not None
        run.legs.log(self.collector.taken.to(self._stored()))
        if self.collector.states is not None:
            held = self.collector.states.clone()  # stays where it is until somebody saves it
            run.remembered = held if self.ranks.size == 1 else held.cpu()
        if self.collector.stack is not None:
            run.stack = tree_map(torch.clone, self.collector.stack.seen)
        for t, environments in self.collector.renewed:
            run.legs.begin(environments, progress.step // num_envs + t + 1)
        run.environment = self.collector.env.state()
        if run.environment is not None:
            run.legs.stand(progress.step // num_envs + num_steps)
        run.legs.forget()
        done = rollout.terminated | rollout.truncated
        rollout.rewards.copy_(self.agent.reward_normalizer(rollout.raw_rewards, done))
        for t, episode in zip(self.collector.ended_at, episodes, strict=True):
            place = progress.step + t * num_envs + self.first_env + episode.env
            success = -1.0 if episode.success is None else float(episode.success)
            self.finished.append((place, episode.episode_return, episode.length, success))
        if self.ranks.size == 1:
            self.count_episodes()
        progress.step += num_steps * num_envs
        return rollout

    def revalue(self, rollout: Rollout) -> None:
        """Put the values of the rollout just collected as the value function now sees them."""
        assert self.collector is not None
        self.collector.revalue(rollout)

    def policy(self, rollout: Rollout) -> Tensor:
        """Distribution parameters [T, N, P] of the policy as it now is, over a rollout."""
        assert self.collector is not None
        return self.collector.policy(rollout)

    def count_episodes(self) -> None:
        """Add the episodes of all processes to the statistics, in the order in which they ended."""
        progress, rows = self.progress, self.finished
        if self.ranks.size > 1:
            rows = self.ranks.rows(torch.tensor(rows, dtype=torch.float64).view(-1, 4)).tolist()
        progress.episodes += len(rows)
        progress.longest_episode = max([progress.longest_episode, *(int(row[2]) for row in rows)])
        progress.recent_returns.extend(row[1] for row in rows)
        progress.recent_lengths.extend(float(row[2]) for row in rows)
        progress.note_successes([None if row[3] < 0 else row[3] for row in rows])
        self.finished = []

    def storage(self) -> Storage:
        """Storage of `kept` rollouts, allocated once."""
        if self._storage is None:
            sizes = (self.kept, self.config.num_steps, self.num_envs)
            where: dict[str, Any] = {"device": self.place()}
            self._storage = Storage(*sizes, *self._stored_things(), **where)
        return self._storage

    def place(self) -> torch.device:
        """Where the rollouts lie, decided once: what is free on a GPU changes when they are there."""
        if self._place is None:
            needed = self.storage_bytes() + self.working_bytes()
            self._place = place_of_storage(self.config, self.agent.device, needed, self.ranks)
        return self._place

    def host_bytes(self) -> int:
        """What they, and what is allocated beside them, take of this machine's memory: nothing where a GPU has them."""
        return self.storage_bytes() + self.working_bytes() if self.place().type == "cpu" else 0

    def storage_bytes(self) -> int:
        """What the stored rollouts of this process take in memory."""
        steps = self.config.num_steps * bytes_a_step(*self._stored_things())
        before = (self.config.frame_stack - 1) * observation_bytes(self.agent.observation_space)
        return self.kept * self.num_envs * (steps + before)

    def working_bytes(self) -> int:
        """Where several rollouts are kept, another policy at each of their states: PPG's pi_old."""
        states = self.kept * self.num_envs * self.config.num_steps
        return 4 * states * self.agent.distribution.parameter_size if self.kept > 1 else 0

    def _stored_things(self) -> tuple[Any, ...]:
        agent = self.agent
        memory = (agent.model.state_size, self.config.sequence_steps)
        return agent.observation_space, agent.distribution, agent.spaces.has_mask, *memory, agent.model.stacking


def digest(observation: Any) -> str:
    """A checksum of a batch of observations."""
    sha = hashlib.sha256()
    for name, leaf in named_leaves(observation):
        sha.update(name.encode() + np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()
