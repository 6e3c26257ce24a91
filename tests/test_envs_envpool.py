"""The envpool backend against what is known of its environments, and against gymnasium's physics."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from machine import environments, needs_procgen

import phasegrad as pg
from phasegrad.cli.doctor import examine
from phasegrad.envs import VectorEnv, check, env_seeds, make, qt
from phasegrad.errors import EnvError


def _make(env_id: str, num_envs: int = 4, seed: int = 1, **kwargs: object) -> VectorEnv:
    return make(env_id, num_envs=num_envs, seeds=env_seeds(seed, 0, num_envs), **kwargs)  # type: ignore[arg-type]


def _cartpole_next(state: np.ndarray, action: int) -> np.ndarray:
    """One step of gymnasium's CartPole from any state."""
    physics = CartPoleEnv()
    physics.reset(seed=0)
    physics.state = tuple(state.astype(np.float64))
    return physics.step(int(action))[0]


@pytest.mark.parametrize(("num_threads", "backend"), [(1, "envpool"), (2, "envpool"), (None, "gymnasium")])
def test_cartpole_rows_are_the_transitions_of_their_own_actions(num_threads: int | None, backend: str) -> None:
    env = _make("CartPole-v1", 5, num_threads=num_threads, backend=backend)
    observation, _ = env.reset()
    random = np.random.default_rng(0)
    ends = 0
    for _ in range(120):
        actions = random.integers(0, 2, 5)
        expected = np.stack([_cartpole_next(row, action) for row, action in zip(observation, actions, strict=True)])
        step = env.step(actions)
        assert isinstance(step.observation, np.ndarray)
        reached = step.observation.copy()
        if step.ended.size:
            ends += len(step.ended)
            assert np.all(np.abs(step.observation[step.ended]) <= 0.05)  # where CartPole starts
            final = np.asarray(step.final_observation)
            assert np.all((np.abs(final[:, 0]) > 2.4) | (np.abs(final[:, 2]) > 0.2094))  # where it falls
            reached[step.ended] = final
        np.testing.assert_allclose(reached, expected, rtol=1e-4, atol=1e-5)
        assert step.reward.tolist() == [1.0] * 5
        assert step.reward.dtype == np.float64
        observation = step.observation
    assert ends > 10


@pytest.mark.parametrize("limit", [1, 7])
def test_time_limits_are_truncations_with_the_right_statistics(limit: int) -> None:
    env = _make("CartPole-v1", options={"max_episode_steps": limit})
    env.reset()
    for time in range(1, 4 * limit + 1):
        step = env.step(np.arange(4) % 2)
        if time % limit:
            assert step.ended.size == 0
            assert step.final_observation is None
            continue
        assert step.truncated.all()
        assert not step.terminated.any()
        assert step.ended.tolist() == [0, 1, 2, 3]
        assert [(e.env, e.episode_return, e.length) for e in step.episodes] == [(i, limit, limit) for i in range(4)]
        assert np.abs(step.observation).max() <= 0.05
        assert not np.array_equal(step.observation, step.final_observation)


def test_what_was_returned_stays_as_it_was() -> None:
    env = _make("CartPole-v1")
    env.reset()
    kept = [env.step(np.zeros(4, int)) for _ in range(1)]
    copies = [kept[0].observation.copy()]  # type: ignore[union-attr]
    for _ in range(60):
        step = env.step(np.zeros(4, int))
        kept.append(step)
        copies.append(np.array(step.observation))
    for step, copied in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(step.observation, copied)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "HalfCheetah-v4", "LunarLander-v3", "FrozenLake-v1"])
def test_reset_starts_on_the_seeds_again_for_any_number_of_threads(env_id: str) -> None:
    def trajectory(env: VectorEnv) -> list[np.ndarray]:
        random = np.random.default_rng(0)
        rows = [np.asarray(env.reset()[0])]
        shape = (4, *(env.action_space.shape or ()))
        rows += [np.asarray(env.step(random.integers(0, 2, shape)).observation) for _ in range(40)]
        return rows

    env = _make(env_id, num_threads=1)
    first = trajectory(env)
    for repeated in (trajectory(env), trajectory(_make(env_id, num_threads=2))):
        np.testing.assert_array_equal(first, repeated)


def test_neighbouring_seeds_share_no_environment() -> None:
    first, second = (np.asarray(_make("CartPole-v1", 64, seed).reset()[0]) for seed in (1, 2))
    assert not {row.tobytes() for row in first} & {row.tobytes() for row in second}
    assert len({row.tobytes() for row in first}) == 64
    fewer = np.asarray(_make("CartPole-v1", 8, 1).reset()[0])
    np.testing.assert_array_equal(fewer, first[:8])  # an environment does not depend on how many there are


