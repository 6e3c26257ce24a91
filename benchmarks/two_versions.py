"""The speed of this checkout beside another one, task by task in turn on one machine: whether a change made it slower.

    python benchmarks/two_versions.py OTHER_CHECKOUT [TASK ...] [--seconds S] [--repeats N] [--out FILE]

Both run in the Python environment that starts this; only the package differs. Medians of the repeats, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
TASKS = ("halfcheetah-8", "cartpole-8", "starpilot-ppo", "starpilot-ppg-single")


def measured(checkout: Path, task: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "phasegrad.bench", task, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr.strip().splitlines()[-1:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("task", nargs="*", default=TASKS)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    checkouts = {"other": options.other.resolve(), "this": HERE}
    found: dict[str, dict[str, list[float]]] = {task: {"other": [], "this": []} for task in options.task}
    for repeat in range(options.repeats):
        for task in options.task:
            for name in ("other", "this") if repeat % 2 == 0 else ("this", "other"):
                found[task][name].append(measured(checkouts[name], task, options.seconds)["sps"])
    table: dict[str, Any] = {"commits": {name: commit(path) for name, path in checkouts.items()}}
    for task, speeds in found.items():
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        ratio = medians["this"] / medians["other"]
        table[task] = {"steps_per_second": speeds, "medians": medians, "ratio": ratio}
        print(f"{task:24} other {medians['other']:10,.0f}  this {medians['this']:10,.0f} steps/s  ratio {ratio:.3f}")
    if options.out:
        options.out.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
