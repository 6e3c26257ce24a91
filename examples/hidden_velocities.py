"""Known tasks with their velocities hidden: what to do no longer shows in one observation, so the policy must remember.

PYTHONPATH=examples phasegrad train ppo --env hidden_velocities:CartPoleNoVelocity-v1 --preset cartpole --memory lstm
"""

from typing import Any

import gymnasium as gym
import numpy as np

import phasegrad as pg

# the new id: the task it is made of, the entries of the observation that are kept
TASKS = {
    "CartPoleNoVelocity-v1": ("CartPole-v1", (0, 2)),  # place and angle
    "PendulumNoVelocity-v1": ("Pendulum-v1", (0, 1)),  # cosine and sine of the angle
    "MountainCarContinuousNoVelocity-v0": ("MountainCarContinuous-v0", (0,)),  # place
}


class KeepEntries(gym.ObservationWrapper):
    """Some of the entries of an observation that is a vector."""

    def __init__(self, env: gym.Env, kept: tuple[int, ...]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box) and len(space.shape) == 1
        steps = np.diff(kept)
        even = len(kept) == 1 or (steps[0] > 0 and (steps == steps[0]).all())
        # a slice is cut out of an array several times faster than a list of indices is
        self.kept: Any = slice(kept[0], kept[-1] + 1, int(steps[0]) if len(kept) > 1 else 1) if even else list(kept)
        self.observation_space = gym.spaces.Box(space.low[self.kept], space.high[self.kept], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[self.kept]


def make(task: str, kept: tuple[int, ...], **options: Any) -> gym.Env:
    """The task without its own time limit and checks: the new id has them once."""
    return KeepEntries(gym.make(task, disable_env_checker=True, **options).unwrapped, kept)


for name, (task, kept) in TASKS.items():
    limit = gym.spec(task).max_episode_steps
    gym.register(name, make, max_episode_steps=limit, kwargs={"task": task, "kept": kept})


if __name__ == "__main__":
    agent = pg.PPO("CartPoleNoVelocity-v1", preset="cartpole", memory="lstm", seed=1)
    agent.learn(51_200, progress=True)
    print(agent.evaluate(20).summary())
    env = gym.make("CartPoleNoVelocity-v1")
    observation, _ = env.reset(seed=3)
    state, ended, steps = None, False, 0  # nothing is remembered at the start of an episode
    while not ended:
        action, state = agent.predict(observation, state, deterministic=True)
        observation, _, terminated, truncated, _ = env.step(action)
        ended, steps = terminated or truncated, steps + 1
    print(f"an episode of {steps} steps")
