"""Training with actions of unlike parts: learnt by every algorithm, computed alike in three ways, resumed to the bit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import hybrid_envs
import numpy as np
import pytest
import rank_work as work
import torch
from gymnasium import spaces
from hybrid_envs import EPISODE, HybridIdentityEnv, MaskedHybridEnv, Rover
from interrupted import resumed_to_the_same_bits
from machine import needs_compiler

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.cli.main import main
from phasegrad.errors import EnvError, PhasegradWarning
from phasegrad.studies import random_policy

SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 12, "seed": 3, "hidden_sizes": (16,), "eval_episodes": 0}
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"num_minibatches": 2, "epochs": 2},
    "a2c": {"updates_per_iteration": 1},
    "ppg": {"num_minibatches": 2, "n_pi": 3, "aux_minibatches": 2, "e_pi": 1, "e_v": 1, "e_aux": 2},
}
WAYS = ["off", pytest.param("on", marks=needs_compiler)]


# ---- learning


def echo() -> HybridIdentityEnv:
    parts = spaces.Dict(move=spaces.Discrete(4, start=1), aim=spaces.Box(-1.0, 1.0, (2,)), keys=spaces.MultiBinary(2))
    return HybridIdentityEnv(spaces.Tuple((parts, spaces.Box(2, 4, (1,), np.int32))))


QUICK: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 32, "epochs": 4, "num_minibatches": 4, "learning_rate": 5e-3},
    "ppg": {"num_steps": 32, "num_minibatches": 4, "learning_rate": 5e-3, "n_pi": 8, "e_pi": 3, "e_aux": 2},
    "a2c": {"learning_rate": 5e-3, "entropy_coef": 0.0},
    "vpg": {"num_steps": 8, "learning_rate": 5e-3, "value_steps": 5},
    "trpo": {"num_steps": 32, "max_kl": 0.1, "value_epochs": 1},
}


@pytest.mark.learning
@pytest.mark.parametrize("name", QUICK)
def test_every_part_of_an_echo_is_learnt(name: str) -> None:
    agent = ALGORITHMS[name](echo, seed=1, num_envs=8, gamma=0.5, initial_std=0.5, eval_episodes=0, **QUICK[name])
    untrained = agent.evaluate(8).return_mean
    agent.learn(14_336)
    assert untrained < 0.7 * EPISODE, "the task must need learning"
    assert agent.evaluate(16).return_mean >= (0.8 if name == "vpg" else 0.87) * EPISODE


@pytest.mark.learning
@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_a_task_with_parameterised_actions_is_learnt(name: str) -> None:
    """Turn towards the goal, drive there, stop: about 1.6 at best, about -0.6 for random actions."""
    agent = ALGORITHMS[name](
        Rover, seed=1, num_envs=16, num_steps=64, num_minibatches=4, learning_rate=3e-3, eval_episodes=0
    )
    assert random_policy.random_return(Rover, {}, episodes=60) < -0.3
    agent.learn(30_720)
    assert agent.evaluate(50).return_mean > 1.1


def test_acer_says_what_it_needs() -> None:
    with pytest.raises(EnvError, match=r"acer needs a Discrete action space, not Dict.*: use ppo, ppg, a2c or trpo"):
        pg.ACER(HybridIdentityEnv, num_envs=2)


# ---- three ways of computing


@needs_compiler
@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("ppo", HybridIdentityEnv),
        ("ppg", hybrid_envs.nested_masks),
        ("a2c", hybrid_envs.choices),
        ("vpg", hybrid_envs.choices),
        ("trpo", MaskedHybridEnv),
    ],
)
def test_three_ways_of_computing_agree(name: str, env: Any) -> None:
    agents = {}
    for compile in ("off", "replay", "on"):
        agent = agents[compile] = ALGORITHMS[name](env, compile=compile, **SMALL, **OWN.get(name, {}))
        with warnings.catch_warnings():
            warnings.simplefilter("error", PhasegradWarning)  # nothing falls back, and each is checked against autograd
            agent.learn(48 * 3)
    assert {stepper.way for stepper in agents["on"].computation.steppers} == {"compiled"}
    assert agents["on"].experience.actor.runs_program
    for compile in ("replay", "on"):
        torch.testing.assert_close(agents[compile].flat.data, agents["off"].flat.data, rtol=1e-3, atol=3e-3)


# ---- resuming


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("compile", WAYS)
@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(
    name: str, compile: str, vectorization: str, tmp_path: Path
) -> None:
    agent = ALGORITHMS[name](
        MaskedHybridEnv, run_dir=tmp_path / "run", compile=compile, vectorization=vectorization,
        checkpoint_every=96, restart_every=160, **SMALL, **OWN[name],
    )  # fmt: skip
    resumed = resumed_to_the_same_bits(agent, 48 * 10, killed_at=48 * 7, env=MaskedHybridEnv)
    assert agent.run.legs.numbers.max() > 0, "environments must have been made anew"
    for one in (agent, resumed):
        one.close()


@pytest.mark.parametrize(
    "fields", [{"memory": "gru", "memory_size": 8, "sequence_length": 4}, {"frame_stack": 3}], ids=["memory", "stack"]
)
def test_memory_and_stacks_resume_too(fields: dict[str, Any], tmp_path: Path) -> None:
    agent = pg.PPO(
        hybrid_envs.nested_masks, run_dir=tmp_path / "run", checkpoint_every=96, action_bounds="rescale",
        **SMALL, **OWN["ppo"], **fields,
    )  # fmt: skip
    resumed_to_the_same_bits(agent, 48 * 6, killed_at=48 * 4, env=hybrid_envs.nested_masks)
    env = hybrid_envs.nested_masks()
    observation, info = env.reset(seed=0)
    state = None
    for _ in range(3):
        action, state = agent.predict(observation, state, mask=info["action_mask"])
        observation, _, _, _, info = env.step(action)


def test_several_processes_have_the_noise_of_one(tmp_path: Path) -> None:
    team = work.Team(2, tmp_path)
    try:
        fields = {**SMALL, **OWN["ppo"], "num_steps": 24, "compile": "off"}
        first, second = team.run(work.train, "ppo", MaskedHybridEnv, 480, None, 0, fields)
    finally:
        team.close()
    assert first["digest"] == second["digest"]
    alone = work.train("ppo", MaskedHybridEnv, 480, None, 0, fields)  # type: ignore[arg-type]
    assert first["rows"][0]["episodes"] == alone["rows"][0]["episodes"] == 4
    assert first["rows"][0]["return_mean"] == pytest.approx(alone["rows"][0]["return_mean"], rel=1e-5)


# ---- what else reads actions


def test_logged_steps_and_films_name_the_parts(tmp_path: Path) -> None:
    agent = pg.PPO(HybridIdentityEnv, run_dir=tmp_path / "run", log_steps=True, **SMALL, **OWN["ppo"])
    agent.learn(48)
    with np.load(next((tmp_path / "run" / "steps").iterdir())) as found:
        assert {"action.move", "action.aim", "action.more.0", "move.logits", "aim.mean", "aim.std"} <= set(found)
        assert "action" not in found
        assert found["action.move"].shape == (12, 4)
        assert found["action.move"].dtype == np.int64
        assert found["action.aim"].shape == (12, 4, 2)
    from phasegrad.envs import ActionAdapter
    from phasegrad.video.actions import said_of

    own = ActionAdapter(hybrid_envs.mixed_space())
    taken = own.to_environment(np.array([[2, 0.5, 3.0, 1, 2, 0, 1, 2, 1]], np.float32), 1)
    said = said_of(own, taken, 0, ())
    assert said == {"action": "move 4  aim +0.50 +3.00  more.0 1 2  more.1.flags 0 1  more.2 1 6", "levels": ()}
    film = agent.record(tmp_path / "film.gif", episodes=1)
    assert film.path.stat().st_size > 0


@pytest.mark.parametrize("env", [HybridIdentityEnv, MaskedHybridEnv, hybrid_envs.choices, hybrid_envs.integer_box])
@pytest.mark.parametrize("deterministic", [True, False])
def test_an_exported_file_has_an_output_for_each_part(env: Any, deterministic: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    from phasegrad.export.onnx import export_onnx

    agent = pg.PPO(env, action_bounds="rescale", **SMALL, **OWN["ppo"])
    agent.learn(96)
    report = export_onnx(
        agent, tmp_path / "policy.onnx", with_value=True, with_log_prob=True, deterministic=deterministic
    )
    assert report.largest_difference <= 1e-5
    names = [name for name, _, _ in report.outputs]
    if env is HybridIdentityEnv:
        assert names[:5] == [f"action.{name}" for name in ("move", "aim", "more.0", "more.1.flags", "more.2")]
        assert [kind for _, kind, _ in report.outputs][:5] == ["int64", "float", "int64", "int8", "int16"]
    if not deterministic or env is MaskedHybridEnv:
        return
    session = onnxruntime.InferenceSession(str(report.path))
    one = env()
    observation, _ = one.reset(seed=5)
    found = dict(zip(names, session.run(None, {name: entry[None] for name, entry in observation.items()}), strict=True))
    taken = pg.envs.ActionAdapter(one.action_space)
    predicted, _ = agent.predict(observation)
    for part, (_, value) in zip(taken.parts, hybrid_envs.leaves(one.action_space, predicted), strict=True):
        np.testing.assert_allclose(found[f"action.{part.name}"][0], value, rtol=1e-5, atol=1e-6)


def test_the_command_line_trains_and_evaluates(tmp_path: Path) -> None:
    import gymnasium as gym

    gym.register("HybridRover-v0", Rover)
    try:
        small = ["--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--total-steps", "64"]
        run = str(tmp_path / "run")
        assert main(["train", "ppo", "--env", "HybridRover-v0", "--run-dir", run, "--quiet", *small]) == 0
        assert main(["eval", run, "--episodes", "2"]) == 0
    finally:
        del gym.registry["HybridRover-v0"]


# ---- envpool's integers


def test_envpools_boxes_of_integers_train() -> None:
    pytest.importorskip("envpool")
    agent = pg.PPO("Connector-v2", num_envs=2, num_steps=8, num_minibatches=2, seed=1, eval_episodes=0)
    assert agent.agent.action_space == spaces.MultiDiscrete([5] * 10)
    assert agent.agent.spaces.has_mask
    agent.learn(32)
    assert agent.evaluate(1).returns
