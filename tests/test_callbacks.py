"""Callbacks: what each hook is told and when, what stops a run, what an error leaves, and the ready ones over a resume."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import phasegrad as pg
from phasegrad.errors import PhasegradWarning
from phasegrad.runs.hooks import HOOKS
from phasegrad.runs.metrics import read_metrics

SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 16, "num_minibatches": 2, "epochs": 1, "seed": 1}
RUN: dict[str, Any] = {**SMALL, "checkpoint_every": 128, "eval_every": 128, "eval_episodes": 2}
TIMES = ("time_", "sps", "seconds")


def make(name: str = "ppo", **fields: Any) -> Any:
    if name == "ppg":
        phases = {"n_pi": 2, "e_aux": 1, "aux_minibatches": 2}
        return pg.PPG("CartPole-v1", **{key: value for key, value in RUN.items() if key != "epochs"} | phases | fields)
    return pg.PPO("CartPole-v1", **RUN | fields)


def same(mine: Any, theirs: Any) -> None:
    assert mine.progress == theirs.progress
    tensors = theirs.tensors()
    for name, tensor in mine.tensors().items():
        assert torch.equal(tensor, tensors[name]), name


class Recorder(pg.Callback):
    """Notes every call; answers False where it is told to."""

    def __init__(self, stop: Callable[[str, Any], bool] = lambda hook, told: False) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.agents: set[int] = set()
        self.stop = stop

    def note(self, hook: str, agent: Any, told: Any = None) -> bool:
        self.calls.append((hook, told))
        self.agents.add(id(agent))
        return not self.stop(hook, told)

    def on_start(self, agent: Any) -> bool:
        return self.note("on_start", agent)

    def on_evaluation(self, agent: Any, evaluation: dict[str, Any]) -> bool:
        return self.note("on_evaluation", agent, evaluation)

    def on_iteration(self, agent: Any, metrics: dict[str, Any]) -> bool:
        return self.note("on_iteration", agent, metrics)

    def on_checkpoint(self, agent: Any, path: Path) -> bool:
        assert (path / "state.safetensors").exists()
        return self.note("on_checkpoint", agent, path)

    def on_end(self, agent: Any, result: dict[str, Any]) -> bool:
        return self.note("on_end", agent, result)

    def hooks(self) -> list[str]:
        return [hook.removeprefix("on_") for hook, _ in self.calls]

    def told(self, hook: str) -> list[Any]:
        return [told for name, told in self.calls if name == hook]


# What hooks are told


@pytest.mark.parametrize("algorithm", ["ppo", "ppg"])
def test_every_hook_is_called_in_order_with_what_the_files_say(algorithm: str, tmp_path: Path) -> None:
    seen = Recorder()
    agent = make(algorithm, run_dir=tmp_path / "run").learn(256, callback=seen)
    with_evaluation = ["evaluation", "iteration", "checkpoint"]
    assert seen.hooks() == ["start", "iteration", *with_evaluation, "iteration", *with_evaluation, "end"]
    assert seen.agents == {id(agent)}
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    told = seen.told("on_iteration")
    assert [row["step"] for row in rows] == [64, 128, 192, 256]
    assert json.loads(json.dumps([{**each, "return_mean": 0} for each in told])) == [
        {**r, "return_mean": 0} for r in rows
    ]
    for evaluation, row in zip(seen.told("on_evaluation"), rows[1::2], strict=True):
        assert evaluation == {"step": row["step"]} | {
            name.removeprefix("eval_"): value for name, value in row.items() if name.startswith("eval_")
        }
        assert {"return_mean", "return_std", "episodes", "length_mean"} <= evaluation.keys()
    assert seen.told("on_checkpoint") == [tmp_path / "run" / "checkpoints" / f"step-{step:012d}" for step in (128, 256)]
    assert seen.told("on_end") == [json.loads((tmp_path / "run" / "result.json").read_text())]


def test_a_run_resumed_tells_of_its_own_part_and_one_without_a_directory_of_no_checkpoint(tmp_path: Path) -> None:
    make(run_dir=tmp_path / "run").learn(128)
    seen, plain = Recorder(), Recorder()
    agent = pg.load(tmp_path / "run").learn(256, callback=seen)
    assert [row["step"] for row in seen.told("on_iteration")] == [192, 256]
    assert seen.hooks() == ["start", "iteration", "evaluation", "iteration", "checkpoint", "end"]
    assert [each["step"] for each in agent.run.history] == [128, 256]
    make().learn(256, callback=plain)
    assert "checkpoint" not in plain.hooks()
    assert [each["step"] for each in plain.told("on_evaluation")] == [128, 256]
    assert plain.told("on_end")[0]["eval"]["step"] == 256


@pytest.mark.parametrize("algorithm", ["ppo", "ppg"])
@pytest.mark.parametrize("compiled", ["off", "replay"])
def test_callbacks_leave_no_trace_in_what_is_learnt(algorithm: str, compiled: str, tmp_path: Path) -> None:
    alone = make(algorithm, compile=compiled, eval_episodes=0).learn(512)
    watched = make(algorithm, compile=compiled, run_dir=tmp_path / "run")
    watched.learn(512, callback=[Recorder(), lambda row: None, pg.SaveBest(tmp_path / "best"), pg.TimeLimit(1e6)])
    same(alone, watched)


def test_the_evaluation_of_an_early_stop_is_told_of_before_the_end(tmp_path: Path) -> None:
    seen = Recorder(lambda hook, told: hook == "on_iteration" and told["step"] == 192)
    agent = make(run_dir=tmp_path / "run").learn(512, callback=seen)
    assert seen.hooks()[-4:] == ["iteration", "checkpoint", "evaluation", "end"]
    assert seen.told("on_evaluation")[-1]["step"] == 192
    assert [each["step"] for each in agent.run.history] == [128], "no row tells of it, so a resumed run would not know"


def test_each_of_several_has_its_own_metrics_and_all_are_called(tmp_path: Path) -> None:
    order: list[str] = []

    def first(row: dict[str, Any]) -> bool:
        order.append("first")
        row.clear()
        return False

    class Second:
        def on_iteration(self, agent: Any, metrics: dict[str, Any]) -> None:
            order.append(f"second {metrics['step']}")

    for given in ([first, None, Second()], (first, Second())):
        order.clear()
        assert make().learn(256, callback=given).progress.step == 64
        assert order == ["first", "second 64"]


def test_what_is_no_callback_is_a_sentence() -> None:
    class Sb3Like:
        def _on_step(self) -> bool:
            return True

    for wrong in (5, "x", Sb3Like(), [lambda row: None, 5], {"a": 1}):
        with pytest.raises(
            pg.ConfigError, match=r"callback must be a function of the metrics, an object with one of on_s"
        ):
            make().learn(64, callback=wrong)
    with pytest.raises(pg.ConfigError, match=r"The callback StopAtScore is a class: give an object of it"):
        make().learn(64, callback=pg.StopAtScore)

    class Misspelt(pg.Callback):
        def on_iterations(self, agent: Any, metrics: Any) -> None: ...

    with pytest.warns(
        PhasegradWarning, match=r"on_iterations of the callback Misspelt is never called. Did you mean on_it"
    ):
        make().learn(64, callback=Misspelt())


# Stopping


@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_but_the_last_stops_with_a_checkpoint(hook: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    agent = make(run_dir=run).learn(512, callback=Recorder(lambda name, told: name == hook))
    step = {"on_start": 0, "on_iteration": 64, "on_end": 512}.get(hook, 128)
    assert agent.progress.step == step
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["step"]) == ("finished" if hook == "on_end" else "stopped", step)
    if step:
        assert pg.load(run).progress.step == step
        if hook != "on_end":
            same(pg.load(run).learn(512), make(run_dir=tmp_path / "whole").learn(512))


@pytest.mark.parametrize("answer", [False, np.bool_(False), np.array(False), torch.tensor(False), 0, np.float32(0)])
def test_what_is_false_stops(answer: Any) -> None:
    assert make(eval_episodes=0).learn(128, callback=lambda row: answer).progress.step == 64
    assert make(eval_episodes=0).learn(128, callback=Recorder(lambda *_: False)).progress.step == 128


@pytest.mark.parametrize("answer", [None, True, np.bool_(True), torch.tensor(1), 1, math.nan, "", [], {}])
def test_none_and_everything_else_goes_on(answer: Any) -> None:
    assert make(eval_episodes=0).learn(128, callback=lambda row: answer).progress.step == 128


class Long(gym.Env):  # type: ignore[type-arg]
    """Episodes of 40 steps with a return of 40: none ends in the first two iterations of 16 steps."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.zeros(2, np.float32), 1.0, self.count == 40, False, {}


