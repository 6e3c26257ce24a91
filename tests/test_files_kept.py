"""Files that must not vanish: what a save, a new run or a resumed one did not write, and the old until the new stands."""

from __future__ import annotations

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
from phasegrad.errors import RunError
from phasegrad.runs.checkpoint import write_checkpoint
from phasegrad.runs.directory import restore_carried

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
    assert set(tree(models)) - set(before) - {"leg.safetensors"} == {"state.json", "state.safetensors"}
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
        old = pg.PPG("CartPole-v1", run_dir=tmp_path / "run", **PHASES).learn(512, callback=lambda row: row["step"] < 192)
        new = pg.PPG("CartPole-v1", run_dir=tmp_path / "new", **PHASES).learn(512, callback=lambda row: row["step"] < 320)
        assert old.carried()
        assert new.carried()
    else:
        old, new = ppo().learn(64), ppo().learn(128)
    write = write_checkpoint if kind == "checkpoint" else lambda folder, agent: agent.save(folder)
    write(path, old)
    (path / "notes.txt").write_text("mine")
    for agent in (old, new):
        agent.close()
    begun = tmp_path / "begun"
    shutil.copytree(path, begun)
    seen = set()
    for count in range(1, 200):
        shutil.rmtree(path)
        shutil.copytree(begun, path)
        killed = killed_at(count, lambda: write(path, new), error)
        found = pg.load(path)
        wanted = new if found.progress.step == new.progress.step else old
        assert torch.equal(found.flat.data, wanted.flat.data), count
        assert found.progress == wanted.progress
        seen.add(found.progress.step)
        if kind == "carrying":
            restore_carried(found, None)
            assert found.carried().keys() == wanted.carried().keys()
            assert found.leg_actions
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
