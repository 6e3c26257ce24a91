"""SIGKILL at random moments and at system calls of the checkpoint writer; resumed to the end, the bits of a run never stopped."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kill import die_at

from fault_cases.case import Case, require, strictly_increasing
from fault_cases.scene import Scene, newest
from fault_cases.templates import ACER, PPG, train

AREA = "kills"
KINDS = ("time", "time", "fsync", "rename", "replace", "half a file")
SETTINGS = {"ppg": ("finished", PPG), "acer": ("acer-whole", ACER)}


def cases(seed: int) -> list[Case]:
    found = []
    for algorithm in SETTINGS:
        for number in range(3):
            for index, kind in enumerate(KINDS):
                name = f"{algorithm} killed at {kind}, {number * len(KINDS) + index + 1}"
                found.append(Case(AREA, name, partial(one, algorithm=algorithm, kind=kind)))
    found.append(Case(AREA, "ppg killed five times", partial(one, algorithm="ppg", kind="time", times=5)))
    return found


def one(scene: Scene, algorithm: str, kind: str, times: int = 1) -> None:
    template, settings = SETTINGS[algorithm]
    run = scene.work / "run"
    for _ in range(times):
        begin = [*train(algorithm, "run", settings)]
        if (run / "config.json").exists():
            begin = ["resume", "run", "--quiet"]
        else:
            shutil.rmtree(run, ignore_errors=True)
        prepare: Callable[[], None] | None = None
        if kind != "time":
            prepare = die_at(kind, scene.chance.randint(1, 12), scene.chance.random() < 0.5)
        running = scene.start(*begin, prepare=prepare)
        if kind == "time":
            time.sleep(scene.chance.uniform(0.1, 1.0))
            os.kill(running.process, signal.SIGKILL)
        scene.end(running, (0, -9))
    if not (run / "config.json").exists():
        shutil.rmtree(run, ignore_errors=True)
        outcome = scene.run(*train(algorithm, "run", settings))
    else:
        outcome = scene.run("resume", "run", "--quiet")
    require(outcome.code == 0, f"resuming failed: {outcome.said[-200:]}")
    require_like(scene.templates.folder / template, run)


def require_like(whole: Path, run: Path) -> None:
    states = [newest(folder) for folder in (whole, run)]
    require(states[0].name == states[1].name, f"it ended at {states[1].name}")
    require(
        (states[0] / "state.safetensors").read_bytes() == (states[1] / "state.safetensors").read_bytes(),
        "it ended with other bits",
    )
    strictly_increasing(run / "metrics.jsonl")
    left = [path.name for path in run.rglob("*.tmp")]
    require(not left, f"left behind: {left}")