CONDITIONS: dict[str, Callable[[Any], Any]] = {
    "below": lambda m: m["return_mean"] < 40,
    "not above": lambda m: not (m["return_mean"] >= 40),
    "turned": lambda m: 40 > m["return_mean"],  # noqa: SIM300
    "share": lambda m: m["return_mean"] / 40 < 1,
    "rounded": lambda m: round(m["return_mean"]) - 40 < 0,
    "both": lambda m: m["return_mean"] < 40 or m["length_mean"] < 40,
    "float": lambda m: float(m["return_mean"]) < 40,
    "bool": lambda m: bool(m["return_mean"] < 40),
    "branches": lambda m: True if m["return_mean"] < 40 else False,  # noqa: SIM210
    "most": lambda m: max(m["return_mean"], 0) < 40,
    "differs": lambda m: m["return_mean"] != 40,
    "copied": lambda m: dict(m)["return_mean"] < 40,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_comparison_with_a_missing_mean_decides_nothing(condition: str) -> None:
    """Whichever way it is written, the run stops when the first episodes have ended, with 40, in the third iteration."""
    seen = []

    def callback(metrics: dict[str, Any]) -> Any:
        seen.append(metrics["return_mean"])
        return CONDITIONS[condition](metrics)

    assert pg.PPO(Long, **SMALL, eval_episodes=0).learn(512, callback=callback).progress.step == 192
    assert [math.isnan(value) for value in seen] == [True, True, False]
    assert f"{seen[0]:.1f}" == "nan"
    assert math.isnan(copy.deepcopy(seen)[0])
    assert type(pickle.loads(pickle.dumps(seen))[0]) is float
    assert json.dumps(seen[0]) == "NaN"


def test_a_false_that_has_nothing_to_do_with_a_missing_mean_stops() -> None:
    def first(metrics: dict[str, Any]) -> bool:
        rows.append(dict(metrics))
        return metrics["step"] < 64 and metrics["return_mean"] < 1

    rows: list[dict[str, Any]] = []
    assert pg.PPO(Long, **SMALL, eval_episodes=0).learn(512, callback=first).progress.step == 64


def test_an_older_row_that_is_compared_counts_as_missing_too() -> None:
    rows: list[dict[str, Any]] = []

    def growing(metrics: dict[str, Any]) -> bool:
        rows.append(metrics)
        return rows[0]["return_mean"] < 40

    assert pg.PPO(Long, **SMALL, eval_episodes=0).learn(256, callback=growing).progress.step == 256


def test_the_score_of_an_iteration_without_evaluation_is_missing() -> None:
    agent = make().learn(512, callback=lambda m: m["eval_return_mean"] < 1)  # which every policy has
    assert agent.progress.step == 128
    with pytest.raises(KeyError, match="reward"):
        make().learn(512, callback=lambda m: m["reward"] < 1)


# Errors


@pytest.mark.parametrize("algorithm", ["ppo", "ppg"])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit, pg.ConfigError])
def test_what_was_trained_before_an_error_is_saved_and_the_callback_is_named(
    algorithm: str, error: type[BaseException], tmp_path: Path
) -> None:
    def fail(row: dict[str, Any]) -> None:
        if row["step"] == 320:
            raise error("mine")

    agent = make(algorithm, run_dir=tmp_path / "run")
    with pytest.raises(error, match="mine") as raised:
        agent.learn(512, callback=[Recorder(), fail])
    notes = raised.value.__notes__
    assert len(notes) == 2
    assert notes[0].startswith("This came from the callback test_what_was_trained")
    assert notes[1] == f"The last good checkpoint is that of step 320 in {tmp_path / 'run'}."
    whole = make(algorithm, run_dir=tmp_path / "whole").learn(512)
    resumed = pg.load(tmp_path / "run")
    assert resumed.progress.step == 320
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    same(whole, resumed.learn(512))
    rows = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "run")]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]


