"""Seconds from the command to the line of a run's first iteration, several times; the first may have to compile.

python benchmarks/start.py
"""

import statistics
import subprocess
import sys
import tempfile
import time

COMMAND = [
    "-m",
    "phasegrad",
    "train",
    "ppo",
    "--env",
    "CartPole-v1",
    "--total-steps",
    "1e5",
    "--seed",
    "1",
    "--run-dir",
]


def seconds() -> float:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        process = subprocess.Popen([sys.executable, *COMMAND, f"{folder}/run"], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "iteration 1" in line:
                    return time.perf_counter() - begun
        finally:
            process.kill()
            process.wait()
    raise SystemExit("the run ended without a first iteration")


if __name__ == "__main__":
    found = [seconds() for _ in range(5)]
    print(f"median {statistics.median(found):.1f} s; each " + ", ".join(f"{each:.1f}" for each in found))
