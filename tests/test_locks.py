"""One writer of a run directory: also where its .lock is removed, left behind, or of a file system without locks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.cli.watch import Watched
from phasegrad.errors import RunError
from phasegrad.machine import locking
from phasegrad.machine.orphans import began
from phasegrad.runs import lock as locks
from phasegrad.runs.lock import LOCK, Lock, holder, is_held
from phasegrad.runs.metrics import read_metrics
from phasegrad.studies.standing import RunPlace, Standing
from phasegrad.studies.watching import WatchedStudy

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,),
    "compile": "off", "seed": 3, "checkpoint_every": 128, "keep_checkpoints": 9,
}  # fmt: skip
OTHER = """
import sys, time
from pathlib import Path
from phasegrad.runs.lock import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""
RESUME = "import sys, phasegrad; phasegrad.load(sys.argv[1]).learn(640)"


def ppo(run: Path | None = None, **fields: Any) -> pg.PPO:
    return pg.PPO("CartPole-v1", run_dir=run, **{**SMALL, **fields})


def same(first: pg.Algorithm, second: pg.Algorithm) -> None:
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name


def no_kernel_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locking.fcntl, "flock", flock)


def only_the_file_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems that lock no folders."""
    monkeypatch.setattr(Lock, "_hold_folder", lambda self: None)


def test_a_lock_that_is_removed_lets_nobody_in(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    (tmp_path / LOCK).unlink()
    with pytest.raises(RunError, match="is being written by another process: wait for it"):
        Lock(tmp_path)
    assert not (tmp_path / LOCK).exists()
    assert is_held(tmp_path)
    lock.require_own()
    assert holder(tmp_path) == os.getpid()
    with pytest.raises(RunError, match=f"is being written by the process {os.getpid()}"):
        Lock(tmp_path)
    lock.release()
    assert not (tmp_path / LOCK).exists()
    assert not is_held(tmp_path)
    Lock(tmp_path).release()


def test_a_second_writer_is_refused_though_the_lock_was_removed(tmp_path: Path) -> None:
    run, whole, said = tmp_path / "run", ppo(), []
    whole.learn(640)

    def remove(metrics: Any) -> None:
        if metrics["step"] == 320:
            (run / LOCK).unlink()
            ended = subprocess.run(
                [sys.executable, "-c", RESUME, str(run)], capture_output=True, text=True, timeout=120
            )
            said.append(ended.stderr)

    first = ppo(run)
    first.learn(640, callback=remove)
    assert "is being written by another process" in said[0]
    same(whole, first)
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == list(range(64, 641, 64))


@pytest.mark.parametrize("locked", [True, False])
def test_the_first_writer_stops_before_it_spoils_what_another_has_taken(
    locked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a folder cannot be locked, or nothing can: who comes second has the run."""
    run, whole = tmp_path / "run", ppo()
    whole.learn(640)
    only_the_file_is_locked(monkeypatch)
    if not locked:
        no_kernel_locks(monkeypatch)
    second: list[pg.Algorithm] = []
    held: list[Lock] = []

    def take_over(metrics: Any) -> None:
        if metrics["step"] == 320 and not second:
            (run / LOCK).unlink()
            with pytest.MonkeyPatch.context() as elsewhere:
                elsewhere.setattr(locks, "_here", lambda: "another-machine")
                second.append(pg.load(run))
                second[0].learn(640)
                held.append(Lock(run))  # it goes on, and so does its lock

    before = ppo(run)
    with pytest.raises(RunError) as caught:
        before.learn(1280, callback=take_over)
    assert "has taken the run directory since: this one has stopped, and has written nothing more." in str(caught.value)
    same(whole, second[0])
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == list(range(64, 641, 64))
    assert sorted(path.name[-4:] for path in (run / "checkpoints").iterdir())[-1] == "0640"
    assert json.loads((run / "result.json").read_text())["step"] == 640
    held[0].release()


def test_without_kernel_locks_a_living_owner_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_kernel_locks(monkeypatch)
    lock = Lock(tmp_path)
    with pytest.raises(RunError, match=f"is being written by the process {os.getpid()}"):
        Lock(tmp_path)
    assert is_held(tmp_path)
    lock.release()
    assert not (tmp_path / LOCK).exists()
    for stale in (
        "4194305",
        f"{os.getpid()} 12@another-boot",
        "1 - somewhere-else",
        "",
        "nonsense \0",
        "-5",
        "9" * 4000,
    ):
        (tmp_path / LOCK).write_text(stale)
        assert not is_held(tmp_path), stale
        Lock(tmp_path).release()


def test_a_number_that_is_used_again_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    ppo(run).learn(128)
    (run / "result.json").unlink()
    os.utime(run / "metrics.jsonl", (1.0, 1.0))
    (run / LOCK).write_text(str(os.getpid()))  # of a run that was killed; this process has its number now
    assert not Watched(run).alive()
    assert Watched(run).view.memory is None
    assert main(["watch", str(run), "--once"]) == 0
    assert "not running" in capsys.readouterr().out
    assert Standing(RunPlace("e", "v", 1, run, tmp_path / "x.log", 128), "eval").look().state == "stopped"
    study = tmp_path / "study"
    study.mkdir()
    definition = {"environments": [{"name": "e"}], "variants": [{"name": "v"}], "seeds": [1], "steps": 10}
    (study / "study.json").write_text(json.dumps(definition))
    (study / LOCK).write_text(str(os.getpid()))
    assert not WatchedStudy(study).alive()


def test_a_living_owner_is_found_also_by_who_may_only_read(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OTHER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        (tmp_path / LOCK).chmod(0o444)
        assert is_held(tmp_path)
        assert holder(tmp_path) == owner.pid
        begun = began(owner.pid)
        assert begun is not None
        assert (tmp_path / LOCK).read_text().split()[:2] == [str(owner.pid), begun]
    finally:
        owner.kill()
        owner.wait()
    assert not is_held(tmp_path)


def test_looking_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    looking = f"import time; from pathlib import Path; from phasegrad.runs.lock import is_held\nprint('on', flush=True)\nend = time.time() + 20\nwhile time.time() < end: is_held(Path({str(tmp_path)!r}))"
    watcher = subprocess.Popen([sys.executable, "-c", looking], stdout=subprocess.PIPE, text=True)
    try:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            Lock(tmp_path).release()
    finally:
        watcher.kill()
        watcher.wait()


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_is_no_lock(kind: str, tmp_path: Path) -> None:
    place = tmp_path / LOCK
    target = tmp_path / "precious"
    target.write_text("kept")
    if kind == "folder":
        place.mkdir()
    elif kind == "link":
        place.symlink_to(target)
    else:
        os.mkfifo(place)
    with pytest.raises(RunError, match=rf"\.lock is a .*{kind}, not a file: remove it, then try again\."):
        Lock(tmp_path)
    assert not is_held(tmp_path)
    assert target.read_text() == "kept"
