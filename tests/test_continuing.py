"""Going on: with other settings, in another environment, from other weights; what may not change says why."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from interrupted import Killed
from test_changing import SMALL, changing

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import ConfigError, EnvError, RunError

CHECKPOINT = 192  # steps: three iterations


def made(run_dir: Path | None = None, **fields: Any) -> pg.PPO:
    return pg.PPO("CartPole-v1", run_dir=run_dir, **{**SMALL, **fields})


def killed(run_dir: Path, after: int, **fields: Any) -> Path:
    """A run that was killed after so many iterations, of which the checkpoints are those of every third."""
    agent = made(run_dir, **fields)
    with pytest.raises(Killed):
        agent.learn(64 * 12, callback=changing(agent, {}, die_after=after))
    return run_dir


def kill_again(agent: Any, after: int) -> None:
    with pytest.raises(Killed):
        agent.learn(callback=changing(agent, {}, die_after=after))


def same(one: Any, other: Any) -> None:
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name
    assert one.progress == other.progress


def changes(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "changes.jsonl").read_text().splitlines()]


# Other settings


def test_a_run_goes_on_with_another_learning_rate_and_remembers_it(tmp_path: Path) -> None:
    start = killed(tmp_path / "run", 4)
    twin = shutil.copytree(start, tmp_path / "twin")
    whole: Any = pg.load(start, learning_rate=1e-2, entropy_coef="0.05")
    whole.learn()
    assert [(row["iteration"], row["after"]) for row in changes(start)] == [
        (3, {"learning_rate": 1e-2, "entropy_coef": 0.05})
    ]
    assert json.loads((start / "config.json").read_text())["learning_rate"] == 3e-4
    for after in (4, 7):  # before its next checkpoint, and after it
        again: Any = pg.load(twin, **({"learning_rate": 1e-2, "entropy_coef": 0.05} if after == 4 else {}))
        kill_again(again, after)
    resumed: Any = pg.load(twin)
    assert resumed.config.learning_rate == 1e-2
    resumed.learn()
    same(whole, resumed)
    assert changes(start) == changes(twin)
    plain: Any = pg.load(killed(tmp_path / "plain", 4)).learn()
    assert not torch.equal(plain.flat.data, whole.flat.data)


def test_what_is_given_holds_against_what_the_run_had_changed_later(tmp_path: Path) -> None:
    run = killed(tmp_path / "run", 4)
    kill_again(pg.load(run, learning_rate=1e-2, clip_range=0.1), 4)
    again: Any = pg.load(run, learning_rate=3e-4)  # as it was: what the file says of it is to be forgotten
    rows: list[dict[str, Any]] = []
    again.learn(callback=rows.append)
    assert {row["learning_rate"] for row in rows} == {3e-4}
    assert {row["clip_range"] for row in rows} == {0.1}
    assert [row["after"] for row in changes(run)] == [{"clip_range": 0.1}]


def test_the_command_line_gives_other_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = killed(tmp_path / "run", 4)
    twin = shutil.copytree(run, tmp_path / "twin")
    assert main(["resume", str(run), "--quiet", "--set", "learning_rate=1e-2", "--set", "torch_threads=1"]) == 0
    whole: Any = pg.load(run)
    other: Any = pg.load(twin, learning_rate=1e-2, torch_threads=1)
    other.learn()
    same(whole, other)
    assert whole.config.torch_threads == 1


def test_what_leaves_no_trace_may_change(tmp_path: Path) -> None:
    """It is in config.json from then on, so that a run killed before its next checkpoint goes on with it too."""
    run = killed(tmp_path / "run", 4)
    given: dict[str, Any] = {
        "torch_threads": 1, "env_threads": 1, "keep_checkpoints": 9, "checkpoint_every": 128, "eval_episodes": 2,
        "eval_every": 256, "device": "cpu", "total_steps": 64 * 9,
    }  # fmt: skip
    agent: Any = pg.load(run, **given)
    assert {name: getattr(agent.config, name) for name in given} == given
    kill_again(agent, 4)
    again: Any = pg.load(run)
    assert again.progress.iteration == 3
    assert {name: getattr(again.config, name) for name in given} == given
    again.learn()
    assert again.progress.step == 64 * 9
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names[-3:] == [f"step-{step:012d}" for step in (384, 512, 576)]
    plain: Any = pg.load(killed(tmp_path / "plain", 4)).learn(64 * 9)
    for name, tensor in again.tensors().items():
        assert torch.equal(tensor, plain.tensors()[name]), name


def test_a_run_without_a_checkpoint_goes_on_with_other_settings(tmp_path: Path) -> None:
    run = killed(tmp_path / "run", 2)
    assert not (run / "checkpoints").exists() or not list((run / "checkpoints").iterdir())
    assert main(["resume", str(run), "--quiet", "--set", "learning_rate=1e-2"]) == 0
    whole: Any = made(learning_rate=1e-2)
    whole.learn(64 * 12)
    assert torch.equal(whole.flat.data, pg.load(run).flat.data)  # type: ignore[attr-defined]
    assert [(row["iteration"], row["after"]) for row in changes(run)] == [(0, {"learning_rate": 1e-2})]


REFUSED = {
    "hidden_sizes=32": r"hidden_sizes is .*8.* and cannot become \(32,\) when a run goes on, since its networks .*: make a new",
    "num_envs=8": r"num_envs is 4 and cannot become 8 .* rollouts have that form: new\.load_parameters\(agent\.parameters\(\)\)",
    "env=Acrobot-v1": r"env is 'CartPole-v1' and cannot become 'Acrobot-v1' .*agent\.set_env\(env\)",
    "gamma=0.5": r"gamma is 0\.99 and cannot become 0\.5 .* part of what a run of ppo is: .*What may change is .*learning_rate",
    "compile=on": r"compile is 'off' and cannot become 'on'",
    "learning_rat=1": r"Unknown setting 'learning_rat' for ppo\. Did you mean learning_rate",
    "learning_rate=high": "learning_rate must be",
    "learning_rate": "--set takes FIELD=VALUE",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_may_not_change_says_why(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    agent = made(tmp_path / "run")
    agent.learn(64)
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "256", "--quiet", "--set", text]) == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert re.search(REFUSED[text], said), said
    name, _, value = text.partition("=")
    if value and name != "env":
        with pytest.raises(ConfigError, match=REFUSED[text]):
            pg.load(tmp_path / "run", **{name: value})


def test_the_same_value_is_no_change(tmp_path: Path) -> None:
    agent = made(tmp_path / "run")
    agent.learn(64)
    loaded = pg.load(tmp_path / "run", num_envs=4, hidden_sizes="8", gamma=0.99, learning_rate=3e-4)
    assert loaded.run.changes == []


def test_refusals_of_the_command_line_come_before_torch(tmp_path: Path) -> None:
    made(tmp_path / "run").learn(64)
    code = (
        "import sys\nfrom phasegrad.cli.main import main\n"
        f"code = main(['resume', {str(tmp_path / 'run')!r}, '--set', 'num_envs=8'])\n"
        "assert 'torch' not in sys.modules\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "num_envs is 4 and cannot become 8" in done.stderr


def test_a_total_below_the_steps_taken_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "run").learn(128)
    with pytest.raises(ConfigError, match="total_steps 64 is below the 128 steps already taken"):
        pg.load(tmp_path / "run", total_steps=64)


# Another environment


class Line(gym.Env):
    """Spaces of CartPole's form; each episode has `length` steps."""

    length = 5

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        return self._see(), float(action), self.taken == self.length, False, {}

    def _see(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


class Short(Line):
    length = 3


gym.register("Line-v0", Line)
gym.register("Short-v0", Short)

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "memory": {"memory": "gru", "memory_size": 8, "sequence_length": 8},
    "stacked": {"frame_stack": 2},
    "normalised": {"normalize_observation": True, "normalize_reward": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_trains_on_in_another_environment_and_resumes_there(tmp_path: Path, kind: str) -> None:
    """Killed after the move and before the next checkpoint that was due, and again later."""

    def moved(run_dir: Path, die_after: int) -> Any:
        agent: Any = pg.PPO("Line-v0", run_dir=run_dir, **{**SMALL, **KINDS[kind]})
        agent.learn(64 * 4)
        agent.set_env("Short-v0")
        assert agent.progress.step == 64 * 4
        assert not agent.run.legs.actions  # nothing to be played back there
        assert set(agent.run.legs.numbers) == {1}
        with pytest.raises(Killed) if die_after else pytest.MonkeyPatch.context():
            agent.learn(64 * 12, callback=changing(agent, {}, die_after=die_after))
        return agent

    whole = moved(tmp_path / "whole", 0)
    assert set(whole.progress.recent_lengths) == {3.0}
    moved(tmp_path / "run", 5)
    for after in (5, 8):
        kill_again(pg.load(tmp_path / "run"), after)
    resumed: Any = pg.load(tmp_path / "run")
    assert resumed.config.env == "Short-v0"
    resumed.learn()
    same(whole, resumed)
    assert [row["after"]["env"] for row in changes(tmp_path / "run")] == ["Short-v0"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["env"] == "Line-v0"


def test_an_agent_moves_between_iterations(tmp_path: Path) -> None:
    def in_callback(agent: Any, die_after: int) -> Any:
        def callback(row: dict[str, Any]) -> None:
            if row["iteration"] == 4:
                agent.set_env("Short-v0")
            if row["iteration"] == die_after:
                raise Killed

        return callback

    whole: Any = pg.PPO("Line-v0", run_dir=tmp_path / "whole", **SMALL)
    whole.learn(64 * 9, callback=in_callback(whole, 0))
    agent: Any = pg.PPO("Line-v0", run_dir=tmp_path / "run", **SMALL)
    with pytest.raises(Killed):
        agent.learn(64 * 9, callback=in_callback(agent, 5))
    resumed: Any = pg.load(tmp_path / "run")
    assert resumed.progress.iteration == 4  # the move wrote a checkpoint
    resumed.learn()
    same(whole, resumed)


def test_a_move_whose_checkpoint_is_lost_is_made_again(tmp_path: Path) -> None:
    agent: Any = pg.PPO("Line-v0", run_dir=tmp_path / "run", **SMALL)
    agent.learn(64 * 3)
    twin = shutil.copytree(tmp_path / "run", tmp_path / "twin")
    agent.set_env("Short-v0")
    agent.learn(64 * 6)
    shutil.copy(tmp_path / "run" / "changes.jsonl", twin)
    resumed: Any = pg.load(twin)
    assert resumed.config.env == "Line-v0"
    resumed.learn(64 * 6)
    same(agent, resumed)
    text = (twin / "changes.jsonl").read_text()
    other = shutil.copytree(twin, tmp_path / "other")
    for folder in sorted((other / "checkpoints").iterdir())[1:]:
        shutil.rmtree(folder)
    (other / "changes.jsonl").write_text(text.replace('"Short-v0"', '"custom:Short"'))
    with pytest.raises(EnvError, match=r"given in Python \(custom:Short\).*agent\.set_env\(env\)"):
        pg.load(other).learn(64 * 6)


def test_moving_before_training_is_being_made_there() -> None:
    agent: Any = pg.PPO("Line-v0", **SMALL)
    agent.set_env(Short)
    there: Any = pg.PPO(Short, **SMALL)
    for each in (agent, there):
        each.learn(64 * 3)
    same(agent, there)
    assert agent.config.env == "custom:Short"


def test_every_kind_of_environment_can_be_moved_to() -> None:
    agent: Any = pg.PPO("CartPole-v1", **{**SMALL, "preset": "none"})
    agent.learn(64 * 2)
    vector = gym.vector.SyncVectorEnv([Line] * 4)
    for place, length in ((Short, 3.0), (vector, 5.0), ("Short-v0", 3.0)):
        agent.set_env(place)
        agent.learn(agent.progress.step + 64)
        assert set(agent.progress.recent_lengths) == {length}
    with pytest.raises(ConfigError, match="has 2 environments, but this agent trains in 4"):
        agent.set_env(gym.vector.SyncVectorEnv([Line] * 2))


@pytest.mark.parametrize("env", ["Acrobot-v1", "Pendulum-v1", "MountainCar-v0"])
def test_an_environment_that_does_not_fit_changes_nothing(env: str) -> None:
    agent: Any = made()
    agent.learn(64 * 2)
    with pytest.raises(EnvError, match=rf"The (observation|action) space of {env} is .* give one with the same\.$"):
        agent.set_env(env)
    twin: Any = made()
    for each in (agent, twin):
        each.learn(64 * 4)
    same(agent, twin)


def test_loading_with_another_environment_moves_there(tmp_path: Path) -> None:
    agent: Any = pg.PPO("Line-v0", **SMALL)
    agent.learn(64 * 3)
    agent.save(tmp_path / "agent")
    loaded: Any = pg.load(tmp_path / "agent", env="Short-v0", learning_rate=1e-3)
    agent.set_env("Short-v0")
    agent.change(learning_rate=1e-3)
    for each in (agent, loaded):
        each.learn(64 * 6)
    same(agent, loaded)


def test_scores_of_another_environment_are_not_the_run_s(tmp_path: Path) -> None:
    agent: Any = pg.PPO("Line-v0", run_dir=tmp_path / "run", **SMALL, eval_checkpoints=2)
    agent.learn(64 * 3)
    assert agent.run.evaluations.best is not None
    agent.set_env("Short-v0")
    assert agent.run.evaluations.best is None
    assert not agent.progress.recent_returns
    agent.learn(64 * 6)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["eval"]["return_mean"] <= 3
    assert pg.load(tmp_path / "run", checkpoint="best").config.env == "Short-v0"


def test_evaluating_in_another_environment() -> None:
    agent: Any = pg.PPO("Line-v0", **SMALL)
    agent.learn(64)
    before = agent.tensors()["model.value_head.weight"].clone()
    for env in ("Short-v0", Short, Short(), gym.vector.SyncVectorEnv([Short] * 2)):
        found = agent.evaluate(4, env=env, seed=3)
        assert found.lengths == [3] * 4, env
    assert agent.evaluate(4).lengths == [5] * 4
    assert agent.config.env == "Line-v0"
    assert torch.equal(before, agent.tensors()["model.value_head.weight"])
    own = Short()
    agent.evaluate(2, env=own)
    own.reset()  # still the user's, and open
    with pytest.raises(EnvError, match="The observation space of Acrobot-v1 is"):
        agent.evaluate(2, env="Acrobot-v1")
    with pytest.raises(EnvError, match="takes no env_options"):
        agent.evaluate(2, env=own, env_options={"a": 1})


# Weights


def test_parameters_are_copies_and_come_back() -> None:
    agent: Any = made(normalize_observation=True)
    agent.learn(64 * 2)
    given = agent.parameters()
    assert given.keys() == agent.agent.tensors().keys()
    assert all(isinstance(value, np.ndarray) for value in given.values())
    assert not any("optimizer" in name for name in given)
    kept = {name: value.copy() for name, value in given.items()}
    agent.learn(64 * 4)
    for name, value in given.items():
        assert np.array_equal(value, kept[name])
    other: Any = made(normalize_observation=True, seed=9)
    flat, before = other.flat.data, other.flat.data.clone()
    assert other.load_parameters(given) == ([], [])
    assert other.flat.data is flat
    assert not torch.equal(flat, before)
    for parameter, start in other.flat.places:  # still views of the one vector
        assert parameter.data_ptr() == flat[start:].data_ptr()
    observations = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    first: Any = made(normalize_observation=True)
    first.learn(64 * 2)
    assert np.array_equal(first.value(observations), other.value(observations))
    other.load_parameters({name: torch.from_numpy(value) for name, value in agent.parameters().items()})
    assert np.array_equal(agent.value(observations), other.value(observations))


def test_parameters_that_do_not_fit_are_named() -> None:
    agent: Any = made()
    given = agent.parameters()
    name = "model.policy_head.linear.weight"
    before = agent.flat.data.clone()
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "missing": ({k: v for k, v in given.items() if k != name}, f"The parameter {name} is missing"),
        "unknown": ({**given, "model.polic_head": np.zeros(1)}, "This agent has no parameter 'model.polic_head'"),
        "shape": ({**given, name: given[name][:, 1:]}, rf"{name} has shape \(2, 7\), but \(2, 8\) is needed"),
        "dtype": ({**given, name: given[name].astype(float)}, f"{name} is float64, but float32 is needed"),
        "number": ({**given, name: given[name] * np.nan}, f"{name} holds NaN or infinity"),
        "object": ({**given, name: "weights"}, f"{name} is no array of numbers"),
    }
    for changed, sentence in wrong.values():
        with pytest.raises(ConfigError, match=sentence):
            agent.load_parameters(changed)
    with pytest.raises(ConfigError, match="a dictionary of names and arrays, not a list"):
        agent.load_parameters([1])
    with pytest.raises(ConfigError, match="None of the parameters fits"):
        agent.load_parameters({"a": np.zeros(1)}, strict=False)
    assert torch.equal(before, agent.flat.data)


def test_what_fits_another_algorithm_is_loaded_into_it() -> None:
    agent: Any = made()
    agent.learn(64)
    other: Any = pg.PPG(
        "CartPole-v1", preset="none", num_envs=4, num_steps=16, hidden_sizes=(8,), n_pi=2, compile="off"
    )
    with pytest.raises(ConfigError, match=r"model\.auxiliary_head\.\w+ is missing: .*strict=False"):
        other.load_parameters(agent.parameters())
    left_out = other.load_parameters({**agent.parameters(), "mine": np.zeros(2)}, strict=False)
    assert left_out.unexpected == ["mine"]
    assert left_out.missing
    assert all("auxiliary" in name for name in left_out.missing)
    observation = np.ones(4, np.float32)
    assert np.array_equal(agent.value(observation[None]), other.value(observation[None]))
    other.learn(64 * 4)


@pytest.mark.parametrize("taken", [0, 256])
def test_weights_that_were_given_outlive_a_kill(tmp_path: Path, taken: int) -> None:
    source: Any = made(seed=9)
    source.learn(64)

    def given(run_dir: Path) -> Any:
        agent: Any = made(run_dir)
        if taken:
            agent.learn(taken)
        agent.load_parameters(source.parameters())
        return agent

    whole = given(tmp_path / "whole")
    whole.learn(64 * 9)
    kill_at = taken // 64 + 1
    agent = given(tmp_path / "run")
    with pytest.raises(Killed):
        agent.learn(64 * 9, callback=changing(agent, {}, die_after=kill_at))
    resumed: Any = pg.load(tmp_path / "run")
    assert resumed.progress.step == taken
    resumed.learn()
    same(whole, resumed)


def test_a_new_run_with_other_sizes_begins_with_the_weights(tmp_path: Path) -> None:
    """What the refusal of num_envs says to do."""
    old: Any = made(tmp_path / "old")
    old.learn(64 * 3)
    new: Any = made(tmp_path / "new", num_envs=8, num_steps=32)
    new.load_parameters(old.parameters())
    observation = np.ones((1, 4), np.float32)
    assert np.array_equal(new.value(observation), old.value(observation))
    new.learn(512)
    assert pg.load(tmp_path / "new").config.num_envs == 8


def test_an_agent_whose_run_is_elsewhere_is_not_the_run(tmp_path: Path) -> None:
    agent: Any = made(tmp_path / "run")
    agent.learn(64 * 3)
    with pytest.raises(RunError, match="already holds files"):
        made(tmp_path / "run").learn(64)
    other: Any = pg.load(tmp_path / "run", run_dir=tmp_path / "other", learning_rate=1e-2)
    other.learn(64 * 6)
    assert [row["after"] for row in changes(tmp_path / "other")] == [{"learning_rate": 1e-2}]
    assert not (tmp_path / "run" / "changes.jsonl").exists()
