"""Stable-Baselines3's PPO until a score is reached, for time_to_score.py. Runs in the peers' virtual environment.

    .venv-peers/bin/python benchmarks/time_to_score_sb3.py cartpole 1 475 5000 20 600

The settings are the RL zoo's (DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml at 208b6fd), those of the older versions of an
environment where it has none for the newest. One torch thread: with networks this small more threads cost time.
"""

import json
import sys
import time

BEGUN = time.perf_counter()  # of the process, but for what starting Python takes

import torch  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.utils import LinearSchedule  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization  # noqa: E402

WIDE = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": torch.nn.ReLU,
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}
# id, environments, normalised, steps, settings
ZOO = {
    "cartpole": (
        "CartPole-v1", 8, False, 100_000,
        {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0,
         "learning_rate": LinearSchedule(0.001, 0.0, 1.0), "clip_range": LinearSchedule(0.2, 0.0, 1.0)},
    ),
    "acrobot": ("Acrobot-v1", 16, True, 1_000_000, {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0}),
    "pendulum": (
        "Pendulum-v1", 4, False, 100_000,
        {"n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 1e-3, "clip_range": 0.2,
         "use_sde": True, "sde_sample_freq": 4},
    ),
    "lunarlander": (
        "LunarLander-v3", 16, False, 1_000_000,
        {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
    ),
    "bipedalwalker": (
        "BipedalWalker-v3", 32, True, 5_000_000,
        {"n_steps": 2048, "batch_size": 64, "gae_lambda": 0.95, "gamma": 0.999, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 3e-4,
         "clip_range": 0.18},
    ),
    "invertedpendulum": (
        "InvertedPendulum-v5", 1, True, 1_000_000,
        {"n_steps": 32, "batch_size": 64, "gamma": 0.999, "learning_rate": 0.000222425, "ent_coef": 1.37976e-07, "clip_range": 0.4,
         "n_epochs": 5, "gae_lambda": 0.9, "max_grad_norm": 0.3, "vf_coef": 0.19816},
    ),
    "halfcheetah": (
        "HalfCheetah-v5", 1, True, 1_000_000,
        {"n_steps": 512, "batch_size": 64, "gamma": 0.98, "learning_rate": 2.0633e-05, "ent_coef": 0.000401762, "clip_range": 0.1,
         "n_epochs": 20, "gae_lambda": 0.92, "max_grad_norm": 0.8, "vf_coef": 0.58096, "policy_kwargs": WIDE},
    ),
    "hopper": (
        "Hopper-v5", 1, True, 1_000_000,
        {"n_steps": 512, "batch_size": 32, "gamma": 0.999, "learning_rate": 9.80828e-05, "ent_coef": 0.00229519, "clip_range": 0.2,
         "n_epochs": 5, "gae_lambda": 0.99, "max_grad_norm": 0.7, "vf_coef": 0.835671, "policy_kwargs": WIDE},
    ),
}  # fmt: skip


class Evaluations(BaseCallback):
    """Evaluates every so many steps, between rollouts, and ends the training once the score is reached or the cap is spent."""

    def __init__(self, env, score: float, every: int, episodes: int, cap: float) -> None:
        super().__init__()
        self.env, self.score, self.every, self.episodes, self.cap = env, score, every, episodes, cap
        self.next, self.seconds, self.last, self.reached = every, 0.0, None, False

    def evaluate(self) -> None:
        begun = time.perf_counter()
        if isinstance(self.env, VecNormalize):
            sync_envs_normalization(self.training_env, self.env)
        self.last = float(evaluate_policy(self.model, self.env, n_eval_episodes=self.episodes, deterministic=True)[0])
        self.reached = self.last >= self.score
        self.next = (self.num_timesteps // self.every + 1) * self.every
        self.seconds += time.perf_counter() - begun

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.next:
            self.evaluate()

    def _on_step(self) -> bool:
        return not self.reached and not self.spent()

    def spent(self) -> bool:
        """Whether training has taken the cap of seconds; evaluations do not count."""
        return time.perf_counter() - BEGUN - self.seconds >= self.cap

    def _on_training_end(self) -> None:
        if not self.reached and not self.spent():
            self.evaluate()


def main(name: str, seed: int, score: float, every: int, episodes: int, cap: float) -> None:
    torch.set_num_threads(1)
    env_id, count, normalised, steps, settings = ZOO[name]
    env, judged = make_vec_env(env_id, n_envs=count, seed=seed), make_vec_env(env_id, n_envs=episodes, seed=seed + 1000)
    if normalised:
        env = VecNormalize(env, gamma=settings["gamma"])
        judged = VecNormalize(judged, training=False, norm_reward=False, gamma=settings["gamma"])
    agent = PPO("MlpPolicy", env, device="cpu", seed=seed, **settings)
    evaluations = Evaluations(judged, score, every, episodes, cap)
    agent.learn(steps, callback=evaluations)
    told = {"reached": evaluations.reached, "steps": agent.num_timesteps, "score": evaluations.last}
    print(json.dumps({**told, "seconds_evaluation": evaluations.seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]))
