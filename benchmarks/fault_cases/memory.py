"""Runs that do not fit, address spaces that end, and bits that depend on the machine: told before, or the same bits."""

from __future__ import annotations

import os
import resource
import shutil
from functools import partial
from pathlib import Path

from fault_cases.case import Case, Skipped, require
from fault_cases.scene import Scene, newest
from fault_cases.templates import SMALL, train
from fault_cases.verbs import VERBS, prepare

AREA = "memory and bits"
TOO_LARGE = {
    "rollouts": "--num-envs 4096 --num-steps 10000000", "environments": "--num-envs 1000000000", "steps": "--num-steps 1000000000000",
    "a network": "--hidden-sizes 1000000,1000000", "a wide network": "--hidden-sizes 100000000", "a batch": "--num-envs 100000 --num-steps 100000",
    "frames": "--frame-stack 100000000", "a memory": "--memory lstm --memory-size 10000000",
}  # fmt: skip
OTHERS = {
    "ppg": "--n-pi 1000000000", "acer": "--replay-capacity 1000000000000000", "trpo": "--num-envs 100000 --num-steps 1000000",
    "a2c": "--num-envs 1000000 --num-steps 1000000", "vpg": "--num-steps 100000000000",
}  # fmt: skip
MORE_MB = (2, 20, 60, 120)
LONG = "--preset none --num-envs 4 --num-steps 64 --seed 3 --checkpoint-every 256 --keep-checkpoints 9 --compile off --quiet"


def cases(seed: int) -> list[Case]:
    found = []
    for name, settings in TOO_LARGE.items():
        found.append(Case(AREA, f"{name} too large, ppo", partial(too_large, algorithm="ppo", settings=settings)))
    for algorithm, settings in OTHERS.items():
        found.append(Case(AREA, f"too large, {algorithm}", partial(too_large, algorithm=algorithm, settings=settings)))
    for megabytes in MORE_MB:
        for verb in ("resume", "eval", "report", "plot", "overwrite", "watch"):
            found.append(
                Case(AREA, f"{megabytes} MB more to have, {verb}", partial(bounded, megabytes=megabytes, verb=verb))
            )
    for algorithm in ("ppo", "ppg", "a2c", "trpo", "vpg", "acer"):
        found.append(
            Case(AREA, f"resumed with other processors, {algorithm}", partial(processors, algorithm=algorithm))
        )
    found.append(Case(AREA, "convolutions resumed with other processors", convolutions, quick=False))
    return found


def too_large(scene: Scene, algorithm: str, settings: str) -> None:
    """A run that cannot fit is refused before anything is made, with the setting's name."""
    words = [*train(algorithm, "new", SMALL), *settings.split()]
    outcome = scene.run(*words, seconds=30)
    require(outcome.code == 2, f"exit code {outcome.code}: {outcome.said[-150:]}")
    require(not (scene.work / "new" / "config.json").exists(), "a run was begun")


def bounded(scene: Scene, megabytes: int, verb: str) -> None:
    """The address space ends a little above what the process has: a sentence or the work, never a crash."""
    run = prepare(scene, "killed" if verb in ("resume", "overwrite") else "finished")

    def begin() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + megabytes * 1_000_000
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    outcome = scene.run(*VERBS[verb], prepare=begin)
    if verb == "resume":
        if outcome.code != 0:
            outcome = scene.run(*VERBS[verb])
            require(outcome.code == 0, f"afterwards it cannot be resumed: {outcome.said[-150:]}")
        scene.require_same_bits(run)


def on(count: int, threads: bool) -> object:
    """For `prepare`: so many processors, and as many threads as there are."""

    def begin() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
        if threads:
            import torch

            torch.set_num_threads(count)

    return begin


def processors(scene: Scene, algorithm: str) -> None:
    """Begun with two processors, resumed with one: told, or the bits of the run that kept its two."""
    _compare(scene, train(algorithm, "RUN", f"{LONG} --hidden-sizes 64", 2048))


def convolutions(scene: Scene) -> None:
    words = train(
        "ppo",
        "RUN",
        f"{LONG} --epochs 1 --num-envs 2 --num-steps 16 --eval-episodes 0",
        128,
        "Breakout-v5",
    )
    _compare(scene, words, seconds=200)


def _compare(scene: Scene, words: list[str], seconds: float = 60) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        raise Skipped("there is one processor")
    total = int(words[words.index("--total-steps") + 1])
    words = [*words, "--checkpoint-every", str(total // 4), "--keep-checkpoints", "9"]
    both = scene.environment(OMP_NUM_THREADS=None)
    begun = [word.replace("RUN", "whole") for word in words]
    require(scene.run(*begun, prepare=on(2, True), environment=both, seconds=seconds).code == 0, "the run failed")
    shutil.copytree(scene.work / "whole", scene.work / "half")  # as a kill in the middle would have left it
    for path in (scene.work / "half" / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > total // 2:
            shutil.rmtree(path)
    outcome = scene.run(
        "resume", "half", "--total-steps", str(total), "--quiet", prepare=on(1, True), environment=both, seconds=seconds
    )
    if outcome.code == 0 and not outcome.told:
        bits = [(newest(scene.work / name) / "state.safetensors").read_bytes() for name in ("whole", "half")]
        require(bits[0] == bits[1], "other bits, and nothing was said")
