"""Disks that are full, read-only or limited, output that cannot be written, few descriptors, a TMPDIR elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

from fault_cases import processes
from fault_cases.case import Case, require, strictly_increasing
from fault_cases.kills import require_like
from fault_cases.mounts import mounted, read_only
from fault_cases.processes import limit, without_privileges
from fault_cases.scene import Scene
from fault_cases.templates import PPG, train
from fault_cases.verbs import STUDY_VERBS, VERBS, prepare

AREA = "disks"
ALL = {**VERBS, "train": train("ppg", "new", PPG), "csv": ["plot", "run", "--out", "curve.svg", "--csv", "curve.csv"]}
ALL["save"] = ["eval", "run", "--episodes", "2", "--save-steps", "steps.npz"]
ALL["clone"] = ["clone", "ppo", "--env", "CartPole-v1", "--data", "steps.npz", "--run-dir", "cloned", "--quiet"]
QUICK = ("train", "resume", "eval", "csv", "report", "watch", "overwrite", "record", "save", "page")
PRINTING = {
    "eval": "eval run --episodes 2 --json", "watch": "watch run --once", "envs": "envs", "presets": "presets",
    "doctor": "doctor", "completion": "completion bash", "help": "--help", "version": "--version", "study": "study",
    "table": "study study.toml --dir study --table-only --quiet", "resume": "resume run",
}  # fmt: skip


def cases(seed: int) -> list[Case]:
    found = []
    for size, verb in product(("16k", "64k", "160k", "400k"), (*QUICK, "video")):
        found.append(Case(AREA, f"{size} left, {verb}", partial(small, size=size, verb=verb)))
    for size, verb in product((0, 1000, 5000, 20_000), (*QUICK, "export")):
        act = partial(limited, verb=verb, prepare_limit=limit(FSIZE=size))
        found.append(Case(AREA, f"files of at most {size:,} bytes, {verb}", act))
    for count, verb in product((5, 8, 11, 14, 18, 24), (*QUICK, "table")):
        act = partial(limited, verb=verb, prepare_limit=limit(NOFILE=count))
        found.append(Case(AREA, f"{count} descriptors, {verb}", act))
    for verb in (*ALL, "table"):
        found.append(Case(AREA, f"read-only, {verb}", partial(closed, verb=verb, way="read-only")))
        found.append(Case(AREA, f"a folder that is not ours, {verb}", partial(closed, verb=verb, way="0555")))
    for name, verb in product(UNREADABLE, ("resume", "eval", "plot", "report", "watch", "overwrite")):
        found.append(Case(AREA, f"{name} not readable, {verb}", partial(unreadable, name=name, verb=verb)))
    for verb in PRINTING:
        found.append(Case(AREA, f"stdout is /dev/full, {verb}", partial(no_output, verb=verb, way="full"), quick=False))
        found.append(Case(AREA, f"stdout is closed, {verb}", partial(no_output, verb=verb, way="closed"), quick=False))
    for verb in ("eval", "watch", "envs"):
        found.append(Case(AREA, f"the reader left, {verb}", partial(no_output, verb=verb, way="left"), quick=False))
    for way, verb in product(
        ("missing", "a file", "another file system", "read-only"), ("video", "record", "train", "csv")
    ):
        found.append(Case(AREA, f"TMPDIR {way}, {verb}", partial(temporary, way=way, verb=verb)))
    for verb in ("resume", "train", "eval"):
        found.append(Case(AREA, f"the working folder is gone, {verb}", partial(nowhere, verb=verb)))
    found += [
        Case(AREA, "the lock removed under a run, a second writer", lock_removed),
        Case(AREA, "the run directory moved while it is trained in", moved),
    ]
    return found


UNREADABLE = ("config.json", "metrics.jsonl", "result.json", "checkpoints", "tensorboard", "segments")


def words_of(verb: str) -> list[str]:
    return STUDY_VERBS["table"] if verb == "table" else ALL[verb]


def set_up(scene: Scene, verb: str) -> Path:
    if verb == "clone":
        scene.copy("finished")
        require(scene.run(*ALL["save"]).code == 0, "no demonstrations")
        return scene.work / "run"
    return prepare(scene, "study" if verb == "table" else "killed" if verb in ("resume", "overwrite") else "finished")


def require_resumable(scene: Scene, verb: str) -> None:
    """After a failed write there is more room: the run goes on, to the bits of one that never failed."""
    run = scene.work / ("new" if verb == "train" else "run")
    if verb not in ("train", "resume"):
        return
    if (run / "config.json").exists() and (run / "checkpoints").is_dir() and any((run / "checkpoints").glob("step-*")):
        outcome = scene.run("resume", run.name, "--quiet")
        require(outcome.code == 0, f"it cannot be resumed: {outcome.said[-150:]}")
        require_like(scene.templates.folder / "finished", run)


def small(scene: Scene, size: str, verb: str) -> None:
    """A file system with little room left beside what is there."""
    set_up(scene, verb)
    kept = scene.folder / "kept"
    scene.work.rename(kept)
    used = sum(-(-path.stat().st_size // 4096) + 1 for path in kept.rglob("*") if not path.is_symlink()) * 4096
    scene.work.mkdir()
    with mounted(scene.work, f"size={used + int(size[:-1]) * 1024}"):
        shutil.copytree(kept, scene.work, dirs_exist_ok=True, symlinks=True)
        scene.run(*words_of(verb))
        shutil.copytree(scene.work, scene.folder / "after", symlinks=True)
    scene.work = scene.folder / "after"
    require_resumable(scene, verb)


def limited(scene: Scene, verb: str, prepare_limit: Callable[[], None]) -> None:
    """A resource limit; what the command says goes through pipes, which it does not hold for."""
    set_up(scene, verb)
    drains = []
    for name in ("drained-out", "drained-err"):
        with (scene.folder / name).open("wb") as file:
            drains.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file))
        processes.helpers.add(drains[-1].pid)

    def begin() -> None:
        for number, drain in enumerate(drains, 1):
            os.dup2(drain.stdin.fileno(), number)
        os.closerange(3, 64)
        prepare_limit()

    running = scene.start(*words_of(verb), prepare=begin)
    running.out, running.err, running.drains = scene.folder / "drained-out", scene.folder / "drained-err", tuple(drains)
    for drain in drains:
        drain.stdin.close()
    scene.end(running, seconds=90)
    require_resumable(scene, verb)


def closed(scene: Scene, verb: str, way: str) -> None:
    run = set_up(scene, verb)
    if way == "read-only":
        with read_only(scene.work):
            scene.run(*words_of(verb), seconds=90)
        return
    for path in [scene.work, run, *run.rglob("*")]:
        if path.is_dir():
            path.chmod(0o555)
    try:
        scene.run(*words_of(verb), prepare=without_privileges, seconds=90)
    finally:
        for path in [scene.work, run, *run.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)


def unreadable(scene: Scene, name: str, verb: str) -> None:
    run = prepare(scene, "killed" if verb in ("resume", "overwrite") else "finished")
    path = run / name
    if not path.exists():
        path.touch()
    path.chmod(0)
    kept = sorted(entry.name for entry in (run / "checkpoints").iterdir())
    outcome = scene.run(*ALL[verb], prepare=without_privileges)
    if verb == "resume" and name in ("config.json", "metrics.jsonl", "checkpoints"):
        require(outcome.code == 2, f"exit code {outcome.code} though {name} cannot be read")
        path.chmod(0o755)
        require(kept == sorted(entry.name for entry in (run / "checkpoints").iterdir()), "checkpoints were changed")


def no_output(scene: Scene, verb: str, way: str) -> None:
    prepare(scene, "study").rename(scene.work / "study")
    prepare(scene, "killed" if verb == "resume" else "finished")

    def begin() -> None:
        if way == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        elif way == "closed":
            os.close(1)
        else:
            reading, writing = os.pipe()
            os.dup2(writing, 1)
            os.close(reading)
            os.close(writing)

    # 120 is Python's own for output that could not be flushed, 141 that of a reader who left; neither is a crash
    outcome = scene.run(*PRINTING[verb].split(), real=True, prepare=begin, codes=(0, 1, 2, 141), seconds=120)
    require("Exception ignored" not in outcome.err, f"Python's own complaint: {outcome.said[-150:]}")
    if way == "full":
        require(outcome.code != 0, "exit code 0 though nothing was written")


def temporary(scene: Scene, way: str, verb: str) -> None:
    set_up(scene, verb)
    place = scene.folder / "elsewhere"
    changed = scene.environment(TMPDIR=str(place))
    if way == "another file system":
        with mounted(place, "size=64m"):
            require(scene.run(*ALL[verb], environment=changed).code == 0, "another file system is no obstacle")
        return
    if way == "a file":
        place.touch()
    if way == "read-only":
        place.mkdir()
        with read_only(place):
            scene.run(*ALL[verb], environment=changed)
        return
    scene.run(*ALL[verb], environment=changed)


def nowhere(scene: Scene, verb: str) -> None:
    """The folder that the command was started in has been removed."""
    set_up(scene, verb)
    gone = scene.folder / "gone"
    gone.mkdir()

    def begin() -> None:
        os.chdir(gone)
        gone.rmdir()

    scene.run(*ALL[verb], prepare=begin)


def lock_removed(scene: Scene) -> None:
    """Somebody removes .lock and starts a second process: one of them goes on, and the metrics stay whole."""
    run = scene.work / "run"
    running = scene.start(*train("ppg", "run", PPG, 2_000_000))
    running.wait_for(lambda: (run / "checkpoints").is_dir() and any((run / "checkpoints").glob("step-*")))
    (run / ".lock").unlink()
    processes.helpers.add(running.process)
    second = scene.start("resume", "run", "--quiet", "--total-steps", "3000000")
    try:
        time.sleep(3)
    finally:
        for process in (running.process, second.process):
            if Path(f"/proc/{process}").exists():
                os.kill(process, 15)
    scene.end(second, (2, 143))
    processes.helpers.discard(running.process)
    scene.end(running, (2, 143))
    strictly_increasing(run / "metrics.jsonl")


def moved(scene: Scene) -> None:
    run = scene.work / "run"
    running = scene.start(*train("ppg", "run", PPG, 2_000_000))
    running.wait_for(lambda: (run / "checkpoints").is_dir() and any((run / "checkpoints").glob("step-*")))
    run.rename(scene.work / "moved")
    scene.end(running, (1, 2))
    require(not run.exists(), "something was made at the old place")
    strictly_increasing(scene.work / "moved" / "metrics.jsonl")
