"""Videos: what they show is what an evaluation played, frame by frame and return by return."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from machine import needs_procgen

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import ConfigError, EnvError, PhasegradWarning, RunError
from phasegrad.video.captions import Caption, caption_bar, captioned
from phasegrad.video.film import Film, join, scaled
from phasegrad.video.recording import evaluate_and_record, picked, record_video

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "epochs": 1, "seed": 3}


class Ramp(gym.Env):
    """Paints its step number as a grey level and pays a random amount; episodes differ in length by seed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - gymnasium's way
    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(4, 12))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = float(self.np_random.normal()) + int(action)
        return np.array([self.steps], np.float32), reward, self.steps >= self.length, False, {}

    def render(self) -> Any:
        return None if self.render_mode is None else np.full((20, 32, 3), 16 * self.steps, np.uint8)


def decoded(path: Path) -> tuple[np.ndarray, float]:
    """All frames [F, H, W, 3] of a video and its speed, by another program than wrote it down here."""
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    frames = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]
    return np.stack(frames), float(meta["fps"])


def difference(frame: np.ndarray, caption: Caption) -> float:
    """Mean difference of a frame's top from the bar with this text, in grey levels."""
    bar = caption_bar(frame.shape[1], caption)
    return float(np.abs(frame[: len(bar)].astype(float) - bar).mean())


def over(episode_return: float, length: int, title: str = "") -> Caption:
    """What stands above the last picture of a fresh agent's episode."""
    return Caption(episode_return, length, title, "PPO, 0 steps", ending="episode over")


@pytest.fixture(scope="module")
def cartpole() -> pg.PPO:
    agent = pg.PPO("CartPole-v1", **SMALL)
    agent.close()
    return agent


@pytest.fixture(scope="module")
def ramp() -> pg.PPO:
    agent = pg.PPO(Ramp, **SMALL)
    agent.close()
    return agent


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_returns_in_a_video_are_those_of_the_evaluation(
    cartpole: pg.PPO, tmp_path: Path, deterministic: bool
) -> None:
    video = cartpole.record(tmp_path / "v.mp4", episodes=3, deterministic=deterministic, seed=5)
    result = cartpole.evaluate(3, deterministic=deterministic, seed=5)
    assert sorted(video.returns) == sorted(result.returns)
    assert sorted(video.lengths) == sorted(result.lengths)
    frames, fps = decoded(video.path)
    assert fps == 50
    assert len(frames) == video.frames == sum(result.lengths) + 3 * round(0.75 * 50)


def test_each_frame_carries_its_state_its_step_and_the_return_so_far(ramp: pg.PPO, tmp_path: Path) -> None:
    video = record_video(ramp, tmp_path / "v.mp4", episodes=2, seed=1)
    frames, fps = decoded(video.path)
    assert fps == 20
    hold = 15
    assert len(frames) == sum(video.lengths) + 2 * hold
    start = 0
    for number, (episode_return, length) in enumerate(zip(video.returns, video.lengths, strict=True)):
        title = f"episode {number + 1} of 2"
        for step in range(length):
            grey = frames[start + step][-100:, 50:-50].mean()
            assert abs(grey - 16 * step) < 4, f"frame {start + step} of episode {number}"
        last = frames[start + length + hold - 1]
        right = difference(last, over(episode_return, length, title))
        assert right < 6
        assert difference(last, over(episode_return + 7.77, length, title)) > right + 0.5
        seen = np.zeros(1, np.float32)
        said = {"action": str(int(ramp.agent.predict(seen)[0])), "value": float(ramp.agent.value(seen))}
        first = Caption(0.0, 0, title, "PPO, 0 steps", **said)
        assert difference(frames[start], first) < 6
        for other in ({"action": "8"}, {"value": said["value"] + 77.7}, {"agent": "TRPO, 9,999 steps"}, {"title": ""}):
            assert difference(frames[start], replace(first, **other)) > difference(frames[start], first) + 0.1, other
        start += length + hold


