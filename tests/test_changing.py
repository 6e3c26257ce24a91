"""Settings that change while an agent trains: by one method, remembered by the run, made again when it is resumed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import Killed

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.config import live_fields
from phasegrad.errors import ConfigError, RunError

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (8,), "seed": 3, "compile": "off",
    "num_minibatches": 2, "epochs": 2, "checkpoint_every": 192,
}  # fmt: skip


def made(run_dir: Path | None = None, **fields: Any) -> pg.PPO:
    return pg.PPO("CartPole-v1", run_dir=run_dir, **{**SMALL, **fields})


def changing(agent: Any, at: dict[int, dict[str, Any]], die_after: int = 0) -> Any:
    def callback(row: dict[str, Any]) -> None:
        if row["iteration"] in at:
            agent.change(**at[row["iteration"]])
        if row["iteration"] == die_after:
            raise Killed

    return callback


CHANGES: dict[int, dict[str, Any]] = {
    2: {"learning_rate": 1e-2},
    5: {"clip_range": 0.05, "entropy_coef": 0.2},
    6: {"learning_rate": 1e-3},
}


def test_a_change_holds_from_the_next_iteration_on() -> None:
    agent, rows = made(), []
    change = changing(agent, CHANGES)
    agent.learn(64 * 8, callback=lambda row: (rows.append(row), change(row))[1])
    assert [row["learning_rate"] for row in rows] == [3e-4] * 2 + [1e-2] * 4 + [1e-3] * 2
    assert [row["clip_range"] for row in rows] == [0.2] * 5 + [0.05] * 3
    plain = made()
    plain.learn(64 * 8)
    assert not torch.equal(agent.flat.data, plain.flat.data)


@pytest.mark.parametrize("killed_after", [4, 5, 6, 7])
def test_a_killed_run_makes_the_same_changes_when_it_is_resumed(tmp_path: Path, killed_after: int) -> None:
    """Without the callback that made them: `phasegrad resume` has none."""
    whole = made(tmp_path / "whole")
    whole.learn(64 * 10, callback=changing(whole, CHANGES))
    agent = made(tmp_path / "run")
    with pytest.raises(Killed):
        agent.learn(64 * 10, callback=changing(agent, CHANGES, die_after=killed_after))
    resumed: Any = pg.load(tmp_path / "run")
    assert resumed.progress.iteration <= killed_after
    resumed.learn(64 * 10, callback=changing(resumed, {k: v for k, v in CHANGES.items() if k > killed_after}))
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[name]), name
    written = [json.loads(line) for line in (tmp_path / "run" / "changes.jsonl").read_text().splitlines()]
    assert [(row["iteration"], row["after"]) for row in written] == list(CHANGES.items())
    assert (tmp_path / "run" / "changes.jsonl").read_text() == (tmp_path / "whole" / "changes.jsonl").read_text()


def test_a_callback_that_makes_the_change_again_makes_it_once(tmp_path: Path) -> None:
    agent = made(tmp_path / "run")
    with pytest.raises(Killed):
        agent.learn(64 * 8, callback=changing(agent, CHANGES, die_after=5))
    resumed: Any = pg.load(tmp_path / "run")
    resumed.learn(64 * 8, callback=changing(resumed, CHANGES))
    lines = (tmp_path / "run" / "changes.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [2, 5, 6]


def test_a_callback_may_decide_otherwise_when_the_run_is_resumed(tmp_path: Path) -> None:
    agent = made(tmp_path / "run")
    with pytest.raises(Killed):
        agent.learn(64 * 8, callback=changing(agent, {4: {"learning_rate": 1e-2}}, die_after=5))
    resumed, rows = pg.load(tmp_path / "run"), []
    change = changing(resumed, {4: {"learning_rate": 5e-3}})
    resumed.learn(64 * 8, callback=lambda row: (rows.append(row), change(row))[1])
    assert {row["iteration"]: row["learning_rate"] for row in rows} == {4: 3e-4, 5: 5e-3, 6: 5e-3, 7: 5e-3, 8: 5e-3}


def test_config_json_says_how_the_run_began(tmp_path: Path) -> None:
    agent = made(tmp_path / "run")
    agent.learn(64 * 3, callback=changing(agent, CHANGES))
    agent.learn(64 * 6)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["learning_rate"] == 3e-4
    loaded = pg.load(tmp_path / "run")
    assert loaded.config.learning_rate == 1e-2  # type: ignore[attr-defined]
    text = (tmp_path / "run" / "config.json").read_text().replace('"learning_rate": 0.0003', '"learning_rate": 0.5')
    (tmp_path / "run" / "config.json").write_text(text)
    with pytest.raises(RunError, match=r"has learning_rate 0\.5, but the run was started with 0\.0003"):
        pg.load(tmp_path / "run")


def test_a_run_that_goes_another_way_from_an_earlier_step_forgets_later_changes(tmp_path: Path) -> None:
    agent = made(tmp_path / "run")
    agent.learn(64 * 8, callback=changing(agent, CHANGES))
    loaded: Any = pg.load(tmp_path / "run", checkpoint=192, overwrite=True)
    loaded.learn(64 * 8)
    assert loaded.config.learning_rate == 1e-2
    assert loaded.config.clip_range == 0.2
    assert len((tmp_path / "run" / "changes.jsonl").read_text().splitlines()) == 1


def test_a_saved_agent_keeps_what_was_changed(tmp_path: Path) -> None:
    agent = made()
    agent.learn(64 * 3, callback=changing(agent, CHANGES))
    agent.save(tmp_path / "agent")
    loaded: Any = pg.load(tmp_path / "agent")
    assert loaded.config.learning_rate == 1e-2
    assert [change.iteration for change in loaded.run.changes] == [2]
    for each in (agent, loaded):
        each.learn(64 * 5)
    assert torch.equal(agent.flat.data, loaded.flat.data)


def test_an_adaptive_kl_weight_goes_on_from_the_one_given() -> None:
    agent, rows = made(objective="kl", kl_target=0.01), []
    change = changing(agent, {2: {"kl_beta": 64.0}})
    agent.learn(64 * 3, callback=lambda row: (rows.append(row), change(row))[1])
    assert rows[2]["kl_beta"] == 64.0


# Frozen


@pytest.mark.parametrize("name", ALGORITHMS)
def test_once_training_has_begun_nothing_is_assigned(name: str) -> None:
    fields = {field: value for field, value in SMALL.items() if field not in ("num_minibatches", "epochs")}
    agent: Any = ALGORITHMS[name]("CartPole-v1", **fields)
    agent.config.entropy_coef = 0.01  # before, a setting is a setting
    agent.learn(64)
    with pytest.raises(ConfigError, match=r"entropy_coef cannot be assigned .* agent\.change\(entropy_coef=0\.5\)"):
        agent.config.entropy_coef = 0.5
    with pytest.raises(ConfigError, match=r"gamma is 0.99 and cannot become 0.5 once training has begun"):
        agent.config.gamma = 0.5
    agent.config.gamma = 0.99  # no change
    assert agent.config.entropy_coef == 0.01
    agent.change(entropy_coef=0.5)
    assert agent.config.entropy_coef == 0.5
    assert {"entropy_coef"} <= set(live_fields(type(agent.config)))
    agent.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"learning_rate": "abc"},
            "learning_rate must be a finite number or a schedule such as linear:1e-3:1e-5, .* not 'abc'",
        ),
        ({"clip_range": -1}, "clip_range must be at least 0"),
        (
            {"gamma": 0.5},
            "gamma cannot change while an agent trains: anneal_clip_range, anneal_learning_rate, clip_range",
        ),
        ({"num_envs": 8}, "num_envs cannot change"),
        ({"entropy_coeff": 0.5}, "Unknown setting 'entropy_coeff' for ppo. Did you mean entropy_coef"),
        ({"kl_target": 0.1}, "kl_target belongs to objective kl"),
        ({"learning_rate": 0.1, "gamma": 0.5}, "gamma cannot change"),
    ],
)
def test_a_change_is_checked_before_anything_is_changed(settings: dict[str, Any], sentence: str) -> None:
    agent = made()
    agent.learn(64)
    with pytest.raises(ConfigError, match=sentence):
        agent.change(**settings)
    assert (agent.config.learning_rate, agent.config.kl_target) == (3e-4, 0.0)
    assert not agent.run.changes


def test_before_training_a_change_is_a_setting(tmp_path: Path) -> None:
    agent = made(tmp_path / "run")
    agent.change(learning_rate=1e-2)
    agent.learn(64)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["learning_rate"] == 1e-2
    assert not (tmp_path / "run" / "changes.jsonl").exists()


@pytest.mark.parametrize(
    "text", ["no json\n", "[1]\n", '{"iteration": 1}\n', '{"iteration": 1, "step": 2, "before": {}, "after": 3}\n']
)
def test_damaged_changes_are_named(tmp_path: Path, text: str) -> None:
    made(tmp_path / "run").learn(64)
    (tmp_path / "run" / "changes.jsonl").write_text(text)
    with pytest.raises(pg.PhasegradError, match="damaged"):
        pg.load(tmp_path / "run").learn(128)


def test_a_line_that_a_kill_has_cut_was_never_in_force(tmp_path: Path) -> None:
    made(tmp_path / "run").learn(64)
    (tmp_path / "run" / "changes.jsonl").write_text('{"iteration": 1, "step": 64, "bef')
    loaded: Any = pg.load(tmp_path / "run")
    loaded.learn(192, callback=changing(loaded, {2: {"learning_rate": 0.5}}))
    [line] = (tmp_path / "run" / "changes.jsonl").read_text().splitlines()
    assert json.loads(line)["after"] == {"learning_rate": 0.5}


def test_a_run_that_is_replaced_takes_its_changes_along(tmp_path: Path) -> None:
    agent = made(tmp_path / "run")
    agent.learn(64 * 3, callback=changing(agent, CHANGES))
    made(tmp_path / "run", overwrite=True).learn(64)
    assert not (tmp_path / "run" / "changes.jsonl").exists()


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_what_stands_in_the_place_of_changes_is_left_alone(tmp_path: Path, kind: str) -> None:
    made(tmp_path / "run").learn(64)
    place, mine = tmp_path / "run" / "changes.jsonl", tmp_path / "mine.txt"
    if kind == "link":
        mine.write_text("mine")
    if "link" in kind:
        place.symlink_to(mine)
    elif kind == "folder":
        place.mkdir()
    else:
        os.mkfifo(place)
    loaded: Any = pg.load(tmp_path / "run")
    with pytest.raises(RunError, match=r"changes\.jsonl is a (link|folder|named pipe), not a file"):
        loaded.learn(192, callback=changing(loaded, {2: {"learning_rate": 0.5}}))
    assert place.is_symlink() or place.exists()
    assert (mine.read_text() == "mine") if kind == "link" else not mine.exists()


def test_a_change_that_cannot_be_written_stops_the_run_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = made(tmp_path / "run")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def callback(row: dict[str, Any]) -> None:
        if row["iteration"] == 2:
            with monkeypatch.context() as patch:
                patch.setattr("phasegrad.runs.changing.os.fsync", full)
                agent.change(learning_rate=0.5)

    with pytest.raises(RunError, match=r"changes\.jsonl could not be written: No space left on device"):
        agent.learn(64 * 6, callback=callback)
