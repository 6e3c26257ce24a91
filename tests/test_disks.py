"""Disks and permissions: what a command cannot read or write is one sentence, and what stood before stands."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import failing_disks as disks
import numpy as np
import pytest
import torch

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import PhasegradError, PhasegradWarning, RunError
from phasegrad.runs import steps
from phasegrad.runs.metrics import MetricsFile, read_metrics

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,),
    "compile": "off", "seed": 3, "checkpoint_every": 128, "keep_checkpoints": 9,
}  # fmt: skip
STUDY = """
title = "Small"
about = "one short run"
steps = 64
seeds = [1]
score = "eval"
eval_episodes = 2
environments = [ { env = "CartPole-v1", aim = 100, low = 20, high = 500 } ]
[variants.ppo]
algorithm = "ppo"
preset = "none"
num_envs = 4
num_steps = 16
epochs = 1
num_minibatches = 2
hidden_sizes = [8]
compile = "off"
"""
NEED = {  # commands that must go on in the face of a condition; all others may fail, in a sentence
    "read-only": {"eval", "watch", "presets", "study"},
    "full": {"eval", "watch", "presets", "study"},
    "no permission to write": {"eval", "watch", "presets", "study"},
    "temporary files on another disk": {"video"},
    "temporary files on a full disk": set(),
    "no temporary files": set(),
}
TEMPORARY = ["video"]
OF_A_RUN = ["overwrite", "resume", "eval", "plot", "report", "watch"]
OF = {
    "almost full": ["train", "log_steps", "resume", "report", "tune"],
    "no permission to write": ["overwrite", "eval", "save_steps", "watch", "study_locked"],
    "no permission for the folder": OF_A_RUN,
    "no permission for metrics": ["plot", "report", "watch", "clone"],
    "no permission for the config": [*OF_A_RUN, "study"],  # whose file is unreadable too
    "no permission for checkpoints": ["resume", "eval", "watch"],
    "no more files": ["train", "resume", "eval", "plot", "report", "watch", "presets", "study_locked"],
    "three more files": ["overwrite", "resume", "plot", "video", "export", "tune"],
    "output on a full disk": ["train", "resume", "eval", "watch", "presets", "study"],
    "output nobody reads": ["train", "resume", "eval", "watch", "presets"],
    "temporary files on a full disk": TEMPORARY,
    "temporary files on another disk": TEMPORARY,
    "no temporary files": TEMPORARY,
}


def ppo(run: Path | None = None, **fields: Any) -> pg.PPO:
    return pg.PPO("CartPole-v1", run_dir=run, **{**SMALL, **fields})


def one_sentence(error: BaseException) -> str:
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    return text


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, the steps of a demonstrator, and a study's definition."""
    folder = tmp_path_factory.mktemp("base")
    agent = ppo(folder / "run")
    agent.learn(128)
    agent.evaluate(2, save_steps=folder / "demo.npz")
    agent.close()
    (folder / "small.toml").write_text(STUDY)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="file systems are mounted for a process alone on Linux")
