"""Seconds until an agent is good: ours with its preset against Stable-Baselines3 with the RL zoo's tuned settings.

    python benchmarks/time_to_score.py --peer .venv-peers/bin/python --seeds 1 2 3 4 5 --out results/time-to-score.json

Each run is a process of its own. The clock starts when the process does, so imports, building environments and compiling count;
it ends with the first greedy evaluation over 20 episodes whose mean return reaches the task's score. Both sides are evaluated
after the same numbers of steps. What the evaluations take is measured and taken off on both sides ("seconds"), since one side
evaluates by compiled code and the other does not; "seconds_with_evaluations" has it in. A run that spends its steps, or
the cap of seconds without those of evaluations, before it reaches the score counts as not having reached it. Runs go in turn,
ours and theirs, one at a time: the machine should have nothing else to do. Finished runs are kept in the output file and not
run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Task:
    """An environment, the score to reach, how often both are evaluated, and our algorithm's steps (its preset's schedule)."""

    env: str
    score: float
    eval_every: int
    steps: int
    algorithm: str = "ppo"


TASKS = {
    "cartpole": Task("CartPole-v1", 475, 5_000, 100_000),
    "acrobot": Task("Acrobot-v1", -90, 10_000, 300_000),
    "pendulum": Task("Pendulum-v1", -200, 10_000, 200_000),
    "lunarlander": Task("LunarLander-v3", 200, 25_000, 1_000_000),
    "bipedalwalker": Task("BipedalWalker-v3", 300, 100_000, 2_000_000),
    "invertedpendulum": Task("InvertedPendulum-v5", 1000, 10_000, 100_000),
    "halfcheetah": Task("HalfCheetah-v5", 2000, 50_000, 1_000_000),
    "hopper": Task("Hopper-v5", 2000, 50_000, 1_000_000),
}
EPISODES = 20
CAP = 600.0  # seconds of a run, without its evaluations
PATIENCE = 4.0  # times the cap, evaluations included: a run that takes longer is ended


def run_ours(task: Task, seed: int, cap: float) -> dict[str, Any]:
    """Train by the command line, as a user would, until the score is reached; read what it took from the run directory."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "phasegrad", "train", task.algorithm, "--env", task.env, "--seed", str(seed)]
        command += ["--total-steps", str(task.steps), "--eval-every", str(task.eval_every)]
        command += [
            "--eval-episodes",
            str(EPISODES),
            "--stop-at",
            str(task.score),
            "--run-dir",
            f"{folder}/run",
            "--quiet",
        ]
        begun = time.monotonic()
        done = _bounded(command, PATIENCE * cap)
        elapsed = time.monotonic() - begun
        if done is None:
            return _missed(elapsed)
        result = json.loads(Path(folder, "run", "result.json").read_text())
        seconds = elapsed - result["seconds_evaluation"]
        return {
            "reached": seconds <= cap and result["eval"]["return_mean"] >= task.score,
            "seconds": seconds,
            "seconds_with_evaluations": elapsed,
            "steps": result["step"],
            "score": result["eval"]["return_mean"],
        }


def run_peer(name: str, seed: int, cap: float, peer: str) -> dict[str, Any]:
    """The same with Stable-Baselines3, in its own virtual environment."""
    task = TASKS[name]
    command = [
        peer,
        str(HERE / "time_to_score_sb3.py"),
        name,
        str(seed),
        str(task.score),
        str(task.eval_every),
        str(EPISODES),
        str(cap),
    ]
    begun = time.monotonic()
    done = _bounded(command, PATIENCE * cap)
    elapsed = time.monotonic() - begun
    if done is None:
        return _missed(elapsed)
    found = json.loads(done.splitlines()[-1])
    seconds = elapsed - found.pop("seconds_evaluation")
    times = {"seconds": seconds, "seconds_with_evaluations": elapsed}
    return {**found, "reached": found["reached"] and seconds <= cap, **times}


