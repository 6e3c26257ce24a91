"""Signals to the other commands, and to a run at particular moments: each ends soon, with its code and its sentence."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import Command, until
from test_signals_runs import CODES, gone, rows, train, whole

import phasegrad as pg

NOTHING = "phasegrad: stopped before there was anything to save.\n"
SMALL = {"preset": "none", "num_envs": 2, "num_steps": 16, "num_minibatches": 2, "hidden_sizes": (8,), "compile": "off"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    pg.PPO("misbehaving_envs:Slow-v0", run_dir=folder / "run", **SMALL, eval_episodes=0).learn(64).close()
    return folder


EVAL = ["eval", "run", "--episodes", "2000", "--allow-import"]


@pytest.mark.parametrize(("number", "count"), [(signal.SIGINT, 1), (signal.SIGTERM, 3), (signal.SIGHUP, 1)])
def test_a_command_that_saves_nothing_ends_at_once(number: int, count: int, trained: Path) -> None:
    command = Command(EVAL, trained)
    time.sleep(1.5)
    for _ in range(count):
        command.send(number)
    assert command.wait(8) == CODES[signal.Signals(number)]
    assert command.said.endswith(NOTHING)
    assert "Traceback" not in command.said
    until(lambda: gone(command), 3)


def test_a_stop_during_a_close_that_hangs(tmp_path: Path) -> None:
    """The first signal saves and closes; the second does not wait for the close, and the sentence is the first one's."""
    command = train(tmp_path, "--env", "misbehaving_envs:Unwilling-v0", "--env-timeout", "30")
    until(lambda: len(rows(tmp_path)) >= 1)
    command.send(signal.SIGTERM)
    until(lambda: not (tmp_path / "run" / ".lock").exists())
    time.sleep(0.3)
    assert command.processes()
    command.send(signal.SIGTERM)
    assert command.wait(8) == 143
    step = int(rows(tmp_path)[-1]["step"])
    assert f"stopped at step {step} with a checkpoint; `phasegrad resume run` continues" in command.said
    assert whole(tmp_path) == step
    until(lambda: gone(command), 3)


def test_a_stop_during_an_evaluation(tmp_path: Path) -> None:
    more = ["--env", "misbehaving_envs:Slow-v0", "--eval-every", "128", "--eval-episodes", "1000"]
    command = train(tmp_path, *more)
    until(lambda: (tmp_path / "run" / "metrics.jsonl").exists())
    time.sleep(1.5)  # an iteration takes 0.7 s; the evaluation, which comes before its row, half a minute
    assert not rows(tmp_path)
    command.send(signal.SIGINT)
    time.sleep(0.2)
    command.send(signal.SIGINT)
    assert command.wait(8) == 130
    assert "stopped at once. There is no checkpoint yet." in command.said
    until(lambda: gone(command), 3)


@pytest.mark.parametrize("count", [1, 2])
def test_a_stop_of_ppg_in_its_auxiliary_phase(count: int, tmp_path: Path) -> None:
    more = ["--env", "CartPole-v1", "--n-pi", "2", "--e-aux", "400", "--aux-minibatches", "2"]
    command = train(tmp_path, *more, algorithm="ppg")
    until(lambda: len(rows(tmp_path)) >= 1)
    time.sleep(0.3)
    for _ in range(count):
        command.send(signal.SIGINT)
        time.sleep(0.05)
    assert command.wait() == 130
    assert "with a checkpoint" in command.said.splitlines()[-1] if count == 1 else "stopped at" in command.said
    if "There is no checkpoint yet" not in command.said:
        whole(tmp_path)
    until(lambda: gone(command), 3)


def test_a_terminal_that_is_closed_ends_the_run_in_order(tmp_path: Path) -> None:
    """SIGHUP comes, and every further word to the terminal fails."""
    master, slave = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    small = "--preset none --num-envs 2 --num-steps 64 --num-minibatches 2 --hidden-sizes 8 --compile off --run-dir run"
    arguments = ["train", "ppo", "--env", "misbehaving_envs:Slow-v0", *small.split(), "--total-steps", "100000"]
    code = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from phasegrad.cli import main; sys.exit(main())"
    run = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path, env=environment,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    os.set_blocking(master, False)
    try:

        def begun() -> bool:
            with contextlib.suppress(OSError):
                os.read(master, 1 << 16)  # so that it can go on writing
            return len(rows(tmp_path)) >= 2

        until(begun, 60)
        os.close(master)
        assert run.wait(20) == 129
    finally:
        run.kill()
        run.wait()
    assert whole(tmp_path) == int(rows(tmp_path)[-1]["step"])


def test_a_reader_that_goes_away_costs_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    small = "--preset none --num-envs 2 --num-steps 64 --num-minibatches 2 --hidden-sizes 8 --compile off --run-dir run"
    arguments = ["train", "ppo", "--env", "CartPole-v1", *small.split(), "--total-steps", "100000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    run = subprocess.Popen(
        [sys.executable, "-m", "phasegrad", *arguments], cwd=tmp_path, env=environment, text=True, **pipes
    )
    assert run.stdout is not None
    assert run.stderr is not None
    until(lambda: run.stdout.readline() and len(rows(tmp_path)) >= 2, 60)
    run.stdout.close()
    said = run.stderr.read()
    assert run.wait(30) == 141
    step = int(rows(tmp_path)[-1]["step"])
    assert (
        f"stopped, because nothing reads its output any more. The last good checkpoint is that of step {step}" in said
    )
    assert "Traceback" not in said
    assert whole(tmp_path) == step


def test_threads_that_an_environment_forgot_do_not_keep_the_command(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    small = "--preset none --num-envs 2 --num-steps 64 --num-minibatches 2 --hidden-sizes 8 --compile off --run-dir run"
    arguments = ["train", "ppo", "--env", "misbehaving_envs:Threading-v0", *small.split(), "--total-steps", "256"]
    command = [sys.executable, "-m", "phasegrad", *arguments, "--quiet", "--eval-episodes", "0"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0
    assert "a thread that was started meanwhile does not end (forgotten): the command exits without it." in done.stderr
    assert (tmp_path / "run" / "result.json").exists()
