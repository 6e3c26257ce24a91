"""One, two or three signals at random moments: the documented exit code, in time, nothing left behind, the run goes on."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from itertools import product

from fault_cases.case import Case, require, strictly_increasing
from fault_cases.environments import require_saved
from fault_cases.scene import Running, Scene

AREA = "signals"
COMMON = "--preset none --num-steps 16 --hidden-sizes 8 --seed 3 --torch-threads 1 --checkpoint-every 100000 --quiet"
WAYS = {
    "sync": "--backend gymnasium --vectorization sync --num-envs 2",
    "async": "--backend gymnasium --vectorization async --num-envs 2",
    "envpool": "--backend envpool --num-envs 4",
}
ALGORITHMS = {
    "ppo": "--epochs 1 --num-minibatches 2",
    "ppg": "--n-pi 2 --num-minibatches 2 --e-aux 1 --aux-minibatches 2",
}
SIGNALS = {"INT": (signal.SIGINT, (130,)), "TERM": (signal.SIGTERM, (143,)), "HUP": (signal.SIGHUP, (-1, 129))}
SECONDS = 30


def cases(seed: int) -> list[Case]:
    found = []
    for count, name, way, algorithm in product((1, 2, 3), SIGNALS, WAYS, ALGORITHMS):
        act = partial(one, count=count, name=name, way=way, algorithm=algorithm)
        found.append(Case(AREA, f"{count} x SIG{name}, {algorithm} {way}", act))
    for name in ("INT", "TERM"):
        for delay in (0.0, 0.5, 1.5):
            act = partial(early, name=name, delay=delay)
            found.append(Case(AREA, f"SIG{name} {delay} s after the first line of a process", act, quick=False))
        for verb in ("eval", "video", "watch", "report"):
            found.append(Case(AREA, f"SIG{name} while {verb} works", partial(other_verb, name=name, verb=verb)))
        found.append(Case(AREA, f"2 x SIG{name} to a study", partial(study, name=name), quick=False))
    found.append(Case(AREA, "SIGKILL leaves no worker", killed))
    return found


def train(way: str, algorithm: str, total: int) -> list[str]:
    line = f"train {algorithm} --env CartPole-v1 --total-steps {total} --run-dir run {COMMON} {WAYS[way]} {ALGORITHMS[algorithm]}"
    return line.split()


def under_way(scene: Scene, running: Running) -> None:
    metrics = scene.work / "run" / "metrics.jsonl"
    running.wait_for(lambda: metrics.is_file() and metrics.stat().st_size > 0)
    time.sleep(scene.chance.uniform(0, 0.4))


def send(running: Running, number: int) -> None:
    """Ctrl-C and a terminal that goes reach the whole group, as they do from a terminal; SIGTERM the process alone."""
    try:
        if number == signal.SIGTERM:
            os.kill(running.process, number)
        else:
            os.killpg(running.process, number)
    except ProcessLookupError:
        return


def one(scene: Scene, count: int, name: str, way: str, algorithm: str) -> None:
    number, codes = SIGNALS[name]
    running = scene.start(*train(way, algorithm, 5_000_000))
    under_way(scene, running)
    for index in range(count):
        send(running, number)
        if index + 1 < count:
            time.sleep(scene.chance.choice((0.0, 0.01, 0.1, 0.5)))
    outcome = scene.end(running, codes, SECONDS)
    run = scene.work / "run"
    strictly_increasing(run / "metrics.jsonl")
    if name == "HUP" and outcome.code == -signal.SIGHUP:
        return
    if count == 1:
        require_saved(run, 1)
    if count > 1:
        require("Traceback" not in outcome.err, "a traceback")
    if (run / "checkpoints").is_dir() and any((run / "checkpoints").glob("step-*")):
        done = scene.run("eval", "run", "--episodes", "1", "--max-steps", "5")
        require(done.code == 0, f"what it left cannot be loaded: {done.said[-150:]}")


def early(scene: Scene, name: str, delay: float) -> None:
    """While torch and the environments are imported."""
    number, codes = SIGNALS[name]
    words = [word for word in train("envpool", "ppo", 5_000_000) if word != "--quiet"]
    running = scene.start(*words, real=True)
    running.wait_for(lambda: running.out.stat().st_size > 0)
    time.sleep(delay)
    send(running, number)
    # SIGTERM before anybody has asked for it ends a process as it always does
    scene.end(running, (*codes, -signal.SIGTERM) if name == "TERM" else codes, SECONDS)


def other_verb(scene: Scene, name: str, verb: str) -> None:
    number, codes = SIGNALS[name]
    scene.copy("finished")
    words = {
        "eval": "eval run --episodes 2000", "video": "video run --episodes 40 --out film.mp4", "watch": "watch run --once",
        "report": "report run --out page.html",
    }[verb]  # fmt: skip
    begun = scene.folder / "begun"
    running = scene.start(*words.split(), prepare=begun.touch)
    running.wait_for(begun.exists)
    time.sleep(scene.chance.uniform(0.05, 0.4))
    send(running, number)
    scene.end(running, (0, *codes, -number), SECONDS)


def study(scene: Scene, name: str) -> None:
    number, codes = SIGNALS[name]
    text = (scene.templates.folder / "study.toml").read_text().replace("steps = 256", "steps = 3_000_000", 1)
    (scene.work / "study.toml").write_text(text)
    running = scene.start("study", "study.toml", "--dir", "study", "--jobs", "2", "--quiet")
    try:
        running.wait_for(lambda: any((scene.work / "study" / "runs").rglob("metrics.jsonl")), 90)
    finally:
        send(running, number)
    time.sleep(scene.chance.uniform(0, 0.2))
    send(running, number)
    scene.end(running, codes, 60)


def killed(scene: Scene) -> None:
    running = scene.start(*train("async", "ppo", 5_000_000))
    under_way(scene, running)
    os.kill(running.process, signal.SIGKILL)
    scene.end(running, (-9,), SECONDS)