def _missed(elapsed: float) -> dict[str, Any]:
    """Of a run that was ended, in which nobody counted the seconds of evaluations."""
    return {"reached": False, "seconds": elapsed, "seconds_with_evaluations": elapsed, "steps": None, "score": None}


def _as_installed() -> dict[str, str]:
    """Bytecode may be kept, as it is of installed packages: else one side would compile its modules in every run."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _bounded(command: list[str], cap: float) -> str | None:
    """A command's output; None where it took longer than the cap."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=cap, cwd=ROOT, env=_as_installed())
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def median_time(runs: list[dict[str, Any]]) -> float:
    """Median seconds, a run that did not reach the score counting as never."""
    return statistics.median(run["seconds"] if run["reached"] else math.inf for run in runs)


def summary(sides: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians and their ratio over the seeds that both sides have; a bound where a side's median run did not arrive."""
    seeds = sorted(set(sides["ours"]) & set(sides["sb3"]), key=int)
    ours, theirs = (median_time([sides[side][seed] for seed in seeds]) for side in ("ours", "sb3"))
    found: dict[str, Any] = {"seeds": [int(seed) for seed in seeds]}
    found |= {"ours": None if math.isinf(ours) else ours, "sb3": None if math.isinf(theirs) else theirs}
    if math.isinf(ours):
        return found | {"ratio": None, "ratio_is": "unknown: ours did not reach the score in the median"}
    bound = math.isinf(theirs)
    peer = min(run["seconds"] for run in _late(sides["sb3"], seeds)) if bound else theirs
    return found | {
        "ratio": peer / ours,
        "ratio_is": "at least: the peer's median run did not reach the score" if bound else "measured",
    }


def _late(runs: dict[str, dict[str, Any]], seeds: list[str]) -> list[dict[str, Any]]:
    """Those that did not reach the score: where the median run is one of them, it would have taken longer than the shortest."""
    return [runs[seed] for seed in seeds if not runs[seed]["reached"]]


def overall(tasks: dict[str, Any]) -> dict[str, Any]:
    """The geometric mean of the ratios; bounds count as what they are bounds of."""
    ratios = [task["summary"]["ratio"] for task in tasks.values() if task.get("summary", {}).get("ratio")]
    if not ratios:
        return {}
    return {"tasks": len(ratios), "ratio": math.exp(statistics.mean(map(math.log, ratios))), "least": min(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tasks", nargs="*", default=list(TASKS), metavar="TASK", help=f"of {', '.join(TASKS)}; all by default"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--cap", type=float, default=CAP, help="seconds of a run, without its evaluations")
    parser.add_argument("--peer", default=".venv-peers/bin/python", help="Python with stable-baselines3")
    parser.add_argument("--sides", nargs="+", choices=("ours", "sb3"), default=["ours", "sb3"])
    parser.add_argument("--out", default="results/time-to-score.json")
    options = parser.parse_args()
    if unknown := [name for name in options.tasks if name not in TASKS]:
        parser.error(f"no task {unknown[0]}; there are {', '.join(TASKS)}")
    path = Path(options.out)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cap": options.cap, "tasks": {}}
    if found["cap"] != options.cap:
        parser.error(f"{path} has a cap of {found['cap']} seconds")
    for seed in options.seeds:
        for name in options.tasks:
            task = TASKS[name]
            row = found["tasks"].setdefault(name, {"env": task.env, "score": task.score, "eval_every": task.eval_every})
            for side in options.sides:
                runs = row.setdefault(side, {})
                if str(seed) in runs:
                    continue
                own = side == "ours"
                run = run_ours(task, seed, options.cap) if own else run_peer(name, seed, options.cap, options.peer)
                runs[str(seed)] = run
                told = f"{run['seconds']:.1f} s" if run["reached"] else f"not reached in {run['seconds']:.0f} s"
                print(f"{name} seed {seed} {side}: {told} ({run['steps']} steps)", flush=True)
                if "ours" in row and "sb3" in row:
                    row["summary"] = summary(row)
                found["overall"] = overall(found["tasks"])
                path.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found.get("overall", {})))


if __name__ == "__main__":
    main()
