"""`is_success` and `success` of an episode's last info: counted in training, in evaluations, and when a run is resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from interrupted import Killed

import phasegrad as pg
from phasegrad import envs
from phasegrad.cli.main import main
from phasegrad.envs.successes import as_success, success_in_batch
from phasegrad.report.catalogue import SECTIONS
from phasegrad.runs.metrics import read_metrics, tag
from phasegrad.runs.state import Progress

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 2, "num_steps": 8, "hidden_sizes": (4,), "seed": 1, "compile": "off", "epochs": 1,
    "num_minibatches": 1, "checkpoint_every": 32, "eval_episodes": 4, "eval_every": 64,
}  # fmt: skip


class Goals(gym.Env):
    """Episodes of four steps; every other one of an environment is a success, and the info of a reset says otherwise."""

    key, always = "is_success", True

    def __init__(self, key: str = "", always: bool | None = None) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.episode = -1
        self.key, self.always = key or self.key, self.always if always is None else always

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.taken = 0
        return np.zeros(2, np.float32), {self.key: True}  # of the next episode, and not to be counted

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        over = self.taken == 4
        good = over and self.episode % 2 == 1
        info = {self.key: good} if self.always or good else {}
        return np.zeros(2, np.float32), 1.0, over, False, info


class Silent(Goals):
    key = "other"


class OnlyGood(Goals):
    always = False


def played(env: envs.VectorEnv) -> list[list[bool | None]]:
    """Of each environment, what is said of its first four episodes."""
    found: list[list[bool | None]] = [[] for _ in range(env.num_envs)]
    env.reset()
    for _ in range(16):
        for episode in env.step(np.zeros(env.num_envs, np.int64)).episodes:
            found[episode.env].append(episode.success)
    env.close()
    return found


class Relayed(gym.vector.VectorWrapper):
    """A VectorEnv that is not gymnasium's own, so that its infos are what there is."""


