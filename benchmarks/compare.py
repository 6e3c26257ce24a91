"""Ours against Stable-Baselines3 on this machine: alternating, same environment and settings, ratio of medians.

make bench-peers
.venv/bin/python benchmarks/compare.py --repeats 5 --seconds 15 --out results/speed-sb3.json
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TASKS = ("halfcheetah-8", "halfcheetah-1", "cartpole-4", "cartpole-8", "breakout")  # of phasegrad.bench and peer_sb3.py


def run(command: list[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["sps"])


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
        ours, theirs = [], []
        for _ in range(options.repeats):
            theirs.append(run([options.peer, str(HERE / "peer_sb3.py"), task, str(options.seconds)]))
            ours.append(run([sys.executable, "-P", "-m", "phasegrad.bench", task, str(options.seconds), *options.set]))
        ratio = statistics.median(ours) / statistics.median(theirs)
        pairs = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        results[task] = {"ratio": ratio, "ratio_range": [min(pairs), max(pairs)], "ours": ours, "sb3": theirs}
        print(
            f"{task}: {statistics.median(ours):,.0f} against {statistics.median(theirs):,.0f} steps/s, "
            f"{ratio:.1f} x ({min(pairs):.1f} to {max(pairs):.1f} over {options.repeats} pairs)",
            flush=True,
        )
    Path(options.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
