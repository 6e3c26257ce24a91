"""What uniformly random actions score in an environment: the zero of the paper's scale for MuJoCo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from phasegrad import envs
from phasegrad.errors import ConfigError
from phasegrad.runs.evaluation import MOST_STEPS

EPISODES = 100
NUM_ENVS = 10


def random_return(env_id: str, options: Mapping[str, Any], backend: str = "auto", episodes: int = EPISODES) -> float:
    """Mean return of whole episodes under actions drawn uniformly from the action space, on fixed seeds."""
    env = envs.make(
        env_id,
        num_envs=NUM_ENVS,
        seeds=envs.env_seeds(0, 0, NUM_ENVS, purpose="eval"),
        backend=backend,
        num_threads=1,
        options=options,
        evaluation=True,
    )
    try:
        if env.has_action_mask:
            raise ConfigError(f"{env_id} masks its actions: give the score of a random policy as `random`.")
        actions = gym.vector.utils.batch_space(env.action_space, NUM_ENVS)
        actions.seed(0)
        quota = -(-episodes // NUM_ENVS)  # as many from each environment, so that short episodes are not favoured
        returns: list[list[float]] = [[] for _ in range(NUM_ENVS)]
        env.reset()
        steps = 0
        while min(len(found) for found in returns) < quota:
            if steps == quota * MOST_STEPS:
                raise ConfigError(
                    f"Episodes of {env_id} rarely end under random actions: give the score of a random policy as `random`."
                )
            steps += 1
            for episode in env.step(envs.flat_actions(env.action_space, actions.sample())).episodes:
                returns[episode.env].append(episode.episode_return)
        return float(np.mean([found[:quota] for found in returns]))
    finally:
        env.close()
