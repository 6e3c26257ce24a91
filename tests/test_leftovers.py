"""Small things that a campaign of faults has found: what is left behind, closed or cannot be said."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import gymnasium as gym
import misbehaving_envs as bad
import numpy as np
import pytest
from gymnasium import spaces

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.cli.streams import settled
from phasegrad.envs import make
from phasegrad.errors import words_of
from phasegrad.machine.stops import Interrupted, stops_raise

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 2, "num_steps": 16, "num_minibatches": 1, "hidden_sizes": (4,), "compile": "off",
    "eval_episodes": 0, "checkpoint_every": 32,
}  # fmt: skip


def test_what_a_kill_left_of_logged_steps_goes_with_the_next_start(tmp_path: Path) -> None:
    run = tmp_path / "run"
    pg.PPO("CartPole-v1", run_dir=run, log_steps=True, **SMALL).learn(64).close()
    left = run / "steps" / ".step-000000000096.npz.123.tmp"
    left.write_bytes(b"half")
    kept = run / "steps" / "notes.tmp"  # the user's
    kept.write_text("mine")
    pg.load(run).learn(96)
    assert not left.exists()
    assert kept.read_text() == "mine"
    assert len(list((run / "steps").glob("step-*.npz"))) == 3


def test_an_error_says_one_line_or_nothing() -> None:
    class Odd(BaseException):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert words_of(ValueError("one\r\n  two.\n")) == "one two"
    assert words_of(Odd()) == ""


def test_a_value_of_several_lines_is_told_in_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    pg.PPO("CartPole-v1", run_dir=run, **SMALL).learn(32).close()
    config = run / "config.json"
    config.write_text(config.read_text().replace('"tanh"', '"ta\\nnh"'))
    assert main(["resume", str(run), "--total-steps", "64"]) == 2
    said = capsys.readouterr().err
    assert "has activation ta nh, but the run was started with tanh" in said
    assert said.count("\n") == 1


def test_closed_standard_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w") as closed:
        pass
    monkeypatch.setattr(sys, "stdout", closed)
    assert settled(3) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["train", "ppo", "--help"]])
def test_help_on_a_full_disk_is_told(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "phasegrad", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "phasegrad: Standard output could not be written: No space left on device.\n"


class Dotted(gym.Env):
    """Its keys end with a dot, are empty, or look like the path to another."""

    observation_space = spaces.Dict({key: spaces.Box(-1, 1, (1,), np.float32) for key in ("a.", "a", "", "a.b")})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {key: np.zeros(1, np.float32) for key in ("a.", "a", "", "a.b")}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 1.0, True, False, {}


def test_kept_steps_have_every_key(tmp_path: Path) -> None:
    agent = pg.PPO(Dotted, **SMALL)
    names = set(agent.agent.observation_space.spaces)  # type: ignore[attr-defined]
    agent.evaluate(2, save_steps=tmp_path / "steps.npz")
    with np.load(tmp_path / "steps.npz") as kept:
        assert {name for name in kept if name.startswith("observations")} == {f"observations.{name}" for name in names}
    assert len(names) == 4


# The third Ctrl-C


def test_a_signal_while_the_first_is_told_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Any) -> int:
        raise Interrupted("told already")

    monkeypatch.setattr(sys.modules["phasegrad.cli.main"], "_run", interrupted)
    assert main(["presets"]) == 130


@pytest.mark.parametrize("for_good", [True, False])
def test_a_command_that_is_over_cannot_be_stopped(for_good: bool) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has taken
        usual = {number: signal.getsignal(number) for number in numbers}
        with stops_raise(for_good=for_good), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        after = {number: signal.getsignal(number) for number in numbers}
        assert after == (dict.fromkeys(numbers, signal.SIG_IGN) if for_good else usual)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_worker_that_cannot_be_started_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = BaseProcess.start, []

    def only_one(self: BaseProcess) -> None:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(self)
        start(self)

    monkeypatch.setattr(BaseProcess, "start", only_one)
    with pytest.raises(BlockingIOError):
        make(bad.Raising, num_envs=2, seeds=[0, 1], vectorization="async")
    assert not started[0].is_alive()
    assert started[0] not in multiprocessing.active_children()
