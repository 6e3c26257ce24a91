"""Runs evaluate themselves: the score is the agent's own, costs little, leaves no trace, and is the same after a kill."""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from machine import needs_procgen

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.cli.main import main
from phasegrad.config import coerce_fields
from phasegrad.errors import ConfigError, PhasegradWarning
from phasegrad.machine.clock import Clock, compiling
from phasegrad.runs.evaluating import (
    EPISODES,
    FEWEST,
    LITTLE_MORE,
    SHARE,
    Costs,
    Evaluations,
    untouched_randomness,
)
from phasegrad.runs.metrics import read_metrics
from phasegrad.runs.noting import read_evaluations

SMALL: dict[str, Any] = {"preset": "none", "num_envs": 4, "num_steps": 32, "num_minibatches": 2, "epochs": 2}


class Drawing(gym.Env):
    """An environment of the careless kind: its observations come from numpy's shared generator."""

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space: ClassVar[gym.Space] = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.random.uniform(-1, 1, 2).astype(np.float32), float(action), self.steps == 9, False, {}


class OnlyOnce(Drawing):
    """A robot: there are as many as training has."""

    made: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).made += 1
        if type(self).made > 4:
            raise OSError("the port is in use")


class Brief(gym.Env):
    """Episodes of 2 to 5 steps, with rewards by the environment's own generator and the action."""

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space: ClassVar[gym.Space] = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 6))
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return seen, float(seen[0]) * (2 * int(action) - 1), self.left == 0, False, {}


class Steady(gym.Env):
    """Episodes of `limit` steps that each give 1."""

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space: ClassVar[gym.Space] = gym.spaces.Discrete(2)

    def __init__(self, limit: int = 10) -> None:
        self.limit, self.steps = limit, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == self.limit, False, {}


def evaluated(path: Path) -> dict[int, dict[str, Any]]:
    """What the metrics say of evaluations, by step."""
    rows = read_metrics(path / "metrics.jsonl")
    named = {int(r["step"]): {k: v for k, v in r.items() if k.startswith("eval_")} for r in rows}
    return {step: row for step, row in named.items() if row}


def result_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "result.json").read_text())


# The figure


def test_a_run_ends_with_the_score_of_its_agent(tmp_path: Path) -> None:
    run = tmp_path / "run"
    pg.PPO("CartPole-v1", seed=1, run_dir=run).learn(4096)
    found = result_of(run)["eval"]
    again = pg.load(run).evaluate(found["episodes"]).summary()
    assert {name: found[name] for name in again} == again
    assert found["step"] == 4096
    assert evaluated(run)[4096]["eval_return_mean"] == found["return_mean"]


def test_the_score_is_the_agents_and_not_that_of_the_last_100_training_episodes(tmp_path: Path) -> None:
    """50,000 steps of CartPole once showed 392 for agents that score 500."""
    run = tmp_path / "run"
    pg.PPO("CartPole-v1", seed=1, run_dir=run, compile="off").learn(51_200)
    found = result_of(run)
    assert found["return_mean"] < 470
    assert found["eval"]["return_mean"] >= 490
    assert found["eval"]["episodes"] >= 10


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_evaluated(tmp_path: Path, algorithm: str) -> None:
    ALGORITHMS[algorithm]("CartPole-v1", seed=1, num_envs=4, num_steps=16, run_dir=tmp_path / "run").learn(1024)
    assert result_of(tmp_path / "run")["eval"]["episodes"] >= FEWEST


def test_none_is_made_where_nobody_would_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evaluations, "make", lambda *_: pytest.fail("evaluated"))
    pg.PPO("CartPole-v1", **SMALL).learn(256)


def test_a_callback_sees_them() -> None:
    rows: list[dict[str, Any]] = []
    pg.PPO("CartPole-v1", **SMALL).learn(512, callback=rows.append)
    assert rows[-1]["eval_episodes"] >= FEWEST
    assert rows[-1]["time_evaluation"] > 0


def test_none_where_none_are_asked_for(tmp_path: Path) -> None:
    pg.PPO("CartPole-v1", eval_episodes=0, run_dir=tmp_path / "run", **SMALL).learn(1280)
    assert evaluated(tmp_path / "run") == {}
    assert "eval" not in result_of(tmp_path / "run")


