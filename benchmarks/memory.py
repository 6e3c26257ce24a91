"""Trains tasks that hide something with a memory and without; writes results/memory.json and results/memory.md.

    python benchmarks/memory.py cartpole pendulum --policies memory none --seeds 1 2 3

Runs live in runs/memory/TASK-ALGORITHM-POLICY-sSEED. One that is finished is not run again, one that was stopped is
resumed. MiniGrid's task needs `pip install "phasegrad[minigrid]"`, popgym's `pip install popgym`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "runs" / "memory"
RESULTS = ROOT / "results" / "memory.json"


@dataclass(frozen=True)
class Task:
    """An environment, what is to be reached in it, and how each algorithm is trained."""

    env: str
    steps: str
    aim: float
    memory: str
    ppo: str
    ppg: str


REPEAT = "--num-envs 32 --num-steps 64 --num-minibatches 8 --learning-rate 2e-3 --anneal-learning-rate --gamma 0.8"
PHASES = "--n-pi 8 --e-pi 6 --e-v 6 --e-aux 2 --aux-minibatches 32 --aux-learning-rate 1e-3"
TASKS: dict[str, Task] = {
    "cartpole": Task(
        "hidden_velocities:CartPoleNoVelocity-v1", "100_000", 500, "--memory gru",
        ppo="--preset cartpole --gamma 0.99 --normalize-observation --normalize-reward",
        ppg="--preset cartpole --gamma 0.99 --normalize-observation --beta-clone 5 --aux-learning-rate 3e-4",
    ),
    "pendulum": Task(
        "hidden_velocities:PendulumNoVelocity-v1", "100_000", -218, "--memory gru",
        ppo="--preset pendulum --gamma 0.95 --num-envs 16 --learning-rate 2e-3 --hidden-sizes 64",
        ppg="--preset pendulum",
    ),
    "mountaincar": Task(
        "hidden_velocities:MountainCarContinuousNoVelocity-v0", "300_000", 91, "--memory gru",
        ppo="--preset classic --gamma 0.999 --entropy-coef 0.01 --initial-std 3 --normalize-reward",
        ppg="--preset classic --gamma 0.999 --entropy-coef 0.01 --initial-std 3",
    ),
    "minigrid": Task(
        "MiniGrid-MemoryS7-v0", "1_500_000", 0.9, "--memory gru",
        ppo="--backend envpool", ppg="--backend envpool",
    ),
    "repeat-previous": Task(
        "popgym:popgym-RepeatPreviousEasy-v0", "100_000", 0.9, "--memory gru --sequence-length 32",
        ppo=f"{REPEAT} --epochs 8",
        ppg=f"{REPEAT} {PHASES}",
    ),
    "repeat-first": Task(
        "popgym:popgym-RepeatFirstEasy-v0", "100_000", 0.9, "--memory gru --sequence-length 32",
        ppo=f"{REPEAT} --epochs 8",
        ppg=f"{REPEAT} {PHASES}",
    ),
}  # fmt: skip
# how what is hidden can be made up for, and the options that do it
POLICIES = {"memory": "", "none": "", "stack": "--frame-stack 4"}
# what was found on the recorded seeds before the settings above were chosen, on seeds 11 to 14, in its place
EARLIER = (
    "CartPole was run on seeds 1, 2, 3 before with other settings: PPO with the preset alone and a GRU gave 467.7, 366.9, 221.9 "
    "(then rewards and observations were normalised, `gamma` 0.99), PPG with `gamma` 0.99 alone 500, 184.6, 500 (then `beta_clone` "
    "5, `aux_learning_rate` 3e-4 and normalised observations were chosen). All rows with a memory are of recurrent layers whose gates "
    "began at 0; since then those that keep begin at 1."
)
HEADINGS = {"memory": "with a memory", "none": "without", "stack": "4 frames stacked"}


def training(task: str, algorithm: str, policy: str) -> list[str]:
    """The options of `phasegrad train`."""
    chosen = TASKS[task]
    added = chosen.memory if policy == "memory" else POLICIES[policy]
    own = f"{chosen.ppo if algorithm == 'ppo' else chosen.ppg} {added}"
    return [algorithm, "--env", chosen.env, "--total-steps", chosen.steps, *own.split()]


def run_seed(task: str, algorithm: str, policy: str, seed: int) -> dict[str, Any]:
    path = RUNS / f"{task}-{algorithm}-{policy}-s{seed}"
    if not (path / "result.json").exists():
        command = [sys.executable, "-m", "phasegrad", "train", *training(task, algorithm, policy), "--seed", str(seed)]
        command += ["--torch-threads", "1", "--eval-episodes", "20", "--run-dir", str(path), "--resume", "--quiet"]
        places = [str(ROOT / "examples"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))})
    result = json.loads((path / "result.json").read_text())
    return {
        "seed": seed,
        "evaluation": result["eval"],
        "training_return_last_100": result["return_mean"],
        "steps": result["step"],
        "seconds": round(result["seconds"]),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each task and algorithm, with the evaluation of each seed; the commands below it."""
    found = {(row["task"], row["algorithm"], row["policy"]): row for row in rows}
    policies = list(POLICIES)
    lines = [
        f"| task | algorithm | steps | aim | {' | '.join(HEADINGS[policy] for policy in policies)} |",
        f"|---|---|---|---|{'---|' * len(policies)}",
    ]
    commands = []
    for task, algorithm in itertools.product(TASKS, ("ppo", "ppg")):
        if not any((task, algorithm, policy) in found for policy in policies):
            continue
        cells = [evaluations(found.get((task, algorithm, policy))) for policy in policies]
        name, steps = TASKS[task].env.split(":")[-1], int(TASKS[task].steps)
        lines.append(f"| {name} | {algorithm.upper()} | {steps:,} | {TASKS[task].aim:g} | {' | '.join(cells)} |")
        commands.append(" ".join(["phasegrad train", *training(task, algorithm, "memory")]))
    about = (
        "# Learning with a memory\n\n"
        "`python benchmarks/memory.py TASK --policies memory none stack --seeds 1 2 3`: the mean return of 20 greedy episodes at "
        "the end of each run, seeds in the order given. The settings were chosen on seeds 11 to 14; `without` and `4 frames "
        "stacked` differ from `with a memory` in that alone.\n\n"
    )
    told = (
        "\nThe runs with a memory (`PYTHONPATH=examples` for hidden velocities):\n\n```\n"
        + "\n".join(commands)
        + "\n```\n"
    )
    return about + "\n".join(lines) + "\n" + told + f"\n{EARLIER}\n"


def evaluations(row: dict[str, Any] | None) -> str:
    return ", ".join(f"{seed['evaluation']['return_mean']:.4g}" for seed in row["seeds"]) if row else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--algorithms", nargs="+", choices=("ppo", "ppg"), default=["ppo", "ppg"])
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=["memory", "none"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    for which in itertools.product(options.tasks, options.policies, options.algorithms):
        task, policy, algorithm = which
        row: dict[str, Any] = {
            "task": task,
            "algorithm": algorithm,
            "policy": policy,
            "train": " ".join(["phasegrad train", *training(task, algorithm, policy)]),
            "aim": TASKS[task].aim,
            "seeds": [run_seed(task, algorithm, policy, seed) for seed in options.seeds],
        }
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        same = ("task", "algorithm", "policy")
        rows = [*(other for other in kept if any(other[key] != row[key] for key in same)), row]
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(table(rows))
        print(f"{task} {algorithm} {policy}: {evaluations(row)}", flush=True)


if __name__ == "__main__":
    main()
