"""What tests/test_elsewhere.py has done on a system that is not here: every verb of a first hour, in one process.

Prints one line of JSON for each step: its name, exit code or hash, and what it printed last.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.envs import make
from phasegrad.errors import PhasegradError

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (8,), "seed": 3, "eval_episodes": 0, "checkpoint_every": 64, "torch_threads": 1,
}  # fmt: skip
OPTIONS = [
    "--preset",
    "none",
    "--num-envs",
    "4",
    "--num-steps",
    "16",
    "--hidden-sizes",
    "8",
    "--seed",
    "3",
    "--eval-episodes",
    "1",
    "--checkpoint-every",
    "64",
]
STUDY = """
title = "Small"
steps = 256
seeds = [1, 2]
eval_episodes = 1
environments = [{ env = "CartPole-v1" }]
[variants.ppo]
algorithm = "ppo"
preset = "none"
num_envs = 4
num_steps = 16
"""


def told(name: str, **found: Any) -> None:
    sys.__stdout__.write(json.dumps({"step": name, **found}) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def step(name: str, work: Callable[[], Any]) -> None:
    try:
        told(name, found=work())
    except BaseException:
        told(name, error=traceback.format_exc()[-2500:])


def verb(*arguments: str) -> list[Any]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main(list(arguments))
        except SystemExit as error:
            code = error.code  # type: ignore[assignment]
    return [code, output.getvalue()[-600:]]


def bits(agent: Any) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(agent.tensors().items()):
        found.update(name.encode() + np.ascontiguousarray(tensor.detach().numpy()).tobytes())
    return found.hexdigest()


def learnt(algorithm: str, compile: str) -> str:
    agent = getattr(pg, algorithm.upper())("CartPole-v1", compile=compile, **SMALL)
    agent.learn(256)
    return bits(agent)


def resumed(folder: Path) -> str:
    agent = pg.PPO("CartPole-v1", run_dir=folder, compile="off", **SMALL)
    agent.learn(128)
    agent.close()
    agent = pg.load(folder)
    agent.learn(256)
    return bits(agent)


def second_writer(folder: Path) -> str:
    agent = pg.PPO("CartPole-v1", run_dir=folder, compile="off", **SMALL)
    seen: list[str] = []

    def look(row: Any) -> None:
        if row["step"] == 128:
            try:
                pg.load(folder).learn(512)
                seen.append("trained")
            except PhasegradError as error:
                seen.append(str(error).replace(str(os.getpid()), "PID"))

    agent.learn(192, callback=look)
    return seen[0]


def in_processes() -> list[float]:
    env = make(lambda: gym.make("CartPole-v1"), num_envs=2, seeds=[0, 1], vectorization="async")
    env.reset()
    reward = env.step(np.zeros(2, np.int64)).reward.tolist()
    env.close()
    return reward


def interrupted(folder: Path) -> str:
    agent = pg.PPO("CartPole-v1", run_dir=folder, compile="off", **SMALL)

    def press(row: Any) -> None:
        if row["step"] == 128:
            signal.raise_signal(signal.SIGINT)

    with contextlib.suppress(KeyboardInterrupt):
        agent.learn(10_000, callback=press)
    return f"step {pg.load(folder).progress.step}"


def work(folder: Path) -> None:
    run = str(folder / "run")
    for algorithm in ("ppo", "ppg", "a2c", "vpg", "trpo", "acer"):
        step(f"bits {algorithm}", lambda algorithm=algorithm: learnt(algorithm, "off"))  # type: ignore[misc]
    step("bits replay", lambda: learnt("ppo", "replay"))
    step("resumed", lambda: resumed(folder / "resumed"))
    step(
        "train",
        lambda: verb("train", "ppo", "--env", "CartPole-v1", "--total-steps", "256", "--run-dir", run, *OPTIONS),
    )
    step(
        "train again",
        lambda: verb("train", "ppo", "--env", "CartPole-v1", "--total-steps", "256", "--run-dir", run, *OPTIONS),
    )
    step("resume", lambda: verb("resume", run, "--total-steps", "512"))
    step("eval", lambda: verb("eval", run, "--episodes", "2", "--json"))
    step("report", lambda: verb("report", run))
    step("plot", lambda: verb("plot", run, "--out", str(folder / "plot.png")))
    step("video", lambda: verb("video", run, "--episodes", "1"))
    step("watch", lambda: verb("watch", run, "--once"))
    step("doctor", lambda: verb("doctor"))
    step(
        "overwrite",
        lambda: verb(
            "train", "ppo", "--env", "CartPole-v1", "--total-steps", "128", "--run-dir", run, "--overwrite", *OPTIONS
        ),
    )
    (folder / "study.toml").write_text(STUDY)
    step("study", lambda: verb("study", str(folder / "study.toml"), "--dir", str(folder / "study"), "--jobs", "2"))
    step("second writer", lambda: second_writer(folder / "two"))
    if sys.platform != "win32":  # Python's own way to start processes there cannot be lent
        step("processes", in_processes)
    step("interrupted", lambda: interrupted(folder / "stopped"))
    step("threads", lambda: sorted({thread.name for thread in threading.enumerate() if not thread.daemon}))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what was started behind a shell ignores it
    work(Path(sys.argv[1]))
