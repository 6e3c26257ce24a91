"""Checkpoints leave no trace, environments are made anew only at the end of an episode, and playing back is exact."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_envs import CountingEnv, HandMadeVector
from gymnasium.vector import AutoresetMode

import phasegrad as pg
from phasegrad import envs
from phasegrad.algorithms import ALGORITHMS
from phasegrad.cli.main import main
from phasegrad.data import legs
from phasegrad.envs import env_seeds
from phasegrad.runs.metrics import read_metrics

FIELDS: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (8,), "seed": 3, "normalize_reward": True,
    "normalize_observation": True,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 1, "num_minibatches": 2},
    "ppg": {"n_pi": 3, "e_aux": 1, "aux_minibatches": 4, "num_minibatches": 2},
    "a2c": {"updates_per_iteration": 1},
    "vpg": {"value_steps": 2},
    "trpo": {"cg_iterations": 2, "value_epochs": 1, "num_minibatches": 2},
    "acer": {"replay_capacity": 512, "replay_start": 64, "updates_per_iteration": 2, "normalize_reward": False},
}
SOURCES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "envpool": lambda: ("CartPole-v1", {}),
    "gymnasium": lambda: ("CartPole-v1", {"backend": "gymnasium"}),
    "processes": lambda: (Wandering, {"vectorization": "async"}),
    "factory": lambda: (Wandering, {}),
    "vector": lambda: (gym.vector.SyncVectorEnv([Wandering] * 4), {}),
}


class Wandering(gym.Env):
    """A walk of random length whose every step depends on the seed and on all that was done before."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-100.0, 100.0, (2,))
        self.action_space = gym.spaces.Discrete(3)
        self.place, self.left = np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        self.left = int(self.np_random.integers(3, 30))
        return self.place.astype(np.float32), {}

    def step(self, action: int) -> Any:
        self.place = np.clip(0.9 * self.place + self.np_random.normal(size=2) * (1 + action), -99, 99)
        self.left -= 1
        return self.place.astype(np.float32), float(self.place[0]), self.left == 0, False, {}


def make(algorithm: str, source: str = "envpool", **fields: Any) -> Any:
    env, own = SOURCES[source]()
    return ALGORITHMS[algorithm](env, **{**FIELDS, **OWN[algorithm], **own, **fields})


def same(one: Any, other: Any) -> None:
    mine, theirs = one.tensors(), other.tensors()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
    assert one.progress == other.progress


@pytest.mark.parametrize("algorithm", OWN)
def test_checkpoints_leave_no_trace(algorithm: str, tmp_path: Path) -> None:
    often = make(algorithm, run_dir=tmp_path / "often", checkpoint_every=64, keep_checkpoints=99).learn(960)
    assert len(list((tmp_path / "often" / "checkpoints").iterdir())) >= 5
    same(often, make(algorithm, run_dir=tmp_path / "once", checkpoint_every=960).learn(960))
    same(often, make(algorithm).learn(960))


def test_overlapping_phases_of_ppg_keep_their_buffer_over_default_checkpoints(tmp_path: Path) -> None:
    """A tenth of the run used to empty it."""
    fields = {"aux_interval": 1, "aux_buffer": 4, "aux_steps": 3, "aux_minibatches": 0, "aux_minibatch_size": 32}
    same(make("ppg", run_dir=tmp_path / "run", **fields).learn(960), make("ppg", **fields).learn(960))
    assert not (tmp_path / "run" / "segments").exists(), "a finished run holds no buffer"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("algorithm", ["ppo", "ppg"])