def test_a_grid_shows_every_episode_with_its_return(ramp: pg.PPO, tmp_path: Path) -> None:
    video = record_video(ramp, tmp_path / "v.mp4", episodes=3, grid=True, seed=2)
    assert sorted(video.returns) == sorted(ramp.evaluate(3, seed=2).returns)
    frames, _ = decoded(video.path)
    assert len(frames) == max(video.lengths) + 15
    cell = captioned(scaled(np.zeros((20, 32, 3), np.uint8), 512), Caption(0.0, 0))
    height, width, _ = cell.shape
    assert frames.shape[1:3] == (2 * height + 4, 2 * width + 4)
    for index, (episode_return, length) in enumerate(zip(video.returns, video.lengths, strict=True)):
        y, x = index // 2 * (height + 4), index % 2 * (width + 4)
        part = frames[-1][y : y + height, x : x + width]
        assert difference(part, over(episode_return, length)) < 6
        assert abs(part[-100:].mean() - 16 * (length - 1)) < 4  # a cell that is done keeps its last picture


def test_more_episodes_than_environments_are_shown_in_turn(tmp_path: Path) -> None:
    source = gym.vector.SyncVectorEnv([lambda: Ramp("rgb_array")] * 2)
    agent = pg.PPO(source, **SMALL)
    expected = sorted(agent.evaluate(5, seed=4).returns)
    assert sorted(record_video(agent, tmp_path / "v.mp4", episodes=5, seed=4).returns) == expected
    assert sorted(record_video(agent, tmp_path / "g.mp4", episodes=5, seed=4, grid=True).returns) == expected


def test_long_episodes_can_be_cut(cartpole: pg.PPO, tmp_path: Path) -> None:
    for grid in (False, True):
        video = record_video(cartpole, tmp_path / "v.mp4", episodes=2, max_steps=4, grid=grid)
        assert video.lengths == [4, 4]
        assert video.returns == [4.0, 4.0]


def test_an_evaluation_records_its_best_median_and_worst_episode(ramp: pg.PPO, tmp_path: Path) -> None:
    result, videos = evaluate_and_record(ramp, 20, ("best", "median", "worst"), tmp_path, seed=6)
    plain = ramp.evaluate(20, seed=6)
    assert result == plain
    ordered = sorted(plain.returns)
    wanted = {"best": ordered[-1], "median": ordered[9], "worst": ordered[0]}
    assert {pick: video.returns[0] for pick, video in videos.items()} == wanted
    for pick, video in videos.items():
        assert video.path == tmp_path / f"eval-{pick}.mp4"
        frames, _ = decoded(video.path)
        assert len(frames) == video.lengths[0] + 15
        assert difference(frames[-1], over(wanted[pick], video.lengths[0])) < 6
        assert json.loads((tmp_path / f"eval-{pick}.json").read_text())["returns"] == [wanted[pick]]
    assert {path.name for path in tmp_path.iterdir()} == {f"eval-{p}.{end}" for p in wanted for end in ("mp4", "json")}


def test_one_episode_may_be_best_and_worst(ramp: pg.PPO, tmp_path: Path) -> None:
    _, videos = evaluate_and_record(ramp, 1, ("best", "worst"), tmp_path)
    assert videos["best"].returns == videos["worst"].returns
    assert videos["best"].path.read_bytes() == videos["worst"].path.read_bytes()


def test_an_environment_that_does_not_repeat_itself_is_told(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)

    class Forgetful(Ramp):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, float(noise.normal()), *rest

    agent = pg.PPO(lambda: Forgetful("rgb_array"), **SMALL)
    with pytest.warns(PhasegradWarning, match="does not repeat itself"):
        evaluate_and_record(agent, 2, ("best",), tmp_path)


