"""Numbers of files that something is looked up by: actions, places in stacks, final observations; checked before use.

Whoever makes such a file makes its checksum too, so all of these match.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from gymnasium import spaces
from hybrid_envs import HybridIdentityEnv
from torch import Tensor

import phasegrad as pg
from phasegrad import envs
from phasegrad.envs.actions import ActionAdapter
from phasegrad.errors import DamagedError, EnvError

Change = Callable[[dict[str, Tensor]], None]
SMALL = {"num_envs": 4, "num_steps": 8, "eval_episodes": 0, "seed": 3, "compile": "off"}


def saved(tmp_path: Path, name: str, env: Any, **settings: Any) -> Path:
    agent = getattr(pg, name.upper())(env, **{**SMALL, **settings})
    agent.learn(768, callback=lambda row: row["step"] < 96)  # it is still under way
    agent.save(tmp_path / "saved")
    agent.close()
    return tmp_path / "saved"


def change_leg(folder: Path, change: Change) -> None:
    file, state = folder / "leg.safetensors", json.loads((folder / "state.json").read_text())
    tensors = safetensors.torch.load_file(file)
    change(tensors)
    file.write_bytes(safetensors.torch.save(tensors))
    state["leg"]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / "state.json").write_text(json.dumps(state))


def change_piece(folder: Path, change: Change) -> Path:
    """Of the first segment, with all checksums made anew."""
    state = json.loads((folder / "state.json").read_text())
    entry = state["extra"]["carried"]["files"][0]
    file = folder / "segments" / entry["file"]
    tensors = safetensors.torch.load_file(file)
    change(tensors)
    file.write_bytes(safetensors.torch.save(tensors))
    entry["bytes"], entry["sha256"] = file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / "state.json").write_text(json.dumps(state))
    return file


def put(name: str, value: Any) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        key = next(key for key in sorted(tensors) if key.split(".", 1)[-1] == name)
        tensors[key].view(-1)[0] = value

    return change


def retyped(name: str, dtype: torch.dtype) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        key = next(key for key in sorted(tensors) if key.split(".", 1)[-1] == name)
        tensors[key] = tensors[key].to(dtype)

    return change


def to_int64(value: int) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["actions"] = tensors["actions"].long()
        tensors["actions"].view(-1)[0] = value

    return change


def hybrid() -> Any:
    return HybridIdentityEnv()


# What is played back


@pytest.mark.parametrize("value", [10**6, 2**32, -1, 4, 2**62])
def test_breakout_is_given_no_action_that_it_does_not_have(value: int, tmp_path: Path) -> None:
    """envpool's Atari looks actions up in a table, wherever they lead: a segmentation fault."""
    folder = saved(tmp_path, "ppo", "Breakout-v5", num_steps=4)
    change_leg(folder, to_int64(value))
    with pytest.raises(DamagedError, match=r"leg.safetensors is damaged: it holds actions that Discrete\(4\) does not"):
        pg.load(folder)


@pytest.mark.parametrize(
    ("env", "change"),
    [
        ("CartPole-v1", to_int64(2)),
        ("CartPole-v1", retyped("actions", torch.float32)),
        ("CartPole-v1", retyped("actions", torch.complex64)),
        ("CartPole-v1", retyped("actions", torch.bfloat16)),
        ("Pendulum-v1", put("actions", float("nan"))),
        ("Pendulum-v1", retyped("actions", torch.float64)),
        ("Pendulum-v1", retyped("actions", torch.int64)),
        (hybrid, put("actions", 0.5)),
        ("CartPole-v1", put("starts", -1)),
        ("CartPole-v1", put("starts", 2**40)),
        ("CartPole-v1", put("numbers", 2**62)),
    ],
)
def test_legs_that_no_run_can_have_had_are_named(env: Any, change: Change, tmp_path: Path) -> None:
    folder = saved(tmp_path, "ppo", env)
    change_leg(folder, change)
    with pytest.raises(DamagedError, match=r"leg.safetensors is damaged"):
        pg.load(folder, env=env) if callable(env) else pg.load(folder)


# What is learnt from again


@pytest.mark.parametrize("compile_", ["off", "on"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("actions", 10**6), "actions that the action space does not have"),
        (put("actions", -1), "actions that the action space does not have"),
        (retyped("actions", torch.int32), "actions is torch.int32"),
        (retyped("truncated", torch.uint8), "truncated is torch.uint8"),
        (put("behaviour_params", float("nan")), "behaviour_params has entries that are no numbers"),
        (put("truncated", True), "final_observations is"),
        (lambda tensors: tensors.pop("0.actions"), "actions is missing"),
    ],
)
def test_acers_memory_is_looked_at_before_it_is_learnt_from(
    change: Change, said: str, compile_: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path, "acer", "CartPole-v1", replay_capacity=320, replay_start=32, compile=compile_)
    file = change_piece(folder, change)
    agent = pg.load(folder)
    with pytest.raises(DamagedError) as error:
        agent.learn(768)
    assert str(error.value).startswith(f"{file} is damaged: of rollout ")
    assert said in str(error.value)
    agent.close()


