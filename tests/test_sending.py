"""A run directory of somebody else's sends nothing to a tracker without the user's word; one's own goes on sending."""

from __future__ import annotations

import json
import shutil
import stat
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import PhasegradWarning
from phasegrad.runs import sending
from phasegrad.runs.tracking import remember_id

FIELDS: dict[str, Any] = {
    "num_envs": 2, "num_steps": 16, "num_minibatches": 2, "epochs": 1, "eval_episodes": 0, "hidden_sizes": (8,),
    "compile": "off",
}  # fmt: skip
SILENT = r"asks to send what is trained to wandb, but was not begun by you on this machine: nothing is sent\."


class Sent:
    """A tracker that counts what would have left the machine."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def starter(self, name: str, folder: Path, about: Mapping[str, Any]) -> Callable[[], Any]:
        def start() -> Any:
            remember_id(folder, name, "0123456789abcdef")
            return self

        return start

    def write(self, metrics: Mapping[str, Any]) -> None:
        self.steps.append(metrics["step"])

    def finish(self, result: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sent:
    tracker = Sent()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    monkeypatch.setattr("phasegrad.runs.session.starter", tracker.starter)
    monkeypatch.setattr("phasegrad.runs.session.require_packages", lambda track: None)
    return tracker


def begun(folder: Path) -> Path:
    pg.PPO("CartPole-v1", run_dir=folder, track="wandb", total_steps=128, **FIELDS).learn(
        callback=lambda row: row["step"] < 32
    )
    return folder


def strangers(folder: Path, monkeypatch: pytest.MonkeyPatch, sent: Sent) -> Path:
    """A run directory as another user's, or another machine's, training has left it."""
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder.parent / "theirs"))
        begun(folder)
    sent.steps.clear()
    return folder


def test_ones_own_run_goes_on_sending_also_where_it_was_moved(sent: Sent, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PhasegradWarning)
        run = begun(tmp_path / "run")
        pg.load(run).learn(64)
        assert main(["resume", str(run), "--total-steps", "96", "--quiet"]) == 0
        moved = tmp_path / "moved"
        shutil.move(run, moved)
        pg.load(moved).learn(128)
    assert sent.steps == [32, 64, 96, 128]
    (noted,) = sending.state_folder().iterdir()
    assert json.loads((moved / "tracking.json").read_text()) == {"wandb": "0123456789abcdef", "token": noted.name}
    assert stat.S_IMODE(sending.state_folder().stat().st_mode) == 0o700


def test_a_strangers_run_is_trained_and_sends_nothing(
    sent: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = strangers(tmp_path / "run", monkeypatch, sent)
    with pytest.warns(PhasegradWarning, match=SILENT):
        agent = pg.load(run).learn(64)
    assert agent.progress.step == 64
    assert main(["resume", str(run), "--total-steps", "96", "--quiet"]) == 0
    told = capsys.readouterr().err
    assert f"{run} asks to send what is trained to wandb" in told
    assert "To send it, go on with --set track=wandb" in told
    assert sent.steps == []
    (run / "tracking.json").unlink()  # of a version that left no word, or removed
    with pytest.warns(PhasegradWarning, match=SILENT):
        pg.load(run).learn(128)
    assert sent.steps == []


def test_a_strangers_run_without_a_checkpoint_sends_nothing(
    sent: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = strangers(tmp_path / "run", monkeypatch, sent)
    shutil.rmtree(run / "checkpoints")
    assert main(["resume", str(run), "--quiet"]) == 0
    assert sent.steps == []


@pytest.mark.parametrize("way", ["--set", "--allow-import", "--track", "python"])
def test_the_users_word_is_remembered(
    way: str, sent: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    run = strangers(tmp_path / "run", monkeypatch, sent)
    if way == "python":
        pg.load(run, track="wandb").learn(128)
    elif way == "--track":
        settings = ["--env", "CartPole-v1", "--track", "wandb", "--run-dir", str(run)]
        assert main(["train", "ppo", *settings, "--resume", "--quiet"]) == 0
    else:
        word = ["--set", "track=wandb"] if way == "--set" else ["--allow-import"]
        assert main(["resume", str(run), *word, "--quiet"]) == 0
    assert sent.steps == [64, 96, 128]
    assert sending.is_known(run)
    assert not [each for each in recwarn if issubclass(each.category, PhasegradWarning)]


def test_a_word_that_is_no_word_is_not_looked_up(sent: Sent, tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    for token in ("../tracked", "", ".", 7, None, "x" * 500):
        (run / "tracking.json").write_text(json.dumps({"token": token}))
        assert not sending.is_known(run)


def test_where_nothing_can_be_noted_it_asks_again(sent: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a file"))
    run = begun(tmp_path / "run")
    assert sent.steps == [32]
    with pytest.warns(PhasegradWarning, match=SILENT):
        pg.load(run).learn(64)
    assert sent.steps == [32]
