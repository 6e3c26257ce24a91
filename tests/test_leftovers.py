"""Small things that a campaign of faults has found: what is left behind, closed or cannot be said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.cli.streams import settled
from phasegrad.errors import words_of

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