def test_as_often_and_as_many_as_asked_for(tmp_path: Path) -> None:
    pg.PPO("CartPole-v1", eval_episodes=7, eval_every=300, run_dir=tmp_path / "run", **SMALL).learn(1280)
    found = evaluated(tmp_path / "run")
    assert list(found) == [384, 640, 1024, 1280]  # the ends of the iterations that pass 300, 600, 900, 1200 and the end
    assert {row["eval_episodes"] for row in found.values()} == {7}


def test_ten_evaluations_of_a_run_with_short_episodes(tmp_path: Path) -> None:
    pg.PPO(Steady, run_dir=tmp_path / "run", num_envs=8, num_steps=128, preset="none", epochs=1).learn(102_400)
    found = evaluated(tmp_path / "run")
    assert len(found) == 10
    assert all(row["eval_episodes"] == EPISODES for row in list(found.values())[1:])


def test_settings_are_read_as_written() -> None:
    config = pg.PPO.config_class
    assert coerce_fields(config, {"eval_episodes": "auto"}) == {"eval_episodes": None}
    assert coerce_fields(config, {"eval_episodes": "12"}) == {"eval_episodes": 12}
    assert coerce_fields(config, {"stop_at": "none"}) == {"stop_at": None}
    with pytest.raises(ConfigError, match="eval_episodes"):
        coerce_fields(config, {"eval_episodes": "none"})
    with pytest.raises(ConfigError, match="eval_episodes"):
        coerce_fields(config, {"eval_episodes": -1})


@needs_procgen
def test_limited_levels_are_held_against_others(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"preset": "none", "num_envs": 4, "num_steps": 16, "epochs": 1, "num_minibatches": 1}
    small = {"encoder": "impala", "impala_channels": (4,), "hidden_sizes": (8,), "eval_episodes": 3, "eval_every": 64}
    for levels in (0, 5):
        run = tmp_path / str(levels)
        pg.PPO("procgen/bigfish", run_dir=run, env_options={"num_levels": levels}, **fields, **small).learn(128)
    found, last = evaluated(tmp_path / "5"), result_of(tmp_path / "5")
    assert list(found) == [64, 128]
    for row in found.values():
        assert row["eval_test_episodes"] == row["eval_episodes"] == 3
    assert last["eval_test"]["return_mean"] == found[128]["eval_test_return_mean"]
    agent = pg.load(tmp_path / "5")
    assert last["eval_test"]["length_mean"] == agent.evaluate(3, levels="test")["length_mean"]
    assert last["eval"]["length_mean"] == agent.evaluate(3)["length_mean"]
    assert not any(name.startswith("eval_test") for row in evaluated(tmp_path / "0").values() for name in row)


# No trace


@pytest.mark.parametrize("env", ["CartPole-v1", Drawing])
def test_evaluating_leaves_no_trace_in_what_is_learnt(tmp_path: Path, env: Any) -> None:
    tensors = []
    for episodes, every in ((0, 0), (5, 128)):
        np.random.seed(3)
        agent = pg.PPO(env, run_dir=tmp_path / str(every), eval_episodes=episodes, eval_every=every, seed=2, **SMALL)
        agent.learn(1280)
        tensors.append({name: tensor.clone() for name, tensor in agent.tensors().items()})
    assert len(evaluated(tmp_path / "128")) == 10
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())


def test_shared_generators_are_put_back() -> None:
    np.random.seed(1)
    torch.manual_seed(1)
    with untouched_randomness():
        np.random.uniform()
        torch.rand(3)
    drawn = np.random.uniform(), float(torch.rand(1))
    np.random.seed(1)
    torch.manual_seed(1)
    assert drawn == (np.random.uniform(), float(torch.rand(1)))


@pytest.mark.parametrize("algorithm", ["ppo", "ppg"])
@pytest.mark.parametrize("killed_at", [3200, 6400])
def test_a_resumed_run_makes_the_same_evaluations(tmp_path: Path, algorithm: str, killed_at: int) -> None:
    fields = {
        "num_envs": 4,
        "num_steps": 32,
        "preset": "none",
        "checkpoint_every": 640,
        "seed": 5,
        "num_minibatches": 2,
    }
    if algorithm == "ppg":
        fields |= {"n_pi": 3, "e_aux": 1, "e_pi": 1, "e_v": 1}
    else:
        fields |= {"epochs": 1}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    agent = ALGORITHMS[algorithm](Brief, run_dir=whole, **fields)

    def copy(row: dict[str, Any]) -> None:
        if row["step"] >= killed_at and not killed.exists():
            shutil.copytree(whole, killed)

    agent.learn(10_240, callback=copy)
    resumed = pg.load(killed, env=Brief)
    assert 0 < resumed.progress.step < killed_at
    assert resumed.run.evaluations.spent > 0  # what it takes up again is not nothing
    resumed.learn()
    assert len(evaluated(whole)) >= 5
    assert evaluated(killed) == evaluated(whole)
    assert resumed.run.evaluations == agent.run.evaluations
    for name in ("eval", "best_eval"):
        assert result_of(killed)[name] == result_of(whole)[name]
    assert all(torch.equal(tensor, resumed.tensors()[name]) for name, tensor in agent.tensors().items())


