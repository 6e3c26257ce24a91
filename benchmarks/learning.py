"""Trains the recorded tasks and writes results/learning-TASK.json: returns by seed, evaluation, speed.

    python benchmarks/learning.py lunar-ppo --seeds 1 2 3 --jobs 2

Runs live in runs/learning/TASK-sSEED. One that is finished is not run again, one that was stopped is resumed. What uniformly
random actions score in the same environment, among those that its mask allows, stands beside the scores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from phasegrad import envs
from phasegrad.envs.actions import random_actions

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "runs" / "learning"

# task: algorithm, environment, steps, further options
TASKS: dict[str, tuple[str, str, str, list[str]]] = {
    "cartpole-ppo": ("ppo", "CartPole-v1", "100_000", []),
    "cartpole-ppg": ("ppg", "CartPole-v1", "100_000", []),
    "acrobot-ppo": ("ppo", "Acrobot-v1", "300_000", []),
    "lunar-ppo": ("ppo", "LunarLander-v3", "1_000_000", []),
    "lunar-ppg": ("ppg", "LunarLander-v3", "400_000", []),
    "lunar-acer": ("acer", "LunarLander-v3", "1_000_000", []),
    "acrobot-acer": ("acer", "Acrobot-v1", "500_000", []),
    "lunar-a2c-short": ("a2c", "LunarLander-v3", "200_000", []),
    "lunar-a2c": ("a2c", "LunarLander-v3", "500_000", []),
    "pendulum-ppg": ("ppg", "Pendulum-v1", "100_000", []),
    "inverted-pendulum-ppo": ("ppo", "InvertedPendulum-v5", "100_000", []),
    "halfcheetah-ppo": ("ppo", "HalfCheetah-v5", "1_000_000", ["--preset", "mujoco-paper"]),
    "halfcheetah-ppg": ("ppg", "HalfCheetah-v5", "1_000_000", ["--preset", "mujoco-paper"]),
    "mountaincar-short": ("ppo", "MountainCarContinuous-v0", "40960", []),
    "lunar-short-ppg": ("ppg", "LunarLander-v3", "102_400", []),
    "lunar-short": ("ppo", "LunarLander-v3", "102_400", []),
    "halfcheetah-short": ("ppo", "HalfCheetah-v5", "51_200", []),
    "starpilot-ppo": ("ppo", "procgen/starpilot", "1_015_808", ["--preset", "procgen-fast"]),
    "starpilot-ppg": ("ppg", "procgen/starpilot", "1_015_808", ["--preset", "procgen-fast"]),
    "pong-ppo": ("ppo", "Pong-v5", "2_000_000", ["--preset", "atari-fast"]),
    "dmc-cartpole-swingup": ("ppo", "CartpoleSwingup-v1", "300_000", []),
    "dmc-cartpole-swingup-long": ("ppo", "CartpoleSwingup-v1", "600_000", []),
    "dmc-walker-walk": ("ppo", "WalkerWalk-v1", "300_000", []),
    "dmc-cheetah-run": ("ppo", "CheetahRun-v1", "1_000_000", []),
    "metaworld-reach": ("ppo", "MetaWorld/Reach-v3", "80_000", []),
    "myosuite-finger-reach": ("ppo", "MyoSuite/myoFingerReachFixed-v0", "60_000", []),
    "playground-panda-pick": ("ppo", "PandaPickCube-v1", "80_000", []),
    "robotics-fetch-reach-dense": ("ppo", "FetchReachDense-v4", "20_480", []),
    "robotics-fetch-reach": ("ppo", "FetchReach-v4", "20_480", []),
    "highway-fast": ("ppo", "HighwayFast-v0", "40_000", []),
    "jumanji-2048": ("ppo", "Game2048-v1", "150_000", []),
    "vizdoom-defend-the-center": ("ppo", "DefendTheCenter-v1", "40_000", []),
}
RANDOM_EPISODES, RANDOM_STEPS = (
    20,
    20_000,
)  # of the random policy: as many episodes as an evaluation, or those within so many steps


def run_seed(task: str, seed: int) -> dict[str, object]:
    algorithm, env, steps, options = TASKS[task]
    path = RUNS / f"{task}-s{seed}"
    phasegrad = [sys.executable, "-m", "phasegrad"]
    if not (path / "result.json").exists():
        command = [*phasegrad, "train", algorithm, "--env", env, "--total-steps", steps, "--seed", str(seed), *options]
        command += ["--torch-threads", "1", "--eval-episodes", "20", "--run-dir", str(path), "--resume", "--quiet"]
        subprocess.run(command, check=True)
    result = json.loads((path / "result.json").read_text())
    return {
        "seed": seed,
        "training_return_last_100": result["return_mean"],
        "training_episodes": result["episodes"],
        "evaluation": result["eval"],
        "steps": result["step"],
        "seconds": round(result["seconds"]),
        "peak_rss_mb": round(result["peak_rss_mb"]),
    }


def random_policy(task: str, seed: int = 1, num_envs: int = 4) -> dict[str, float | int | None]:
    """What uniformly random actions score, with the environment's options as the trained runs have them."""
    _, env_id, _, _ = TASKS[task]
    config = json.loads(next(RUNS.glob(f"{task}-s*/config.json")).read_text())
    env = envs.make(
        env_id,
        num_envs=num_envs,
        seeds=envs.env_seeds(seed, 0, num_envs, purpose="eval"),
        num_threads=1,
        options=config["env_options"],
        evaluation=True,
    )
    random, episodes = np.random.default_rng(seed), []
    try:
        _, mask = env.reset()
        for _ in range(RANDOM_STEPS // num_envs):
            step = env.step(random_actions(env.action_space, num_envs, random, mask))
            mask = step.action_mask
            episodes += step.episodes
            if len(episodes) >= RANDOM_EPISODES:
                break
    finally:
        env.close()
    successes = [episode.success for episode in episodes if episode.success is not None]
    return {
        "return_mean": statistics.mean(episode.episode_return for episode in episodes) if episodes else None,
        "success_rate": statistics.mean(successes) if successes else None,
        "episodes": len(episodes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--suffix", default="", help="of the result files' names, such as -before")
    options = parser.parse_args()
    for task in options.tasks:
        with ThreadPoolExecutor(options.jobs) as pool:
            seeds = list(pool.map(lambda seed, task=task: run_seed(task, seed), options.seeds))
        algorithm, env, steps, extra = TASKS[task]
        evaluated = [seed["evaluation"]["return_mean"] for seed in seeds]
        trained = [seed["training_return_last_100"] for seed in seeds]
        ended = [value for value in trained if value is not None]  # a run may end before its first episode does
        summary = {
            "task": task,
            "command": f"python benchmarks/learning.py {task} --seeds {' '.join(map(str, options.seeds))}",
            "train": " ".join(["phasegrad train", algorithm, "--env", env, "--total-steps", steps, *extra]),
            "evaluation_mean": statistics.mean(evaluated),
            "training_mean": statistics.mean(ended) if ended else None,
            "random_policy": random_policy(task),
            "seeds": seeds,
        }
        (ROOT / "results" / f"learning-{task}{options.suffix}.json").write_text(json.dumps(summary, indent=1) + "\n")
        print(f"{task}: evaluation {[round(x, 1) for x in evaluated]}, training {[x and round(x, 1) for x in trained]}")


if __name__ == "__main__":
    main()