@pytest.mark.parametrize(
    ("env_id", "options", "shape"),
    [
        pytest.param("procgen/coinrun", {"num_levels": 3, "start_level": 2}, (64, 64, 3), marks=needs_procgen),
        pytest.param("procgen/Bigfish", {"distribution": "hard"}, (64, 64, 3), marks=needs_procgen),
        ("Breakout-v5", {}, (4, 84, 84)),
        ("HalfCheetah-v4", {}, (17,)),
        ("HalfCheetah-v5", {}, (17,)),
        ("Ant-v5", {}, (105,)),
        ("Taxi-v3", {}, ()),
    ],
)
def test_families_pass_the_check(env_id: str, options: dict, shape: tuple[int, ...]) -> None:
    report = check(env_id, 60, options=options)
    assert report.backend == "envpool"
    assert report.observation_space.shape == shape
    assert report.deterministic


@pytest.mark.parametrize(
    ("env_id", "entry", "shape"),
    [("FingerSpin-v1", "touch", (2,)), ("FishSwim-v1", "upright", ()), ("FrankaKitchen-v1", "achieved_goal.kettle", (7,)),
     ("CVRP-v1", "capacity", ())],
)  # fmt: skip
def test_single_numbers_and_dicts_within_dicts_train(env_id: str, entry: str, shape: tuple, tmp_path: Path) -> None:
    assert check(env_id, 20).observation_space[entry].shape == shape
    agent = pg.PPO(env_id, num_envs=2, num_steps=8, num_minibatches=1, epochs=1, preset="none")
    agent.learn(32)
    agent.save(tmp_path / "agent")
    again = pg.load(tmp_path / "agent")
    observation, mask = _make(env_id, 2).reset()
    given = agent.agent.observing.restore(observation)
    np.testing.assert_array_equal(again.predict(given, mask=mask)[0], agent.predict(given, mask=mask)[0])
    np.testing.assert_array_equal(again.value(given), agent.value(given))
    again.learn(48)


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_minigrid_leaves_the_mission_out(backend: str) -> None:
    report = check("MiniGrid-Empty-5x5-v0", 220, backend=backend)
    assert report.backend == backend
    assert set(report.observation_space) == {"image", "direction"}
    assert report.episodes > 0


def test_masks_in_observations_become_masks() -> None:
    report = check("Snake-v1", 30)
    assert report.has_action_mask
    assert set(report.observation_space) == {"grid", "step_count"}


def test_the_mask_after_an_end_is_that_of_the_first_observation() -> None:
    env = _make("Snake-v1", 8)
    observation, mask = env.reset()
    random, starts = np.random.default_rng(0), 0
    for _ in range(60):
        assert isinstance(observation, dict)
        assert mask is not None
        for index in np.flatnonzero(observation["step_count"] == 0):
            row, column = np.argwhere(observation["grid"][index, :, :, 1])[0]  # channel 1 is the head, alone at first
            assert mask[index].tolist() == [row > 0, column < 11, row < 11, column > 0]
            starts += 1
        step = env.step(random.integers(0, 4, 8))
        observation, mask = step.observation, step.action_mask
    assert starts > 16  # eight first episodes and more


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_minigrid_from_a_factory_leaves_the_mission_out_too(vectorization: str) -> None:
    pytest.importorskip("minigrid")
    report = check(lambda: gym.make("MiniGrid-Empty-5x5-v0"), 10, vectorization=vectorization)
    assert set(report.observation_space) == {"image", "direction"}  # type: ignore[call-overload]


def test_halfcheetah_is_float32_outside_and_takes_float32_actions() -> None:
    env = _make("HalfCheetah-v4")
    observation, _ = env.reset()
    step = env.step(np.full((4, 6), 0.5, np.float32))
    assert isinstance(observation, np.ndarray)
    assert observation.dtype == np.float32
    assert env.observation_space.dtype == env.action_space.dtype == np.float32
    assert isinstance(step.observation, np.ndarray)
    assert step.observation.dtype == np.float32


def test_boxes_without_bounds_say_so() -> None:
    space = _make("LunarLander-v3").observation_space
    assert isinstance(space, gym.spaces.Box)
    assert np.isneginf(space.low).all()
    assert np.isposinf(space.high).all()