@pytest.mark.parametrize("condition", [name for name in disks.CONDITIONS if name != "plain"])
def test_every_verb_says_in_a_sentence_what_the_disk_refuses(condition: str, base: Path, tmp_path: Path) -> None:
    program = [sys.executable, disks.__file__, str(base), str(tmp_path), condition, *OF.get(condition, [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(program, capture_output=True, text=True, env=environment, timeout=600)
    if ended.returncode == disks.CANNOT:
        pytest.skip(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    silent = condition == "output nobody reads"
    for name, each in found.items():
        told = [line for line in each["err"].splitlines() if line.startswith("phasegrad: ")]
        assert "Traceback" not in each["err"], (name, each)
        assert "Exception ignored" not in each["err"], (name, each)
        assert each["code"] in (0, 1, 2, 141), (name, each)
        assert each["code"] == 0 or told or (silent and each["code"] == 141), (name, each)
        assert name not in NEED.get(condition, ()) or each["code"] == 0, (name, each)
    if condition.startswith("output"):
        assert found["eval"]["code"] == found["presets"]["code"] == (141 if silent else 1)
        assert found["train"]["code"] == found["resume"]["code"] == 0, "they were asked to be quiet"


def test_closed_streams_are_not_mistaken_for_files(base: Path, tmp_path: Path) -> None:
    """Without standard output and error, the next two files that are opened would get their numbers, and all that is printed."""
    run = tmp_path / "run"
    command = f"exec {sys.executable} -m phasegrad {' '.join(disks.TRAIN)} --run-dir {run} --set x=1 0<&- 1>&- 2>&-"
    command = command.replace(" --quiet", "").replace(" --set x=1", "")
    assert subprocess.run(["sh", "-c", command], timeout=120).returncode == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [64, 128]
    assert (run / ".lock").exists() is False


@contextlib.contextmanager
def standard_output_at(path: str) -> Iterator[None]:
    before = sys.stdout
    with open(path, "w") as file:
        sys.stdout = file
        try:
            yield
        finally:
            sys.stdout = before
            with contextlib.suppress(OSError):
                file.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_run_goes_on_where_its_display_cannot(tmp_path: Path) -> None:
    agent = ppo(tmp_path / "run")
    with (
        pytest.warns(PhasegradWarning, match="Standard output can no longer be written"),
        standard_output_at("/dev/full"),
    ):
        agent.learn(256, progress=True)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["step"] == 256


def test_a_full_disk_while_steps_are_logged_keeps_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, real = tmp_path / "run", np.savez
    whole = ppo(tmp_path / "whole", log_steps=True)
    whole.learn(512)

    def savez(file: Any, **arrays: Any) -> None:
        if len(list((run / "steps").glob("step-*.npz"))) == 4:
            file.write(b"PK half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file, **arrays)

    monkeypatch.setattr(steps.np, "savez", savez)
    with pytest.raises(RunError) as caught:
        ppo(run, log_steps=True).learn(512)
    told = one_sentence(caught.value)
    assert "No space left on device; make room, then resume the run." in told
    assert told.endswith(f"The last good checkpoint is that of step 256 in {run}.")
    assert sorted(path.name for path in (run / "steps").iterdir()) == [f"step-{64 * i:012d}.npz" for i in range(1, 5)]
    monkeypatch.setattr(steps.np, "savez", real)
    resumed = pg.load(run)
    resumed.learn(512)
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[name]), name


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write({"step": 1})
    real = file.file

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def write(self, line: bytes) -> int:
            return int(real.write(line[:5]))

    file.file = Full()  # type: ignore[assignment]
    with pytest.raises(RunError, match="No space left on device"):
        file.write({"step": 2})
    file.file = real
    file.write({"step": 3})
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 3]
    assert file.bytes_written == (tmp_path / "metrics.jsonl").stat().st_size


# What is missing of metrics.jsonl


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


DAMAGES: dict[str, tuple[Any, str]] = {
    "missing": (lambda lines: None, "has no row of the 6 iterations so far"),
    "empty": (lambda lines: b"", "has no row of the 6 iterations so far"),
    "without its first line": (lambda lines: b"".join(lines[1:]), "lacks what came before iteration 2"),
    "without a line": (lambda lines: b"".join(lines[:2] + lines[3:]), "lacks iteration 3:"),
    "without its last lines": (lambda lines: b"".join(lines[:4]), "lacks iterations 5 to 6:"),
    "cut": (lambda lines: b"".join(lines)[: len(b"".join(lines[:3])) + 40], "lacks iterations 4 to 6:"),
    "with a damaged line": (lambda lines: b"".join(lines[:2]) + b"\0" + lines[2][1:] + b"".join(lines[3:]), "lacks iteration 3:"),
    "with a hole": (lambda lines: b"".join(lines[:1]) + b"\0" * 70 + b"\n" + b"".join(lines[3:]), "lacks iterations 2 to 3:"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_metrics_lack_is_told_and_nothing_is_made_up(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = DAMAGES[damage]
    run, whole = tmp_path / "run", ppo()
    whole.learn(768)
    agent = ppo(run, checkpoint_every=384)
    agent.learn(512)  # of 384 steps there is a checkpoint too: two rows are beyond it
    agent.close()
    for path in (run / "checkpoints").glob("*512"):
        path.rename(tmp_path / path.name)
    left = change(_lines(run / "metrics.jsonl"))
    (run / "metrics.jsonl").unlink()
    if left is not None:
        (run / "metrics.jsonl").write_bytes(left)
    resumed = pg.load(run)
    with pytest.warns(PhasegradWarning) as told:
        resumed.learn(768)
    sentences = [one_sentence(each.message) for each in told if isinstance(each.message, PhasegradWarning)]  # type: ignore[arg-type]
    assert any(expected in each for each in sentences), sentences
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[name]), name
    rows = [json.loads(line) for line in _lines(run / "metrics.jsonl") if not line.startswith(b"\0")]
    counted = [row["iteration"] for row in rows]
    assert counted == sorted(set(counted))
    assert counted[-6:] == [7, 8, 9, 10, 11, 12]
    assert all(row["step"] == 64 * row["iteration"] for row in rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pg.load(run).learn(832)
    capsys.readouterr()
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr().err
    assert "metrics.jsonl begins at iteration" in said or "metrics.jsonl lacks iteration" in said, said
    assert said.count("\n") == 1
    assert main(["plot", str(run), "--out", str(tmp_path / "x.csv")]) == 0
    assert capsys.readouterr().err.count("metrics.jsonl") == 1


def test_whole_metrics_are_told_nothing_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    ppo(run, checkpoint_every=384).learn(512)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PhasegradWarning)
        pg.load(run).learn(768)
        pg.load(run, run_dir=tmp_path / "other").learn(832)  # whose file begins later
        pg.load(tmp_path / "other").learn(896)
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().err == ""


# Numbers of files that anyone may have written


HUGE: tuple[Any, ...] = (2**63, 2**70, -1, -(2**63), 1e300, 0.5, float("nan"), float("inf"), 10**400, True, "5", None, [], {})  # fmt: skip
PLACES = [
    ("progress", "step"), ("progress", "iteration"), ("progress", "episodes"), ("progress", "longest_episode"),
    ("progress", "leg"), ("extra", "metrics_bytes"), ("extra", "seconds"), ("extra", "seconds_evaluating"),
    ("evaluations", "spent"), ("evaluations", "longest"), ("evaluations", "last"), ("leg", "due"), ("progress",), ("extra",),
    ("evaluations",), ("leg",), ("scalars",), ("changes",),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_numbers_of_a_checkpoint_are_checked(place: tuple[str, ...], base: Path, tmp_path: Path) -> None:
    saved = sorted((base / "run" / "checkpoints").iterdir())[-1]
    state = json.loads((saved / "state.json").read_text())
    folder = tmp_path / "save"
    folder.mkdir()
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    refused, told = 0, ""
    for value in HUGE:
        changed = json.loads(json.dumps(state))
        *outer, name = place
        target = changed[outer[0]] if outer else changed
        target[name] = value
        (folder / "state.json").write_text(json.dumps(changed))
        try:
            agent = pg.load(folder)
            agent.learn(agent.progress.step + 64)
            agent.close()
        except PhasegradError as error:
            told = one_sentence(error)
            refused += "damaged" in told
    assert refused >= (0 if place == ("leg", "due") else 5), place


@pytest.mark.parametrize("value", [2**63, -1, 1e300, float("nan"), float("inf"), 10**400, None, "5"])
def test_numbers_of_recorded_changes_are_checked(value: Any, base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ppo(run).learn(128)
    made = {"iteration": value, "step": 64, "before": {"clip_range": 0.2}, "after": {"clip_range": 0.1}}
    (run / "changes.jsonl").write_text(json.dumps(made) + "\n")
    with pytest.raises(RunError, match="is damaged"):
        pg.load(run).learn(256)


# Names


@pytest.mark.parametrize("name", ["a b", "quo'te\"s", "new\nline", "ünï-日本", "-dot.", "100%[0-9]*"])
def test_names_of_run_directories(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ppo(Path(name)).learn(128)
    place = f"./{name}"
    for command in (["resume", place, "--total-steps", "192", "--quiet"], ["report", place], ["watch", place, "--once"],
                    ["plot", place, "--out", f"{place}.csv"], ["video", place, "--max-steps", "3", "--episodes", "2"]):  # fmt: skip
        assert main(command) == 0, command
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f"{name}.csv"])


def test_a_path_that_is_too_long_gets_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x" * 300, "/".join(["y" * 200] * 30)):
        commands = [[*disks.TRAIN, "--run-dir", name], ["resume", name], ["eval", name], ["report", name], ["watch", name],
                    ["plot", name], ["video", name], ["export", name, "--onnx", "x.onnx"]]  # fmt: skip
        for command in commands:
            assert main(command) == 2, command
            said = capsys.readouterr().err
            assert said.startswith("phasegrad: "), (command, said)
            assert said.count("\n") == 1
