"""Known tasks with their velocities hidden: what to do no longer shows in one observation, so the policy must remember.

PYTHONPATH=examples phasegrad train ppo --env hidden_velocities:CartPoleNoVelocity-v1 --preset cartpole --memory gru
"""

from typing import Any

import gymnasium as gym
import numpy as np

import phasegrad as pg

# the new id: the task it is made of, the entries of its observation that are kept
TASKS = {
    "CartPoleNoVelocity-v1": ("CartPole-v1", slice(0, 4, 2)),  # place, angle
    "PendulumNoVelocity-v1": ("Pendulum-v1", slice(0, 2)),  # cosine and sine of the angle
    "MountainCarContinuousNoVelocity-v0": ("MountainCarContinuous-v0", slice(0, 1)),  # place
}


class KeepEntries(gym.ObservationWrapper):
    """Some entries of an observation that is a vector: a slice, which is cut faster than indices are gathered."""

    def __init__(self, env: gym.Env, kept: slice) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.kept = kept
        self.observation_space = gym.spaces.Box(space.low[kept], space.high[kept], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[self.kept]


def make(task: str, kept: slice, **options: Any) -> gym.Env:
    """The task without its time limit and checks, which the new id has."""
    return KeepEntries(gym.make(task, disable_env_checker=True, **options).unwrapped, kept)


for name, (task, kept) in TASKS.items():
    limit = gym.spec(task).max_episode_steps
    gym.register(name, make, max_episode_steps=limit, kwargs={"task": task, "kept": kept})


if __name__ == "__main__":
    agent = pg.PPO("CartPoleNoVelocity-v1", preset="cartpole", memory="gru", seed=1)
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