def test_atari_scores_games_and_not_lives() -> None:
    env = _make("Breakout-v5", 4)
    env.reset()
    random = np.random.default_rng(0)
    lives, games, points = np.zeros(4, int), [], np.zeros(4)
    for _ in range(420):
        step = env.step(random.integers(0, 4, 4))
        lives[step.ended] += 1
        points += step.reward
        assert set(np.unique(step.reward)) <= {-1.0, 0.0, 1.0}
        for episode in step.episodes:
            assert lives[episode.env] == 5  # Breakout's lives, each an episode to the agent, all of them one game
            assert episode.episode_return >= points[episode.env]  # raw bricks are worth 1 to 7, clipped 1
            games.append(episode)
            lives[episode.env], points[episode.env] = 0, 0.0
    assert games
    assert all(game.length > 100 for game in games)


def test_atari_evaluation_plays_whole_games() -> None:
    env = _make("Breakout-v5", 2, evaluation=True)
    env.reset()
    random = np.random.default_rng(0)
    ends = []
    for _ in range(300):
        step = env.step(random.integers(0, 4, 2))
        ends += step.ended.tolist()
        assert [episode.env for episode in step.episodes] == step.ended.tolist()
    assert 1 <= len(ends) <= 6


@needs_procgen
def test_procgen_levels_are_those_asked_for() -> None:
    def first_frames(**options: int) -> set[bytes]:
        env = _make("procgen/coinrun", 16, options=options)
        return {frame.tobytes() for frame in np.asarray(env.reset()[0])}

    assert len(first_frames(num_levels=1)) == 1
    assert len(first_frames(num_levels=0)) == 16
    assert not first_frames(num_levels=1, start_level=0) & first_frames(num_levels=1, start_level=1)


@pytest.mark.parametrize("env_id", environments(["CartPole-v1", "Breakout-v5", "procgen/coinrun"]))
def test_render_gives_a_frame_for_each_environment(env_id: str) -> None:
    env = _make(env_id, 2, render=True)
    env.reset()
    frames = env.render()
    assert frames is not None
    assert frames.ndim == 4
    assert len(frames) == 2
    assert frames.shape[-1] == 3
    assert frames.dtype == np.uint8
    assert frames.std() > 0
    env.close()
    env.close()


def test_step_before_reset_is_refused() -> None:
    with pytest.raises(EnvError, match="must be reset before the first step"):
        _make("CartPole-v1").step(np.zeros(4, int))


LIBRARIES = {"libGL.so.1", "libglib-2.0.so.0"}
NO_WHEEL = 'Procgen draws with Qt 5, which is not installed: `pip install "phasegrad[procgen]"`'


@pytest.mark.parametrize(
    ("wheel", "absent", "sentence"),
    [
        (
            True,
            LIBRARIES,
            "Procgen draws with Qt 5, which is installed but needs libGL.so.1 and libglib-2.0.so.0: "
            "`apt install libgl1 libglib2.0-0`.",
        ),
        (
            True,
            {"libGL.so.1"},
            "Procgen draws with Qt 5, which is installed but needs libGL.so.1: `apt install libgl1`.",
        ),
        (False, set(), NO_WHEEL + "."),
        (False, LIBRARIES, NO_WHEEL + " and `apt install libgl1 libglib2.0-0`."),
        (
            True,
            {"libz.so.1"},
            "Procgen draws with Qt 5, which is installed but cannot be loaded (libz.so.1: cannot open shared object "
            "file; libQt5Core.so.5: cannot open shared object file).",
        ),
    ],
)
def test_what_procgen_lacks_is_named_in_one_sentence(
    wheel: bool, absent: set[str], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The extra where the wheel is missing, the system's packages where those are: never what is there already."""

    def load(name: str, *_: object, **__: object) -> None:
        lacks = name if "Qt5" in name and "/" not in name else next(iter(absent), "") if "Qt5" in name else name
        if lacks in absent or "Qt5" in lacks:
            raise OSError(f"{lacks}: cannot open shared object file")

    monkeypatch.setattr(qt.ctypes, "CDLL", load)
    monkeypatch.setattr(qt, "_wheel_folder", lambda: tmp_path if wheel else None)
    monkeypatch.setattr(qt.sys, "platform", "linux")
    with pytest.raises(EnvError) as raised:
        _make("procgen/coinrun")
    assert str(raised.value) == sentence
    (found,) = [check for check in examine() if check.name == "procgen"]
    assert (found.found, found.fix) == (sentence, "")  # as `phasegrad doctor` prints it
