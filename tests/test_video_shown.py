"""What films show beyond the episodes: flames, films that end where nothing changes, GIFs, early beside late, notes."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image
from test_video import SMALL, Ramp, decoded, difference, over

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import ConfigError, PhasegradWarning
from phasegrad.video.actions import described, levels_of, names_of
from phasegrad.video.animation import beside
from phasegrad.video.captions import BACKGROUND, CUT, Caption, caption_bar, captioned, glyphs_of_size, lines
from phasegrad.video.film import Film, join
from phasegrad.video.flames import OUTER, thrusts, with_flames
from phasegrad.video.recording import evaluate_and_record, record_video
from phasegrad.video.stuck import Repetition, steps_without_change


class Wall(gym.Env):
    """Walks `free` steps to a wall and stays there, or goes round and round before it; it never ends by itself."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 - gymnasium's way
    observation_space = gym.spaces.Box(0, 1e6, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    free, cycle, reward = 7, 1, -1.0

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.place(), self.reward, self.steps >= 120, False, {}

    def place(self) -> np.ndarray:
        turns = max(0, self.steps - self.free) % self.cycle
        return np.array([min(self.steps, self.free) + turns], np.float32)

    def render(self) -> Any:
        return np.full((20, 32, 3), 2 * int(self.place()[0]), np.uint8)


def wall(**attributes: Any) -> pg.PPO:
    """An agent of a kind of wall."""
    agent = pg.PPO(type("Wall", (Wall,), attributes), **SMALL)
    agent.close()
    return agent


@pytest.fixture(scope="module")
def lander() -> pg.PPO:
    agent = pg.PPO("LunarLander-v3", **SMALL)
    agent.close()
    return agent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of CartPole with three checkpoints."""
    path = tmp_path_factory.mktemp("film") / "run"
    settings = {**SMALL, "checkpoint_every": 32, "keep_checkpoints": 3, "compile": "off"}
    agent = pg.PPO("CartPole-v1", run_dir=path, **settings)
    agent.config.eval_episodes = 0  # so that there is no best checkpoint
    agent.learn(128)
    agent.close()
    return path


# Flames


def lit(picture: np.ndarray) -> tuple[float, float]:
    """(x, y) of the middle of all flames in a picture; (0, 0) where there are none."""
    rows, columns = np.nonzero((np.abs(picture.astype(int) - OUTER) < 40).all(-1))
    return (float(columns.mean()), float(rows.mean())) if len(rows) else (0.0, 0.0)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (np.array(0), (0.0, 0.0)),
        (np.array(1), (0.0, -1.0)),
        (np.array(2), (1.0, 0.0)),
        (np.array(3), (0.0, 1.0)),
        (np.array([0.0, 0.5]), (0.0, 0.0)),
        (np.array([0.5, -0.75]), (0.75, -0.75)),
        (np.array([7.0, 3.0]), (1.0, 1.0)),
        (np.array([-1.0, -1.0]), (0.0, -1.0)),
    ],
)
def test_engines_fire_as_gymnasium_has_them(action: np.ndarray, expected: tuple[float, float]) -> None:
    assert thrusts(action) == expected


def test_flames_come_out_of_the_lander_where_its_engines_are() -> None:
    sky, state = np.zeros((400, 600, 3), np.uint8), np.array([0.5, 0.9, 0, 0, 0, 0, 0, 0], np.float32)
    middle = (450.0, 102.0)
    assert lit(with_flames(sky, state, np.array(0), 0)) == (0, 0)
    x, y = lit(with_flames(sky, state, np.array(2), 0))
    assert abs(x - middle[0]) < 2
    assert 10 < y - middle[1] < 50
    x, y = lit(with_flames(sky, state, np.array(1), 0))  # to be driven to the left it fires to the right
    assert 10 < x - middle[0] < 40
    assert -20 < y - middle[1] < 0
    x, _ = lit(with_flames(sky, state, np.array(3), 0))
    assert -40 < x - middle[0] < -10
    turned = state.copy()
    turned[4] = np.pi / 2  # a quarter to the left: its bottom points to the right
    x, y = lit(with_flames(sky, turned, np.array(2), 0))
    assert 10 < x - middle[0] < 50
    assert abs(y - middle[1]) < 2
    both = with_flames(sky, state, np.array([1.0, 1.0]), 0)
    half = with_flames(sky, state, np.array([0.1, 0.0]), 0)
    assert (both > 0).sum() > (half > 0).sum() > 0
    assert not sky.any()  # what was given is left as it was


@pytest.mark.parametrize("env", ["LunarLander-v3", "LunarLanderContinuous-v3"])
def test_a_film_of_the_lander_shows_the_flames_of_its_actions(env: str, tmp_path: Path) -> None:
    agent = pg.PPO(env, **SMALL)
    agent.close()
    video = record_video(agent, tmp_path / "v.mp4", deterministic=False, max_steps=40, seed=3)
    frames, _ = decoded(video.path)
    burning = [lit(frame[52:]) != (0, 0) for frame in frames[:40]]
    assert 3 < sum(burning) < 40  # random actions: some do nothing


# The bar


def test_actions_and_values_are_the_agents_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Caption] = []
    monkeypatch.setattr("phasegrad.video.recorders.captioned", lambda frame, caption: (said.append(caption), frame)[1])
    agent = pg.PPO(Ramp, **SMALL, normalize_reward=True)
    agent.learn(64)
    agent.close()
    assert agent.agent.reward_normalizer.std != 1  # values are shown in units of the raw reward
    length = record_video(agent, tmp_path / "v.mp4", seed=1).lengths[0]
    assert [caption.step for caption in said[:-1]] == list(range(length))
    for step, caption in enumerate(said[:-1]):
        seen = np.array([step], np.float32)
        assert caption.action == str(int(agent.agent.predict(seen)[0]))
        assert caption.value == pytest.approx(float(agent.agent.value(seen)))
        assert caption.agent == "PPO, 64 steps"
    assert len({caption.value for caption in said[:-1]}) == length


@pytest.mark.parametrize("width", [200, 256, 320, 384, 512, 600])
def test_the_bar_holds_all_that_there_is_to_say_at_every_width(width: int) -> None:
    size = 18 if width >= 440 else 14 if width >= 240 else 11
    advance = glyphs_of_size(size)[" "].shape[1]
    characters = (width - advance) // advance
    caption = Caption(-123.45, 187, "", "PPO, 25,001,984 steps", "2 main engine", -104.5)
    found = " ".join(left + " " + " ".join(right) for left, right in lines(caption, characters))
    for piece in ("return -123.5", "V(s) -104.5", "step 187", "PPO, 25,001,984 steps", "action 2"):
        assert piece in found
    for left, candidates in lines(caption, characters):
        assert len(left) <= characters
        assert not candidates or len(left) + 1 + len(candidates[-1]) <= characters


def test_the_bar_never_covers_the_picture_and_keeps_its_height() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (64, 200, 3), np.uint8)
    short = captioned(frame, Caption(0.0, 0))
    long = captioned(
        frame, Caption(-1234.5, 10_000, "episode 10 of 10", "PPG, 1 steps", "+0.11 " * 17, 9e9, "x" * 99, True)
    )
    assert short.shape == long.shape
    for shown in (short, long):
        assert np.array_equal(shown[-64:], frame)


def test_a_narrow_picture_gets_a_margin() -> None:
    frame = np.full((500, 33, 3), 200, np.uint8)
    shown = captioned(frame, Caption(1.0, 2, agent="PPO, 0 steps"))
    assert shown.shape[1] == 200
    picture = shown[-500:]
    assert (picture[:, 83:116] == 200).all()
    assert (picture[:, :83] == BACKGROUND).all()
    assert (picture[:, 116:] == BACKGROUND).all()


def test_text_in_the_bar_is_drawn_with_contrast() -> None:
    for width in (200, 320, 512):
        bar = caption_bar(width, Caption(12.0, 3, agent="PPO, 0 steps", action="1", value=0.5)).astype(int)
        assert (bar.sum(-1) > 3 * 120).mean() > 0.02


def test_actions_are_named_where_the_environment_is_known() -> None:
    assert described(np.array(2), names_of("LunarLander-v3", 4)) == "2 main engine"
    assert described(np.array(1), names_of("CartPole-v1", 2)) == "1 right"
    assert described(np.array(4), names_of("procgen/coinrun", 15)) == "4 none"
    assert described(np.array(1), names_of("MiniGrid-Empty-5x5-v0", 7)) == "1 turn right"
    assert described(np.array(1), names_of("CartPole-v1", 3)) == "1"  # another environment of that name
    assert described(np.array(1), names_of("Breakout-v5", 4)) == "1"
    assert described(np.array([0.5, -1.0], np.float32)) == "+0.50 -1.00"
    assert described(np.array([2, 0, 1])) == "2 0 1"


def test_long_vectors_of_actions_are_drawn_as_columns(tmp_path: Path) -> None:
    space = gym.spaces.Box(np.array([-2.0, -1, 0, -np.inf]), np.array([2.0, 1, 4, np.inf]), dtype=np.float64)
    assert levels_of(np.array([1.0, -1, 2, 0.25]), space) == (0.5, -1, 0, 0.25)
    assert levels_of(np.array([1.0, -1, 2]), space) == ()
    assert levels_of(np.array([1, 0, 1, 1]), gym.spaces.MultiDiscrete([2] * 4)) == ()
    assert described(np.array([1.0, -1, 2, 0.25])) == ""
    for width in (200, 256, 600):
        for count in (4, 17):
            bars = []
            for sign in (1.0, -1.0):
                full, none = (
                    caption_bar(width, Caption(1.0, 2, agent="PPO, 9 steps", levels=levels, value=0.5)).astype(int)
                    for levels in ((sign,) * count, (0.0,) * count)
                )
                rows, columns = np.nonzero(np.abs(full - none).max(-1) > 60)
                assert len(rows) > 2 * count
                bars.append((rows.mean(), columns.min(), columns.max()))
            assert bars[0][0] < bars[1][0] - 3  # up, and down
            assert bars[0][1:] == bars[1][1:]

    class Arm(Ramp):
        action_space = gym.spaces.Box(-1, 1, (6,), np.float32)

        def step(self, action: Any) -> Any:
            return super().step(0)

    agent = pg.PPO(Arm, **SMALL)
    frames, _ = decoded(record_video(agent, tmp_path / "v.mp4", max_steps=3, deterministic=False).path)
    blank = caption_bar(512, Caption(0.0, 0, agent="PPO, 0 steps", levels=(0.0,) * 6, value=0.0))
    assert np.abs(frames[0][: len(blank)].astype(int) - blank)[26:, 80:140].max() > 100


# Where nothing changes


def test_repetition_finds_short_cycles_and_no_others() -> None:
    def after(keys: list[int], window: int = 40) -> bool:
        follows = Repetition(window)
        for key in keys:
            follows.add(key)
        return follows.is_stuck

    assert after([5] * 41)
    assert not after([5] * 40)
    assert after([1, 2, 3] * 20)
    assert after([*range(100), *[1, 2] * 30])
    assert not after(list(range(200)))
    assert not after([*[7] * 39, 8, *[7] * 39])
    assert after(list(range(10)) * 5)  # a quarter of the window
    assert not after(list(range(11)) * 9)
    assert not after([0] * 30)
    cleared = Repetition(40)
    for step in range(60):
        cleared.add(3)
        if step == 30:
            cleared.clear()
    assert not cleared.is_stuck


def test_ten_seconds_of_film_are_too_many() -> None:
    assert steps_without_change(50) == 500
    assert steps_without_change(15) == 150
    assert steps_without_change(1) == 40


@pytest.mark.parametrize("cycle", [1, 3])
def test_a_film_ends_where_nothing_changes_and_says_so(cycle: int, tmp_path: Path) -> None:
    agent = wall(cycle=cycle)
    for grid in (False, True):
        video = record_video(agent, tmp_path / "v.mp4", episodes=2, grid=grid)
        assert video.endings == ["stuck", "stuck"]
        assert video.lengths == [7 + 40 + cycle] * 2
        assert "2 of 2 cut where nothing changed any more (--full shows all)" in video.describe()
    single = record_video(agent, tmp_path / "s.mp4")
    caption = Caption(-47.0 - cycle, 47 + cycle, agent="PPO, 0 steps", ending="cut: nothing changes", cut=True)
    last = decoded(single.path)[0][-1]
    assert difference(last, caption) < 6
    assert difference(last, over(-47.0 - cycle, 47 + cycle)) > difference(last, caption) + 1
    full = record_video(agent, tmp_path / "f.mp4", full=True)
    assert (full.endings, full.lengths, full.returns) == (["over"], [120], [-120.0])


@pytest.mark.parametrize("attributes", [{"reward": 0.5}, {"cycle": 11}, {"free": 200}])
def test_a_film_goes_on_where_something_happens(attributes: dict[str, Any], tmp_path: Path) -> None:
    video = record_video(wall(**attributes), tmp_path / "v.mp4")
    assert (video.endings, video.lengths) == (["over"], [120])


def test_a_picked_episode_that_is_cut_keeps_its_return(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PhasegradWarning)  # none that the environment does not repeat itself
        result, videos = evaluate_and_record(wall(), 2, ["best"], tmp_path)
    assert videos["best"].returns == [result.return_mean] == [-120.0]
    assert videos["best"].endings == ["stuck"]
    assert len(decoded(videos["best"].path)[0]) == 48 + 3


# GIF and WebP


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
@pytest.mark.parametrize("grid", [False, True])
def test_an_animation_is_small_slow_and_endless(lander: pg.PPO, tmp_path: Path, suffix: str, grid: bool) -> None:
    video = record_video(lander, tmp_path / f"v{suffix}", max_steps=60, episodes=2, grid=grid)
    mp4 = record_video(lander, tmp_path / "w.mp4", max_steps=60, episodes=2, grid=grid)
    assert video.returns == mp4.returns
    assert video.frames == -(-mp4.frames // 3)
    assert round(video.frames_per_second, 1) == 16.7
    with Image.open(video.path) as picture:
        assert picture.size == video.size
        assert picture.size[0] == (804 if grid else 400)
        assert picture.info["loop"] == 0
        durations = []
        for index in range(getattr(picture, "n_frames")):  # noqa: B009 - not every picture has it
            picture.seek(index)
            picture.load()
            durations.append(picture.info["duration"])
        shown = np.asarray(picture.convert("RGB"))
    assert sum(durations) == pytest.approx(1000 * mp4.frames / 50, abs=70)
    bar = shown[:40, :200].reshape(-1, 3).astype(int)
    amber = np.abs(bar - CUT).max(-1) < 8 if suffix == ".gif" else bar[:, 0] - bar[:, 2] > 50
    assert amber.sum() > 50  # the colours of text are among those that a GIF keeps
    assert {path.name for path in tmp_path.iterdir()} == {"v.json", f"v{suffix}", "w.json", "w.mp4"}


def test_the_size_of_pictures_can_be_asked_for(lander: pg.PPO, tmp_path: Path) -> None:
    for size, width in ((300, 300), (None, 600)):
        video = record_video(lander, tmp_path / "v.mp4", max_steps=3, size=size)
        assert decoded(video.path)[0].shape[2] == width
    with pytest.raises(ConfigError, match="size must be at most 4096"):
        record_video(lander, tmp_path / "v.mp4", size=10_000)


@pytest.mark.parametrize("shape", [(1, 1), (7, 301), (333, 11), (97, 61)])
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_pictures_of_odd_sizes(shape: tuple[int, int], suffix: str, tmp_path: Path) -> None:
    class Odd(Ramp):
        def render(self) -> Any:
            return np.full((*shape, 3), 16 * self.steps, np.uint8)

    agent = pg.PPO(Odd, **SMALL)
    video = record_video(agent, tmp_path / f"v{suffix}", max_steps=3)
    with Image.open(video.path) if suffix == ".gif" else Image.fromarray(decoded(video.path)[0][0]) as picture:
        assert picture.size == video.size


def test_a_film_may_go_to_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Film(tmp_path / "part.mp4", 10)
    made.write(np.zeros((16, 16, 3), np.uint8), 5)
    made.close()
    real = os.replace

    def across(source: Any, target: Any, **folders: Any) -> None:
        if Path(source).is_absolute() and Path(source).parent != Path(target).parent:
            raise OSError(18, "Invalid cross-device link")
        real(source, target, **folders)

    monkeypatch.setattr(os, "replace", across)
    join([tmp_path / "part.mp4"], tmp_path / "other" / "all.mp4")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.mp4")] == ["other/all.mp4"]
    assert len(decoded(tmp_path / "other" / "all.mp4")[0]) == 5


# Early beside late


def test_checkpoints_are_shown_side_by_side(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["video", str(run), "--checkpoints", "first,last", "--seed", "5", "--out", str(tmp_path / "v.mp4")]) == 0
    )
    printed = capsys.readouterr().out
    assert "first is step 64, the earliest checkpoint that the run still has (keep_checkpoints 3)." in printed
    frames, _ = decoded(tmp_path / "v.mp4")
    expected = []
    for step in (64, 128):
        agent = pg.load(run, checkpoint=step)
        expected.append(record_video(agent, tmp_path / f"{step}.mp4", seed=5))
    width = expected[0].size[0]
    assert frames.shape[2] == 2 * width + 4
    assert len(frames) == max(video.frames for video in expected)
    for column, (step, video) in enumerate(zip((64, 128), expected, strict=True)):
        shown = frames[-1][:, column * (width + 4) : column * (width + 4) + width]
        caption = Caption(video.returns[0], video.lengths[0], agent=f"PPO, {step} steps", ending="episode over")
        assert difference(shown, caption) < 6  # the shorter one keeps its last picture
        alone = decoded(video.path)[0]
        assert np.abs(frames[3][:, column * (width + 4) :][:, :width].astype(int) - alone[3]).mean() < 3
    notes = json.loads((tmp_path / "v.json").read_text())
    assert notes["steps"] == [64, 128]
    assert notes["returns"] == [video.returns[0] for video in expected]


@pytest.mark.parametrize("lossless", [False, True])
def test_a_film_that_ends_early_waits_with_its_last_picture(lossless: bool, tmp_path: Path) -> None:
    films = []
    for name, shades in (("short", (100, 200)), ("long", (10, 20, 30, 40, 50))):
        film = Film(tmp_path / f"{name}.mp4", 10, lossless=True)
        for shade in shades:
            film.write(np.full((16, 16, 3), shade, np.uint8))
        film.close()
        films.append((film.path, film.frames))
    beside(films, tmp_path / "both.mp4", lossless=lossless)
    frames, _ = decoded(tmp_path / "both.mp4")
    assert frames.shape == (5, 16, 36, 3)
    assert np.abs(frames[:, :, 2:14].mean(axis=(1, 2, 3)) - [100, 200, 200, 200, 200]).max() < 4
    assert np.abs(frames[:, :, 22:34].mean(axis=(1, 2, 3)) - [10, 20, 30, 40, 50]).max() < 4


def test_any_checkpoints_can_be_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["video", str(run), "--checkpoints", "64, 96,last", "--episodes", "2", "--max-steps", "5"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert str(run / "videos" / "steps-64-96-128.mp4") in printed
    assert "first is" not in printed
    notes = json.loads((run / "videos" / "steps-64-96-128.json").read_text())
    assert len(notes["returns"]) == 6
    assert main([*arguments[:3], "first,last", "--max-steps", "5", "--out", str(run.parent / "two.gif")]) == 0
    with Image.open(run.parent / "two.gif") as picture:
        assert picture.size[0] == 804


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("first", "names 1 of the checkpoints that"),
        ("last,128", "names 1 of the checkpoints that"),
        ("first,5", "no checkpoint of step 5: it has 64, 96, 128"),
        ("first,soon", "checkpoints must be a whole number"),
        ("best,last", "no best checkpoint"),
    ],
)
def test_checkpoints_that_are_not_there(run: Path, capsys: pytest.CaptureFixture[str], wanted: str, said: str) -> None:
    assert main(["video", str(run), "--checkpoints", wanted]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert said.startswith("names") <= ("keep_checkpoints" in error)


# What is in a film


@pytest.mark.parametrize("suffix", [".mp4", ".gif", ".webp"])
def test_what_is_in_a_film_is_beside_it(run: Path, tmp_path: Path, suffix: str) -> None:
    arguments = ["--stochastic", "--seed", "9", "--episodes", "2", "--out", str(tmp_path / f"v{suffix}")]
    assert main(["video", str(run), *arguments]) == 0
    notes = json.loads((tmp_path / "v.json").read_text())
    result = pg.load(run).evaluate(2, deterministic=False, seed=9)
    assert sorted(notes.pop("returns")) == sorted(result.returns)
    assert sorted(notes.pop("lengths")) == sorted(result.lengths)
    expected = {"algorithm": "ppo", "env": "CartPole-v1", "seed": 9, "step": 128, "levels": "train"}
    assert notes == {**expected, "deterministic": False, "endings": ["over", "over"]}


def test_files_of_others_are_left_alone(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = {"a.json": '{"mine": 1}', "b.mp4": "precious", "c.gif": "precious", "d.json": "precious"}
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    for film, said in (
        ("a.mp4", "a.json exists and is not about a film"),
        ("b.mp4", "b.mp4 exists and is no .mp4 film: name another file"),
        ("c.gif", "c.gif exists and is no .gif film: name another file"),
        ("d.webp", "d.json exists and is not about a film"),
    ):
        assert main(["video", str(run), "--max-steps", "2", "--out", str(tmp_path / film)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == others
    for _ in range(2):  # what it wrote itself it writes again
        assert main(["video", str(run), "--max-steps", "2", "--out", str(tmp_path / "e.gif")]) == 0
