"""What the algorithms share: the life of an agent (learn, predict, evaluate, save), and no maths.

Noise and minibatch order come from (seed, iteration), environments from (seed, leg, environment index). So a run is a
function of its config, and a resumed run ends with the bits of one that was never stopped: it makes its environments
anew and plays back what they have been through (legs.py).
"""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad import envs
from phasegrad.advantages import gae, normalized
from phasegrad.compute.acting import Actor
from phasegrad.compute.devices import pick_device
from phasegrad.compute.optimizers import Optimizer
from phasegrad.compute.stepping import Stepper
from phasegrad.config import Config
from phasegrad.data.action_bounds import ActionBounds
from phasegrad.data.collecting import Collector
from phasegrad.data.legs import EPISODES_A_LEG, LONGEST_LEG, MOST_BYTES, Legs, steps_a_leg, stored_dtype
from phasegrad.data.reward_scaling import RewardNormalizer
from phasegrad.data.storage import Rollout, Storage, bytes_a_step
from phasegrad.distributed import joining as parallel
from phasegrad.distributed.moments import moments_of, pooled_moments
from phasegrad.errors import ConfigError, DamagedError, EnvError, PhasegradWarning
from phasegrad.losses import explained_variance
from phasegrad.machine.clock import Clock
from phasegrad.machine.paths import as_path
from phasegrad.models import ActorCritic, FlatParameters, build_model
from phasegrad.models.encoders import is_image
from phasegrad.models.modes import TrainingMode
from phasegrad.presets import resolve_config
from phasegrad.runs.evaluation import Evaluation, run_evaluation
from phasegrad.runs.steps import write_steps
from phasegrad.tree import named_leaves, tree_map

if TYPE_CHECKING:
    from phasegrad.video.recorders import Video

RECENT_EPISODES = 100


@dataclass
class Progress:
    """Where a run is; all of it goes into a checkpoint."""

    step: int = 0  # environment steps over all environments
    iteration: int = 0
    episodes: int = 0
    longest_episode: int = 0  # in steps, of all that have ended
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    recent_lengths: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))


