"""Action masks: an environment says in `info["action_mask"]` which actions are allowed; the others are never taken."""

from typing import Any

import gymnasium as gym
import numpy as np

import phasegrad as pg


class Shelves(gym.Env):
    """Take the fullest of five shelves; empty ones are not allowed. An episode ends when all are empty."""

    observation_space = gym.spaces.Box(0, 1, (5,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.shelves = self.np_random.integers(1, 5, 5)
        return self._observation(), self._info()

    def step(self, action: int) -> Any:
        assert self.shelves[action] > 0, "the mask forbids this"
        reward = float(self.shelves[action] == self.shelves.max())
        self.shelves[action] -= 1
        return self._observation(), reward, bool((self.shelves == 0).all()), False, self._info()

    def _observation(self) -> np.ndarray:
        return (self.shelves / 5).astype(np.float32)

    def _info(self) -> dict[str, Any]:
        mask = self.shelves > 0
        return {"action_mask": mask if mask.any() else np.ones(5, bool)}


if __name__ == "__main__":
    agent = pg.PPO(Shelves, num_envs=8, num_steps=64, num_minibatches=4, seed=1)
    agent.learn(40_960, progress=True)
    print(agent.evaluate(20).summary())
