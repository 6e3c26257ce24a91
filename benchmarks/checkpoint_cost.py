"""What writing checkpoints at the default interval takes of a run's time.

python benchmarks/checkpoint_cost.py
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import phasegrad as pg
from phasegrad.runs.directory import RunDirectory


def measure(algorithm: Any, env: str, steps: int) -> str:
    spent, save = 0.0, RunDirectory.save

    def timed(*arguments: Any, **keywords: Any) -> Any:
        nonlocal spent
        begun = time.perf_counter()
        try:
            return save(*arguments, **keywords)
        finally:
            spent += time.perf_counter() - begun

    RunDirectory.save = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            algorithm(env, seed=1, run_dir=f"{folder}/run", eval_episodes=0).learn(steps)
            whole = time.perf_counter() - begun
    finally:
        RunDirectory.save = save  # type: ignore[method-assign]
    return f"{algorithm.__name__} {env}, {steps:,} steps: {spent:.3f} s of {whole:.1f} s, {spent / whole:.2%}"


if __name__ == "__main__":
    print(measure(pg.PPO, "CartPole-v1", 100_000))
    print(measure(pg.PPG, "LunarLander-v3", 400_000))