def test_the_clock_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pg.PPO(Brief, run_dir=tmp_path / "fast", **SMALL).learn(5120)
    real = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: 50 * real())
    pg.PPO(Brief, run_dir=tmp_path / "slow", **SMALL).learn(5120)
    assert len(evaluated(tmp_path / "fast")) >= 2
    assert evaluated(tmp_path / "slow") == evaluated(tmp_path / "fast")


# What it costs


@pytest.mark.parametrize("length", [10, 100, 1000])
@pytest.mark.parametrize("total", [20_000, 200_000, 2_000_000])
def test_evaluations_cost_no_more_than_their_share(length: int, total: int) -> None:
    """Episodes of one length, a run in steps of 1,000: the sum of all evaluations but the last stays below the share,
    and with the last one, where the fewest episodes would exceed it, above it by these alone."""
    agent = pg.PPO("CartPole-v1", preset="none", num_envs=8)
    plan = Evaluations(agent.agent, agent.progress, agent.run.evaluations, total)
    agent.progress.recent_lengths.extend([length] * 100)
    made = 0
    for step in range(1000, total + 1, 1000):
        agent.progress.step = step
        episodes = plan.episodes_due(step - 1000, checkpoint=False)
        if episodes:
            made += 1
            plan.record.spent += plan.costs.cost(episodes, length)
        if step == total:
            assert episodes >= FEWEST
    fewest = LITTLE_MORE * plan.costs.cost(FEWEST, length)
    assert plan.record.spent <= max(SHARE * total, fewest + SHARE * total)
    if fewest < SHARE * total / 20:
        assert plan.record.spent <= SHARE * total
        assert made == 10


def test_the_most_episodes_that_fit_are_found() -> None:
    costs = Costs(2.8, 0.3, 5.0, 1)
    for allowance in (0.0, 100.0, 500.0, 700.0, 1500.0, 1e9):
        by_hand = [n for n in range(1, EPISODES + 1) if 100 * (2.8 + 0.3 * n) + 5.0 * n <= allowance]
        expected = max(by_hand, default=0)
        assert costs.fitting(EPISODES, 100, allowance) == (expected if expected >= FEWEST else 0)
    assert costs.cost(40, 100) == 2 * 100 * (2.8 + 0.3 * 20) + 5.0 * 20  # in two rounds


def test_episodes_without_end_are_cut_early(tmp_path: Path) -> None:
    with pytest.warns(PhasegradWarning, match="had not ended after 1,000 steps"):
        pg.PPO(lambda: Steady(10**9), run_dir=tmp_path / "run", **SMALL).learn(512)
    assert result_of(tmp_path / "run")["eval"]["episodes_cut"] >= FEWEST


# Environments that cannot be had twice


def test_environments_that_training_uses_are_not_borrowed_unasked(tmp_path: Path) -> None:
    given = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")
    pg.PPO(given, run_dir=tmp_path / "run", **{k: v for k, v in SMALL.items() if k != "num_envs"}).learn(512)
    assert evaluated(tmp_path / "run") == {}
    assert result_of(tmp_path / "run")["status"] == "finished"


def test_a_run_goes_on_where_its_environment_cannot_be_evaluated(tmp_path: Path) -> None:
    OnlyOnce.made = 0
    with pytest.warns(PhasegradWarning, match="not evaluated from step .* the port is in use"):
        agent = pg.PPO(OnlyOnce, run_dir=tmp_path / "run", **SMALL).learn(1280)
    assert agent.progress.step == 1280
    assert "eval" not in result_of(tmp_path / "run")
    assert result_of(tmp_path / "run")["status"] == "finished"


# A score to stop at