@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_in_any_hook_names_it_and_keeps_what_there_is(hook: str, tmp_path: Path) -> None:
    def fail(name: str, told: Any) -> bool:
        if name == hook:
            raise ValueError("mine")
        return False

    agent = make(run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="mine") as raised:
        agent.learn(256, callback=Recorder(fail))
    assert raised.value.__notes__[0] == f"This came from the callback Recorder, in {hook}."
    step = {"on_start": 0, "on_iteration": 64, "on_end": 256}.get(hook, 128)
    if step:
        assert pg.load(tmp_path / "run").progress.step == step
    if step < 256:
        same(agent.learn(256), make(run_dir=tmp_path / "whole").learn(256))  # the agent itself goes on too


def test_an_error_in_the_last_iteration_leaves_a_finished_run(tmp_path: Path) -> None:
    def fail(row: dict[str, Any]) -> None:
        if row["step"] == 256:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        make("ppg", run_dir=tmp_path / "run").learn(256, callback=fail)
    whole = make("ppg", run_dir=tmp_path / "whole").learn(256)
    same(pg.load(tmp_path / "run"), whole)
    same(pg.load(tmp_path / "run").learn(512), whole.learn(512))


def test_ctrl_c_inside_a_callback_stops_with_a_checkpoint_and_a_second_one_at_once(tmp_path: Path) -> None:
    def interrupt(times: int) -> Callable[[dict[str, Any]], None]:
        def callback(row: dict[str, Any]) -> None:
            if row["step"] == 192:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.05)

        return callback

    with pytest.raises(KeyboardInterrupt, match="stopped at step 192 with a checkpoint"):
        make(run_dir=tmp_path / "once").learn(512, callback=interrupt(1))
    assert pg.load(tmp_path / "once").progress.step == 192
    with pytest.raises(KeyboardInterrupt, match=r"stopped at once\. The last good checkpoint is that of step 128"):
        make(run_dir=tmp_path / "twice").learn(512, callback=interrupt(2))
    assert pg.load(tmp_path / "twice").progress.step == 128