@pytest.mark.parametrize("algorithm", ["acer", "ppg"])
def test_frames_before_a_stack_are_not_looked_for(algorithm: str, tmp_path: Path) -> None:
    own = {"replay_capacity": 320, "replay_start": 32} if algorithm == "acer" else {"n_pi": 8}
    folder = saved(tmp_path, algorithm, "CartPole-v1", frame_stack=3, **own)
    file = change_piece(folder, put("since", 250))
    agent = pg.load(folder)
    with pytest.raises(DamagedError, match=f"{file.name} is damaged: .* frames that no stack holds"):
        agent.learn(768)
    agent.close()


@pytest.mark.parametrize(
    "change",
    [
        retyped("value_targets", torch.float64),
        put("value_targets", float("nan")),
        lambda tensors: tensors.pop("0.observations"),
        lambda tensors: tensors.update({"0.observations": torch.zeros(3)}),
    ],
)
def test_ppgs_buffer_names_the_file_that_does_not_fit(change: Change, tmp_path: Path) -> None:
    folder = saved(tmp_path, "ppg", "CartPole-v1", n_pi=8)
    file = change_piece(folder, change)
    agent = pg.load(folder)
    with pytest.raises(DamagedError, match=f"{file.name} is damaged: of rollout"):
        agent.learn(768)
    agent.close()


@pytest.mark.parametrize("added", [10**9, -1, 2**70, "many", None, 1e300])
def test_a_count_of_acers_rollouts_that_cannot_be(added: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path, "acer", "CartPole-v1", replay_capacity=320, replay_start=32)
    state = json.loads((folder / "state.json").read_text())
    state["extra"]["carried"]["state"]["added"] = added
    (folder / "state.json").write_text(json.dumps(state))
    agent = pg.load(folder)
    with pytest.raises(DamagedError, match="segments"):
        agent.learn(768)
    agent.close()


# What a user's own code gives


def test_a_batch_of_actions_is_looked_at_before_environments_in_cpp_get_it() -> None:
    env = envs.make("CartPole-v1", num_envs=2, seeds=[1, 2])
    env.reset()
    env.step(np.array([0, 1]))
    env.step(np.array([0.0, 1.0]))  # as a network may have written them
    for wrong, said in (
        ([0, 2], r"Environment 1 was given the action \[2\], which Discrete\(2\) does not have"),
        ([10**6, 0], r"Environment 0 was given the action \[1000000\]"),
        ([-1, 0], "Environment 0"),
        ([2**32, 0], "Environment 0"),
        ([0.5, 0], "Environment 0"),
        ([float("nan"), 0], "Environment 0"),
        (["left", "right"], "takes numbers"),
        ([None, 0], "takes numbers"),
        ([0, 1, 0], "have shape"),
    ):
        with pytest.raises(EnvError, match=said):
            env.step(np.array(wrong))
    env.close()


def test_actions_of_every_kind_are_looked_at() -> None:
    space = spaces.Dict(
        {"a": spaces.Discrete(3, start=5), "b": spaces.MultiDiscrete([2, 4]), "c": spaces.MultiBinary(2)}
        | {"d": spaces.Box(-1, 1, (1,)), "e": spaces.Box(0, 3, (1,), np.int8)}
    )
    adapter = ActionAdapter(space)
    good = np.array([[2, 1, 3, 1, 0, 0.5, 3]])
    adapter.require(good, 1)
    for column, value in ((0, 3), (1, 2), (2, 4), (3, 2), (4, -1), (5, np.inf), (6, 4)):
        bad = good.copy()
        bad[0, column] = value
        with pytest.raises(EnvError, match="for its part"):
            adapter.require(bad, 1)


def test_training_leaves_the_check_out_but_not_where_the_distribution_is_a_users() -> None:
    """It costs a tenth of a step of CartPole."""

    class Odd(pg.distributions.Categorical):
        def __init__(self, space: spaces.Discrete) -> None:
            super().__init__(int(space.n))

        def sample(self, params: Tensor, noise: Tensor) -> Tensor:
            return super().sample(params, noise) + 10**6

    agent = pg.PPO("CartPole-v1", **SMALL)
    agent.learn(32)
    assert not agent.experience.env.checks_actions
    agent.close()
    pg.register_distribution("odd", Odd)
    agent = pg.PPO("CartPole-v1", action_distribution="odd", **SMALL)
    with pytest.raises(EnvError, match="was given the action"):
        agent.learn(32)
    agent.close()