def test_a_run_ends_at_its_score_and_stays_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    agent = pg.PPO(Steady, stop_at=10, run_dir=run, **SMALL).learn(100_000)
    found = result_of(run)
    assert found["status"] == "stopped"
    assert found["reached"] == 10
    assert found["eval"]["return_mean"] == 10
    assert found["step"] == agent.progress.step < 10_000  # training's own returns gave the occasion
    again = pg.load(run, env=Steady)
    again.learn()
    assert again.progress.step == agent.progress.step


def test_a_score_out_of_reach_stops_nothing(tmp_path: Path) -> None:
    pg.PPO(Steady, stop_at=10.5, run_dir=tmp_path / "run", **SMALL).learn(1280)
    found = result_of(tmp_path / "run")
    assert found["status"] == "finished"
    assert "reached" not in found


def test_the_score_to_stop_at_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    options = ["--stop-at", "12", "--num-envs", "4", "--num-steps", "32", "--run-dir", str(run), "--quiet"]
    assert main(["train", "ppo", "--env", "CartPole-v1", "--total-steps", "40_000", *options]) == 0
    assert result_of(run)["reached"] == 12
    assert result_of(run)["step"] < 40_000


# What `eval` finds


def test_evaluations_by_hand_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    agent = pg.PPO("CartPole-v1", run_dir=run, **SMALL).learn(512)
    assert main(["eval", str(run), "--episodes", "3", "--deterministic", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (run / "evaluations.jsonl").open("a").write('{"step": 5, "return_m')  # a kill
    assert main(["eval", str(run), "--episodes", "2", "--seed", "9"]) == 0
    found = read_evaluations(run)
    assert [(f["step"], f["episodes"], f["deterministic"], f["seed"]) for f in found] == [
        (512, 3, True, None),
        (512, 2, False, 9),
    ]
    assert found[0]["return_mean"] == printed["return_mean"]
    agent.save(tmp_path / "saved")
    assert main(["eval", str(tmp_path / "saved"), "--episodes", "2"]) == 0
    assert not (tmp_path / "saved" / "evaluations.jsonl").exists()


def test_evaluations_are_not_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, target = tmp_path / "run", tmp_path / "precious"
    pg.PPO("CartPole-v1", run_dir=run, **SMALL).learn(512)
    target.write_text("mine")
    (run / "evaluations.jsonl").symlink_to(target)
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert target.read_text() == "mine"
    assert read_evaluations(run) == []


def test_lines_that_are_no_evaluation_are_passed_over(tmp_path: Path) -> None:
    lines = [
        "[]",
        "nonsense",
        '{"step": 1}',
        '{"step": true, "return_mean": 1}',
        '{"step": 7, "return_mean": 2.5}',
        "{",
    ]
    (tmp_path / "evaluations.jsonl").write_text("\n".join(lines))
    assert read_evaluations(tmp_path) == [{"step": 7, "return_mean": 2.5}]


# Steps and seconds


def test_a_total_that_does_not_divide_is_rounded_up(tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", run_dir=tmp_path / "run", **SMALL)
    with pytest.warns(PhasegradWarning, match="total_steps 1,001 is not a multiple of num_envs 4: .* 1,004 steps"):
        agent.learn(1001)
    assert agent.progress.step == result_of(tmp_path / "run")["step"] == 1004
    assert json.loads((tmp_path / "run" / "config.json").read_text())["total_steps"] == 1004


def test_a_section_inside_another_counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = Clock(), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    with clock.section("update"):
        now[0] += 1
        with compiling(), compiling():
            assert clock.current == "compile"
            now[0] += 10
        assert clock.current == "update"
        now[0] += 2
    assert clock.current == ""
    with clock.apart("evaluation") as taken:
        now[0] += 5
    assert taken.seconds == 5
    assert clock.take() == {"update": 3, "compile": 10}


def test_compiling_is_no_part_of_acting_and_updating(tmp_path: Path) -> None:
    """Making programs once counted as acting: 37 to 48 % of a short run."""
    pg.PPO("CartPole-v1", compile="replay", run_dir=tmp_path / "run", **SMALL).learn(1280)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    shares = [row.get("time_compile", 0.0) for row in rows]
    assert shares[1] > 0.5  # traced at the second iteration, for tens of milliseconds at least
    assert sum(shares[2:]) == 0
    for row in rows:
        inside = {
            k: v for k, v in row.items() if k.startswith("time_") and k not in ("time_evaluation", "time_checkpoint")
        }
        assert math.isclose(sum(inside.values()), 1, abs_tol=0.3)
