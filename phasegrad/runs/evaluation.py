"""Playing whole episodes with a trained agent in fresh environments, normalisers frozen, rewards raw."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from phasegrad import envs
from phasegrad.errors import ConfigError, EnvError
from phasegrad.tree import tree_map

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm

MOST_ENVS = 16


@dataclass(frozen=True)
class Evaluation:
    """Raw returns and lengths of evaluation episodes."""

    returns: list[float]
    lengths: list[int]

    def summary(self) -> dict[str, float | int]:
        """What `phasegrad eval --json` prints."""
        return {
            "return_mean": float(np.mean(self.returns)),
            "return_std": float(np.std(self.returns)),
            "return_min": float(np.min(self.returns)),
            "return_max": float(np.max(self.returns)),
            "length_mean": float(np.mean(self.lengths)),
            "episodes": len(self.returns),
        }

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        return float(np.std(self.returns))

    def __getitem__(self, name: str) -> float | int:
        return self.summary()[name]


@dataclass(frozen=True)
class Played:
    """A finished evaluation episode: the `number`-th (from 0) of environment `env`."""

    env: int
    number: int
    episode_return: float
    length: int


class Spectator:
    """Sees an evaluation as it is played. This one looks away; a recorder draws what it sees."""

    def before(self, playing: np.ndarray) -> None:
        """Called before each step; `playing` [N] numbers the episode of each environment, -1 for what does not count."""

    def after(self, step: envs.Step, playing: np.ndarray) -> bool:
        """Called after each step with what it returned; False ends the evaluation here."""
        return True


def run_evaluation(
    agent: Algorithm, episodes: int, *, deterministic: bool, seed: int | None, levels: str
) -> Evaluation:
    """`episodes` whole episodes in environments of their own."""
    env = evaluation_env(agent, episodes, seed=seed, levels=levels)
    try:
        return as_evaluation(play(agent, env, episodes, deterministic=deterministic, seed=seed))
    finally:
        release(agent, env)


@torch.inference_mode()
def play(
    agent: Algorithm,
    env: envs.VectorEnv,
    episodes: int,
    *,
    deterministic: bool,
    seed: int | None,
    spectator: Spectator | None = None,
) -> list[Played]:
    """Episodes in the order they ended. Each environment plays a fixed number, so short episodes are not favoured."""
    quota = np.array([len(part) for part in np.array_split(np.arange(episodes), env.num_envs)])  # episodes of each env
    played = np.zeros_like(quota)
    found: list[Played] = []
    generator = torch.Generator().manual_seed(agent.config.seed if seed is None else seed)
    observation, mask = env.reset()
    while (played < quota).any():
        playing = np.where(played < quota, played, -1)
        if spectator is not None:
            spectator.before(playing)
        tensors = tree_map(lambda leaf: torch.from_numpy(leaf).to(agent.device), observation)
        masks = None if mask is None else torch.from_numpy(mask).to(agent.device)
        params = agent.model.policy(tensors, masks)
        if deterministic:
            actions = agent.family.mode(params)
        else:
            noise = agent.family.draw_noise((env.num_envs,), generator)
            actions = agent.family.sample(params, noise.to(agent.device))
        step = env.step(agent.adapter(actions.cpu().numpy()))
        for episode in step.episodes:
            index = episode.env
            if played[index] < quota[index]:
                found.append(Played(index, int(played[index]), episode.episode_return, episode.length))
                played[index] += 1
        if spectator is not None and not spectator.after(step, playing):
            break
        observation, mask = step.observation, step.action_mask
    return found


def as_evaluation(played: list[Played]) -> Evaluation:
    return Evaluation([episode.episode_return for episode in played], [episode.length for episode in played])


def release(agent: Algorithm, env: envs.VectorEnv) -> None:
    """Close evaluation environments, unless they are the user's own."""
    if not isinstance(agent.source, gym.vector.VectorEnv):
        env.close()


def evaluation_env(
    agent: Algorithm,
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
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, not {episodes}.")
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
        agent.collector = None  # the training environments are about to be used: training restarts them
        num_envs = agent.source.num_envs
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
