"""Copies of an agent in training, in this process and in another: they go on from the same place, on their own."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from machine import needs_compiler
from memory_envs import RecallEnv as Recall

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.errors import ConfigError, EnvError

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (8,), "seed": 3, "compile": "off",
}  # fmt: skip
FEW: dict[str, dict[str, Any]] = {  # gradient steps
    "ppo": {"epochs": 1, "num_minibatches": 2},
    "ppg": {"num_minibatches": 2, "n_pi": 2, "e_aux": 1, "aux_minibatches": 2},
    "a2c": {"updates_per_iteration": 1},
    "vpg": {"value_steps": 2},
    "acer": {"updates_per_iteration": 1, "replay_start": 128},
    "trpo": {"value_epochs": 1, "num_minibatches": 2},
}
PPO: dict[str, Any] = {**SMALL, **FEW["ppo"]}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ALGORITHMS},
    "ppg in a phase": ("ppg", {"n_pi": 3}),
    "ppg overlapping": ("ppg", {"n_pi": 2, "aux_interval": 1, "aux_buffer": 3}),
    "memory": ("ppo", {"memory": "lstm", "memory_size": 8}),
    "stacked": ("ppo", {"frame_stack": 3}),
    "normalised": ("ppo", {"normalize_observation": True, "normalize_reward": True}),
    "traced": ("ppo", {"compile": "replay"}),
    "annealed": ("ppo", {"anneal_learning_rate": True, "total_steps": 64 * 7}),
    "legs": ("ppo", {"restart_every": 128}),
}


def trained(kind: str) -> Any:
    """An agent that was stopped after four iterations, in the middle of its run: a phase of PPG is under way."""
    name, fields = KINDS[kind]
    agent = ALGORITHMS[name]("CartPole-v1", **{**SMALL, **FEW.get(name, {}), **fields})
    return agent.learn(64 * 7, callback=lambda row: row["iteration"] < 4)


def same(one: Any, other: Any) -> None:
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name
    assert one.progress == other.progress
    assert one.scalars == other.scalars


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["copy", "pickle"])
def test_a_copy_trains_on_to_the_same_bits(kind: str, way: str) -> None:
    agent = trained(kind)
    other = copy.deepcopy(agent) if way == "copy" else pickle.loads(pickle.dumps(agent))
    same(agent, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that they did not play back as they were played
        other.learn(64 * 7)  # first: nothing of it may reach the original
    assert agent.progress.step == 64 * 4
    agent.learn(64 * 7)
    same(agent, other)
    assert agent.flat.data.data_ptr() != other.flat.data.data_ptr()


@needs_compiler
def test_a_copy_of_a_compiled_agent_trains_on_to_the_same_bits() -> None:
    agent: Any = pg.PPO("CartPole-v1", **{**PPO, "compile": "on"})
    agent.learn(64 * 4)
    other = pickle.loads(pickle.dumps(agent))
    for each in (agent, other):
        each.learn(64 * 8)
    same(agent, other)


def test_a_shallow_copy_is_an_agent_of_its_own_too() -> None:
    agent = trained("ppo")
    other = copy.copy(agent)
    other.learn(64 * 6)
    twin = trained("ppo")
    same(agent, twin)
    assert agent.evaluate(3).returns == twin.evaluate(3).returns


def test_a_copy_has_no_run_directory(tmp_path: Path) -> None:
    agent: Any = pg.PPO("CartPole-v1", run_dir=tmp_path / "run", **PPO)
    agent.learn(64 * 3)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    other = copy.deepcopy(agent)
    assert other.run.run_dir is None
    other.learn(64 * 6)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    agent.learn(64 * 6)
    same(agent, other)


def test_a_callback_may_keep_a_copy_of_the_agent_as_it_is() -> None:
    agent: Any = pg.PPO("CartPole-v1", **PPO)
    kept: list[Any] = []

    def callback(row: dict[str, Any]) -> None:
        if row["iteration"] == 3:
            agent.change(learning_rate=1e-2)
            kept.append(copy.deepcopy(agent))

    agent.learn(64 * 6, callback=callback)
    assert kept[0].progress.iteration == 3
    assert kept[0].config.learning_rate == 1e-2
    kept[0].learn(64 * 6)
    same(agent, kept[0])
    plain: Any = pg.PPO("CartPole-v1", **PPO)
    plain.learn(64 * 6, callback=lambda row: plain.change(learning_rate=1e-2) if row["iteration"] == 3 else None)
    same(agent, plain)  # making a copy leaves no trace


def test_a_copy_of_a_loaded_agent_and_one_that_has_not_begun(tmp_path: Path) -> None:
    agent = trained("ppg in a phase")
    agent.save(tmp_path / "agent")
    other = copy.deepcopy(pg.load(tmp_path / "agent"))
    assert other.run.played_to
    for each in (agent, other):
        each.learn(64 * 8)
    same(agent, other)
    new: Any = pg.PPO("CartPole-v1", **PPO)
    twin = copy.deepcopy(new)
    for each in (new, twin):
        each.learn(64 * 2)
    same(new, twin)
    twin_of_new: Any = copy.deepcopy(pg.PPO("CartPole-v1", **PPO))
    twin_of_new.config.learning_rate = 0.1  # before training a setting is a setting


def test_a_copy_in_an_environment_of_one_s_own() -> None:
    agent: Any = pg.PPO(Recall, **PPO)
    agent.learn(64 * 2)
    for other in (copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        other.learn(64 * 4)
        assert other.progress.step == 64 * 4
    made_with = partial(Recall)
    pickle.dumps(pg.PPO(made_with, **PPO))


def test_what_cannot_be_sent_says_so() -> None:
    agent: Any = pg.PPO(lambda: Recall(), **PPO)
    with pytest.raises(
        EnvError, match=r"cannot be sent .* environment .*<lambda> cannot be pickled .* top level of a module"
    ):
        pickle.dumps(agent)
    copy.deepcopy(agent).learn(64)  # here there is nothing to send
    encoder: Any = pg.PPO("CartPole-v1", **PPO, encoder=lambda space: Encoder(4))
    with pytest.raises(ConfigError, match=r"its encoder .*<lambda> cannot be pickled"):
        pickle.dumps(encoder)
    other = copy.deepcopy(encoder)
    for each in (encoder, other):
        each.learn(64)
    same(encoder, other)


class Encoder(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer, self.features = torch.nn.Linear(size, 5), 5

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(seen))


def test_a_vector_environment_stays_with_the_original() -> None:
    vector = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4)
    agent: Any = pg.PPO(vector, **PPO)
    agent.learn(64 * 2)
    other = pickle.loads(pickle.dumps(agent))
    observation = np.ones((2, 4), np.float32)
    assert np.array_equal(agent.predict(observation)[0], other.predict(observation)[0])
    with pytest.raises(EnvError, match=r"given in Python \(custom:SyncVectorEnv\).*agent\.set_env\(env\)"):
        other.learn(64 * 4)
    other.set_env("CartPole-v1")
    other.learn(64 * 4)
    agent.learn(64 * 4)


def train_on(agent: Any, answers: Any) -> None:
    agent.learn(64 * 6)
    answers.put({name: value.tobytes() for name, value in agent.parameters().items()})


def test_an_agent_goes_to_another_process_and_comes_back() -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    agent = trained("normalised")
    process = context.Process(target=train_on, args=(agent, answers))
    process.start()
    found = answers.get(timeout=120)
    process.join(timeout=60)
    assert process.exitcode == 0
    agent.learn(64 * 6)
    assert {name: value.tobytes() for name, value in agent.parameters().items()} == found