def test_ties_go_to_the_episode_that_ended_first() -> None:
    from phasegrad.runs.evaluation import Played

    played = [Played(0, 0, 1.0, 5), Played(1, 0, 3.0, 5), Played(2, 0, 3.0, 6), Played(3, 0, 2.0, 7)]
    assert picked(played, "best").env == 1
    assert picked(played, "worst").env == 0
    assert picked(played, "median").env == 3  # the lower of the two in the middle


def test_small_pictures_are_enlarged_without_blur() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    assert np.array_equal(scaled(frame, 512), np.kron(frame, np.ones((8, 8, 1), np.uint8)))
    assert scaled(np.zeros((400, 600, 3), np.uint8), 512).shape == (400, 600, 3)
    large = np.full((1000, 2000, 3), 77, np.uint8)
    assert scaled(large, 500).shape == (250, 500, 3)
    assert (scaled(large, 500) == 77).all()


@needs_procgen
def test_procgen_is_shown_at_its_own_resolution_enlarged(tmp_path: Path) -> None:
    agent = pg.PPO("procgen/starpilot", preset="procgen-fast", num_envs=2, num_steps=8, num_minibatches=2)
    agent.close()
    frames, fps = decoded(record_video(agent, tmp_path / "v.mp4", max_steps=4).path)
    assert fps == 15
    picture = frames[0][-512:].astype(float)
    blocks = picture.reshape(64, 8, 64, 8, 3)
    inside = blocks.std(axis=(1, 3)).mean()
    between = blocks.mean(axis=(1, 3)).std()
    assert inside < 0.1 * between  # a blurred picture would vary within its pixels
    assert blocks.mean() > 3


def test_atari_is_shown_in_colour(tmp_path: Path) -> None:
    agent = pg.PPO("Breakout-v5", num_envs=1, num_steps=8, num_minibatches=1)
    agent.close()
    frames, _ = decoded(record_video(agent, tmp_path / "v.mp4", max_steps=2).path)
    assert frames.shape[2] == 320
    picture = frames[0][-420:].astype(int)
    assert (picture.max(-1) - picture.min(-1)).max() > 100


def test_where_envpool_cannot_draw_gymnasium_does(tmp_path: Path) -> None:
    agent = pg.PPO("FrozenLake-v1", **SMALL)
    agent.close()
    video = record_video(agent, tmp_path / "v.mp4", max_steps=3)
    assert decoded(video.path)[0].std() > 10


def test_mujoco_is_drawn_without_a_display(tmp_path: Path) -> None:
    agent = pg.PPO("InvertedPendulum-v5", num_envs=2, num_steps=16, num_minibatches=2)
    agent.close()
    try:
        video = record_video(agent, tmp_path / "v.mp4", max_steps=2)
    except EnvError as error:
        pytest.skip(f"no OpenGL here: {error}")
    assert decoded(video.path)[0].std() > 10


def test_mujoco_without_opengl_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise EnvError("gymnasium could not make HalfCheetah-v5: gladLoadGL error.")

    agent = pg.PPO("HalfCheetah-v5", num_envs=2, num_steps=16, num_minibatches=2)
    agent.close()
    monkeypatch.setattr("phasegrad.video.drawing.evaluation_env", fails)
    with pytest.raises(EnvError, match=r"gladLoadGL error; MuJoCo draws with OpenGL.*libegl1.*MUJOCO_GL=egl"):
        record_video(agent, tmp_path / "v.mp4")


def test_an_environment_that_draws_nothing_is_refused_in_a_sentence(tmp_path: Path) -> None:
    agent = pg.PPO(lambda: Ramp(), **SMALL)
    with pytest.raises(EnvError, match="render_mode='rgb_array'"):
        record_video(agent, tmp_path / "v.mp4")
    assert not list(tmp_path.iterdir())


