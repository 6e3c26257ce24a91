"""Stable-Baselines3's A2C on LunarLander-v3 with the RL zoo's settings: what those score here.

    .venv-peers/bin/python benchmarks/a2c_sb3.py --seeds 1 2 3 --steps 200_000 --out results/a2c-sb3.json

One thread, 20 greedy episodes after training. Imports nothing of this package; `make bench-peers` makes the environment for it.
The settings are facts of the zoo's a2c.yml for LunarLander-v2: 8 environments, gamma 0.995, 5 steps, a rate falling from 8.3e-4 to 0,
an entropy coefficient of 1e-5, the rest as A2C's defaults; its benchmark states 155.75 for them after 200k steps.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

RATE = 8.3e-4
EPISODES = 20


def run_seed(seed: int, steps: int) -> dict[str, float]:
    env = make_vec_env("LunarLander-v3", n_envs=8, seed=seed)
    agent = A2C(
        "MlpPolicy",
        env,
        n_steps=5,
        gamma=0.995,
        ent_coef=1e-5,
        learning_rate=lambda left: left * RATE,
        seed=seed,
        device="cpu",
    )
    agent.learn(steps)
    trained = [episode["r"] for episode in agent.ep_info_buffer]
    apart = make_vec_env("LunarLander-v3", n_envs=1, seed=1000 + seed)
    mean, deviation = evaluate_policy(agent, apart, n_eval_episodes=EPISODES, deterministic=True)
    return {
        "seed": seed,
        "evaluation": float(mean),
        "evaluation_std": float(deviation),
        "training_return_last_100": statistics.fmean(trained),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for seed in options.seeds:
        found.append(run_seed(seed, options.steps))
        print(found[-1], flush=True)
    mean = statistics.fmean(each["evaluation"] for each in found)
    print(f"mean of {len(found)} seeds: {mean:.1f}")
    if options.out:
        options.out.write_text(json.dumps({"steps": options.steps, "mean": mean, "seeds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
