"""Steps a second of one run on one process and on several, with the number of cores fixed.

python benchmarks/scaling.py [halfcheetah starpilot] [--processes 2] [--cores 2] [--seconds 20] [--repeats 5] [--out FILE]
python benchmarks/scaling.py exchange [--processes 2]    how long the processes take to average a gradient

One process has all the cores for its threads, several share them out. Both kinds take turns, so that whatever else the
machine does meets both; the median of the ratios counts. Times begin after the first iterations, which compile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TASKS: dict[str, dict[str, Any]] = {
    "halfcheetah": {
        "about": "PPO, HalfCheetah-v5, 16 x 256 steps, 10 epochs of 32 minibatches, two networks 64-64",
        "env": "HalfCheetah-v5",
        "fields": {"num_envs": 16, "num_steps": 256, "epochs": 10, "num_minibatches": 32, "compile": "on"},
        "large": False,
    },
    "starpilot": {
        "about": "PPO, Procgen starpilot, 32 x 64 steps, 1 epoch of 4 minibatches, IMPALA 16-32-32",
        "env": "procgen/starpilot",
        "fields": {"num_envs": 32, "num_steps": 64, "epochs": 1, "num_minibatches": 4},
        "large": True,
    },
}
WARM_UP = 2  # iterations
UNBOUNDED = 1 << 40  # steps; the clock ends a measurement


def work(task: str, seconds: float, cores: int, out: Path) -> None:
    """One measurement, in each of its processes."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    import phasegrad as pg
    from phasegrad.distributed import joining as parallel

    ranks = parallel.join()
    settings = TASKS[task]
    threads = max(1, cores // ranks.size)
    agent = pg.PPO(
        settings["env"],
        torch_threads=threads if settings["large"] else 1,
        env_threads=threads,
        checkpoint_every=UNBOUNDED,
        eval_episodes=0,
        **settings["fields"],
    )
    seen: list[tuple[float, int, dict[str, float]]] = []

    def callback(row: dict[str, Any]) -> bool:
        shares = {name: row[f"time_{name}"] for name in ("environment", "inference", "update")}
        seen.append((time.perf_counter(), row["step"], shares))
        return len(seen) <= WARM_UP + 1 or seen[-1][0] - seen[WARM_UP][0] < seconds

    agent.learn(UNBOUNDED, callback=callback)
    agent.close()
    if ranks.is_first:
        measured = seen[WARM_UP:]
        rate = (measured[-1][1] - measured[0][1]) / (measured[-1][0] - measured[0][0])
        shares = {name: statistics.mean(row[2][name] for row in measured[1:]) for name in measured[0][2]}
        out.write_text(json.dumps({"steps_a_second": rate, "shares": shares}))
    parallel.leave()


def exchange(out: Path) -> None:
    """The time to average the MLP's and IMPALA's gradient, through shared memory and through gloo."""
    import torch

    from phasegrad.distributed import joining as parallel

    ranks = parallel.join()
    found: dict[str, Any] = {}
    for numbers in (11_085, 626_272):
        gradient = torch.randn(numbers)
        for ranks.may_share, name in ((True, "shared memory"), (False, "gloo")):
            times = []
            for _ in range(300):
                begun = time.perf_counter()
                ranks.mean_(gradient)
                times.append(1e6 * (time.perf_counter() - begun))
            found[f"{numbers} numbers, {name}"] = {"least": min(times), "median": statistics.median(times)}
    if ranks.is_first:
        out.write_text(json.dumps(found))
    parallel.leave()


def measure(task: str, processes: int, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        python = [sys.executable]
        if processes > 1:
            python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        own = ["--work", task, "--seconds", str(arguments.seconds), "--cores", str(arguments.cores), "--out", str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*python, __file__, *own], check=True, env=environment, timeout=20 * arguments.seconds + 300)
        return dict(json.loads(out.read_text()))


def compare(task: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both kinds in turn, the order reversed each time."""
    rates: dict[int, list[dict[str, Any]]] = {1: [], arguments.processes: []}
    for repeat in range(arguments.repeats):
        for processes in (1, arguments.processes)[:: 1 if repeat % 2 == 0 else -1]:
            rates[processes].append(measure(task, processes, arguments))
    pairs = zip(rates[1], rates[arguments.processes], strict=True)
    ratios = [several["steps_a_second"] / alone["steps_a_second"] for alone, several in pairs]

    def median(processes: int) -> float:
        return statistics.median(found["steps_a_second"] for found in rates[processes])

    return {
        "about": TASKS[task]["about"],
        "processes": arguments.processes,
        "cores": arguments.cores,
        "one": median(1),
        "several": median(arguments.processes),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "shares_of_one": rates[1][-1]["shares"],
        "shares_of_several": rates[arguments.processes][-1]["shares"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="*", help=f"of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--work", choices=[*TASKS, "exchange"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work == "exchange":
        exchange(Path(arguments.out))
        return
    if arguments.work:
        work(arguments.work, arguments.seconds, arguments.cores, Path(arguments.out))
        return
    if arguments.task == ["exchange"]:
        for name, times in measure("exchange", arguments.processes, arguments).items():
            print(f"{name}: least {times['least']:.0f} us, median {times['median']:.0f} us")
        return
    unknown = [task for task in arguments.task if task not in TASKS]
    if unknown:
        parser.error(f"unknown task {unknown[0]}: there are {', '.join(TASKS)}")
    results = {task: compare(task, arguments) for task in arguments.task or TASKS}
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(results, indent=1) + "\n")
    print(f"| task | 1 process | {arguments.processes} processes | ratio | of which environments, inference, update |")
    print("|---|---:|---:|---:|---|")
    for task, found in results.items():
        shares = ", ".join(f"{share:.0%}" for share in found["shares_of_several"].values())
        numbers = f"{found['one']:,.0f} | {found['several']:,.0f} | {found['ratio']:.2f}"
        print(f"| `{task}`: {found['about']} | {numbers} | {shares} |")


if __name__ == "__main__":
    main()
