"""What the default evaluations and checkpoints of a run cost, as shares of its seconds.

    python benchmarks/evaluation_cost.py --out results/evaluation-cost.json

Each task is trained as `phasegrad train` does it, in a process of its own, `--repeats` times; the medians count.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from phasegrad.runs.files import write_json
from phasegrad.runs.reading import MetricsReader
from phasegrad.versions import versions

TASKS = {
    "ppo CartPole-v1 50k": ["ppo", "--env", "CartPole-v1", "--total-steps", "51200"],
    "ppg CartPole-v1 50k": ["ppg", "--env", "CartPole-v1", "--total-steps", "51200"],
    "ppo CartPole-v1 500k": ["ppo", "--env", "CartPole-v1", "--total-steps", "512000"],
    "a2c CartPole-v1 200k": ["a2c", "--env", "CartPole-v1", "--total-steps", "200000"],
    "ppo CartPole-v1 200k, gymnasium": [
        "ppo", "--env", "CartPole-v1", "--total-steps", "204800", "--backend", "gymnasium",
    ],
    "ppo InvertedPendulum-v5 100k": ["ppo", "--env", "InvertedPendulum-v5", "--total-steps", "102400"],
    "ppg LunarLander-v3 600k": ["ppg", "--env", "LunarLander-v3", "--total-steps", "600000"],
    "ppo HalfCheetah-v5 300k": ["ppo", "--env", "HalfCheetah-v5", "--total-steps", "303104"],
    "ppo procgen/starpilot 100k": [
        "ppo", "--env", "procgen/starpilot", "--total-steps", "98304", "--preset", "procgen-fast",
        "--env.num-levels", "200",
    ],
    "ppo Breakout-v5 60k": ["ppo", "--env", "Breakout-v5", "--total-steps", "61440"],
}  # fmt: skip


def measure(options: list[str], folder: Path) -> dict[str, Any]:
    """One run: what of its seconds went to evaluations and checkpoints, and what the evaluations were."""
    command = [sys.executable, "-m", "phasegrad", "train", *options, "--quiet", "--run-dir", str(folder)]
    subprocess.run(command, check=True)
    result = json.loads((folder / "result.json").read_text())
    rows = list(MetricsReader(folder / "metrics.jsonl").new_rows())
    episodes = [int(row["eval_episodes"]) for row in rows if isinstance(row.get("eval_episodes"), float)]  # type: ignore[arg-type]
    steps = [0.0, *(float(row["step"]) for row in rows)]  # type: ignore[arg-type]
    saving = sum(
        row["time_checkpoint"] * (now - before) / row["sps"]  # type: ignore[operator]
        for row, before, now in zip(rows, steps, steps[1:], strict=False)
        if isinstance(row.get("time_checkpoint"), float)
    )
    return {
        "seconds": round(result["seconds"], 2),
        "evaluation_share": round(result["seconds_evaluation"] / result["seconds"], 4),
        "checkpoint_share": round(saving / result["seconds"], 4),
        "episodes_of_each_evaluation": episodes,
        "score": result["eval"]["return_mean"],
        "training_return_last_100": result["return_mean"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="tasks whose name this expression finds")
    chosen = parser.parse_args()
    found: dict[str, Any] = {}
    for name, options in TASKS.items():
        if not re.search(chosen.only, name):
            continue
        runs = []
        for _ in range(chosen.repeats):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(measure([*options, "--seed", "1"], Path(folder) / "run"))
        found[name] = runs[0] | {
            key: statistics.median(run[key] for run in runs)
            for key in ("seconds", "evaluation_share", "checkpoint_share")
        }
        print(name, found[name], flush=True)
    command = shlex.join(["python", "benchmarks/evaluation_cost.py", *sys.argv[1:]])
    write_json(
        Path(chosen.out), {"command": command, "repeats": chosen.repeats, "versions": versions(), "tasks": found}
    )


if __name__ == "__main__":
    main()