class Algorithm(ABC):
    """An agent and how it learns. Subclasses say what one iteration is."""

    config_class: ClassVar[type[Config]] = Config
    name: ClassVar[str] = ""
    smaller_storage: ClassVar[str] = "lower num_envs or num_steps"  # what to do where the rollouts do not fit
    model_class: ClassVar[type[ActorCritic]] = ActorCritic
    first_derivatives_only: ClassVar[bool] = True  # which compiled convolutions have
    auxiliary_head: ClassVar[bool] = False  # whether the policy network carries an auxiliary value head
    divides: ClassVar[bool] = True  # whether several processes can share a run

    def __init__(
        self,
        env: Any = None,
        /,
        *others: Any,
        run_dir: str | Path | None = None,
        overwrite: bool = False,
        **fields: Any,
    ) -> None:
        """`env`: an environment id, a factory of gymnasium environments, or a gymnasium VectorEnv.

        `run_dir` is where checkpoints and metrics go (nothing is written without it). With `overwrite` a run that is
        there is replaced when `learn` begins, not before; files that a run does not write stay. `fields` are the
        settings of the algorithm's config, over those of the preset.
        """
        self._env: envs.VectorEnv | None = None
        self.may_import = True  # whether an environment id may name a module to import
        _require_environment_first(type(self).__name__, env, others, fields)
        self.source, fields = _source_fields(env, fields)
        self.config = resolve_config(self.config_class, fields)
        self._take_share()
        self.run_dir = None if run_dir is None else as_path(run_dir)
        self.legs = Legs(self.own_envs)
        env = self._env = self._make_env()
        self._setup(env.original_observation_space, env.action_space, env.original_action_space, env.has_action_mask)
        self.overwrite = overwrite

    @classmethod
    def restore(
        cls,
        config: Config,
        original_observation_space: gym.Space,
        action_space: gym.Space,
        original_action_space: gym.Space,
        has_mask: bool,
    ) -> Self:
        """An agent with fresh weights and no environments, for `phasegrad.load` to fill."""
        agent = cls.__new__(cls)
        agent.source, agent.config, agent.run_dir, agent._env = config.env, config, None, None
        agent.may_import = False
        agent._take_share()
        agent.legs = Legs(agent.own_envs)
        agent._setup(original_observation_space, action_space, original_action_space, has_mask)
        return agent

    def _take_share(self) -> None:
        """This process's part of the run: of `num_envs` environments those from `first_env` on."""
        self.ranks = parallel.current()
        if self.ranks.size > 1:
            if not self.divides:
                raise ConfigError(f"{self.name} runs in one process only: start it without torchrun.")
            self.config.require_share(self.ranks.size)
        self.own_envs = self.ranks.share(self.config.num_envs)
        self.first_env = self.ranks.rank * self.own_envs

    def _setup(
        self,
        original_observation_space: gym.Space,
        action_space: gym.Space,
        original_action_space: gym.Space,
        has_mask: bool,
    ) -> None:
        config = self.config
        self.original_observation_space, self.original_action_space = original_observation_space, original_action_space
        self.observing = envs.ObservationAdapter(original_observation_space)
        observation_space = self.observing.space
        self.observation_space, self.action_space, self.has_action_mask = observation_space, action_space, has_mask
        if config.arch == "auto":
            images = any(is_image(space) for space in _parts(observation_space))
            config.arch = "shared" if images else "dual"
        config.validate()  # again, now that the architecture is decided
        self.device = pick_device(config.device, self.ranks)
        self.model: ActorCritic = build_model(
            observation_space, action_space, config, self.auxiliary_head, self.model_class
        ).to(self.device)
        self.model.eval()  # but for updates: see `training_mode`
        own_encoder = not isinstance(config.encoder, str)  # which may have dropout or batch norm; ours have neither
        self.training_mode = TrainingMode(
            self.model, own_encoder, lambda: self.generator("network").initial_seed(), self.ranks
        )
        self.model.normalizer.ranks = self.ranks
        self.distribution = self.model.distribution
        self.flat = FlatParameters(self.model.parameter_groups())
        self.actor = Actor(self.model, self.device)
        self.steppers: list[Stepper] = []
        self.adapter = ActionBounds(action_space, config.action_bounds)
        self.reward_normalizer = RewardNormalizer(
            config.normalize_reward,
            config.gamma if config.reward_gamma is None else config.reward_gamma,
            config.clip_reward,
            self.ranks,
        )
        self.microbatch = 256 if any(np.prod(s.shape or (1,)) >= 1024 for s in _parts(observation_space)) else 1 << 30
        self.chunk = min(self.microbatch, 1 << 16)  # samples of a pass without gradients
        self.progress, self.clock = Progress(), Clock()
        self.takes_over = False  # whether the run in the run directory is this agent's, to go on with
        self.overwrite = False  # whether a run there, or what it holds beyond this agent's step, may be replaced
        self.stands_on: tuple[int, str | None] | None = None  # step and checksum of the checkpoint it comes from
        self.passed_over: list[str] = []  # checkpoints that were found damaged when this agent was loaded
        self.checkpoint_due = False  # at the next boundary
        self.metrics_bytes, self.seconds_before = 0, 0.0  # what metrics.jsonl and the clock held at the last checkpoint
        self.computation = ""  # how the networks are computed, and why so, for people
        self.scalars: dict[str, float] = {}  # what an algorithm carries from one iteration to the next
        self.played_to = ""  # digest of the observations that a checkpoint's actions led to
        self.carried_from: dict[str, Any] | None = None  # what a checkpoint lists for `restore_carried`
        self.rollout: Rollout | None = None  # the latest, also while it is being filled
        self.finished: list[tuple[float, float, float]] = []  # (place in the run, return, length) of own episodes
        self._storage: Storage | None = None
        self.collector: Collector | None = None
        self.optimizers: Mapping[str, Optimizer] = self.build_optimizers()
        config.hold()

    # What an algorithm adds

    @abstractmethod
    def build_optimizers(self) -> Mapping[str, Optimizer]:
        """The optimisers by name, over slices of `self.flat`; saved with every checkpoint."""

    @abstractmethod
    def iterate(self, num_steps: int) -> dict[str, float]:
        """Collect `num_steps` steps of each environment and learn from them; the metrics of the iteration."""

    def iteration_steps(self) -> int:
        """Steps of each environment in an iteration: one rollout, or several where an algorithm updates often."""
        return self.config.num_steps

    def at_boundary(self) -> bool:
        """Whether a checkpoint is cheap here: between iterations, unless the algorithm has longer units."""
        return True

    def end_run(self) -> None:  # noqa: B027 - most have nothing to let go of
        """The run has reached its total; what only more of it would need may go."""

    # Learning

    def carried(self) -> dict[int, dict[str, Tensor]]:
        """Data beyond `tensors` that outlives an iteration, in numbered pieces that never change; each is written once."""
        return {}

    def carried_state(self) -> dict[str, Any]:
        """How the pieces lie, as plain JSON."""
        return {}

    def carried_bytes(self) -> int:
        """The most that `carried` of all processes can take on disk."""
        return self.storage_bytes() * self.ranks.size

    def restore_carried(self, state: Mapping[str, Any], pieces: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Put back what `carried_state` and `carried` gave; refuses what does not fit."""
        if pieces:
            raise DamagedError(f"The checkpoint carries data that {self.name} has no use for.")

    def learn(
        self,
        total_steps: int | None = None,
        *,
        callback: Callable[[dict[str, Any]], object] | None = None,
        progress: bool = False,
    ) -> Self:
        """Train until `total_steps` environment steps in all; again with more to go on.

        `callback` gets each iteration's metrics and ends the training early by returning False. `progress` shows the
        live display.
        """
        from phasegrad.runs.session import train

        with self.ranks.in_step():
            train(self, total_steps, callback=callback, progress=progress)
        return self

    def start_environments(self, tell: Callable[[int, int], None] | None = None) -> None:
        """Environments bound to the policy, made anew and brought to where the run's are.

        `tell` hears how many of how many steps have been played back.
        """
        if self._env is None:
            self._env = self._make_env()
        else:
            self._env.reseed(self._seeds(self.legs.numbers))
        legs, step = self.legs, self.progress.step // self.config.num_envs
        total = legs.age(step)
        played = None
        if total and legs.actions:
            rows = (self.adapter(row.to(self.distribution.action_dtype).numpy()) for row in legs.rows())
            told = None if tell is None else lambda done: tell(done * self.own_envs, total * self.own_envs)
            played = (rows, legs.starts - legs.starts.min(), told)
        self.collector = Collector(
            self._env, self.actor, self.adapter, self.clock, self.first_env, self.config.num_envs, played
        )
        if not legs.settled:
            self._env.renew(self._seeds(legs.targets), legs.numbers < legs.targets)
        if self.played_to and self.played_to != observations_digest(self):
            warnings.warn(
                f"The environments of {self.config.env} did not play back as they were played, so they are not "
                "deterministic: the run goes on, but not as if it had never stopped.",
                PhasegradWarning,
                stacklevel=2,
            )
        self.played_to = ""

    def renew_environments(self) -> None:
        """Where playing back has become long, have each environment begin another leg when its episode ends."""
        assert self._env is not None
        config, legs, distribution = self.config, self.legs, self.distribution
        step = self.progress.step // config.num_envs
        stored = stored_dtype(self.action_space, distribution.action_dtype).itemsize
        row = config.num_envs * int(np.prod(distribution.action_shape)) * stored  # of all processes
        short = steps_a_leg(config.restart_every, self._env.family, self._env.backend, config.num_envs, row)
        enough = max(short, EPISODES_A_LEG * self.progress.longest_episode)
        age = legs.age(step)
        if age >= LONGEST_LEG * enough or age * row > MOST_BYTES:  # episodes without end: all of them begin anew
            self.close()
            legs.restart(step)
            self.reward_normalizer.start_leg()
            self.start_environments()
        elif age >= enough and legs.settled:
            self._env.renew(self._seeds(legs.announce()), np.ones(self.own_envs, bool))

    def draw_noise(self, num_steps: int) -> Tensor:
        """The noise [T, N, K] of an iteration's actions."""
        return self.ranks.own(
            self.distribution.draw_noise((num_steps, self.config.num_envs), self.generator("noise")), 1
        )

    def rollouts(self, num_steps: int) -> Iterator[Rollout]:
        """An iteration of `num_steps` as one rollout after another, the last one shorter where they do not divide."""
        for noise in self.draw_noise(num_steps).split(self.config.num_steps):
            yield self.collect(len(noise), noise=noise)

    def collect(self, num_steps: int, slot: int = 0, noise: Tensor | None = None) -> Rollout:
        """A rollout under the current policy, with rewards and values ready for advantage estimation."""
        config, progress = self.config, self.progress
        assert self.collector is not None
        rollout = self.rollout = self.storage().rollouts[slot].first(num_steps)
        noise = self.draw_noise(num_steps) if noise is None else noise
        episodes = self.collector.collect(rollout, noise, progress.step)
        self.legs.log(rollout.actions.to(stored_dtype(self.action_space, self.distribution.action_dtype)))
        for t, environments in self.collector.renewed:
            self.legs.begin(environments, progress.step // config.num_envs + t + 1)
        self.legs.forget()
        done = rollout.terminated | rollout.truncated
        rollout.rewards.copy_(self.reward_normalizer(rollout.raw_rewards, done))
        for t, episode in zip(self.collector.ended_at, episodes, strict=True):
            place = progress.step + t * config.num_envs + self.first_env + episode.env
            self.finished.append((place, episode.episode_return, episode.length))
        if self.ranks.size == 1:
            self.count_episodes()
        progress.step += num_steps * config.num_envs
        if config.log_steps and self.run_dir is not None:
            write_steps(self.run_dir, progress.step, rollout, self.distribution, self.ranks)
        return rollout

    def count_episodes(self) -> None:
        """Add the episodes of all processes to the statistics, in the order in which they ended."""
        progress = self.progress
        rows = self.finished
        if self.ranks.size > 1:
            rows = self.ranks.rows(torch.tensor(rows, dtype=torch.float64).view(-1, 3)).tolist()
        progress.episodes += len(rows)
        progress.longest_episode = max([progress.longest_episode, *(int(row[2]) for row in rows)])
        progress.recent_returns.extend(row[1] for row in rows)
        progress.recent_lengths.extend(float(row[2]) for row in rows)
        self.finished = []

    def estimate_advantages(self, rollout: Rollout) -> None:
        """Advantages and value targets by GAE, from the stored values."""
        config = self.config
        terminated = rollout.terminated if config.bootstrap_truncated else rollout.terminated | rollout.truncated
        arguments = (rollout.rewards, rollout.values, rollout.next_values, terminated, rollout.truncated, config.gamma)
        advantages, targets = gae(*arguments, config.gae_lambda)
        if config.policy_gae_lambda is not None:  # DNA: the policy's advantages with a lambda of their own
            advantages, _ = gae(*arguments, config.policy_gae_lambda)
        rollout.advantages.copy_(advantages)
        rollout.value_targets.copy_(targets)

    def revalue(self, rollout: Rollout) -> None:
        """Put the values of the rollout just collected as the value function now sees them."""
        assert self.collector is not None
        self.collector.revalue(rollout)

    def normalized(self, advantages: Tensor) -> Tensor:
        """Zero mean and unit standard deviation over the samples of all processes."""
        if self.ranks.size == 1:
            return normalized(advantages)
        return normalized(advantages, pooled_moments(moments_of(advantages.flatten().double()), self.ranks))

    def storage_bytes(self) -> int:
        """What the stored rollouts of this process take in memory."""
        slots = self.rollouts_kept() * self.config.num_steps * self.own_envs
        return slots * bytes_a_step(self.observation_space, self.distribution, self.has_action_mask)

    def storage(self) -> Storage:
        """Room for `rollouts_kept` rollouts, allocated once."""
        if self._storage is None:
            config = self.config
            self._storage = Storage(
                self.rollouts_kept(),
                config.num_steps,
                self.own_envs,
                self.observation_space,
                self.distribution,
                self.has_action_mask,
            )
        return self._storage

    def rollouts_kept(self) -> int:
        """Rollouts that must be in memory at once."""
        return 1

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers that depend on the seed, the iteration and what they are for, and on nothing else.

        Of several processes each draws its own, except for noise: that is drawn for all environments and divided, so
        that actions do not depend on the number of processes.
        """
        purposes = ("noise", "minibatches", "auxiliary", "replay", "network")
        numbers = [self.config.seed, self.progress.iteration, purposes.index(purpose)]
        own = [self.ranks.rank] if self.ranks.size > 1 and purpose != "noise" else []
        key = np.random.SeedSequence(numbers + own)
        return torch.Generator().manual_seed(int(key.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def remaining_fraction(self) -> float:
        """What is left of the run at the start of this iteration, from 1 to 0: annealed settings are scaled by it."""
        return 1.0 - self.progress.step / self.config.total_steps

    def rates(self, by_group: Mapping[str, float]) -> dict[str, float]:
        """The learning rates of the parameter groups that this architecture has."""
        return {group: by_group[group] for group in self.flat.slices}

    def mean_kl(self, rollout: Rollout) -> float:
        """E[KL[pi_old, pi]] over a whole rollout: how far the finished update moved the policy."""
        assert self.collector is not None
        return self.ranks.mean(
            float(self.distribution.kl(rollout.policy_params, self.collector.policy(rollout)).mean())
        )[0]

    def rollout_metrics(self, rollout: Rollout) -> dict[str, float]:
        """What a rollout says about the values that were used for it."""
        return self.value_metrics(rollout.values, rollout.value_targets)

    def value_metrics(self, values: Tensor, value_targets: Tensor) -> dict[str, float]:
        """How values compare with their targets."""
        explained = self.explained_variance(values, value_targets)
        means = self.ranks.mean(float(values.mean()), float(value_targets.mean()))
        return {"explained_variance": explained, "value_mean": means[0], "value_target_mean": means[1]}

    def explained_variance(self, values: Tensor, value_targets: Tensor) -> float:
        """1 - Var[V_targ - V] / Var[V_targ] over the samples of all processes."""
        if self.ranks.size == 1:
            return float(explained_variance(values, value_targets))
        pairs = torch.stack([(value_targets - values).flatten(), value_targets.flatten()], 1).double()  # [B, 2]
        unexplained, whole = pooled_moments(moments_of(pairs), self.ranks)[2]
        return float(1 - unexplained / whole)

    def stepper_for(self, optimizers: Mapping[str, Optimizer], max_grad_norm: float) -> Stepper:
        """Gradient steps with these optimisers."""
        stepper = Stepper(
            self.flat,
            optimizers,
            max_grad_norm,
            self.microbatch,
            ranks=self.ranks,
            config=self.config,
            mode=self.training_mode,
        )
        self.steppers.append(stepper)
        return stepper

    # Using the agent

    @torch.no_grad()
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        mask: Any = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, Any]:
        """Actions for one observation or a batch, as the environment gives and takes them; `state` is passed through.

        `mask` [M] or [B, M] says what is allowed; without it an `action_mask` entry of the observation does.
        """
        batch, inside, single = self._as_batch(observation)
        size = len(named_leaves(batch)[0][1])
        masks = self._as_mask(inside if mask is None else mask, size)
        if masks is None and self.observing.mask_leaf is not None:
            raise EnvError(
                "The observation has no entry 'action_mask': give it, or the mask as predict(..., mask=...)."
            )
        params = self.model.policy(batch, masks)
        if deterministic:
            actions = self.distribution.mode(params)
        else:
            noise = self.distribution.draw_noise((size,), torch.default_generator).to(self.device)
            actions = self.distribution.sample(params, noise)
        own = envs.ActionAdapter(self.original_action_space)
        result = own.to_environment(self.adapter(actions.cpu().numpy()), size)
        return (result[0] if single else result), state

    @torch.no_grad()
    def value(self, observation: Any) -> np.ndarray:
        """V(s) of a batch of observations [B], in the units of the unnormalised reward."""
        batch, _, single = self._as_batch(observation)
        values = self.model.value(batch).cpu().numpy() * self.reward_normalizer.std
        return values[0] if single else values

    def _as_batch(self, observation: Any) -> tuple[Any, Any, bool]:
        """Observations as flat tensors on the device, the mask among them or None, and whether it is a single one."""
        flat, mask, single = envs.as_batch(self.observing, observation)
        # Memory that torch takes: an image turned round or one that may not be written to is copied.
        tensors = tree_map(
            lambda leaf: torch.from_numpy(np.require(leaf, requirements=["C", "W"])).to(self.device), flat
        )
        return tensors, mask, single

    def _as_mask(self, mask: Any, size: int) -> Tensor | None:
        """A mask [B, M] on the device."""
        if mask is None:
            return None
        own = envs.ActionAdapter(self.original_action_space)
        if own.parts:
            return torch.from_numpy(own.to_mask(mask, size, "observation")).to(self.device)
        bits, wanted = np.asarray(mask, dtype=bool), (size, self.distribution.mask_size)
        if wanted[1] and bits.size != size * wanted[1]:
            raise EnvError(f"The action mask has shape {bits.shape}, but {wanted} is needed.")
        return torch.from_numpy(bits.reshape(size, -1).copy()).to(self.device)

    def evaluate(
        self,
        episodes: int = 20,
        *,
        deterministic: bool = True,
        seed: int | None = None,
        levels: str = "train",
        max_steps: int | None = None,
    ) -> Evaluation:
        """Raw returns of whole episodes in fresh environments, with normalisers frozen.

        An episode that has not ended after `max_steps` is cut there and counts with the return it has; by default after
        10,000 where the environment has no time limit of its own.
        """
        how: dict[str, Any] = {"deterministic": deterministic, "seed": seed, "levels": levels}
        return run_evaluation(self, episodes, **how, max_steps=max_steps)

    def record(self, path: str | Path | None = None, **options: Any) -> Video:
        """Film evaluation episodes as an mp4; `options` are those of `phasegrad.record_video`."""
        from phasegrad.video.recording import record_video

        return record_video(self, path, **options)

    def save(self, path: str | Path) -> None:
        """Write the agent, and all that continuing its training needs, to a folder that `phasegrad.load` reads.

        A save that is there is replaced, and stays until the new one is on the disk; any other file is left alone.
        """
        from phasegrad.runs.checkpoint import saved_legs, whole_pieces, write_checkpoint
        from phasegrad.runs.directory import restore_carried
        from phasegrad.runs.replacing import require_place

        folder = as_path(path)
        with self.ranks.in_step():
            self.ranks.from_first(lambda: require_place(folder))
            restore_carried(self, None)  # a loaded agent reads what it carries only when it is needed
            legs, pieces = saved_legs(self), whole_pieces(self, self.carried())
            self.ranks.from_first(lambda: write_checkpoint(folder, self, legs, pieces=pieces))

    def close(self) -> None:
        """Free the environments; learning again makes new ones."""
        if self._env is not None and not isinstance(self.source, gym.vector.VectorEnv):
            self._env.close()
            self._env = None
        self.collector = None

    # Checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the agent's state, by name, without copying."""
        named = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, optimizer in self.optimizers.items():
            named |= {f"optimizer.{name}.{key}": tensor for key, tensor in optimizer.state().items()}
        return named | {"reward_normalizer.moments": self.reward_normalizer.moments}

    def require_source(self) -> None:
        """Refuse what a file may not ask for: an environment that only Python knows, or a module to import."""
        if isinstance(self.source, str) and self.source.startswith("custom:"):
            raise EnvError(
                f"This agent was trained on an environment given in Python ({self.source}): "
                "load it with phasegrad.load(path, env=...)."
            )
        if isinstance(self.source, str) and ":" in self.source and not self.may_import:
            raise EnvError(
                f"The file asks to import {self.source.split(':')[0]!r} for its environment {self.source}: where you trust "
                f"it, allow that with --allow-import, or in Python with phasegrad.load(path, env={self.source!r})."
            )

    def _make_env(self) -> envs.VectorEnv:
        self.require_source()
        config = self.config
        env = envs.make(
            self.source,
            num_envs=self.own_envs,
            seeds=self._seeds(self.legs.numbers),
            backend=config.backend,
            vectorization=config.vectorization,
            num_threads=config.env_threads or None,
            options=config.env_options,
            timeout=config.env_timeout or None,
        )
        try:
            self._require_spaces(env)
        except EnvError:
            env.close()
            raise
        return env

    def _seeds(self, legs: np.ndarray) -> list[int]:
        """The seeds of this process's environments in the legs [N], by their number among all."""
        by_leg = {
            int(leg): envs.env_seeds(self.config.seed, int(leg), self.own_envs, self.first_env) for leg in set(legs)
        }
        return [by_leg[int(leg)][index] for index, leg in enumerate(legs)]

    def _require_spaces(self, env: envs.VectorEnv) -> None:
        """Refuse an environment that is not the one this agent was made for."""
        for name in ("observation_space", "action_space", "has_action_mask"):
            mine, theirs = getattr(self, name, None), getattr(env, name)
            if mine is not None and mine != theirs:
                raise EnvError(self._other_space(name, mine, theirs))

    def require_form(self, env: envs.VectorEnv) -> None:
        """Refuse an environment that this agent cannot act in; another backend's may have other bounds."""
        for name in ("observation_space", "action_space"):
            mine, theirs = getattr(self, name), getattr(env, name)
            if not envs.same_form(mine, theirs):
                raise EnvError(self._other_space(name, mine, theirs))
        if self.has_action_mask != env.has_action_mask:
            raise EnvError(self._other_space("has_action_mask", self.has_action_mask, env.has_action_mask))

    def _other_space(self, name: str, mine: Any, theirs: Any) -> str:
        given = envs.name_of(self.source)
        if name == "has_action_mask":
            found, trained = ("an", "without one") if theirs else ("no", "with one")
            what = f"{given} has {found} action mask, but this agent was trained {trained}"
        else:
            what = f"The {name.replace('_', ' ')} of {given} is {theirs}, but this agent was trained with {mine}"
        return f"{what}: give the environment, options and versions it was trained with."


def digest(observation: Any) -> str:
    """A checksum of a batch of observations."""
    sha = hashlib.sha256()
    for name, leaf in named_leaves(observation):
        sha.update(name.encode() + np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()


def observations_digest(agent: Algorithm) -> str:
    """A checksum of the observations that all environments, of every process, are at."""
    assert agent.collector is not None
    ranks = agent.ranks
    whole = agent.collector.observation
    if ranks.size > 1:
        whole = tree_map(lambda leaf: ranks.whole(torch.from_numpy(np.ascontiguousarray(leaf)), 0).numpy(), whole)
    return ranks.from_first(lambda: digest(whole))


def _parts(space: gym.Space) -> list[gym.Space]:
    return list(space.spaces.values()) if isinstance(space, gym.spaces.Dict) else [space]


def _require_environment_first(name: str, env: Any, others: tuple[Any, ...], fields: Mapping[str, Any]) -> None:
    """Refuse Stable-Baselines3's habit of naming a policy first, and what else cannot be meant."""
    named = isinstance(env, str) and env.endswith("Policy") and env.isidentifier()
    if named or (others and isinstance(others[0], str)) or (env is not None and "env" in fields):
        meant = others[0] if others else fields.get("env", "CartPole-v1")
        meant = meant if isinstance(meant, str) else "CartPole-v1"
        raise ConfigError(
            f"{name} takes the environment first and no policy name, since the spaces decide the networks: "
            f"{name}({meant!r}), with settings as keywords."
        )
    if others:
        raise ConfigError(f"{name} takes the environment and then settings as keywords, such as num_envs=8.")


def _source_fields(env: Any, fields: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The environment's source and the settings it implies."""
    fields = dict(fields)
    if env is None:
        env = fields.get("env")
    if not env:
        raise ConfigError("env is missing: give an environment id such as CartPole-v1.")
    if isinstance(env, str):
        return env, fields | {"env": env}
    fields["env"] = f"custom:{envs.name_of(env)}"
    if isinstance(env, gym.vector.VectorEnv):
        found = env.num_envs * parallel.current().size  # each process brings its own
        if fields.setdefault("num_envs", found) != found:
            raise ConfigError(
                f"num_envs is {fields['num_envs']}, but the VectorEnv given has {found}: leave num_envs out."
            )
    return env, fields
