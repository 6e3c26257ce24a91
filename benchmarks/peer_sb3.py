"""Stable-Baselines3's PPO on one task, timed after a warm-up. Runs in the peers' virtual environment.

.venv-peers/bin/python benchmarks/peer_sb3.py halfcheetah-8 20
"""

import json
import resource
import sys
import time

import gymnasium as gym
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env

NETWORK = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh}
TASKS = {
    "halfcheetah-8": ("HalfCheetah-v5", 8, {"n_steps": 256, "n_epochs": 10, "batch_size": 64}),
    "halfcheetah-1": ("HalfCheetah-v5", 1, {"n_steps": 2048, "n_epochs": 10, "batch_size": 64}),
    "cartpole-4": ("CartPole-v1", 4, {"n_steps": 128, "n_epochs": 4, "batch_size": 128}),
    "cartpole-8": ("CartPole-v1", 8, {"n_steps": 256, "n_epochs": 10, "batch_size": 64}),
    "cartpole-lstm": ("CartPole-v1", 8, {"n_steps": 128, "n_epochs": 10, "batch_size": 128}),
    "breakout": ("ALE/Breakout-v5", 8, {"n_steps": 128, "n_epochs": 4, "batch_size": 256}),
}


class HiddenVelocities(gym.ObservationWrapper):
    """CartPole's place and angle, as examples/hidden_velocities.py shows them."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(space.low[0:4:2], space.high[0:4:2], dtype=space.dtype)

    def observation(self, observation):
        return observation[0:4:2]


class Stopwatch(BaseCallback):
    """Notes the time at each rollout's start; ends the training when it has seen enough."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.limit, self.marks = seconds, []

    def _on_rollout_start(self) -> None:
        self.marks.append((time.perf_counter(), self.num_timesteps))

    def _on_step(self) -> bool:
        return len(self.marks) < 4 or self.marks[-1][0] - self.marks[1][0] < self.limit


def main(name: str, seconds: float) -> None:
    env_id, num_envs, settings = TASKS[name]
    if env_id.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
        env, policy, network = make_atari_env("BreakoutNoFrameskip-v4", n_envs=num_envs, seed=1), "CnnPolicy", {}
        from stable_baselines3.common.vec_env import VecFrameStack

        env = VecFrameStack(env, 4)
    elif name == "cartpole-lstm":
        env, policy = make_vec_env(env_id, n_envs=num_envs, seed=1, wrapper_class=HiddenVelocities), "MlpLstmPolicy"
        network = {"policy_kwargs": {**NETWORK, "lstm_hidden_size": 64}}
    else:
        env, policy, network = make_vec_env(env_id, n_envs=num_envs, seed=1), "MlpPolicy", {"policy_kwargs": NETWORK}
    algorithm = RecurrentPPO if policy == "MlpLstmPolicy" else PPO
    agent = algorithm(policy, env, device="cpu", seed=1, **settings, **network)
    watch = Stopwatch(seconds)
    agent.learn(10**9, callback=watch)
    (begun, before), (ended, after) = watch.marks[1], watch.marks[-1]  # the first rollout is the warm-up
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"sps": (after - before) / (ended - begun), "peak_rss_mb": peak}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
