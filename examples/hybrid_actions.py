"""Hybrid actions: a Dict of a choice and numbers is learnt as it is, and given to the environment in its own structure."""

from typing import Any

import gymnasium as gym
import numpy as np

import phasegrad as pg


class Crane(gym.Env):
    """Lower a load onto a mark: each step swing by an angle or wind the rope; let go when it hangs over the mark.

    `what` is chosen among three; `angle` and `rope` are numbers, of which the choice uses one. Letting go is allowed
    from the second step on: the mask says so, for the one part that has choices.
    """

    SWING, WIND, LET_GO = range(3)
    observation_space = gym.spaces.Box(-2, 2, (4,), np.float32)
    action_space = gym.spaces.Dict(
        {
            "what": gym.spaces.Discrete(3),
            "angle": gym.spaces.Box(-1, 1, (1,), np.float32),
            "rope": gym.spaces.Box(-0.5, 0.5, (1,), np.float32),
        }
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.load, self.mark, self.steps = np.array([0.0, 0.5]), self.np_random.uniform([-1, 0], [1, 1]), 0
        return self._observation(), self._info()

    def step(self, action: dict[str, Any]) -> Any:
        before, self.steps = self._distance(), self.steps + 1
        if action["what"] == self.LET_GO:
            return self._observation(), 1.0 - 2 * before, True, False, self._info()
        if action["what"] == self.SWING:
            self.load[0] = np.clip(self.load[0] + action["angle"][0], -1, 1)
        else:
            self.load[1] = np.clip(self.load[1] + action["rope"][0], 0, 1)
        return self._observation(), before - self._distance() - 0.02, False, self.steps == 20, self._info()

    def _distance(self) -> float:
        return float(np.abs(self.load - self.mark).sum())

    def _observation(self) -> np.ndarray:
        return np.concatenate([self.load, self.mark - self.load]).astype(np.float32)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": {"what": np.array([True, True, self.steps > 0]), "angle": None, "rope": None}}


if __name__ == "__main__":
    agent = pg.PPO(Crane, num_envs=16, num_steps=64, num_minibatches=4, learning_rate=3e-3, seed=1)
    agent.learn(30_720, progress=True)
    print(agent.evaluate(20).summary())
    env = Crane()
    observation, info = env.reset(seed=0)
    action, _ = agent.predict(
        observation, mask=info["action_mask"]
    )  # such as {'what': 0, 'angle': [...], 'rope': [...]}
    env.step(action)
