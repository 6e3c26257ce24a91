"""The metrics sent on to Weights & Biases, seen by a module that stands in for it."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from phasegrad.cli.main import main
from phasegrad.runs.tracking import run_id

SMALL = ["--env", "CartPole-v1", "--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--epochs", "1"]


class Recorder:
    """What `wandb` was told."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.axes: list[tuple[str, str | None]] = []
        self.ended = 0

    def init(self, **about: Any) -> Recorder:
        self.started.append(about)
        return self

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def finish(self) -> None:
        self.ended += 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    module = types.ModuleType("wandb")
    module.init = made.init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return made


def test_every_iteration_is_sent_and_a_resumed_run_goes_on(tmp_path: Path, recorder: Recorder) -> None:
    run = tmp_path / "mine"
    train = ["train", "ppo", *SMALL, "--total-steps", "64", "--run-dir", str(run), "--track", "wandb", "--quiet"]
    assert main(train) == 0
    assert main(["resume", str(run), "--total-steps", "128", "--quiet"]) == 0
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in recorder.rows] == [row["step"] for row in written] == [32, 64, 96, 128]
    assert recorder.rows[0]["train/kl"] == written[0]["kl"]
    assert recorder.rows[0]["time/sps"] == written[0]["sps"]
    first, second = recorder.started
    assert first["id"] == second["id"] == run_id(run)
    assert (first["name"], first["project"], first["resume"]) == ("mine", "phasegrad", "allow")
    assert first["config"]["num_envs"] == 2
    assert recorder.axes[:2] == [("step", None), ("*", "step")]
    assert recorder.ended == 2


def test_without_the_package_or_a_directory_it_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import phasegrad as pg

    monkeypatch.setitem(sys.modules, "wandb", None)  # as if not installed
    train = ["train", "ppo", *SMALL, "--total-steps", "64", "--run-dir", str(tmp_path / "run"), "--track", "wandb"]
    assert main(train) == 2
    assert 'pip install "phasegrad[track]"' in capsys.readouterr().err
    agent = pg.PPO("CartPole-v1", num_envs=2, num_steps=16, num_minibatches=2, track="wandb")
    with pytest.raises(pg.ConfigError, match="needs a run directory"):
        agent.learn(64)
    agent.close()


def test_a_foreign_id_file_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "wandb-id.txt").write_text("../../evil\n")
    made = run_id(tmp_path)
    assert made.isalnum()
    assert run_id(tmp_path) == made
