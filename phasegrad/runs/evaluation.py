"""Playing whole episodes with a trained agent in fresh environments, normalisers frozen, rewards raw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from phasegrad import envs
from phasegrad.errors import ConfigError
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


@torch.inference_mode()
def run_evaluation(
    agent: Algorithm, episodes: int, *, deterministic: bool, seed: int | None, levels: str
) -> Evaluation:
    """`episodes` whole episodes. Each environment plays a fixed number of them, so short episodes are not favoured."""
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, not {episodes}.")
    env = evaluation_env(agent, min(episodes, MOST_ENVS), seed=seed, levels=levels)
    quota = np.array([len(part) for part in np.array_split(np.arange(episodes), env.num_envs)])  # episodes of each env
    played = np.zeros_like(quota)
    found: list[envs.Episode] = []
    generator = torch.Generator().manual_seed(agent.config.seed if seed is None else seed)
    try:
        observation, mask = env.reset()
        while (played < quota).any():
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
                if played[episode.env] < quota[episode.env]:
                    played[episode.env] += 1
                    found.append(episode)
            observation, mask = step.observation, step.action_mask
    finally:
        if not isinstance(agent.source, gym.vector.VectorEnv):
            env.close()
    return Evaluation([e.episode_return for e in found], [e.length for e in found])


def evaluation_env(agent: Algorithm, num_envs: int, *, seed: int | None, levels: str, render: bool = False) -> Any:
    """Environments apart from the training ones: their own seeds and, for Procgen, the train or test levels."""
    config = agent.config
    options = dict(config.env_options)
    if levels == "test":
        if envs.resolve(config.env, options).family != "procgen":
            raise ConfigError("levels test needs a Procgen environment: others have no levels held out.")
        options |= {"num_levels": 0, "start_level": 0}  # the full distribution, the published way
    elif levels != "train":
        raise ConfigError(f"levels must be train or test, not {levels!r}.")
    agent.require_source()
    if isinstance(agent.source, gym.vector.VectorEnv):
        agent.collector = None  # the training environments are about to be used: training restarts them
        num_envs = agent.source.num_envs
    return envs.make(
        agent.source,
        num_envs=num_envs,
        seeds=envs.env_seeds(config.seed if seed is None else seed, 0, num_envs, purpose="eval"),
        backend=config.backend,
        num_threads=config.env_threads or None,
        options=options,
        render=render,
        evaluation=True,
    )
