"""Playing whole episodes with a trained agent in fresh environments, normalisers frozen, rewards raw."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from phasegrad import envs
from phasegrad.agent import Agent
from phasegrad.compute.devices import pick_threads
from phasegrad.config import coerce
from phasegrad.data.transfers import to_device
from phasegrad.errors import ConfigError, EnvError, PhasegradWarning
from phasegrad.runs.formats import score
from phasegrad.runs.notebook_card import card
from phasegrad.tree import tree_map

MOST_ENVS = 20  # played side by side
# Steps of an episode unless asked otherwise: a greedy policy may never end one where there is no time limit.
MOST_STEPS = 10_000


# The names of what an evaluation comes to, as `phasegrad eval --json` prints them.
SUMMARY = (
    "return_mean", "return_std", "return_min", "return_max", "length_mean", "episodes", "episodes_cut",
    "success_rate",  # only where an environment said of an episode whether it was a success
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Raw returns and lengths of evaluation episodes."""

    returns: list[float]
    lengths: list[int]
    cut: int = 0  # of them, so many were ended at the most steps allowed
    successes: list[bool | None] = field(default_factory=list)  # what the environment said of each, if anything

    def summary(self) -> dict[str, float | int]:
        """What it comes to, by the names of `SUMMARY`."""
        returns = self.returns
        statistics = (np.mean(returns), np.std(returns), np.min(returns), np.max(returns), np.mean(self.lengths))
        numbers = dict(zip(SUMMARY, (*map(float, statistics), len(returns), self.cut), strict=False))
        return numbers if self.success_rate is None else numbers | {"success_rate": self.success_rate}

    @property
    def success_rate(self) -> float | None:
        """The share of episodes that were successes, where the environment said so of any; one it says nothing of, or
        that was cut, is none.
        """
        if all(success is None for success in self.successes):
            return None
        return sum(bool(success) for success in self.successes) / len(self.successes)

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        return float(np.std(self.returns))

    def __getitem__(self, name: str) -> float | int:
        return self.summary()[name]

    def __repr__(self) -> str:
        """In a line: the lists themselves are `returns` and `lengths`."""
        return f"Evaluation({', '.join(f'{name} {value}' for name, value in self._told())})"

    def _repr_html_(self) -> str:
        return card("Evaluation", self._told())

    def _told(self) -> list[tuple[str, str]]:
        if not self.returns:
            return [("episodes", "0")]
        found = self.summary()
        spread = f"{score(found['return_mean'])} ± {score(found['return_std'])}"
        told = [
            ("return", f"{spread} (from {score(found['return_min'])} to {score(found['return_max'])})"),
            ("episodes", f"{len(self.returns):,}" + (f", {self.cut:,} of them cut" if self.cut else "")),
            ("length", f"{score(found['length_mean'])} steps on average"),
        ]
        success = self.success_rate
        return told if success is None else [*told, ("success", f"{success:.0%}")]


@dataclass(frozen=True)
class Played:
    """A finished evaluation episode: the `number`-th (from 0) of environment `env`."""

    env: int
    number: int
    episode_return: float
    length: int
    cut: bool = False  # at the most steps allowed
    success: bool | None = None  # as the environment said


@dataclass
class Moment:
    """A step of an evaluation, as it is about to be taken."""

    observation: envs.Observation  # [N, ...]
    seen: Any  # by the agent: the observation, or a stack that ends with it
    actions: np.ndarray  # [N, ...]
    states: torch.Tensor | None  # [N, M], what the agent had in mind
    mask: np.ndarray | None  # [N, A], what it was allowed


class Spectator:
    """Sees an evaluation as it is played. This one looks away; a recorder draws what it sees."""

    def before(self, playing: np.ndarray) -> None:
        """Called before each step; `playing` [N] numbers the episode of each environment, -1 for what does not count."""

    def acting(self, moment: Moment) -> None:
        """Called between the two."""

    def after(self, step: envs.Step, playing: np.ndarray) -> bool:
        """Called after each step with what it returned; False ends the evaluation here."""
        return True

    def restarted(self) -> None:
        """Called when all environments were started anew, after episodes that were cut."""