SOURCES: dict[str, Any] = {
    "sync": lambda: Goals,
    "async": lambda: Goals,
    "success": lambda: lambda: Goals("success"),
    "vector": lambda: gym.vector.SyncVectorEnv([Goals] * 2),
    "same step": lambda: Relayed(
        gym.vector.SyncVectorEnv([Goals] * 2, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    ),
    "disabled": lambda: Relayed(
        gym.vector.SyncVectorEnv([Goals] * 2, autoreset_mode=gym.vector.AutoresetMode.DISABLED)
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_kind_of_environment_tells_of_successes(source: str) -> None:
    vectorization = "async" if source == "async" else "sync"
    env = envs.make(SOURCES[source](), num_envs=2, seeds=[1, 2], vectorization=vectorization)
    assert played(env) == [[False, True, False, True]] * 2


def test_an_environment_that_says_nothing() -> None:
    assert played(envs.make(Silent, num_envs=1, seeds=[1])) == [[None] * 4]
    assert played(envs.make("CartPole-v1", num_envs=1, seeds=[1], backend="gymnasium"))[0][:1] == [None]


def test_what_counts_as_a_success() -> None:
    for value, meant in [(True, True), (np.bool_(False), False), (1.0, True), (0, False), (np.array([1]), True)]:
        assert as_success(value) is meant
    for value in ("yes", None, np.array([1, 0]), float("nan"), {}):
        assert as_success(value) is None
    old = {"final_info": np.array([{"is_success": True}, None], dtype=object)}  # before gymnasium 1.1
    assert [success_in_batch(old, index) for index in range(2)] == [True, None]
    masked = {"final_info": {"success": np.array([1.0, 1.0]), "_success": np.array([True, False])}}
    assert [success_in_batch(masked, index) for index in range(2)] == [True, None]


def test_the_rate_is_of_the_recent_episodes() -> None:
    progress = Progress()

    def ended(*reported: float | None) -> None:
        progress.recent_returns.extend(0.0 for _ in reported)
        progress.note_successes(reported)

    ended(None, None)
    assert progress.success_rate is None
    ended(None, 1.0)  # those before it said nothing, so they were none
    assert progress.success_rate == 0.25
    ended(*[None] * 4)
    assert progress.success_rate == 0.125
    ended(*[1.0] * 100)
    assert progress.success_rate == 1.0


def test_training_counts_them_and_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    def die(row: dict[str, Any]) -> None:
        if row["iteration"] == 5:
            raise Killed

    whole: Any = pg.PPO(Goals, run_dir=tmp_path / "whole", **SMALL)
    whole.learn(128)
    with pytest.raises(Killed):
        pg.PPO(Goals, run_dir=tmp_path / "run", **SMALL).learn(128, callback=die)
    resumed: Any = pg.load(tmp_path / "run", env=Goals)
    assert resumed.progress.recent_successes
    resumed.learn()
    assert list(resumed.progress.recent_successes) == [0.0, 0.0, 1.0, 1.0] * 8
    assert resumed.progress == whole.progress
    names = ("success_rate", "eval_success_rate")
    rows = [
        [{name: row.get(name) for name in names} for row in read_metrics(tmp_path / run / "metrics.jsonl")]
        for run in ("whole", "run")
    ]
    assert rows[0] == rows[1]
    assert [row["success_rate"] for row in rows[0]][:2] == [0.5, 0.5]
    assert [row["eval_success_rate"] for row in rows[0] if row["eval_success_rate"] is not None] == [0.0, 0.0]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["success_rate"] == 0.5
    assert result["eval"]["success_rate"] == 0.0  # the first episode of each of four environments
    assert tag("success_rate") == "rollout/success_rate"


def test_nothing_is_said_where_nothing_is_known(tmp_path: Path) -> None:
    agent: Any = pg.PPO(Silent, run_dir=tmp_path / "run", **SMALL)
    agent.learn(64)
    assert not any("success" in name for row in read_metrics(tmp_path / "run" / "metrics.jsonl") for name in row)
    found = agent.evaluate(4)
    assert found.success_rate is None
    assert "success_rate" not in found.summary()


def test_an_evaluation_has_the_rate() -> None:
    agent: Any = pg.PPO(OnlyGood, **SMALL)
    agent.learn(32)
    assert agent.evaluate(40).success_rate == 0.5  # two episodes of each of twenty environments
    found = agent.evaluate(4, env=Goals())
    assert found.successes == [False, True, False, True]
    assert found["success_rate"] == 0.5
    assert agent.evaluate(4).success_rate is None  # four first episodes, of which it says nothing
    cut = agent.evaluate(3, env=Goals(), max_steps=3)
    assert cut.cut == 3
    assert cut.success_rate is None


def test_an_evaluation_of_a_run_knows_that_its_environment_speaks_of_successes_only(tmp_path: Path) -> None:
    agent: Any = pg.PPO(OnlyGood, run_dir=tmp_path / "run", **SMALL)
    agent.learn(64)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["eval"]["success_rate"] == 0.0


gym.register("Goals-v0", Goals)


def test_the_command_line_shows_the_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pg.PPO("Goals-v0", run_dir=tmp_path / "run", **SMALL).learn(64)
    assert main(["eval", str(tmp_path / "run"), "--episodes", "40", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["success_rate"] == 0.5
    assert main(["eval", str(tmp_path / "run"), "--episodes", "40"]) == 0
    assert "success" in capsys.readouterr().out


def test_the_report_shows_the_rate(tmp_path: Path) -> None:
    pg.PPO(Goals, run_dir=tmp_path / "run", **SMALL).learn(128)
    pg.PPO(Silent, run_dir=tmp_path / "silent", **SMALL).learn(128)
    for name, told in (("run", True), ("silent", False)):
        assert main(["report", str(tmp_path / name), "--out", str(tmp_path / f"{name}.html")]) == 0
        page = (tmp_path / f"{name}.html").read_text()
        assert (">successes<" in page) is told
    drawn = {chart.title: [name for name, _ in chart.metrics] for chart in SECTIONS["Evaluation"]}
    assert drawn["Success rate"] == ["eval_success_rate", "eval_test_success_rate", "success_rate"]
