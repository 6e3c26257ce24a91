"""Saving, loading and resuming: bit for bit, without the environment, and refusing what is damaged."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from identity_envs import FACTORIES, IdentityEnv

import phasegrad as pg
from phasegrad.algorithms.base import Algorithm
from phasegrad.errors import EnvError, PhasegradError, RunError
from phasegrad.runs.metrics import read_metrics
from phasegrad.runs.spaces import space_from_json, space_to_json

SMALL: dict[str, Any] = {
    "preset": "none",
    "num_envs": 4,
    "num_steps": 16,
    "epochs": 2,
    "num_minibatches": 4,
    "hidden_sizes": (16,),
}
NORMALISED: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True}


def same_tensors(first: Algorithm, second: Algorithm) -> None:
    mine, theirs = first.tensors(), second.tensors()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


def same_progress(first: Algorithm, second: Algorithm) -> None:
    assert first.progress == second.progress
    assert first.scalars == second.scalars


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a trained agent for Pendulum, whose normalisers have seen data."""
    agent = pg.PPO("Pendulum-v1", seed=5, **SMALL, **NORMALISED).learn(192)
    agent.save(tmp_path / "agent")
    agent.close()
    return tmp_path / "agent"


@pytest.mark.parametrize("name", FACTORIES)
def test_a_loaded_agent_acts_and_values_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    agent = pg.PPO(FACTORIES[name], seed=2, **SMALL, **NORMALISED).learn(256)
    agent.save(tmp_path / "agent")
    loaded = pg.load(tmp_path / "agent")  # no environment given: acting needs none
    same_tensors(agent, loaded)
    same_progress(agent, loaded)
    assert loaded.agent.observation_space == agent.agent.observation_space
    assert loaded.agent.action_space == agent.agent.action_space
    agent.agent.observation_space.seed(0)
    observations = [agent.agent.observation_space.sample() for _ in range(20)]
    batch = (
        {key: np.stack([o[key] for o in observations]) for key in observations[0]}
        if isinstance(agent.agent.observation_space, spaces.Dict)
        else np.stack(observations)
    )
    np.testing.assert_array_equal(agent.predict(batch)[0], loaded.predict(batch)[0])
    np.testing.assert_array_equal(agent.value(batch), loaded.value(batch))
    sampled = []
    for each in (agent, loaded):
        torch.manual_seed(0)
        sampled.append(each.predict(batch, deterministic=False)[0])
    np.testing.assert_array_equal(*sampled)


def test_a_loaded_agent_goes_on_as_the_saved_one_does(tmp_path: Path) -> None:
    fields = SMALL | NORMALISED | {"anneal_learning_rate": True, "objective": "kl", "kl_target": 0.01}
    agent = pg.PPO("CartPole-v1", seed=2, **fields).learn(256)
    agent.save(tmp_path / "agent")
    loaded = pg.load(tmp_path / "agent")
    for each in (agent, loaded):
        each.learn(640)
    same_tensors(agent, loaded)
    same_progress(agent, loaded)


