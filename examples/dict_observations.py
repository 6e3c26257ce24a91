"""Dict observations: a picture, a vector and an integer together; each part goes through the encoder it needs."""

from typing import Any

import gymnasium as gym
import numpy as np

import phasegrad as pg


class Courier(gym.Env):
    """Walk to the house whose colour is on the order. The map is an image, the order an integer, the way a vector."""

    observation_space = gym.spaces.Dict(
        {
            "map": gym.spaces.Box(0, 255, (7, 7, 3), np.uint8),
            "order": gym.spaces.Discrete(3),
            "position": gym.spaces.Box(-1, 1, (2,), np.float32),
        }
    )
    action_space = gym.spaces.Discrete(4)
    moves = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        cells = self.np_random.permutation(49)[:4]
        self.houses = np.stack([cells[:3] // 7, cells[:3] % 7], 1)  # [colour, (row, column)]
        self.position = np.array([cells[3] // 7, cells[3] % 7])
        self.order, self.steps = int(self.np_random.integers(3)), 0
        return self._observation(), {}

    def step(self, action: int) -> Any:
        before = np.abs(self.position - self.houses[self.order]).sum()
        self.position = np.clip(self.position + self.moves[action], 0, 6)
        after = np.abs(self.position - self.houses[self.order]).sum()
        self.steps += 1
        return self._observation(), 0.1 * float(before - after) + (after == 0), bool(after == 0), self.steps == 40, {}

    def _observation(self) -> dict[str, Any]:
        picture = np.zeros((7, 7, 3), np.uint8)
        for colour, (row, column) in enumerate(self.houses):
            picture[row, column, colour] = 10  # small grids are read as codes up to 10, as MiniGrid's are
        return {"map": picture, "order": self.order, "position": (self.position / 3 - 1).astype(np.float32)}


if __name__ == "__main__":
    agent = pg.PPO(Courier, num_envs=16, num_steps=64, num_minibatches=4, epochs=4, entropy_coef=0.01, seed=1)
    agent.learn(102_400, progress=True)
    print(agent.evaluate(20).summary())
    observation, _ = Courier().reset(seed=3)
    action, _ = agent.predict(observation)  # a dict in, as the environment gives it
    print(f"first move towards the house of colour {observation['order']}: {action}")