# The ready ones


def scored(scores: list[float]) -> Any:
    """Evaluations that come to these returns, one after the other by step."""

    def make_evaluation(self: Any, episodes: int) -> dict[str, Any]:
        score = scores[self.progress.step // 128 - 1]
        summary = {"return_mean": score, "return_std": 0.0, "return_min": score, "return_max": score}
        summary |= {"length_mean": 1.0, "episodes": episodes, "episodes_cut": 0}
        self.record.last = {**summary, "step": self.progress.step}
        if self.record.best is None or score > self.record.best["return_mean"]:
            self.record.best = {"step": self.progress.step, "return_mean": score, "episodes": episodes}
        return {f"eval_{name}": value for name, value in summary.items()}

    return make_evaluation


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_to(*values: float) -> None:
        monkeypatch.setattr("phasegrad.runs.evaluating.Evaluations.make", scored(list(values)))

    return set_to


def test_a_run_stops_at_a_score(scores: Callable[..., None], tmp_path: Path) -> None:
    scores(1.0, 5.0, 7.0, 9.0)
    for threshold, step in ((0, 128), (5, 256), (6, 384), (10, 512)):
        agent = make(run_dir=tmp_path / f"{threshold}").learn(512, callback=pg.StopAtScore(threshold))
        assert agent.progress.step == step
    (tmp_path / "5" / "result.json").unlink()  # killed between its last checkpoint and its result
    assert pg.load(tmp_path / "5").learn(512, callback=pg.StopAtScore(5)).progress.step == 256
    assert json.loads((tmp_path / "5" / "result.json").read_text())["status"] == "stopped"
    assert pg.load(tmp_path / "5").learn(512, callback=pg.StopAtScore(8)).progress.step == 512


@pytest.mark.parametrize(
    ("patience", "min_delta", "step"),
    [(1, 0, 384), (2, 0, 768), (3, 0, 896), (2, 0.5, 512), (1, 0.5, 384), (9, 0, 1024), (3, 4.0, 640)],
)
def test_a_run_without_improvement_stops_at_the_same_place_after_a_kill_anywhere(
    patience: int, min_delta: float, step: int, scores: Callable[..., None], tmp_path: Path
) -> None:
    scores(1.0, 6.0, 6.0, 6.25, 6.25, 6.2, 6.1, 6.0)
    copies: list[Path] = []

    def copy_directory(row: dict[str, Any]) -> None:
        if row["step"] > 128 and row["iteration"] % 2:  # between two evaluations
            copies.append(shutil.copytree(tmp_path / "run", tmp_path / f"copy-{row['step']}"))

    stop = pg.StopWithoutImprovement(patience=patience, min_delta=min_delta)
    agent = make(run_dir=tmp_path / "run").learn(1024, callback=[copy_directory, stop])
    assert agent.progress.step == step
    copies.append(shutil.copytree(tmp_path / "run", tmp_path / "ended"))
    (tmp_path / "ended" / "result.json").unlink()
    for path in copies if step < 1024 else copies[:1]:
        fresh = pg.StopWithoutImprovement(patience=patience, min_delta=min_delta)
        resumed = pg.load(path).learn(1024, callback=fresh)
        assert resumed.progress.step == step, path
        same(agent, resumed)
        assert json.loads((path / "result.json").read_text())["status"] == ("stopped" if step < 1024 else "finished")


def test_an_agent_saved_apart_knows_its_best_and_one_that_learns_on_all_it_has_seen(
    scores: Callable[..., None], tmp_path: Path
) -> None:
    scores(6.0, 5.0, 5.5, 5.0)
    agent = make().learn(256, callback=pg.StopWithoutImprovement(patience=2))
    agent.save(tmp_path / "saved")
    assert agent.learn(512, callback=pg.StopWithoutImprovement(patience=2)).progress.step == 384
    apart = pg.load(tmp_path / "saved").learn(512, callback=pg.StopWithoutImprovement(patience=2))
    assert apart.progress.step == 512  # 5.5 and 5.0 are no better than the 6.0


def test_the_best_is_saved_and_a_resumed_run_keeps_a_better_one(scores: Callable[..., None], tmp_path: Path) -> None:
    scores(1.0, 6.0, 5.0, 7.0)
    best = tmp_path / "best"
    make(run_dir=tmp_path / "run").learn(384, callback=pg.SaveBest(best))
    assert pg.load(best).progress.step == 256
    scores(1.0, 6.0, 5.0, 5.5)
    pg.load(tmp_path / "run").learn(512, callback=pg.SaveBest(best))
    assert pg.load(best).progress.step == 256
    saved = pg.load(best)
    whole = make().learn(384)
    same(saved.learn(384), whole)


def test_a_time_limit_counts_from_this_start_or_over_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("phasegrad.runs.callbacks.time.monotonic", lambda: now[0])

    def tick(row: dict[str, Any]) -> None:
        now[0] += 10

    run = make(run_dir=tmp_path / "run").learn(512, callback=[tick, pg.TimeLimit(25)])
    assert run.progress.step == 192
    assert pg.load(tmp_path / "run").learn(512, callback=[tick, pg.TimeLimit(20)]).progress.step == 320
    agent = pg.load(tmp_path / "run")
    agent.run.seconds_before = 30.0
    assert agent.learn(512, callback=[tick, pg.TimeLimit(35, whole_run=True)]).progress.step == 384
    agent = pg.load(tmp_path / "run")
    agent.run.seconds_before = 35.0
    assert agent.learn(512, callback=[tick, pg.TimeLimit(35, whole_run=True)]).progress.step == 384


def test_the_arguments_of_the_ready_ones_are_checked() -> None:
    for wrong, sentence in (
        (lambda: pg.StopAtScore("x"), "threshold of StopAtScore must be a finite number"),  # type: ignore[arg-type]
        (lambda: pg.StopAtScore(math.nan), "threshold of StopAtScore must be"),
        (lambda: pg.StopWithoutImprovement(0), "patience of StopWithoutImprovement must be at least 1"),
        (lambda: pg.StopWithoutImprovement(2, -1), "min_delta of StopWithoutImprovement must be at least 0"),
        (lambda: pg.TimeLimit(-1), "seconds of TimeLimit must be at least 0"),
        (lambda: pg.SaveBest(5), "path of SaveBest must be a folder's name"),  # type: ignore[arg-type]
    ):
        with pytest.raises(pg.ConfigError, match=sentence):
            wrong()
    for callback in (pg.StopAtScore(1), pg.StopWithoutImprovement(), pg.SaveBest("best")):
        with pytest.raises(
            pg.ConfigError, match=rf"{type(callback).__name__} needs evaluations, and eval_episodes is 0"
        ):
            make(eval_episodes=0).learn(64, callback=callback)
        vector = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")
        with pytest.raises(pg.ConfigError, match=r"needs evaluations, which a vectorised environment"):
            pg.PPO(vector, **SMALL).learn(64, callback=callback)