def run_evaluation(
    agent: Agent,
    episodes: int,
    *,
    deterministic: bool,
    seed: int | None,
    levels: str,
    max_steps: int | None = None,
    longest: int | None = None,
    spectator: Spectator | None = None,
) -> Evaluation:
    """`episodes` whole episodes, or their first `max_steps` steps, in environments of their own; `spectator` sees them.

    Unless `max_steps` is given, an episode is cut after `longest` steps too.
    """
    episodes, max_steps = checked_episodes(episodes), checked_max_steps(max_steps)
    seed = None if seed is None else coerce("seed", seed, int, {"low": 0})
    env = evaluation_env(agent, episodes, seed=seed, levels=levels)
    try:
        most = step_limit(env, max_steps, longest)
        how: dict[str, Any] = {"deterministic": deterministic, "seed": seed, "max_steps": most}
        return as_evaluation(play(agent, env, episodes, **how, spectator=spectator))
    finally:
        release(agent, env)


def elsewhere(agent: Agent, env: Any, env_options: Mapping[str, Any] | None = None) -> Agent:
    """The same agent, to be played in another environment of the same form."""
    config = copy.copy(agent.config)
    options = dict(envs.kept_options(config.env, config.env_options, env, env_options))
    config.settle(env=envs.setting_of(env), env_options=options)
    moved = copy.copy(agent)
    moved.config, moved.source, moved.may_import = config, env, True
    return moved


def checked_episodes(episodes: Any) -> int:
    return int(coerce("episodes", episodes, int, {"low": 1}))


def checked_max_steps(max_steps: Any) -> int | None:
    return None if max_steps is None else int(coerce("max_steps", max_steps, int, {"low": 1}))


def step_limit(env: envs.VectorEnv, max_steps: int | None, longest: int | None = None) -> int:
    """Where an episode is cut: as asked, else well after the environment's own time limit, or at ours if it has none.

    Not after more than `longest` steps: a game's limit may be tens of thousands, which a stuck agent waits for.
    """
    most = max_steps or (2 * env.time_limit if env.time_limit else MOST_STEPS)
    return most if max_steps or longest is None else min(most, longest)


