"""Ours against Stable-Baselines3 on this machine: alternating, same environment and settings, ratio of medians.

The recurrent task, CartPole without velocities, is against sb3-contrib's RecurrentPPO, whose sequences are as long as a
rollout; ours of the default length, and in "cartpole-lstm-whole" as long as theirs.

make bench-peers
.venv/bin/python benchmarks/compare.py --repeats 5 --seconds 15 --out results/speed-sb3.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Of phasegrad.bench and peer_sb3.py
TASKS = (
    "halfcheetah-8",
    "halfcheetah-1",
    "cartpole-4",
    "cartpole-8",
    "breakout",
    "cartpole-lstm",
    "cartpole-lstm-whole",
)
HIDDEN = ["env=hidden_velocities:CartPoleNoVelocity-v1", "backend=gymnasium"]
OURS = {"cartpole-lstm": HIDDEN, "cartpole-lstm-whole": [*HIDDEN, "sequence_length=0"]}


def run(command: list[str]) -> tuple[float, float]:
    """Steps a second, and the process's peak memory in MB."""
    examples = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parent / "examples")])}
    done = subprocess.run(command, capture_output=True, text=True, env=examples)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found["sps"]), float(found["peak_rss_mb"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--peer", default=".venv-peers/bin/python", help="Python with stable-baselines3")
    parser.add_argument("--out", default="results/speed-sb3.json")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of ours")
    options = parser.parse_args()
    results = {}
    for task in options.tasks.split(","):
        mine, peers = [], []
        for _ in range(options.repeats):
            name = task.removesuffix("-whole")
            peers.append(run([options.peer, str(HERE / "peer_sb3.py"), name, str(options.seconds)]))
            settings = [*OURS.get(task, []), *options.set]
            mine.append(run([sys.executable, "-P", "-m", "phasegrad.bench", name, str(options.seconds), *settings]))
        ours, theirs = ([sps for sps, _ in found] for found in (mine, peers))
        memory = [statistics.median(peak for _, peak in found) for found in (mine, peers)]
        ratio = statistics.median(ours) / statistics.median(theirs)
        pairs = [own / other for own, other in zip(ours, theirs, strict=True)]
        results[task] = {"ratio": ratio, "ratio_range": [min(pairs), max(pairs)], "ours": ours, "sb3": theirs}
        results[task]["peak_rss_mb"] = dict(zip(("ours", "sb3"), memory, strict=True))
        print(
            f"{task}: {statistics.median(ours):,.0f} against {statistics.median(theirs):,.0f} steps/s, "
            f"{ratio:.1f} x ({min(pairs):.1f} to {max(pairs):.1f} over {options.repeats} pairs), "
            f"{memory[0]:,.0f} and {memory[1]:,.0f} MB",
            flush=True,
        )
    Path(options.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
