"""Files that must not vanish: what a save, a new run or a resumed one did not write, and the old until the new stands."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import phasegrad as pg
from phasegrad.algorithms.base import Algorithm
from phasegrad.cli.main import main
from phasegrad.errors import NonFiniteError, PhasegradWarning, RunError
from phasegrad.runs import files
from phasegrad.runs.carried import take_up_carried
from phasegrad.runs.checkpoint import saved_legs, write_checkpoint
from phasegrad.runs.directory import RunDirectory
from phasegrad.runs.lock import Lock
from phasegrad.runs.metrics import read_metrics

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,),
    "compile": "off", "seed": 3, "checkpoint_every": 128, "keep_checkpoints": 9,
}  # fmt: skip
PHASES: dict[str, Any] = {k: v for k, v in SMALL.items() if k != "epochs"} | {"n_pi": 4, "e_aux": 1}


def ppo(run: Path | str | None = None, **fields: Any) -> pg.PPO:
    return pg.PPO("CartPole-v1", run_dir=run, **{**SMALL, **fields})


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def sentence(error: BaseException) -> str:
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    return text


# Saving


def test_a_save_leaves_other_files_in_its_folder(tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "notes").mkdir(parents=True)
    (models / "best.pt").write_bytes(b"a week of training")
    (models / "notes" / "thesis.tex").write_text("precious")
    (models / ".hidden.tmp").write_text("not ours")
    (models / "config.json").write_text("{}")
    before = tree(models)
    agent = ppo().learn(64)
    for _ in range(2):
        agent.flat.data += 1
        agent.save(models)
        assert {name: content for name, content in tree(models).items() if name in before} == before
        assert torch.equal(pg.load(models).flat.data, agent.flat.data)
    assert set(tree(models)) - set(before) - {"leg.safetensors"} == {"README.md", "state.json", "state.safetensors"}
    agent.close()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"state.json": '{"player": 3}'}, "holds a state.json that phasegrad did not save there"),
        ({"state.json": "not json"}, "holds a state.json that phasegrad did not save there"),
        ({"state.safetensors": "weights"}, "holds a state.safetensors that phasegrad did not save there"),
        ({"segments/one.txt": "1"}, "holds a segments that phasegrad did not save there"),
        ({"config.json": "{}", "metrics.jsonl": ""}, "is a run directory: save to another folder"),
    ],
)
def test_a_save_does_not_take_the_place_of_what_is_no_save(files: dict[str, str], said: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / "models" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "models" / name).write_text(text)
    before = tree(tmp_path)
    with pytest.raises(RunError, match=said) as error:
        ppo().save(tmp_path / "models")
    sentence(error.value)
    assert tree(tmp_path) == before


def test_saving_to_the_runs_own_directory_is_refused(tmp_path: Path) -> None:
    agent = ppo(tmp_path / "run").learn(128)
    before = tree(tmp_path)
    with pytest.raises(RunError, match="is a run directory: save to another folder, such as"):
        agent.save(tmp_path / "run")
    assert tree(tmp_path) == before
    agent.save(tmp_path / "run" / "agent")
    assert pg.load(tmp_path / "run").progress.step == pg.load(tmp_path / "run" / "agent").progress.step == 128
    with pytest.raises(RunError, match="is a file: save to a folder"):
        agent.save(tmp_path / "run" / "config.json")


CALLS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir")  # as Python's audit events name them


def watching_calls(act: Callable[[], None]) -> None:
    """Have `act` called before each system call that changes a file; for good, so only in a child."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CALLS and not (event == "open" and isinstance(arguments[0], int)):
            act()

    real = os.fsync

    def fsync(handle: int) -> None:
        act()
        real(handle)

    os.fsync = fsync
    sys.addaudithook(hook)