@contextlib.contextmanager
def own_threads(agent: Agent) -> Iterator[None]:
    """As many threads of torch as training takes: small networks lose by a second one, most of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(pick_threads(agent.config.torch_threads, agent.is_large, agent.kept_threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def play(
    agent: Agent,
    env: envs.VectorEnv,
    episodes: int,
    *,
    deterministic: bool,
    seed: int | None,
    max_steps: int,
    spectator: Spectator | None = None,
) -> list[Played]:
    """Episodes in the order they ended. Each environment plays a fixed number, so short episodes are not favoured.

    An episode of `max_steps` is cut there and counts with the return it has. One environment cannot be reset alone, so
    it waits until the others are through or cut too; then all start anew, on further seeds, for the episodes left.
    """
    with own_threads(agent):
        return _play(agent, env, episodes, deterministic, seed, max_steps, spectator)


def _play(
    agent: Agent,
    env: envs.VectorEnv,
    episodes: int,
    deterministic: bool,
    seed: int | None,
    max_steps: int,
    spectator: Spectator | None,
) -> list[Played]:
    quota = np.array([len(part) for part in np.array_split(np.arange(episodes), env.num_envs)])  # episodes of each env
    played, waiting = np.zeros_like(quota), np.zeros(env.num_envs, bool)
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)  # of the running episodes
    found: list[Played] = []
    seed = agent.config.seed if seed is None else seed
    generator = torch.Generator().manual_seed(seed)
    starts = 1
    observation, mask = env.reset()
    states = agent.fresh_states(env.num_envs)  # what it remembers of the running episodes
    stack = agent.stack_of(observation)  # and what it sees of them, where that is more than the last observation
    while (played < quota).any():
        if not ((played < quota) & ~waiting).any():
            env.reseed(envs.env_seeds(seed, starts, env.num_envs, purpose="eval"))
            observation, mask = env.reset()
            states = agent.fresh_states(env.num_envs)
            stack = agent.stack_of(observation)
            starts += 1
            waiting[:], returns[:], lengths[:] = False, 0.0, 0
            if spectator is not None:
                spectator.restarted()
        counts = (played < quota) & ~waiting
        playing = np.where(counts, played, -1)
        if spectator is not None:
            spectator.before(playing)
        noise = None if deterministic else agent.distribution.draw_noise((env.num_envs,), generator)
        seen = observation if stack is None else tree_map(lambda leaf: leaf.numpy(), stack.seen)
        actions, after = agent.act(seen, mask, noise, states)
        if spectator is not None:
            spectator.acting(Moment(observation, seen, actions, states, mask))
        step = env.step(actions)
        if after is not None:
            after.index_fill_(0, to_device(torch.tensor(step.ended), after.device), 0.0)
        states = after
        returns += step.reward
        lengths += 1
        for episode in step.episodes:
            index = episode.env
            returns[index] = lengths[index] = 0
            if counts[index]:
                scored = (episode.episode_return, episode.length)
                found.append(Played(index, int(played[index]), *scored, success=episode.success))
                played[index] += 1
        for index in np.flatnonzero(counts & (lengths >= max_steps)).tolist():
            found.append(Played(index, int(played[index]), float(returns[index]), int(lengths[index]), cut=True))
            played[index] += 1
            waiting[index] = True
        if spectator is not None and not spectator.after(step, playing):
            break
        observation, mask = step.observation, step.action_mask
        if stack is not None:
            stack.push(observation, step.ended)
    warn_of_cuts(agent, found, max_steps)
    return found


def warn_of_cuts(agent: Agent, played: list[Played], max_steps: int) -> None:
    cut = sum(episode.cut for episode in played)
    if cut:
        warnings.warn(
            f"{cut} of {len(played)} evaluation episodes of {agent.config.env} had not ended after {max_steps:,} steps: "
            "they were cut there and count with the return they had; max_steps sets another limit.",
            PhasegradWarning,
            stacklevel=4,
        )


def as_evaluation(played: list[Played]) -> Evaluation:
    returns, lengths = [episode.episode_return for episode in played], [episode.length for episode in played]
    cut, successes = sum(episode.cut for episode in played), [episode.success for episode in played]
    return Evaluation(returns, lengths, cut, successes)


def release(agent: Agent, env: envs.VectorEnv) -> None:
    """Close evaluation environments, unless they are the user's own."""
    if not isinstance(agent.source, gym.vector.VectorEnv | gym.Env):
        env.close()


def evaluation_env(
    agent: Agent,
    episodes: int,
    *,
    seed: int | None,
    levels: str,
    render: bool = False,
    backend: str | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> envs.VectorEnv:
    """Environments apart from the training ones: their own seeds and, for Procgen, the train or test levels.

    As many as `episodes` can use; `backend` where it must be another than the run's, `extra_options` beneath its own.
    """
    episodes = checked_episodes(episodes)
    agent.require_source()  # first: resolving an id may import its module
    config = agent.config
    num_envs = min(episodes, MOST_ENVS)
    options = {**(extra_options or {}), **config.env_options}
    if levels == "test":
        if envs.resolve(config.env, options).family != "procgen":
            raise ConfigError("levels test needs a Procgen environment: others have no levels held out.")
        options |= {"num_levels": 0, "start_level": 0}  # the full distribution, the published way
    elif levels != "train":
        raise ConfigError(f"levels must be train or test, not {levels!r}.")
    if isinstance(agent.source, gym.vector.VectorEnv):
        agent.borrowed += 1  # training, which uses them too, brings them back to where they were
        num_envs = agent.source.num_envs
    elif isinstance(agent.source, gym.Env):
        num_envs = 1
    elif render and not isinstance(agent.source, str) and _takes_render_mode(agent.source):
        options.setdefault("render_mode", "rgb_array")
    env = envs.make(
        agent.source,
        num_envs=num_envs,
        seeds=envs.env_seeds(config.seed if seed is None else seed, 0, num_envs, purpose="eval"),
        backend=config.backend if backend is None else backend,
        num_threads=config.env_threads or None,
        options=options,
        render=render,
        evaluation=True,
        timeout=config.env_timeout or None,
    )
    try:
        agent.require_form(env)
    except EnvError:
        release(agent, env)
        raise
    return env


def _takes_render_mode(factory: Any) -> bool:
    """Whether a user's function or class can be asked to make an environment that draws."""
    try:
        return "render_mode" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False
