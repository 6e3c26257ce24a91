"""Kills runs at random moments, resumes them until they are done, and compares every bit with a run never stopped.

    python benchmarks/kill.py --kills 40 --out results/kill.json

For each algorithm, architecture and backend: SIGKILL after a random time, at a random system call of the checkpoint
writer (before it, after it, or half-way through a file), at a random gradient step of the auxiliary phase; and SIGTERM
and Ctrl-C now and then, whose exit codes are checked. One process imports everything and forks a child for each
attempt, so that an attempt costs no start-up.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMON = "--preset none --num-envs 4 --num-steps 16 --hidden-sizes 16 --seed 3 --torch-threads 1 --keep-checkpoints 2 --quiet"
BY_ALGORITHM = {
    "ppo": "--epochs 2 --num-minibatches 4 --normalize-observation --normalize-reward --objective kl --kl-target 0.01",
    "ppg": "--n-pi 4 --num-minibatches 2 --e-aux 2 --aux-minibatches 8 --normalize-observation",
    "vpg": "--value-steps 8",
    "trpo": "--value-epochs 1 --num-minibatches 2 --cg-iterations 3",
    "acer": "--replay-capacity 1024 --replay-start 128",
}
TOTAL = 1920
TIMES = re.compile("sps.*|seconds.*|time_.*")
# Steps; checkpoints every three iterations, which is shorter than a phase of PPG, and environments made anew early
INSIDE = "--checkpoint-every 192 --restart-every 64"
SIGNALS = {"terminate": (signal.SIGTERM, 143), "interrupt": (signal.SIGINT, 130)}


def cases() -> dict[str, list[str]]:
    """The command line of each case, without the run directory."""
    from phasegrad.algorithms import ALGORITHMS

    found = {}
    for algorithm in ALGORITHMS:
        variants = {"": INSIDE}
        if algorithm == "ppg":
            variants = {f"-{arch}": f"--arch {arch}" for arch in ("dual", "detach", "shared")}
            variants["-inside-phase"] = INSIDE
            variants["-reloaded"] = f"{INSIDE} --aux-interval 2 --aux-buffer 4 --aux-steps 5"
        if algorithm in ("ppo", "ppg"):
            variants["-lstm"] = f"{INSIDE} --memory lstm --memory-size 8 --sequence-length 8"
        for variant, options in variants.items():
            for backend in ("envpool", "gymnasium"):
                if backend == "gymnasium" and variant not in ("", "-dual", "-inside-phase"):
                    continue
                line = (
                    f"train {algorithm} --env CartPole-v1 --total-steps {TOTAL} --backend {backend} {COMMON} {options}"
                )
                found[f"{algorithm}{variant}-{backend}"] = f"{line} {BY_ALGORITHM.get(algorithm, '')}".split()
    return found


def in_child(arguments: list[str], log: Path, prepare: Callable[[], None] | None = None) -> int:
    """Fork a process that runs the command line; its id."""
    child = os.fork()
    if child:
        return child
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        from phasegrad.cli.main import main

        if prepare is not None:
            prepare()
        code = main([*arguments, "--debug"])
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = getattr(error, "exit_code", 99)
    os._exit(code)


def die_at(place: str, count: int, after: bool) -> Callable[[], None]:
    """Makes a child kill itself at its `count`-th call of a place."""

    def prepare() -> None:
        left = count

        def watched(function: Callable[..., Any], matters: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                if matters(*args):
                    left -= 1
                    if left == 0 and not after:
                        os.kill(os.getpid(), signal.SIGKILL)
                result = function(*args, **kwargs)
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return call

        if place == "auxiliary step":
            from phasegrad.compute.stepping import Stepper

            for method in ("step", "epoch"):
                real = getattr(Stepper, method)
                setattr(Stepper, method, watched(real, lambda _, name, *__: name == "auxiliary"))
        elif place == "half a file":
            import phasegrad.runs.checkpoint as checkpoint
            import phasegrad.runs.files as files

            whole = files.write_synced

            def half(path: Path, payload: bytes) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    path.write_bytes(payload[: len(payload) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                whole(path, payload)

            files.write_synced = checkpoint.write_synced = half
        else:
            setattr(os, place, watched(getattr(os, place)))

    return prepare


def disturb(arguments: list[str], log: Path, chance: random.Random, seconds: float, auxiliary: bool) -> tuple[str, int]:
    """One attempt that is stopped at a random moment, unless it ends before; how, and what the process returned."""
    places = ["fsync", "rename", "replace", "half a file", *(["auxiliary step"] * 2 if auxiliary else [])]
    kind = chance.choice(["time"] * 4 + places + list(SIGNALS))
    if kind in places:
        most = 24 if kind == "auxiliary step" else 12
        child = in_child(arguments, log, die_at(kind, chance.randint(1, most), chance.random() < 0.5))
        return kind, os.waitpid(child, 0)[1]
    child = in_child(arguments, log)
    time.sleep(chance.uniform(0.05, 1.0) * seconds)
    os.kill(child, SIGNALS[kind][0] if kind in SIGNALS else signal.SIGKILL)
    return kind, os.waitpid(child, 0)[1]


def run_case(name: str, arguments: list[str], kills: int, folder: Path, seed: int) -> dict[str, Any]:
    """One undisturbed run, one that is killed `kills` times on the way, and where they differ."""
    chance = random.Random(f"{name}{seed}")
    whole, killed, log = folder / f"{name}-whole", folder / f"{name}-killed", folder / f"{name}.log"
    begun = time.perf_counter()
    status = os.waitpid(in_child([*arguments, "--run-dir", str(whole)], log), 0)[1]
    if status:
        return {"differences": [f"the undisturbed run failed: {log.read_text()[-300:]}"], "kills": 0}
    seconds = time.perf_counter() - begun
    counts: Counter[str] = Counter()
    differences: list[str] = []
    attempts = 0
    while not differences:
        attempts += 1
        if (killed / "result.json").exists():
            differences = compare(whole, killed)
            if sum(counts.values()) >= kills or attempts > 4 * kills + 20:
                break
            shutil.rmtree(killed)  # it got through with fewer kills than wanted: once more
        command = ["resume", str(killed), "--quiet"]
        if not (killed / "config.json").exists():  # not begun, or killed before it wrote anything
            shutil.rmtree(killed, ignore_errors=True)
            command = [*arguments, "--run-dir", str(killed)]
        if sum(counts.values()) >= kills or attempts > 4 * kills + 20:
            status = os.waitpid(in_child(command, log), 0)[1]
            if status:
                return {"differences": [f"resuming failed: {log.read_text()[-300:]}"], "kills": sum(counts.values())}
            continue
        kind, status = disturb(command, log, chance, seconds, name.startswith("ppg"))
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == SIGNALS.get(kind, (0, -1))[1]:
            counts[kind] += 1
        elif os.WEXITSTATUS(status):
            differences.append(f"exit code {os.WEXITSTATUS(status)} after {kind}: {log.read_text()[-300:]}")
    return {"differences": differences, "kills": sum(counts.values()), "by": dict(counts), "seconds": round(seconds, 2)}


def compare(whole: Path, killed: Path) -> list[str]:
    """What differs between two run directories, times aside."""
    found = []
    last = sorted(path.name for path in (whole / "checkpoints").iterdir())[-1]
    states = []
    for run in (whole, killed):
        names = sorted(path.name for path in (run / "checkpoints").iterdir())
        if names[-1] != last or any(name.startswith(".") for name in names):
            found.append(f"{run.name} has the checkpoints {names}")
        found += [f"{stray} was left behind" for stray in run.rglob("*.tmp")]
        state = json.loads((run / "checkpoints" / last / "state.json").read_text())
        extra = state.pop("extra")
        for entry in extra.get("carried", {}).get("files", []):  # where a process stopped decides what shares a file
            entry.clear()
        states.append({**state, "carried": extra.get("carried", {}).get("state")})
    tensors = [(run / "checkpoints" / last / "state.safetensors").read_bytes() for run in (whole, killed)]
    if tensors[0] != tensors[1]:
        found.append("the tensors differ")
    if states[0] != states[1]:
        found.append("the counters differ")
    rows = [rows_of(run) for run in (whole, killed)]
    if rows[0] != rows[1]:
        found.append("the metrics differ")
    steps = [row["step"] for row in rows[0]]
    for run in (whole, killed):
        if tensorboard_steps(run / "tensorboard") != steps:
            found.append(f"TensorBoard of {run.name} shows other steps")
    results = [json.loads((run / "result.json").read_text()) for run in (whole, killed)]
    if any(
        results[0][key] != results[1][key] for key in ("status", "step", "return_mean", "episodes", "eval", "best_eval")
    ):
        found.append("the results differ")
    return found


def rows_of(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without times, every line of it valid."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not TIMES.fullmatch(k)} for line in lines]


def tensorboard_steps(folder: Path) -> list[int]:
    """The steps that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars("rollout/episodes")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="of each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", nargs="+", help="only these")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    from torch.fx.experimental.proxy_tensor import make_fx

    from phasegrad import envs

    for module in ("tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer"):
        importlib.import_module(module)
    for module in ("phasegrad.algorithms.loading", "phasegrad.runs.session"):
        importlib.import_module(module)
    envs.resolve("CartPole-v1")  # what takes long to import is imported once, here
    make_fx(lambda x: x + 1)(torch.ones(1))
    chosen = {name: line for name, line in cases().items() if not options.cases or name in options.cases}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in chosen.items():
            begun = time.perf_counter()
            results[name] = run_case(name, arguments, options.kills, Path(folder), options.seed)
            outcome = "; ".join(results[name]["differences"]) or "same bits"
            print(f"{name}: {results[name]['kills']} kills, {outcome}, {time.perf_counter() - begun:.1f} s", flush=True)
    total = sum(result["kills"] for result in results.values())
    bad = [name for name, result in results.items() if result["differences"]]
    print(f"{total} kills in {len(results)} cases, {len(bad)} cases differ")
    if options.out:
        summary = {
            "command": " ".join(["python", *sys.argv]),
            "kills": total,
            "cases_that_differ": bad,
            "cases": results,
        }
        options.out.write_text(json.dumps(summary, indent=1) + "\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