def killed_at(count: int, work: Callable[[], None], error: type[BaseException] | None) -> bool:
    """Do `work` in a child that is killed before its `count`-th system call, or gets an error there; whether it was."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            left = [count]

            def act() -> None:
                left[0] -= 1
                if left[0] == 0 and error is None:
                    os._exit(9)
                if left[0] == 0 and error is not None:
                    raise error

            watching_calls(act)
            work()
            code = 0
        except KeyboardInterrupt:
            code = 9
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


@pytest.mark.parametrize("error", [None, KeyboardInterrupt], ids=["kill", "ctrl-c"])
@pytest.mark.parametrize("kind", ["save", "carrying", "checkpoint"])
def test_a_kill_at_any_moment_leaves_the_old_save_or_the_new(
    kind: str, error: type[BaseException] | None, tmp_path: Path
) -> None:
    """Before each system call in turn; `carrying` saves have segments and a leg, and are followed by one that has not."""
    path = tmp_path / "agent"
    old: Algorithm
    if kind == "carrying":
        old = pg.PPG("CartPole-v1", run_dir=tmp_path / "run", **PHASES).learn(
            512, callback=lambda row: row["step"] < 192
        )
        new = pg.PPG("CartPole-v1", run_dir=tmp_path / "new", **PHASES).learn(
            512, callback=lambda row: row["step"] < 320
        )
        assert old.carries.pieces()
        assert new.carries.pieces()
    else:
        old, new = ppo().learn(64), ppo().learn(128)

    def write(folder: Path, agent: Any) -> None:
        if kind == "checkpoint":
            write_checkpoint(folder, agent, saved_legs(agent))
        else:
            agent.save(folder)

    write(path, old)
    (path / "notes.txt").write_text("mine")
    for agent in (old, new):
        agent.close()
    begun = tmp_path / "begun"
    shutil.copytree(path, begun)
    seen = set()
    # Every other call, odd ones for a kill and even ones for Ctrl-C; every fourth of a save that carries much and takes long.
    counts = range(1 + (error is not None), 200, 4 if kind == "carrying" else 2)
    for count in counts:
        shutil.rmtree(path)
        shutil.copytree(begun, path)
        killed = killed_at(count, lambda: write(path, new), error)
        found = pg.load(path)
        wanted = new if found.progress.step == new.progress.step else old
        assert torch.equal(found.flat.data, wanted.flat.data), count
        assert found.progress == wanted.progress
        seen.add(found.progress.step)
        if kind == "carrying":
            take_up_carried(found)
            assert found.carries.pieces().keys() == wanted.carries.pieces().keys()
            assert found.run.legs.actions
        assert (path / "notes.txt").read_text() == "mine"
        write(path, old)  # whatever was left behind is tidied up by the next
        assert sorted(tree(path)) == sorted(tree(begun))
        assert sorted(entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")) == []
        assert pg.load(path).progress.step == old.progress.step
        if not killed:
            break
    assert not killed
    assert count > 5
    assert seen == {old.progress.step, new.progress.step}


# Overwriting


FOREIGN = {
    ".git/config": "history",
    "src/train.py": "code",
    "thesis.tex": "precious",
    "notes.tmp": "not ours",
    ".thesis.tex.12.tmp": "an editor's",
    "report.html": "<html>a page of somebody else</html>",
    "videos/holiday.mp4": "film",
    "videos/holiday.json": "{}",
    "videos/steps-to-take.gif": "a dance",
    "tensorboard/events.out.tfevents.1700000000.laptop": "another library's",
    "segments/mine.safetensors": "data",
    "segments/draft.tmp": "data",
    "steps/mine.npz": "data",
    "checkpoints/keep/me.txt": "kept by hand",
    "checkpoints/step-000000000128/why.txt": "why this one is good",
}


def put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def kept(folder: Path, files: dict[str, str]) -> bool:
    return all((folder / name).exists() and (folder / name).read_text() == text for name, text in files.items())


TRAIN = [
    "train", "ppo", "--env", "CartPole-v1", "--total-steps", "128", "--num-envs", "4", "--num-steps", "16",
    "--num-minibatches", "2", "--epochs", "1", "--preset", "none", "--compile", "off", "--quiet", "--eval-episodes", "0",
]  # fmt: skip


def test_overwrite_removes_what_a_run_wrote_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert (
        main([*TRAIN, "--run-dir", str(run), "--total-steps", "640", "--checkpoint-every", "128", "--log-steps"]) == 0
    )
    own = {"videos/step-000000000640.mp4": "film", "videos/eval-best.mp4": "film", "bad-batch.safetensors": "x"}
    films = ("step-000000000640.json", "step-000000000640-grid.gif", "steps-128-640.webp", "steps-128-640.json")
    unfinished = (".step-000000000640.77.mp4", ".steps-128-640.77.gif", ".eval-best.json.77.tmp")
    own |= {f"videos/{name}": "film" for name in (*films, *unfinished, "eval-worst.json")}
    own |= {".config.json.99.tmp": "{", "checkpoints/.step-000000000300.99.tmp/state.json": "{"}
    own |= {
        "checkpoints/damaged-step-000000000256/state.json": "{",
        "segments/000000000001-000000000002.safetensors": "x",
    }
    put(run, own)
    put(run, FOREIGN)
    before = set(tree(run)) - set(FOREIGN)
    assert len(before) > 20
    assert main([*TRAIN, "--run-dir", str(run), "--overwrite", "--seed", "9", "--checkpoint-every", "128"]) == 0
    assert kept(run, FOREIGN)
    names = {"config.json", "metrics.jsonl", "result.json", "checkpoints/step-000000000128/state.json"}
    left = set(tree(run)) - set(FOREIGN)
    assert {name for name in left if not name.startswith("tensorboard/")} == names | {
        "checkpoints/step-000000000128/state.safetensors",
        "checkpoints/step-000000000128/leg.safetensors",
    }
    assert len(left) == 7
    assert json.loads((run / "config.json").read_text())["seed"] == 9
    assert pg.load(run).progress.step == 128


@pytest.mark.parametrize(
    "config", ['{"name": "webpack"}', "not json", '{"algorithm": "ppo", "versions": {"torch": "2"}}', "[]"]
)
def test_overwrite_refuses_a_folder_with_anothers_config(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "project", FOREIGN | {"config.json": config, "metrics.jsonl": "{}\n", "result.json": "{}"})
    before = tree(tmp_path)
    assert main([*TRAIN, "--run-dir", str(tmp_path / "project"), "--overwrite"]) == 2
    assert "was not written by phasegrad, so" in capsys.readouterr().err
    with pytest.raises(
        RunError, match=r"was not written by phasegrad, .* will not be overwritten: give another run_dir"
    ):
        ppo(tmp_path / "project", overwrite=True).learn(64)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "mistake",
    [
        ["--env", "CartPoel-v1"],
        ["--gamma", "2"],
        ["--total-steps", "0"],
        ["--num-steps", "1e12", "--total-steps", "1e13"],
        ["--device", "cuda:9"],
        ["--track", "wandb"],
    ],
    ids=" ".join,
)
def test_overwrite_with_a_mistake_costs_nothing(
    mistake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main([*TRAIN, "--run-dir", str(tmp_path / "run")]) == 0
    before = tree(tmp_path)
    assert main([*TRAIN, "--run-dir", str(tmp_path / "run"), "--overwrite", *mistake]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert tree(tmp_path) == before


def test_a_cell_that_overwrites_can_be_run_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for _ in range(2):
        agent = ppo(run, overwrite=True).learn(192)
        agent.learn(256)  # goes on: overwriting is for the first
        assert pg.load(run).progress.step == 256
        assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [64, 128, 192, 256]
        put(run, {"notes.txt": "mine"})
    assert kept(run, {"notes.txt": "mine"})
    before = tree(run)
    with pytest.raises(RunError) as error:
        ppo(run).learn(64)
    said = sentence(error.value)
    assert f"phasegrad.load({str(run)!r}).learn()" in said
    assert "overwrite=True" in said
    assert "--" not in said
    waiting = ppo(run, overwrite=True)
    assert tree(run) == before, "not before learn"
    lock = Lock(run)
    with pytest.raises(RunError, match="is being written by the process"):
        waiting.learn(64)
    lock.release()
    assert tree(run) == before


# Agents that the run has gone on without


def test_a_stale_agent_does_not_wipe_what_came_after_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = ppo(run).learn(128)
    stale = pg.load(run)
    pg.load(run).learn(384)
    before = tree(run)
    for agent in (stale, first):
        with pytest.raises(
            RunError, match="has gone on to step 384, and this agent is at step 128: load the run again"
        ):
            agent.learn(192)
        assert tree(run) == before
    assert pg.load(run).learn(448).progress.step == 448, "the lock was let go"


def test_training_on_from_an_earlier_checkpoint_is_asked_for(tmp_path: Path) -> None:
    run = tmp_path / "run"
    whole = ppo(run).learn(384)
    before = tree(run)
    with pytest.raises(RunError, match=r"another run_dir=\.\.\., or overwrite=True to remove what came later") as error:
        pg.load(run, checkpoint=128).learn()
    sentence(error.value)
    assert tree(run) == before
    other = tmp_path / "other"
    elsewhere = pg.load(run, checkpoint=128, run_dir=other).learn(384)
    assert torch.equal(elsewhere.flat.data, whole.flat.data)
    assert tree(run) == before
    assert [row["step"] for row in read_metrics(other / "metrics.jsonl")] == [192, 256, 320, 384]
    assert torch.equal(pg.load(other).flat.data, whole.flat.data)
    with pytest.raises(RunError, match="already holds files"):
        pg.load(run, checkpoint=128, run_dir=other).learn(384)
    put(run, {"checkpoints/step-000000000384/why.txt": "mine"})
    again = pg.load(run, checkpoint=128, overwrite=True).learn(256)
    assert again.progress.step == 256
    assert [path.name for path in RunDirectory(run).checkpoints()] == ["step-000000000128", "step-000000000256"]
    assert kept(run, {"checkpoints/step-000000000384/why.txt": "mine"})
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [64, 128, 192, 256]


def test_an_agent_whose_run_was_replaced_does_not_mix_with_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = ppo(run).learn(128)
    ppo(run, overwrite=True, seed=4).learn(128)
    before = tree(run)
    with pytest.raises(
        RunError, match="no longer holds the checkpoint that this agent at step 128 comes from"
    ) as error:
        first.learn(256)
    sentence(error.value)
    assert tree(run) == before
    first.save(tmp_path / "agent")
    assert pg.load(tmp_path / "agent", run_dir=tmp_path / "new").learn(256).progress.step == 256
    shutil.rmtree(run)
    with pytest.raises(RunError, match="is gone: put it back"):
        first.learn(256)
    assert not run.exists()


# Checkpoints that cannot be used


def test_a_damaged_checkpoint_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = ppo(tmp_path / "run").learn(384)
    for time in ("", "-2"):
        newest = RunDirectory(tmp_path / "run").checkpoint()
        assert newest.name == "step-000000000384"
        (newest / "state.safetensors").write_bytes(b"cut" + time.encode())
        assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
        assert "The checkpoint before it is used." in capsys.readouterr().err
        assert torch.equal(pg.load(tmp_path / "run").flat.data, whole.flat.data)
        aside = tmp_path / "run" / "checkpoints" / f"damaged-step-000000000384{time}"
        assert (aside / "state.safetensors").read_bytes() == b"cut" + time.encode()
    (newest / "state.json").unlink()
    with pytest.warns(PhasegradWarning, match=r"is damaged: it has no state\.json\. The checkpoint before it is used"):
        assert pg.load(tmp_path / "run").progress.step == 256


def out_of_reach(patched: pytest.MonkeyPatch, *ends: str) -> list[Path]:
    """Files whose paths end so cannot be opened; the list of attempts."""
    real, refused = files.open_own, list[Path]()

    def closed(path: Path, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(ends):
            refused.append(path)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *args, **kwargs)

    patched.setattr(files, "open_own", closed)
    return refused


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "leg.safetensors"])
def test_a_checkpoint_out_of_reach_is_not_taken_for_damaged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ppo(tmp_path / "run").learn(512, callback=lambda row: row["step"] < 320)
    assert (tmp_path / "run" / "checkpoints" / "step-000000000320" / name).exists()
    before = tree(tmp_path)
    with monkeypatch.context() as patched:
        out_of_reach(patched, f"step-000000000320/{name}")
        assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert f"{name} cannot be read: Permission denied; nothing was changed: make it readable, then try again." in said
    assert said.count("\n") == 1
    assert tree(tmp_path) == before
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0


def test_segments_of_a_checkpoint_out_of_reach_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which segments a checkpoint needs cannot be known while it cannot be read: then none goes."""
    agent = pg.PPG("CartPole-v1", run_dir=tmp_path / "run", **PHASES | {"n_pi": 8})
    agent.learn(1024, callback=lambda row: row["step"] < 448)
    before = {path.name for path in (tmp_path / "run" / "segments").iterdir()}
    assert len(before) >= 2
    with monkeypatch.context() as patched:
        refused = out_of_reach(patched, "step-000000000384/state.json", "step-000000000448/state.json")
        agent.learn(1024, callback=lambda row: row["step"] < 576)  # the phase, and what others need, ends at 512
    assert refused
    assert before <= {path.name for path in (tmp_path / "run" / "segments").iterdir()}