class OneOff(IdentityEnv):
    """Known to this test alone; the saved agent only knows its name."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(3))


def test_an_agent_of_an_unknown_environment_acts_but_says_what_playing_needs(tmp_path: Path) -> None:
    agent = pg.PPO(OneOff, seed=2, **SMALL).learn(64)
    agent.save(tmp_path / "agent")
    loaded = pg.load(tmp_path / "agent")
    assert loaded.predict(2)[0] == agent.predict(2)[0]
    with pytest.raises(EnvError, match="env="):
        loaded.evaluate(2)
    with pytest.raises(PhasegradError, match="env="):
        loaded.learn(128)
    with_env = pg.load(tmp_path / "agent", env=OneOff)
    assert with_env.evaluate(2).lengths == [20, 20]
    assert with_env.learn(128).progress.step == 128


def test_a_custom_encoder_must_be_given_again(tmp_path: Path) -> None:
    def tiny(space: gym.Space) -> torch.nn.Module:
        module = torch.nn.Linear(4, 3)
        module.features = 3  # type: ignore[assignment]
        return module

    agent = pg.PPO("CartPole-v1", encoder=tiny, **SMALL)
    agent.save(tmp_path / "agent")
    with pytest.raises(RunError, match="encoder="):
        pg.load(tmp_path / "agent")
    same_tensors(agent, pg.load(tmp_path / "agent", encoder=tiny))


def test_saving_over_an_older_save_replaces_it(saved: Path) -> None:
    agent = pg.load(saved)
    agent.model.value_head.bias.data += 1
    agent.save(saved)
    same_tensors(agent, pg.load(saved))
    assert [path.name for path in saved.parent.iterdir()] == ["agent"], "no temporary folder stays behind"


# Damage


def refusal(path: Path) -> str:
    with pytest.raises(RunError) as error:
        pg.load(path)
    message = str(error.value)
    assert message.endswith((".", "?"))
    assert "\n" not in message
    return message


@pytest.mark.parametrize("place", [0, 20, 500, -1])
def test_a_flipped_byte_is_detected(saved: Path, place: int) -> None:
    file = saved / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert "damaged" in refusal(saved)


@pytest.mark.parametrize("size", [0, 4, 300])
def test_a_cut_file_is_detected(saved: Path, size: int) -> None:
    file = saved / "state.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    assert "damaged" in refusal(saved)


def test_a_file_that_is_no_safetensors_is_detected_whatever_its_checksum(saved: Path) -> None:
    import hashlib

    state = json.loads((saved / "state.json").read_text())
    (saved / "state.safetensors").write_bytes(b"nothing of the kind")
    state["sha256"] = hashlib.sha256(b"nothing of the kind").hexdigest()
    (saved / "state.json").write_text(json.dumps(state))
    assert "damaged" in refusal(saved)


def test_missing_files_and_folders(saved: Path, tmp_path: Path) -> None:
    (saved / "state.safetensors").unlink()
    assert "cannot be read" in refusal(saved)
    (saved / "state.json").unlink()
    assert "not a checkpoint or saved agent" in refusal(saved)
    assert "does not exist" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\x00\xff", "[" * 100_000, "null"])
def test_a_state_that_is_no_json_object(saved: Path, text: str) -> None:
    (saved / "state.json").write_text(text, encoding="latin-1")
    refusal(saved)


def test_another_format_is_refused(saved: Path) -> None:
    state = json.loads((saved / "state.json").read_text())
    for format in (0, 3, "1", None):
        (saved / "state.json").write_text(json.dumps(state | {"format": format}))
        assert "another version" in refusal(saved)


@pytest.mark.parametrize(
    "key",
    ["algorithm", "config", "progress", "scalars", "observation_space", "action_space", "has_action_mask", "sha256"],
)
def test_a_state_without_one_of_its_parts_is_refused(saved: Path, key: str) -> None:
    state = json.loads((saved / "state.json").read_text())
    del state[key]
    (saved / "state.json").write_text(json.dumps(state))
    refusal(saved)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm", "sarsa"),
        ("config", {"gama": 1}),
        ("config", 3),
        ("progress", {}),
        ("progress", {"step": "many"}),
        ("observation_space", {"kind": "Box"}),
        ("observation_space", {"kind": "Sphere"}),
        ("action_space", {"kind": "Box", "shape": [10**9, 10**9], "dtype": "float32", "low": 0, "high": 1}),
        ("action_space", {"kind": "Discrete", "n": 10**15, "start": 0}),
        ("action_space", {"kind": "Discrete", "n": 3, "start": 0}),
    ],
)
def test_a_state_with_nonsense_in_it_is_refused(saved: Path, key: str, value: Any) -> None:
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps(state | {key: value}))
    refusal(saved)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (3,)),
        spaces.Box(np.array([-np.inf, 0], np.float32), np.array([np.inf, 0.1], np.float32)),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Discrete(7),
        spaces.MultiDiscrete([2, 9]),
        spaces.MultiBinary(5),
        spaces.Dict({"b": spaces.Box(-1, 1, (2,)), "a": spaces.Discrete(2)}),
    ],
    ids=str,
)
def test_spaces_survive_json(space: gym.Space) -> None:
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert again == space
    if isinstance(space, spaces.Dict):
        assert list(again) == list(space)


# Resuming


RUN: dict[str, Any] = SMALL | NORMALISED | {
    "seed": 3, "checkpoint_every": 256, "anneal_learning_rate": True, "objective": "kl", "kl_target": 0.01, "keep_checkpoints": 20,
}  # fmt: skip
TIMES = re.compile("sps|seconds|time_.*")


def rows_without_times(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not TIMES.fullmatch(k)} for row in read_metrics(folder / "metrics.jsonl")]


@pytest.mark.parametrize(
    ("env", "killed_at"), [("CartPole-v1", 320), ("CartPole-v1", 512), ("CartPole-v1", 640), ("Pendulum-v1", 448)]
)
def test_a_killed_run_resumes_to_the_bits_of_one_never_stopped(env: str, killed_at: int, tmp_path: Path) -> None:
    """The run directory as a kill at a step would leave it: metrics beyond the checkpoint, the last line cut."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def copy(row: dict[str, Any]) -> None:
        if row["step"] == killed_at:
            shutil.copytree(whole, killed)

    agent = pg.PPO(env, run_dir=whole, **RUN).learn(1_000, callback=copy)
    assert agent.progress.step == 1_000
    assert not (killed / "result.json").exists()
    with open(killed / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 99, "ret')
    resumed = pg.load(killed)
    assert resumed.progress.step == max(s for s in (256, 512, 768) if s < killed_at), (
        "a checkpoint comes after the callback"
    )
    resumed.learn()
    same_tensors(agent, resumed)
    same_progress(agent, resumed)
    rows = rows_without_times(whole)
    assert [row["step"] for row in rows] == [*range(64, 1000, 64), 1000]
    assert rows_without_times(killed) == rows
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, killed)]
    for key in ("status", "step", "return_mean", "episodes"):
        assert results[0][key] == results[1][key]
    assert results[0]["status"] == "finished"


