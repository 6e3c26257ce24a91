"""Evaluations that a run makes of itself: when, with how many episodes, and what they found.

They say what the agent can do, where the returns of training lag behind it and come from sampled actions. Settings and
steps decide about them, never the clock, so that a run and its resumed twin make the same ones; and they leave no trace
in what is learnt: other environments, other random numbers.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from phasegrad import envs
from phasegrad.agent import Agent
from phasegrad.config import Config
from phasegrad.errors import EnvError, PhasegradWarning
from phasegrad.runs.evaluation import MOST_ENVS, MOST_STEPS, Evaluation, run_evaluation
from phasegrad.runs.state import EvaluationRecord, Progress

EVALUATIONS_A_RUN = 10
EPISODES = 20  # of an evaluation, where nobody asked for another number
FEWEST = 3  # fewer say nothing: an evaluation that cannot have them is left out, but for the last
SHARE = 0.04  # of the run's cost that evaluations may take
FOR_THE_LAST = 0.6  # of that, at most, is kept back for the evaluation at the end
# What evaluating costs, in environment steps of training, as measured on small networks (results/evaluation-cost.json):
# a step of all environments together in shares of one of training's,
STEP_OF_ALL = 0.45
MOST_TRAINING_ENVS = 64  # beyond these a training step's cost is that of its environments alone
STEP_OF_ALL_LARGE = 0.5  # with images: in environment steps of training, each of which costs many passes of the network
# and with it the step of each environment, by its family; others, in Python, may cost as much as all of training.
STEP_OF_ONE = {"classic": 0.05, "box2d": 0.15, "mujoco": 0.3, "atari": 0.4, "procgen": 0.1}
STEP_OF_UNKNOWN = 1.0
TO_MAKE_ONE = {"atari": 120.0}  # an environment made and started
LITTLE_MORE = 1.15  # times the cost of the fewest episodes at the end: more are played where they add no more than that
LONGER_THAN_TRAINING = 1.5  # a greedy episode may be, where lengths differ
LEAST_STEPS = 1_000  # of an episode before it is cut; beyond them so many times the longest seen in training
LONGER_THAN_SEEN = 4


def is_limited(agent: Agent) -> bool:
    """Whether training sees only some of the environment's levels, so that others can be held against them."""
    if not isinstance(agent.source, str) or not agent.config.env_options.get("num_levels"):
        return False
    return envs.resolve(agent.source, agent.config.env_options).family == "procgen"