# Directories that go while a run trains


@pytest.mark.parametrize("how", ["removed", "moved", "another's"])
@pytest.mark.parametrize("fields", [{}, {"log_steps": True}], ids=["plain", "log-steps"])
def test_a_run_directory_that_goes_is_not_made_again(how: str, fields: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    moved = tmp_path / "moved"

    def go(row: dict[str, Any]) -> None:
        if row["step"] != 192:
            return
        if how == "removed":
            shutil.rmtree(run.parent)
        else:
            run.rename(moved)
        if how == "another's":
            put(run, {"config.json": "mine", ".lock": "1"})

    with pytest.raises(RunError) as error:
        ppo(run, **fields).learn(512, callback=go)
    sentence(error.value)
    if how == "another's":
        assert {n: c for n, c in tree(run).items() if not n.startswith("steps/")} == {
            "config.json": b"mine",
            ".lock": b"1",
        }
        assert "was moved or removed while the run was training" in str(error.value)
    else:
        assert not run.exists()
    if how == "removed":
        assert not run.parent.exists()
    else:
        assert pg.load(moved).learn(256).progress.step == 256
        assert [row["step"] for row in read_metrics(moved / "metrics.jsonl")] == [64, 128, 192, 256]


def test_a_bad_batch_does_not_bring_a_directory_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    agent = ppo(run)
    collect = agent.collect

    def break_down(*args: Any, **kwargs: Any) -> Any:
        segment = collect(*args, **kwargs)
        if agent.progress.step == 192:
            shutil.rmtree(run)
            raise NonFiniteError("The reward is NaN.")
        return segment

    agent.collect = break_down  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError):
        agent.learn(512)
    assert not run.exists()


