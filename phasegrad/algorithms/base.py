"""What the algorithms share: an agent, its environments and its computation, the parts of a loop, and the verbs.

Noise and minibatch order come from (seed, iteration), environments from (seed, leg, environment index): a run is a
function of its config, and a resumed run ends with the bits of one that was never stopped.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from phasegrad.agent import Agent, Spaces
from phasegrad.algorithms import moving
from phasegrad.algorithms.arguments import require_environment_first, source_and_fields, source_of
from phasegrad.algorithms.estimates import value_metrics
from phasegrad.algorithms.experience import Experience, make_training_envs
from phasegrad.algorithms.leash import Leash
from phasegrad.algorithms.verbs import Verbs
from phasegrad.compute.choosing import Computation
from phasegrad.compute.optimizers import Optimizer
from phasegrad.config import Config
from phasegrad.data.legs import Legs
from phasegrad.data.storage import Rollout
from phasegrad.distributed import joining
from phasegrad.errors import ConfigError
from phasegrad.machine.clock import Clock
from phasegrad.machine.paths import as_path
from phasegrad.models import ActorCritic
from phasegrad.presets import resolve_config
from phasegrad.runs import changing
from phasegrad.runs.contract import Carried
from phasegrad.runs.state import RunState
from phasegrad.runs.steps import write_steps

# What random numbers are for; the order is part of the bits.
PURPOSES = ("noise", "minibatches", "auxiliary", "replay", "network", "clone")


class Algorithm(Verbs, ABC):
    """An agent in training. A subclass says what its settings and optimisers are, and writes the loop."""

    config_class: ClassVar[type[Config]] = Config
    name: ClassVar[str] = ""
    smaller_storage: ClassVar[str] = "lower num_envs or num_steps"  # what to do where the rollouts do not fit
    model_class: ClassVar[type[ActorCritic]] = ActorCritic
    auxiliary_head: ClassVar[bool] = False  # whether the policy network carries an auxiliary value head
    second_derivatives: ClassVar[bool] = False  # whether it differentiates gradients
    divides: ClassVar[bool] = True  # whether several processes can share a run
    move_back = moving.move_back

    def __init__(
        self,
        env: Any = None,
        /,
        *others: Any,
        run_dir: str | Path | None = None,
        overwrite: bool = False,
        config: Config | None = None,
        spaces: Spaces | None = None,
        **fields: Any,
    ) -> None:
        """`env`: an environment id, a factory of gymnasium environments, or a gymnasium VectorEnv.

        `run_dir` is where checkpoints and metrics go (nothing is written without it). With `overwrite` a run that is
        there is replaced when `learn` begins, not before; files that a run does not write stay. `fields` are the
        settings of the algorithm's config, over those of the preset; a whole `config` stands for all of them. Where the
        `spaces` are known, environments are made only when training begins.
        """
        require_environment_first(type(self).__name__, env, others, fields)
        if config is None:
            env, fields = source_and_fields(env, fields)
            config = resolve_config(self.config_class, fields)
        self.config, self.ranks, self.clock = config, joining.current(), Clock()
        if self.ranks.size > 1:
            if not self.divides:
                raise ConfigError(f"{self.name} runs in one process only: start it without torchrun.")
            config.require_share(self.ranks.size)
        directory = None if run_dir is None else as_path(run_dir)
        self.run = RunState(Legs(self.ranks.share(config.num_envs)), run_dir=directory)
        self.progress = self.run.progress
        self.scalars: dict[str, float] = {}  # what the algorithm carries from one iteration to the next
        source = source_of(config, env)
        made = None if spaces is not None else make_training_envs(source, config, self.ranks, self.run.legs.numbers)
        spaces = Spaces.of(made) if made is not None else spaces
        assert spaces is not None
        self.require_spaces(spaces)
        kind: dict[str, Any] = {"model_class": self.model_class, "auxiliary_head": self.auxiliary_head}
        self.agent = Agent(config, spaces, source, **kind, ranks=self.ranks)
        self.leash = Leash(self.agent, self.progress)
        how: dict[str, Any] = {"large": self.agent.is_large, "second_derivatives": self.second_derivatives}
        how["seed"] = lambda: self.generator("network").initial_seed()
        self.computation = Computation(self.model, self.device, config, self.ranks, **how)
        self.flat, actor = self.computation.flat, self.computation.actor
        self.experience = Experience(self.agent, actor, self.run, self.ranks, self.clock, self.rollouts_kept(), made)
        self.carries: Carried | None = None  # what outlives an iteration beside tensors and scalars
        self.optimizers: Mapping[str, Optimizer] = self.build_optimizers()
        self.run.overwrite = overwrite
        config.made_for_agent()

    # What an algorithm adds

    @abstractmethod
    def build_optimizers(self) -> Mapping[str, Optimizer]:
        """The optimisers by name, over slices of `self.flat`; saved with every checkpoint."""

    @abstractmethod
    def iterations(self) -> Iterator[dict[str, Any]]:
        """The loop, while `steps_left()`: it yields the metrics of an iteration after each.

        A run that is resumed enters it anew, with everything that was restored: what lies between two yields must follow
        from `self`, not from local variables of earlier iterations.
        """

    def require_spaces(self, spaces: Spaces) -> None:
        """Refuse an environment that the algorithm cannot learn in."""

    def rollouts_kept(self) -> int:
        """Rollouts that must be in memory at once."""
        return 1

    def at_boundary(self) -> bool:
        """Whether a checkpoint is cheap here: between iterations, unless the algorithm has longer units."""
        return True

    def end_run(self) -> None:
        """The run has reached its total; what only more of it would need may go."""

    # What a loop is made of

    def steps_left(self) -> int:
        """Steps that each environment has still to take."""
        return (self.config.total_steps - self.progress.step) // self.config.num_envs

    @contextlib.contextmanager
    def collected(self, slot: int = 0, noise: Tensor | None = None) -> Iterator[Rollout]:
        """A rollout under the current policy. What is done with it sees the one scaling of observations that it was
        acted with; that learns from the rollout when the block ends.
        """
        if noise is None:
            noise = self.draw_noise(min(self.config.num_steps, self.steps_left()))
        rollout = self.collect(len(noise), slot, noise)
        with self.clock.section("update"):
            yield rollout
            self.model.normalizer.update(rollout.observations)

    def rollouts(self, count: int) -> Iterator[Rollout]:
        """Up to `count` rollouts one after another, the last one shorter where the run ends: an iteration of several."""
        size = self.config.num_steps
        for noise in self.draw_noise(min(count * size, self.steps_left())).split(size):
            with self.collected(noise=noise) as rollout:
                yield rollout

    def collect(self, num_steps: int, slot: int = 0, noise: Tensor | None = None) -> Rollout:
        """A rollout of `num_steps`, with rewards and values ready for advantage estimation."""
        self.experience.collect(num_steps, slot, self.draw_noise(num_steps) if noise is None else noise)
        assert self.rollout is not None
        if self.config.log_steps and self.run.place is not None:
            write_steps(self.run.place, self.progress.step, self.rollout, self.distribution, self.ranks)
        return self.rollout

    def draw_noise(self, num_steps: int) -> Tensor:
        """The noise [T, N, K] of the iteration's actions: drawn for all environments, then divided."""
        noise = self.distribution.draw_noise((num_steps, self.config.num_envs), self.generator("noise"))
        return self.ranks.own(noise, 1)

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers that depend on the seed, the iteration and what they are for, and on nothing else.

        Of several processes each draws its own, except for noise, so that actions do not depend on their number.
        """
        numbers = [self.config.seed, self.progress.iteration, PURPOSES.index(purpose)]
        own = [self.ranks.rank] if self.ranks.size > 1 and purpose != "noise" else []
        key = np.random.SeedSequence(numbers + own)
        return torch.Generator().manual_seed(int(key.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def remaining_fraction(self) -> float:
        """What is left of the run at the start of this iteration, from 1 to 0: annealed settings are scaled by it."""
        return 1.0 - self.progress.step / self.config.total_steps

    def mean_kl(self, rollout: Rollout) -> Any:
        """E[KL[pi_old, pi]] over a whole rollout: how far the finished update moved the policy."""
        params = self.experience.policy(rollout)
        return self.ranks.mean_of(self.distribution.kl(rollout.behaviour_params, params).mean())[0]

    def rollout_metrics(self, rollout: Rollout) -> dict[str, Any]:
        """What a rollout says about the values that were used for it."""
        return value_metrics(rollout.values, rollout.value_targets, self.ranks)

    # What its run drives

    def begin_iteration(self, tell: Callable[[int, int], None] | None = None) -> None:
        if self.run.planned:
            changing.apply_planned(self)
        self.config.follow(self.progress.step / self.config.total_steps)
        self.experience.be_ready(tell)

    def end_iteration(self) -> None:
        self.experience.count_episodes()
        self.progress.iteration += 1
        if self.progress.iteration == 1:
            self.computation.choose(begun=True)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the agent, of its leash and of its optimisers, by name, without copying."""
        named = self.agent.tensors() | self.leash.tensors()
        for name, optimizer in self.optimizers.items():
            named |= {f"optimizer.{name}.{key}": tensor for key, tensor in optimizer.state().items()}
        return named

    def apply(self, settings: Mapping[str, Any]) -> None:
        self.config.settle(**settings)
        self.scalars |= {name: float(value) for name, value in settings.items() if name in self.scalars}

    def storage_bytes(self) -> int:
        return self.experience.storage_bytes()

    def host_bytes(self) -> int:
        return self.experience.host_bytes() + self.storage_bytes() - self.experience.storage_bytes()

    def observations_digest(self) -> str:
        return self.experience.observations_digest()

    def drop_environments(self) -> None:
        self.experience.collector = None

    # Its parts by their short names

    @property
    def model(self) -> Any:
        return self.agent.model

    @property
    def distribution(self) -> Any:
        return self.agent.distribution

    @property
    def device(self) -> torch.device:
        return self.agent.device

    @property
    def rollout(self) -> Rollout | None:
        """The latest, also while it is being filled."""
        return self.experience.rollout