@dataclass(frozen=True)
class Costs:
    """What an evaluation costs, in environment steps of training."""

    of_a_step: float
    of_an_env: float
    to_make: float
    times: int  # 2 where training and test levels are played

    @classmethod
    def of(cls, agent: Agent) -> Costs:
        config, family, backend = agent.config, "", "gymnasium"
        if isinstance(agent.source, str):
            spec = envs.resolve(agent.source, config.env_options, backend=config.backend)
            family, backend = spec.family, spec.backend
        of_one = STEP_OF_ONE.get(family, STEP_OF_UNKNOWN) if backend == "envpool" else STEP_OF_UNKNOWN
        if backend == "gymnasium" and config.vectorization == "async":
            of_one *= config.num_envs  # training steps them at the same time, an evaluation one after the other
        of_all = STEP_OF_ALL_LARGE if agent.is_large else STEP_OF_ALL * min(config.num_envs, MOST_TRAINING_ENVS)
        return cls(of_all, of_one, TO_MAKE_ONE.get(family, 0.0), 2 if is_limited(agent) else 1)

    def cost(self, episodes: int, length: float) -> float:
        """Of so many episodes, of which the longest has `length` steps."""
        together = min(episodes, MOST_ENVS)
        rounds = -(-episodes // MOST_ENVS)
        step = self.of_a_step + self.of_an_env * together
        return self.times * (rounds * length * step + self.to_make * together)

    def fitting(self, wanted: int, length: float, allowance: float) -> int:
        """The most episodes up to `wanted` that cost no more than `allowance`; 0 where only very few would."""
        fits = next((n for n in range(wanted, 0, -1) if self.cost(n, length) <= allowance), 0)
        return fits if fits >= min(FEWEST, wanted) else 0


@dataclass
class Evaluations:
    """The evaluations of one session of a run to `total` steps; `record` is what the run keeps of them."""

    agent: Agent
    progress: Progress
    record: EvaluationRecord
    total: int
    failed: bool = False
    seen: bool = True  # whether there is anyone to tell: a file, a display or a callback
    told_of_cuts: bool = False  # once is enough
    _costs: tuple[Any, Costs] | None = field(default=None, repr=False)  # with where the environments come from

    @property
    def config(self) -> Config:
        return self.agent.config

    @property
    def costs(self) -> Costs:
        if self._costs is None or self._costs[0] is not self.agent.source:
            self._costs = self.agent.source, Costs.of(self.agent)
        return self._costs[1]

    @property
    def borrows(self) -> bool:
        """Whether there are no environments but those that training uses, which an evaluation would disturb."""
        return isinstance(self.agent.source, gym.vector.VectorEnv)

    def episodes_due(self, before: int, checkpoint: bool) -> int:
        """How many to play after the iteration that began at the step `before`; `checkpoint`: one is due now."""
        config, step = self.config, self.progress.step
        if self.failed or not (self.seen or config.stop_at is not None):
            return 0
        if step >= self.total:
            return max(self.episodes_at_end(), config.eval_checkpoints)
        if checkpoint and config.eval_checkpoints:
            return config.eval_checkpoints
        if config.eval_episodes == 0 or (self.borrows and config.eval_episodes is None):
            return 0
        wanted = EPISODES if config.eval_episodes is None else config.eval_episodes
        if config.eval_every:
            return wanted if step // config.eval_every > before // config.eval_every else 0
        if self._may_have_reached():
            return wanted
        every = max(1, self.total // EVALUATIONS_A_RUN)
        if step // every == before // every:
            return 0
        return self.costs.fitting(wanted, self.expected_length(), self._allowance(wanted))

    def episodes_at_end(self) -> int:
        """As many as were asked for; otherwise as many as fit, but never fewer than a few."""
        if self.failed or not self.seen or (self.borrows and self.config.eval_episodes is None):
            return 0
        if self.config.eval_episodes is not None:
            return self.config.eval_episodes
        length = self.expected_length()
        at_least = LITTLE_MORE * self.costs.cost(FEWEST, length)
        return self.costs.fitting(EPISODES, length, max(SHARE * self.total - self.record.spent, at_least))

    def _allowance(self, wanted: int) -> float:
        """What an evaluation now may cost: of what is not kept back for the end, the share of the run that is over."""
        budget = SHARE * self.total
        last = min(FOR_THE_LAST * budget, self.costs.cost(wanted, self.expected_length()))
        return (budget - last) * self.progress.step / self.total - self.record.spent

    def expected_length(self) -> float:
        """Of the longest episode of the next evaluation, by those of training and of the last evaluation."""
        lengths = list(self.progress.recent_lengths)
        if not lengths:  # those that run may have begun with the run, and may go on for long
            running = min(self.progress.step / self.config.num_envs, float(MOST_STEPS))
            return max(running, float(LEAST_STEPS), self.record.longest)
        longer = LONGER_THAN_TRAINING if min(lengths) < max(lengths) else 1.0
        return max(longer * float(np.percentile(lengths, 90)), self.record.longest)

    def _may_have_reached(self) -> bool:
        """Whether the returns of training have come to the score to stop at, and no evaluation has just denied it."""
        goal, returns, config = self.config.stop_at, self.progress.recent_returns, self.config
        if goal is None or not returns or float(np.mean(returns)) < goal:
            return False
        patience = max(config.batch_size, self.total // (5 * EVALUATIONS_A_RUN))
        return self.record.last is None or self.progress.step - int(self.record.last["step"]) >= patience

    def make(self, episodes: int) -> dict[str, Any]:
        """Play them; the summary by the names of the metrics. Nothing where the environments cannot be had a second time."""
        found: dict[str, Any] = {}
        try:
            for prefix, levels in (("eval", "train"), ("eval_test", "test")):
                if levels == "train" or is_limited(self.agent):
                    played = self._played(episodes, levels)
                    found |= {f"{prefix}_{name}": value for name, value in played.summary().items()}
                    self._note(played, levels)
        except (
            EnvError,
            RuntimeError,
            OSError,
            ValueError,
            TypeError,
        ) as error:  # a user's environment may raise anything
            self.failed = True
            warnings.warn(
                f"The run is not evaluated from step {self.progress.step:,} on, since its environment cannot be played apart "
                f"from training ({str(error)[:200]}): `--eval-episodes 0` asks for none.",
                PhasegradWarning,
                stacklevel=2,
            )
        return found

    def _played(self, episodes: int, levels: str) -> Evaluation:
        with untouched_randomness(), warnings.catch_warnings():
            if self.told_of_cuts:
                warnings.simplefilter("ignore", PhasegradWarning)
            cut_at = max(LEAST_STEPS, LONGER_THAN_SEEN * self.progress.longest_episode)
            how: dict[str, Any] = {"deterministic": True, "seed": None, "levels": levels}
            played = run_evaluation(self.agent, episodes, **how, longest=cut_at)
        self.told_of_cuts |= played.cut > 0
        if self.progress.recent_successes and played.success_rate is None:  # it speaks of successes only: none was one
            played = replace(played, successes=[False] * len(played.returns))
        return played

    def _note(self, played: Evaluation, levels: str) -> None:
        record, longest, count = self.record, float(max(played.lengths)), len(played.returns)
        record.spent += self.costs.cost(count, longest) / self.costs.times
        record.longest = longest if levels == "train" else max(longest, record.longest)
        summary = {**played.summary(), "step": self.progress.step}
        if levels == "test":
            record.last_test = summary
            return
        record.last = summary
        if record.best is None or summary["return_mean"] > record.best["return_mean"]:
            record.best = {name: summary[name] for name in ("step", "return_mean", "episodes")}

    def reached(self) -> bool:
        """Whether the evaluation just made has come to the score to stop at."""
        last, goal = self.record.last, self.config.stop_at
        return goal is not None and last is not None and is_of(last, self.progress) and last["return_mean"] >= goal

    def result(self) -> dict[str, Any]:
        """What result.json says: the evaluation of the run's last step, made now if it was not yet."""
        episodes = self.episodes_at_end()
        if (self.record.last is None or not is_of(self.record.last, self.progress)) and episodes:
            self.make(episodes)
        named = {"eval": self.record.last, "eval_test": self.record.last_test}
        found: dict[str, Any] = {name: last for name, last in named.items() if last and is_of(last, self.progress)}
        return found | ({"best_eval": self.record.best} if self.record.best else {})


def is_of(summary: Mapping[str, Any], progress: Progress) -> bool:
    """Whether an evaluation is that of the agent as it is now."""
    return bool(summary["step"] == progress.step)


@contextlib.contextmanager
def untouched_randomness() -> Iterator[None]:
    """Put back the shared generators, from which a user's environments may draw in training too."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