def test_a_film_leaves_nothing_behind_unless_it_is_finished(tmp_path: Path) -> None:
    film = Film(tmp_path / "sub" / "a.mp4", 10)
    with pytest.raises(RunError, match="no frames"):
        film.close()
    film.write(np.zeros((9, 7, 3), np.uint8), 3)  # odd sides are padded
    with pytest.raises(RunError, match="changed their size"):
        film.write(np.zeros((10, 7, 3), np.uint8))
    film.give_up()
    assert not list((tmp_path / "sub").iterdir())
    film.write(np.zeros((9, 7, 3), np.uint8), 3)
    film.close()
    frames, _ = decoded(tmp_path / "sub" / "a.mp4")
    assert frames.shape == (3, 10, 8, 3)


def test_films_are_joined_in_order_whatever_their_names(tmp_path: Path) -> None:
    parts = []
    for index, grey in enumerate((0, 100, 200)):
        film = Film(tmp_path / f"it's {2 - index}.mp4", 10)
        film.write(np.full((16, 16, 3), grey, np.uint8), 5)
        film.close()
        parts.append(film.path)
    join(parts, tmp_path / "all.mp4")
    frames, _ = decoded(tmp_path / "all.mp4")
    assert np.abs(frames.mean(axis=(1, 2, 3)) - np.repeat([0, 100, 200], 5)).max() < 4
    assert [path.name for path in tmp_path.iterdir()] == ["all.mp4"]


def test_an_ffmpeg_that_fails_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.mp4").mkdir()
    film = Film(tmp_path / "a.mp4" / "b.mp4", 10)
    film.write(np.zeros((8, 8, 3), np.uint8))
    film.give_up()
    broken = tmp_path / "ffmpeg"
    broken.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(broken))
    film = Film(tmp_path / "c.mp4", 10)
    with pytest.raises(RunError, match=r"could not write .*c\.mp4: no such codec"):
        film.write(np.zeros((400, 400, 3), np.uint8), 100)  # more than the pipe takes
    assert not (tmp_path / "c.mp4").exists()


def test_the_command_line(cartpole: pg.PPO, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "agent"
    cartpole.save(saved)
    assert main(["video", str(saved), "--episodes", "2", "--seed", "9", "--fps", "25"]) == 0
    written = saved / "videos" / "step-000000000000.mp4"
    printed = capsys.readouterr().out
    assert str(written) in printed
    assert decoded(written)[1] == 25
    assert main(["video", str(saved), "--grid", "--stochastic", "--out", str(tmp_path / "g.mp4")]) == 0
    capsys.readouterr()
    assert main(["eval", str(saved), "--episodes", "3", "--record", "best", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["videos"]["best"]["return"] == shown["return_max"]
    assert main(["eval", str(saved), "--episodes", "2", "--deterministic", "--record"]) == 0
    assert sorted(path.name for path in (saved / "videos").glob("eval-*.mp4")) == [
        "eval-best.mp4",
        "eval-median.mp4",
        "eval-worst.mp4",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["video", "--fps", "0"], "fps must be above 0"),
        (["video", "--episodes", "0"], "episodes must be at least 1"),
        (["video", "--max-steps", "0"], "max_steps must be at least 1"),
        (["video", "--out", "a.avi"], "must be an .mp4 file, a .gif or a .webp, not 'a.avi'"),
        (["video", "--size", "5"], "size must be at least 16"),
        (["video", "--checkpoints", "first,last"], "--checkpoints needs a run directory"),
        (["video", "--checkpoints", "first,last", "--grid"], "leave out --grid"),
        (["video", "--levels", "test"], "levels test needs a Procgen environment"),
        (["eval", "--record", "funniest"], "choose from best, median, worst"),
    ],
)
def test_mistakes_get_one_sentence(
    cartpole: pg.PPO, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    cartpole.save(tmp_path / "agent")
    assert main([arguments[0], str(tmp_path / "agent"), *arguments[1:]]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_agent_without_a_run_directory_needs_a_path(cartpole: pg.PPO) -> None:
    with pytest.raises(ConfigError, match="say where the video goes"):
        cartpole.record()
