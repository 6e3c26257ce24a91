"""An environment of your own: reset, step, two spaces, and (for videos) render. Then train, watch and save."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

import phasegrad as pg
from phasegrad.envs import check


class Thermostat(gym.Env):
    """Keep a leaky room at 21 degrees: the action is the heater's power, the reward falls with the distance."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)  # distance from 21 degrees, outside
    action_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.inside, self.outside = self.np_random.uniform(10, 25), self.np_random.uniform(-5, 15)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> Any:
        self.inside += 0.1 * (self.outside - self.inside) + 3.0 * float(action[0])
        self.steps += 1
        reward = 1.0 - abs(self.inside - 21.0) / 10
        return (
            self._observation(),
            reward,
            False,
            self.steps == 100,
            {},
        )  # a time limit truncates, it does not terminate

    def render(self) -> np.ndarray:
        """A thermometer with a mark at 21 degrees."""
        frame = np.full((120, 40, 3), 240, np.uint8)
        height = int(np.clip(self.inside, 0, 39) * 3)
        frame[120 - height :, 12:28] = (220, 60, 50)
        frame[120 - 63, 8:32] = 0
        return frame

    def _observation(self) -> np.ndarray:
        return np.array([self.inside - 21.0, self.outside], np.float32)


if __name__ == "__main__":
    print(check(Thermostat))  # a sentence on any fault, before time is spent on training
    agent = pg.PPO(
        Thermostat,  # a function or class that makes one environment
        num_envs=8,
        num_steps=128,
        gamma=0.95,
        normalize_observation=True,
        action_bounds="rescale",
        seed=1,
    )
    agent.learn(61_440, progress=True)
    print(agent.evaluate(20).summary())
    print(agent.record("thermostat.mp4", max_steps=60))
    agent.save("thermostat")
    agent = pg.load("thermostat", env=Thermostat)  # needed again to make environments; acting alone needs none
