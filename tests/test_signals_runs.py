"""Signals to commands that train: the first asks, the second ends at once, a third changes nothing; no process stays."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from commands import Command, until

import phasegrad as pg
from phasegrad.runs.directory import RunDirectory
from phasegrad.runs.metrics import read_metrics

WAYS = {
    "sync": ["--env", "misbehaving_envs:Slow-v0"],
    "async": ["--env", "misbehaving_envs:Slow-v0", "--vectorization", "async"],
    "envpool": ["--env", "CartPole-v1"],
}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def train(folder: Path, *more: str, algorithm: str = "ppo", steps: int = 100_000) -> Command:
    small = "--preset none --num-envs 2 --num-steps 64 --num-minibatches 2 --hidden-sizes 8 --compile off --seed 3"
    every = "--eval-episodes 0 --checkpoint-every 128 --run-dir run --quiet"
    arguments = [*small.split(), *every.split(), "--total-steps", str(steps), *more]
    return Command(["train", algorithm, *arguments], folder)


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "run" / "metrics.jsonl"
    return read_metrics(path) if path.exists() else []


def gone(command: Command) -> bool:
    return not command.processes()


def whole(folder: Path) -> int:
    """The step of the last checkpoint, which can be read, in a directory that nobody holds."""
    directory = RunDirectory(folder / "run")
    assert not (folder / "run" / ".lock").exists()
    assert not [entry for entry in (folder / "run").rglob("*") if entry.name.endswith(".tmp")]
    return pg.load(directory.checkpoint(), allow_import=True).progress.step


FIRST = [("sync", signal.SIGINT), ("async", signal.SIGTERM), ("envpool", signal.SIGHUP), ("async", signal.SIGINT)]
SEVERAL = [
    ("sync", 2, signal.SIGTERM), ("sync", 5, signal.SIGINT), ("async", 2, signal.SIGINT), ("async", 2, signal.SIGTERM),
    ("async", 3, signal.SIGHUP), ("async", 6, signal.SIGINT), ("envpool", 2, signal.SIGINT), ("envpool", 3, signal.SIGTERM),
]  # fmt: skip


@pytest.mark.parametrize(("way", "number"), FIRST)
def test_the_first_signal_asks(way: str, number: int, tmp_path: Path) -> None:
    command = train(tmp_path, *WAYS[way])
    until(lambda: len(rows(tmp_path)) >= 2)
    command.send(number)
    assert command.wait() == CODES[signal.Signals(number)]
    step = int(rows(tmp_path)[-1]["step"])
    assert "stopping after this iteration with a checkpoint; a second Ctrl-C stops at once." in command.said
    assert f"stopped at step {step} with a checkpoint; `phasegrad resume run` continues as if it had" in command.said
    assert len(command.said.splitlines()) == 2
    assert whole(tmp_path) == step
    until(lambda: gone(command), 3)


@pytest.mark.parametrize(("way", "count", "number"), SEVERAL)
def test_the_second_ends_at_once_and_more_change_nothing(way: str, count: int, number: int, tmp_path: Path) -> None:
    command = train(tmp_path, *WAYS[way], "--num-steps", "160")
    until(lambda: len(RunDirectory(tmp_path / "run").checkpoints()) >= 1)
    time.sleep(0.1)
    for _ in range(count):
        command.send(number)
        time.sleep(0.02)
    begun = time.monotonic()
    code = command.wait()
    assert time.monotonic() - begun < 4
    assert code == CODES[signal.Signals(number)]
    last = RunDirectory(tmp_path / "run").checkpoints()[-1].name.removeprefix("step-").lstrip("0")
    at_once = f"stopped at once. The last good checkpoint is that of step {last} in run."
    assert at_once in command.said or f"stopped at step {last} with a checkpoint" in command.said, command.said
    assert "Traceback" not in command.said
    assert "before there was anything" not in command.said
    assert str(whole(tmp_path)) == last
    until(lambda: gone(command), 3)