def test_a_run_resumed_anywhere_ends_alike_while_environments_are_made_anew(
    algorithm: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose environments begin new legs all the time, from checkpoints before, while and after they do: some for each source."""
    monkeypatch.setattr("phasegrad.algorithms.experience.EPISODES_A_LEG", 1)
    total, fields = 960, {"restart_every": 96, "num_steps": 8, "checkpoint_every": 32, "keep_checkpoints": 99}
    copies: list[Path] = []
    every, first = {"processes": 7, "vector": 2}.get(source, 4), list(SOURCES).index(source)

    def copy(row: dict[str, Any]) -> None:
        if row["step"] > 32 and (row["iteration"] + first) % every == 0:
            copies.append(shutil.copytree(tmp_path / "whole", tmp_path / f"copy-{row['step']}"))

    whole = make(algorithm, source, run_dir=tmp_path / "whole", **fields).learn(total, callback=copy)
    assert whole.run.legs.numbers.min() >= 2, "the test is of several legs"
    between = 0
    for path in copies:
        resumed = pg.load(path, env=None if source in ("envpool", "gymnasium") else SOURCES[source]()[0])
        assert resumed.progress.step < total
        between += not resumed.run.legs.settled and len(set(resumed.run.legs.numbers.tolist())) > 1
        resumed.learn(total)
        same(whole, resumed)
        assert np.array_equal(whole.run.legs.starts, resumed.run.legs.starts)
        resumed.close()
    assert between, "none was resumed while environments were being made anew"


@pytest.mark.parametrize("source", ["envpool", "factory", "processes", "vector"])
def test_a_new_leg_cuts_no_episode(source: str) -> None:
    agent = make("ppo", source, restart_every=64)
    lengths, renewed_at = [], []

    class Watched:
        def __init__(self, env: Any) -> None:
            self.env = env

        def __getattr__(self, name: str) -> Any:
            return getattr(self.env, name)

        def step(self, actions: Any) -> Any:
            step = self.env.step(actions)
            over = [episode.env for episode in step.episodes]
            lengths.extend(episode.length for episode in step.episodes)
            if step.renewed:
                assert set(step.renewed) <= set(over)
                renewed_at.append(sorted(step.renewed))
            return step

    agent.experience.env = Watched(agent.experience.env)
    agent.learn(1920)
    assert agent.run.legs.numbers.min() >= 2
    assert sum(len(at) for at in renewed_at) == agent.run.legs.numbers.sum()
    assert any(len(at) < 4 for at in renewed_at), "not all at the same step"
    # Every step belongs to an episode that ended or is under way.
    assert sum(lengths) + agent.experience.env._lengths.sum() == 1920
    agent.close()


def test_no_leg_ends_before_several_of_the_longest_episodes_fit() -> None:
    agent = make("ppo", "factory", restart_every=1)
    begun: list[tuple[int, int]] = []
    before = agent.run.legs.targets.copy()

    def look(row: dict[str, Any]) -> None:
        if (agent.run.legs.targets != before).any():
            begun.append((row["step"] // 4, agent.progress.longest_episode))
            before[:] = agent.run.legs.targets

    agent.learn(3840, callback=look)
    assert len(begun) >= 2
    ends = [0, *(step for step, _ in begun)]
    for (earlier, later), (_, longest) in zip(itertools.pairwise(ends), begun, strict=True):
        assert later - earlier >= legs.EPISODES_A_LEG * longest


class Endless(CountingEnv):
    def step(self, action: int) -> Any:
        self.steps += 1
        return *self.observe()[:1], 1.0, False, False, {}


def test_environments_whose_episodes_never_end_are_cut_in_the_end(tmp_path: Path) -> None:
    agent = pg.PPO(Endless, run_dir=tmp_path / "run", restart_every=64, checkpoint_every=64, **FIELDS | OWN["ppo"])
    agent.learn(960)
    assert agent.run.legs.numbers.tolist() == [6] * 4, "after 4 x 16 steps each time"
    assert agent.run.legs.starts.tolist() == [192] * 4
    assert sum(map(len, agent.run.legs.actions)) == 240 - 192, "no more is kept than is played back"
    resumed = pg.load(shutil.copytree(tmp_path / "run", tmp_path / "copy"), env=Endless).learn(1280)
    same(agent.learn(1280), resumed)


def test_a_vector_environment_that_cannot_be_taken_apart_restarts_as_a_whole() -> None:
    source = HandMadeVector(4, "same", AutoresetMode.SAME_STEP)
    agent = pg.PPO(source, restart_every=64, **{**FIELDS, **OWN["ppo"], "normalize_observation": False})
    agent.learn(1920)
    assert len(set(agent.run.legs.numbers.tolist())) == 1
    assert agent.run.legs.starts.min() == agent.run.legs.starts.max() > 0


@pytest.mark.parametrize(("env", "options"), [
    ("CartPole-v1", {}), ("Pendulum-v1", {}), ("Breakout-v5", {"episodic_life": True}), ("MiniGrid-Empty-5x5-v0", {}),
    ("CartPole-v1", {"vectorization": "async", "backend": "gymnasium"}),
])  # fmt: skip
def test_playing_back_brings_environments_that_began_at_different_steps_to_where_they_were(
    env: str, options: dict[str, Any]
) -> None:
    """The second half of each life, step by step, against an environment that was never left."""
    how = {name: options[name] for name in ("vectorization", "backend") if name in options}
    own = {name: value for name, value in options.items() if name not in how}
    seeds, random = env_seeds(5, 0, 3), np.random.default_rng(0)
    starts, total, more = np.array([0, 7, 20]), 60, 30
    single = [envs.make(env, num_envs=1, seeds=[seed], options=own, **how) for seed in seeds]
    space = single[0].action_space
    space.seed(1)
    actions = [np.stack([np.asarray(space.sample()) for _ in seeds]) for _ in range(total + more)]
    wanted: list[list[Any]] = []
    for index, one in enumerate(single):
        one.reset()
        steps = [one.step(row[index : index + 1]) for row in actions[starts[index] :]]
        wanted.append(steps[-more:])
        one.close()
    together = envs.make(env, num_envs=3, seeds=seeds, options=own, **how)
    told: list[int] = []
    observation, _ = together.play_back(iter(actions[:total]), starts, told.append)
    assert told == [*range(1, total + 1)]
    ended = 0
    for t in range(more):
        step = together.step(actions[total + t])
        for index in range(3):
            theirs = wanted[index][t]
            rows = [step.observation, theirs.observation]
            flat = [
                x if isinstance(x, np.ndarray) else np.concatenate([x[k].reshape(len(x[k]), -1) for k in x], 1)
                for x in rows
            ]
            assert np.array_equal(flat[0][index], flat[1][0])
            assert step.reward[index] == theirs.reward[0]
            mine = [(e.episode_return, e.length) for e in step.episodes if e.env == index]
            assert mine == [(pytest.approx(e.episode_return), e.length) for e in theirs.episodes]
            ended += len(mine)
    together.close()
    assert ended or env != "CartPole-v1"
    del observation, random


def test_actions_are_kept_in_the_smallest_type_and_forgotten_once_no_leg_needs_them() -> None:
    kept = legs.Legs(2)
    for value in range(4):
        kept.log(torch.full((5, 2), value, dtype=torch.uint8))
    kept.announce()
    kept.begin([0], 12)
    kept.forget()
    assert kept.first == 0
    assert not kept.settled
    kept.begin([1], 7)
    kept.forget()
    assert kept.settled
    assert (kept.first, len(kept.actions)) == (5, 3)
    assert [int(row[0]) for row in kept.rows()] == [1] * 3 + [2] * 5 + [3] * 5
    room = torch.full((15, 2), 9, dtype=torch.uint8)
    kept.copy_last(room)
    assert room[:, 0].tolist() == [9, 9] + [1] * 3 + [2] * 5 + [3] * 5
    discrete, many, box = gym.spaces.MultiDiscrete([3, 256]), gym.spaces.Discrete(257), gym.spaces.Box(-1, 1, (2,))
    assert legs.stored_dtype(discrete, torch.int64) == torch.uint8
    assert legs.stored_dtype(many, torch.int64) == torch.int64
    assert legs.stored_dtype(box, torch.float32) == torch.float32


def test_the_length_of_a_leg_depends_on_settings_alone() -> None:
    assert legs.steps_a_leg(0, "mujoco", "envpool", 8, 8 * 24) == 75_000
    assert legs.steps_a_leg(0, "mujoco", "gymnasium", 8, 8 * 24) == 37_500
    assert legs.steps_a_leg(1000, "atari", "envpool", 8, 8) == 125
    assert legs.steps_a_leg(0, "classic", "envpool", 1, 1 << 20) * 4 << 20 <= legs.MOST_BYTES


def test_a_checkpoint_of_the_version_before_is_read(tmp_path: Path) -> None:
    """Format 1 ended a leg with each checkpoint: the run goes on in fresh environments of the next one."""
    make("ppo", run_dir=tmp_path / "run", checkpoint_every=128).learn(128)
    folder = next((tmp_path / "run" / "checkpoints").iterdir())
    state = json.loads((folder / "state.json").read_text())
    del state["leg"], state["progress"]["longest_episode"]
    state["progress"]["leg"] = 2
    (folder / "leg.safetensors").unlink()
    (folder / "state.json").write_text(json.dumps(state | {"format": 1}))
    agent = pg.load(tmp_path / "run")
    assert agent.run.legs.numbers.tolist() == [2] * 4
    assert agent.run.legs.starts.tolist() == [32] * 4
    assert agent.progress.longest_episode == max(agent.progress.recent_lengths)
    assert agent.learn(256).progress.step == 256


def test_resuming_shows_that_it_plays_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("ppo", run_dir=tmp_path / "run").learn(640)
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "704"]) == 0
    assert "playing back what the environments had been through: 100% of 640 steps" in capsys.readouterr().out


def test_a_callback_that_raises_at_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    def fail(row: dict[str, Any]) -> None:
        if row["step"] == 320:
            raise ZeroDivisionError

    whole = make("ppo", run_dir=tmp_path / "whole", checkpoint_every=320).learn(640)
    agent = make("ppo", run_dir=tmp_path / "run", checkpoint_every=320)
    with pytest.raises(ZeroDivisionError):
        agent.learn(640, callback=fail)
    same(whole, agent.learn(640))
    rows = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "run")]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]] == [*range(64, 641, 64)]


def test_an_interrupted_rollout_is_taken_again_from_its_beginning() -> None:
    agent, count = make("ppo", "factory"), [0]
    step = agent.experience.env.step

    def interrupted(actions: Any) -> Any:
        count[0] += 1
        if count[0] == 70:
            raise KeyboardInterrupt
        return step(actions)

    agent.experience.env.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        agent.learn(640)
    assert agent.progress.step == 256
    same(make("ppo", "factory").learn(640), agent.learn(640))


def test_a_dear_checkpoint_is_not_soon_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from phasegrad.runs import session

    for every, wanted in ((0, [320, 640]), (64, [*range(64, 641, 64)])):
        seen: list[int] = []
        run = tmp_path / f"every-{every}"
        monkeypatch.setattr(session, "DEAREST", 1e-9)
        agent = make("ppo", run_dir=run, checkpoint_every=every, keep_checkpoints=99)

        def cheap_once(row: dict[str, Any]) -> None:
            if row["step"] == 256:
                monkeypatch.setattr(session, "DEAREST", 1e9)
            if row["step"] == 320:
                monkeypatch.setattr(session, "DEAREST", 1e-9)

        agent.learn(640, callback=cheap_once)
        seen = sorted(int(path.name[5:]) for path in (run / "checkpoints").iterdir())
        assert seen == ([64, *wanted] if every == 0 else wanted)