def test_a_run_stopped_by_its_callback_is_saved_there_and_goes_on(tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", run_dir=tmp_path / "run", **RUN).learn(1_024, callback=lambda row: row["step"] < 320)
    assert agent.progress.step == 320
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "stopped"
    resumed = pg.load(shutil.copytree(tmp_path / "run", tmp_path / "copy"))
    same_tensors(agent, resumed)
    resumed.learn()
    agent.learn()
    same_tensors(agent, resumed)
    assert resumed.progress.step == 1_024


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", run_dir=tmp_path / "run", **RUN).learn(768)
    folders = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [int(folder.name.removeprefix("step-")) for folder in folders] == [256, 512, 768]
    (folders[-1] / "state.safetensors").write_bytes(b"cut short")
    resumed = pg.load(tmp_path / "run")
    assert resumed.progress.step == 512
    same_tensors(agent, resumed.learn())


def test_only_the_latest_checkpoints_are_kept_and_each_can_be_loaded(tmp_path: Path) -> None:
    pg.PPO("CartPole-v1", run_dir=tmp_path / "run", **RUN | {"keep_checkpoints": 2}).learn(1_024)
    assert pg.load(tmp_path / "run").progress.step == 1_024
    assert pg.load(tmp_path / "run", checkpoint=768).progress.step == 768
    with pytest.raises(RunError, match="no checkpoint of step 512: it has 768, 1024"):
        pg.load(tmp_path / "run", checkpoint=512)


def test_nothing_is_pickled() -> None:
    """Reading a checkpoint must never run code: torch.load and pickle do."""
    package = Path(pg.__file__).parent
    files = list(package.rglob("*.py"))
    assert len(files) > 20
    pattern = re.compile(
        r"\bimport (cloud)?pickle|\bfrom (cloud)?pickle|(?<!safetensors\.)torch\.(load|save)\(|\bjoblib\b|\bmarshal\b|allow_pickle=True"
    )
    found = [f"{path.name}: {match.group()}" for path in files if (match := pattern.search(path.read_text()))]
    assert not found


def test_python_does_not_write_over_another_run(tmp_path: Path) -> None:
    pg.PPO("CartPole-v1", run_dir=tmp_path / "run", **RUN).learn(256)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match="already holds files"):
        pg.PPO("CartPole-v1", run_dir=tmp_path / "run", **RUN).learn(256)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_resume_copes_with_metrics_that_are_gone(tmp_path: Path) -> None:
    pg.PPO("CartPole-v1", run_dir=tmp_path / "run", **RUN).learn(256)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    pg.load(tmp_path / "run").learn(512)
    assert b"\0" not in (tmp_path / "run" / "metrics.jsonl").read_bytes()