# Resuming to a total


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize(
    ("total", "said"),
    [
        ("256", "--total-steps 256 is below the 320 steps that"),
        ("abc", "total_steps must be a whole number (1e6 and 1_000_000 are fine), not 'abc'."),
        ("nan", "total_steps must be a whole number"),
        ("-5", "total_steps must be at least 1"),
        ("1.5", "total_steps must be a whole number"),
    ],
)
def test_resume_to_a_total_that_cannot_be_changes_nothing(
    total: str, said: str, stopped: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ppo(tmp_path / "run").learn(512, callback=lambda row: row["step"] < 320)
    if not stopped:
        (tmp_path / "run" / "result.json").unlink()  # as after Ctrl-C
    before = tree(tmp_path)
    assert main(["resume", str(tmp_path / "run"), f"--total-steps={total}", "--quiet"]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert tree(tmp_path) == before


def test_resume_does_not_begin_a_finished_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its checkpoints it looks like one that was killed before the first."""
    ppo(tmp_path / "run").learn(256)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = tree(tmp_path)
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "512", "--quiet"]) == 2
    assert "is finished and its checkpoints are gone" in capsys.readouterr().err
    assert tree(tmp_path) == before


def test_resume_to_the_step_a_stopped_run_is_at_does_not_call_it_finished(tmp_path: Path) -> None:
    ppo(tmp_path / "run").learn(512, callback=lambda row: row["step"] < 320)
    (tmp_path / "run" / "result.json").unlink()
    before = tree(tmp_path)
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "320", "--quiet"]) == 0
    assert tree(tmp_path) == before


# Others' files around a run that goes on


def test_a_resumed_run_removes_only_its_own_leftovers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ppo(run, keep_checkpoints=1).learn(256)
    put(run, FOREIGN | {"checkpoints/.mine.7.tmp/a.txt": "a"})
    (run / ".editor.tmp").mkdir()
    put(run, {".config.json.99.tmp": "{", "checkpoints/.step-000000000300.99.tmp/state.json": "{"})
    pg.load(run).learn(512)
    assert kept(run, FOREIGN | {"checkpoints/.mine.7.tmp/a.txt": "a"})
    assert (run / ".editor.tmp").is_dir()
    assert not (run / ".config.json.99.tmp").exists()
    assert not (run / "checkpoints" / ".step-000000000300.99.tmp").exists()
    assert [path.name for path in RunDirectory(run).checkpoints()] == ["step-000000000512"]
    assert pg.load(run).progress.step == 512


def test_segments_go_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    agent = pg.PPG("CartPole-v1", run_dir=run, **PHASES)
    agent.learn(512, callback=lambda row: row["step"] < 192)
    put(run / "segments", {"mine.safetensors": "data", "draft.tmp": "data"})
    agent.learn(512)
    assert sorted(path.name for path in (run / "segments").iterdir()) == ["draft.tmp", "mine.safetensors"]


# Files to write


FEW = ["control", "--steps", "64", "--seeds", "1", "--envs", "CartPole-v1", "--variants", "ppo"]
ONE = ["--env", "CartPole-v1", "--trials", "1", "--steps", "64"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    assert main([*TRAIN, "--run-dir", str(run)]) == 0
    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "RUN", "--out", "notes.html"], "exists and is not a report: name another file"),
        (["report", "RUN", "RUN"], "exists and is not a report: name another file"),
        (["report", "RUN", "--out", "folder"], "is a directory: name an HTML file"),
        (["plot", "RUN", "--out", "folder"], "is a directory: name a picture"),
        (["plot", "RUN", "--out", "notes.tex"], "is no picture: name a file such as notes.png"),
        (["plot", "RUN", "--out", "thesis"], "is no picture: name a file such as thesis.png"),
        (["export", "RUN", "--onnx", "notes.tex"], "exists and is no .onnx file: name another file"),
        (["export", "RUN", "--onnx", "folder"], "is a directory: name a file"),
        (["video", "RUN", "--out", "folder.mp4"], "is a directory: name an .mp4 file"),
        (
            ["bench", "cartpole-4", "--seconds", "0.1", "--out", "notes.tex"],
            "is not one that `phasegrad bench --out` wrote",
        ),
        (["study", *FEW, "--dir", "."], "holds a table.csv that is no study's: choose another --dir"),
        (["study", *FEW, "--dir", "pages"], "holds a report.html that is no study's: choose another --dir"),
        (
            ["tune", *ONE, "--dir", "."],
            "holds a trials.log that is no search's: choose another --dir",
        ),
        (
            ["tune", *ONE, "--dir", "best"],
            "holds a best.json that is no search's: choose another --dir",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_named_to_be_written_is_not_anothers(
    arguments: list[str],
    said: str,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    others = {"notes.html": "<html>", "notes.tex": "precious", "folder/a.txt": "a", "folder.mp4/a.txt": "a"}
    others |= {"report.html": "<html>of the tests</html>", "table.csv": "a,b", "trials.log": "trial 1 was fun"}
    others |= {"best.json": "{}", "thesis": "precious", "best/best.json": "{}", "pages/report.html": "<html>"}
    put(tmp_path, others)
    assert main([str(trained) if argument == "RUN" else argument for argument in arguments]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert tree(tmp_path) == {name: text.encode() for name, text in others.items()}


def test_what_a_command_wrote_it_may_write_again(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["report", str(trained)]) == 0
        assert main(["report", str(trained), "--out", "new/page.html"]) == 0
        assert main(["plot", str(trained), "--out", "new/curve.png"]) == 0
    assert sorted(tree(tmp_path)) == ["new/curve.png", "new/page.html"]


# The user's home


def test_a_path_may_begin_with_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    put(home, {"mine.json": '{"gamma": 0.9}'})
    agent = ppo("~/run").learn(128)
    agent.save("~/agent")
    assert pg.load("~/agent").progress.step == pg.load("~/run").progress.step == 128
    assert pg.load("~/agent", run_dir="~/other").learn(192).progress.step == 192
    assert main([*TRAIN, "--run-dir=~/cli", "--preset=~/mine.json"]) == 0
    assert json.loads((home / "cli" / "config.json").read_text())["gamma"] == 0.9
    assert main(["resume", "~/cli", "--total-steps", "192", "--quiet"]) == 0
    assert main(["train", *TRAIN[1:], "--run-dir=~/cli", "--overwrite"]) == 0
    assert main(["eval", "~/cli", "--episodes", "1", "--json"]) == 0
    assert main(["report", "~/cli"]) == 0
    assert main(["report", "~/cli", "--out=~/page.html"]) == 0
    assert main(["plot", "~/cli", "--out=~/curve.png"]) == 0
    assert main(["watch", "~/cli", "--once"]) == 0
    assert main(["video", "~/cli", "--max-steps", "3"]) == 0
    assert main(["video", "~/cli", "--max-steps", "3", "--out=~/a.mp4"]) == 0
    assert main(["study", "control", "--dir=~/study", "--dry-run", "--quiet"]) == 0
    found = {"page.html", "curve.png", "a.mp4", "run", "agent", "other", "cli"}
    assert found <= {entry.name for entry in home.iterdir()}
    assert list((home / "cli" / "videos").iterdir())
    assert list(here.iterdir()) == []
