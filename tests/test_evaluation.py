"""Evaluations and videos of episodes that never end; what callbacks may return and see."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import ConfigError, PhasegradWarning
from phasegrad.runs import evaluating, evaluation
from phasegrad.video.recording import record_video

SMALL: dict[str, Any] = {"preset": "none", "num_envs": 2, "num_steps": 8, "num_minibatches": 1, "epochs": 1}


class Endless(gym.Env):
    """One reward a step; each environment's first episode ends after 3 steps where `ends`, all others never do."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, ends: bool = False, render_mode: str | None = None) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.render_mode, self.ends = render_mode, ends
        self.steps = self.episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.ends and self.episode == 0 and self.steps == 3
        return np.zeros(2, np.float32), 1.0, over, False, {}

    def render(self) -> np.ndarray:
        return np.full((16, 16, 3), self.steps % 256, np.uint8)


def test_an_endless_episode_is_cut_and_counts_with_its_return() -> None:
    agent = pg.PPO(Endless, **SMALL)
    with pytest.warns(
        PhasegradWarning, match="3 of 3 evaluation episodes of custom:Endless had not ended after 50 steps"
    ):
        found = agent.evaluate(3, max_steps=50)
    assert found.returns == [50.0] * 3
    assert found.lengths == [50] * 3
    assert found.cut == found["episodes_cut"] == 3
    assert found["return_mean"] == 50.0


def test_there_is_a_limit_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluating, "LEAST_STEPS", 40)
    agent = pg.PPO(Endless, **SMALL | {"eval_episodes": 2, "eval_checkpoints": 2})
    rows: list[dict[str, Any]] = []
    with pytest.warns(PhasegradWarning, match="2 of 2 evaluation episodes"):
        agent.learn(16, callback=rows.append)
    assert rows[-1]["eval_episodes_cut"] == 2
    assert rows[-1]["eval_length_mean"] == 40


def test_a_stuck_agent_does_not_wait_for_a_distant_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a game's of 27,000 steps; whoever asks for an evaluation has the environment's own."""
    monkeypatch.setattr(evaluating, "LEAST_STEPS", 40)
    agent = pg.PPO(lambda: gym.wrappers.TimeLimit(Endless(), 200), **SMALL | {"eval_episodes": 2})
    rows: list[dict[str, Any]] = []
    with pytest.warns(PhasegradWarning, match="2 of 2 evaluation episodes"):
        agent.learn(16, callback=rows.append)
    assert rows[-1]["eval_length_mean"] == 40
    assert agent.evaluate(2).lengths == [200, 200]


@pytest.mark.parametrize(
    ("env", "backend", "limit"),
    [("CartPole-v1", "envpool", 500), ("CartPole-v1", "gymnasium", 500), ("CliffWalking-v1", "envpool", None),
     ("CliffWalking-v1", "gymnasium", None), (Endless, "auto", None)],
)  # fmt: skip
def test_environments_state_their_time_limits(env: Any, backend: str, limit: int | None) -> None:
    agent = pg.PPO(env, backend=backend, **SMALL)
    made = evaluation.evaluation_env(agent.agent, 1, seed=None, levels="train")
    assert made.time_limit == limit
    assert evaluation.step_limit(made, None) == (2 * limit if limit else evaluation.MOST_STEPS)
    assert evaluation.step_limit(made, 7) == 7
    made.close()


def test_an_environments_own_time_limit_holds() -> None:
    id = "OwnLimit-v0"
    gym.register(id, lambda: Endless(), max_episode_steps=evaluation.MOST_STEPS + 7)
    try:
        agent = pg.PPO(id, **SMALL)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = agent.evaluate(1)
        assert found.lengths == [evaluation.MOST_STEPS + 7]
        assert found.cut == 0
    finally:
        del gym.registry[id]


def test_whole_episodes_are_left_alone() -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = agent.evaluate(20, seed=3)
    assert found.cut == 0
    assert found.lengths == agent.evaluate(20, seed=3, max_steps=max(found.lengths)).lengths
    assert len(found.returns) == 20


def test_more_episodes_than_environments_are_all_played() -> None:
    source = gym.vector.SyncVectorEnv([lambda: Endless(ends=True), lambda: Endless(ends=False)])
    agent = pg.PPO(source, **SMALL)
    with pytest.warns(PhasegradWarning, match="4 of 6 evaluation episodes"):
        found = agent.evaluate(6, max_steps=10)
    # the first: an ended and a cut one, and after the restart an ended one again; the second: three cut ones
    assert sorted(found.lengths) == [3, 3, 10, 10, 10, 10]
    assert found.returns == [float(length) for length in found.lengths]


@pytest.mark.parametrize("grid", [False, True])
def test_a_video_of_endless_episodes_ends(tmp_path: Path, grid: bool) -> None:
    source = gym.vector.SyncVectorEnv([lambda: Endless(render_mode="rgb_array")] * 2)
    agent = pg.PPO(source, **SMALL)
    with pytest.warns(PhasegradWarning, match="3 of 3 evaluation episodes"):
        video = record_video(agent, tmp_path / "v.mp4", episodes=3, max_steps=6, grid=grid)
    assert video.lengths == [6, 6, 6]
    assert video.returns == [6.0] * 3


def test_cliff_walking_ends_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.PPO("CliffWalking-v1", **SMALL).save(tmp_path / "agent")
    arguments = ["eval", str(tmp_path / "agent"), "--deterministic", "--episodes", "2", "--json"]
    assert main([*arguments, "--max-steps", "30"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["episodes_cut"] == 2
    assert "2 of 2 evaluation episodes of CliffWalking-v1 had not ended after 30 steps" in shown.err
    assert main([*arguments, "--max-steps", "0"]) == 2
    assert "max_steps must be at least 1" in capsys.readouterr().err


def test_arguments_of_an_evaluation_are_checked() -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    for how in ({"episodes": 0}, {"episodes": "x"}, {"episodes": 1.5}, {"seed": "x"}, {"seed": -1}, {"max_steps": 0}):
        with pytest.raises(ConfigError, match=f"{next(iter(how))} must be"):
            agent.evaluate(**how)
    assert len(agent.evaluate(2.0).returns) == 2


# Callbacks


@pytest.mark.parametrize("answer", [False, np.bool_(False), torch.tensor(False), 0, np.array(False)])
def test_a_callback_stops_with_anything_false(answer: Any) -> None:
    assert pg.PPO("CartPole-v1", **SMALL).learn(64, callback=lambda row: answer).progress.step == 16


@pytest.mark.parametrize("answer", [None, True, np.bool_(True), torch.tensor(True), 1, "go on"])
def test_a_callback_goes_on_with_none_or_anything_true(answer: Any) -> None:
    assert pg.PPO("CartPole-v1", **SMALL).learn(64, callback=lambda row: answer).progress.step == 64


def test_a_callback_that_returns_what_is_neither_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"The callback returned .* return None or True to go on, False to stop"):
        pg.PPO("CartPole-v1", **SMALL).learn(64, callback=lambda row: np.zeros(2))


def test_a_callback_can_compare_a_mean_before_the_first_episode_has_ended(tmp_path: Path) -> None:
    seen: list[float] = []

    def good_enough(row: dict[str, Any]) -> bool:
        seen.append(row["return_mean"])
        return not (row["return_mean"] > 400 or row["length_mean"] > 400)

    pg.PPO(Endless, run_dir=tmp_path / "run", **SMALL).learn(32, callback=good_enough)
    assert len(seen) == 2
    assert all(map(math.isnan, seen))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["return_mean"] for row in rows] == [None, None], "the file keeps null"
