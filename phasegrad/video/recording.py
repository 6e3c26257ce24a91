"""Videos of an agent: episodes one after another, several at once in a grid, or the ones an evaluation picks out.

What is filmed is an evaluation (same environments, seeds and actions), so the returns shown are those it reports.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from phasegrad import envs
from phasegrad.agent import Agent
from phasegrad.errors import ConfigError, EnvError, PhasegradWarning
from phasegrad.machine.paths import as_path
from phasegrad.runs.contract import Trainer
from phasegrad.runs.evaluation import (
    Evaluation,
    Played,
    as_evaluation,
    checked_episodes,
    checked_max_steps,
    evaluation_env,
    play,
    release,
    step_limit,
)
from phasegrad.video.film import Film, join
from phasegrad.video.recorders import EpisodeRecorder, GridRecorder, Video

PICKS = ("best", "median", "worst")
GL_ADVICE = (
    "MuJoCo draws with OpenGL: without a display it needs EGL (on Debian the package libegl1) with MUJOCO_GL=egl, or "
    "OSMesa (libosmesa6) with MUJOCO_GL=osmesa"
)


def record_video(
    agent: Trainer,
    path: str | Path | None = None,
    *,
    episodes: int | None = None,
    grid: bool = False,
    deterministic: bool = True,
    seed: int | None = None,
    levels: str = "train",
    fps: float | None = None,
    max_steps: int | None = None,
) -> Video:
    """Film `episodes` (1; 4 with `grid`) of the agent as an mp4, with the running return above each picture.

    The episodes are those of `agent.evaluate` with the same arguments. `fps` is the speed, by default the
    environment's own; episodes are cut as in `agent.evaluate`. Without `path` it goes to the run directory.
    """
    episodes = (4 if grid else 1) if episodes is None else checked_episodes(episodes)
    max_steps = checked_max_steps(max_steps)
    path = default_path(agent, grid) if path is None else as_path(path)
    if path.suffix != ".mp4":
        raise ConfigError(f"The video must be an .mp4 file, not {path.name!r}.")
    if path.is_dir():
        raise ConfigError(f"{path} is a directory: name an .mp4 file.")
    env = drawing_env(agent.agent, episodes, seed=seed, levels=levels)
    try:
        speed, most = checked_speed(env, fps), step_limit(env, max_steps)
        if grid:
            return _record_grid(agent.agent, env, path, episodes, deterministic, seed, speed, most)
        return _record_in_turn(agent.agent, env, path, episodes, deterministic, seed, speed, most)
    finally:
        release(agent.agent, env)


def evaluate_and_record(
    agent: Trainer,
    episodes: int,
    picks: Sequence[str],
    folder: str | Path,
    *,
    deterministic: bool = True,
    seed: int | None = None,
    levels: str = "train",
    fps: float | None = None,
    max_steps: int | None = None,
) -> tuple[Evaluation, dict[str, Video]]:
    """Evaluate, then film the `picks` among its episodes (best, median, worst) as `folder`/eval-PICK.mp4.

    The evaluation is played again from the same seeds to film them: keeping the frames of all would need the memory.
    """
    folder = as_path(folder)
    for pick in picks:
        if pick not in PICKS:
            raise ConfigError(f"Unknown episode to record {pick!r}; choose from {', '.join(PICKS)}.")
    episodes, max_steps = checked_episodes(episodes), checked_max_steps(max_steps)
    env = drawing_env(agent.agent, episodes, seed=seed, levels=levels)
    try:
        speed, most = checked_speed(env, fps), step_limit(env, max_steps)
        played = play(agent.agent, env, episodes, deterministic=deterministic, seed=seed, max_steps=most)
        chosen = {pick: picked(played, pick) for pick in picks}
        films: dict[tuple[int, int], Film] = {}
        for pick, episode in chosen.items():
            films.setdefault((episode.env, episode.number), Film(folder / f"eval-{pick}.mp4", speed))
        recorder = EpisodeRecorder(env, films, {}, most)
        recorder.run(agent.agent, episodes, deterministic, seed)
        videos = {}
        for pick, episode in chosen.items():
            video = recorder.finished[episode.env, episode.number]
            path = folder / f"eval-{pick}.mp4"
            if path != video.path:  # one episode may be picked twice
                shutil.copyfile(video.path, path)
                video = dataclasses.replace(video, path=path)
            if video.returns[0] != episode.episode_return:
                warnings.warn(
                    f"The {pick} episode made {episode.episode_return:g} and then {video.returns[0]:g} when it was "
                    "filmed: the environment does not repeat itself on the same seed.",
                    PhasegradWarning,
                    stacklevel=2,
                )
            videos[pick] = video
        return as_evaluation(played), videos
    finally:
        release(agent.agent, env)


def picked(played: Sequence[Played], pick: str) -> Played:
    """The best, worst or (lower) median episode; of equals the one that ended first."""
    ordered = sorted(played, key=lambda episode: episode.episode_return)
    if pick == "best":
        return max(played, key=lambda episode: episode.episode_return)
    return ordered[0] if pick == "worst" else ordered[(len(ordered) - 1) // 2]


def _record_in_turn(
    agent: Agent,
    env: envs.VectorEnv,
    path: Path,
    episodes: int,
    deterministic: bool,
    seed: int | None,
    speed: float,
    max_steps: int,
) -> Video:
    """Episodes are played side by side, as in an evaluation, into a file each; then the files are joined."""
    keys = episode_keys(episodes, env.num_envs)
    titles = {key: f"episode {i + 1} of {episodes}" for i, key in enumerate(keys)} if episodes > 1 else {}
    with tempfile.TemporaryDirectory(prefix="phasegrad-video-") as folder:
        films = {key: Film(Path(folder) / f"{i:06d}.mp4", speed) for i, key in enumerate(keys)}
        recorder = EpisodeRecorder(env, films, titles, max_steps)
        recorder.run(agent, episodes, deterministic, seed)
        parts = [recorder.finished[key] for key in keys]
        join([part.path for part in parts], path)
    shown = [(part.returns[0], part.lengths[0]) for part in parts]
    return Video(path, [r for r, _ in shown], [n for _, n in shown], sum(part.frames for part in parts))


def _record_grid(
    agent: Agent,
    env: envs.VectorEnv,
    path: Path,
    episodes: int,
    deterministic: bool,
    seed: int | None,
    speed: float,
    max_steps: int,
) -> Video:
    keys = episode_keys(episodes, env.num_envs)
    film = Film(path, speed)
    recorder = GridRecorder(env, film, episodes, max_steps)
    try:
        how: dict[str, Any] = {"deterministic": deterministic, "seed": seed, "max_steps": max_steps}
        play(agent, env, episodes, **how, spectator=recorder)
        recorder.finish()
    finally:
        film.give_up()
    shown = [recorder.over[key] for key in keys]
    return Video(path, [r for r, _ in shown], [n for _, n in shown], film.frames)


def episode_keys(episodes: int, num_envs: int) -> list[tuple[int, int]]:
    """(environment, number of its episode) of all episodes of an evaluation, environment by environment."""
    parts = np.array_split(np.arange(episodes), num_envs)
    return [(index, number) for index, part in enumerate(parts) for number in range(len(part))]


def drawing_env(agent: Agent, episodes: int, *, seed: int | None, levels: str) -> envs.VectorEnv:
    """Evaluation environments that draw. Where envpool cannot draw an id that gymnasium has too, gymnasium's."""
    family = prepare_drawing(agent)
    how: dict[str, Any] = {"seed": seed, "levels": levels, "render": True}
    mujoco: dict[str, Any] = {
        "backend": "gymnasium",
        "extra_options": {"camera_name": "track"},
    }  # or the agent runs out of the picture
    try:
        env = evaluation_env(agent, episodes, **how, **(mujoco if family == "mujoco" else {}))
        try:
            env.reset()
            env.render([0])
        except EnvError:
            release(agent, env)
            if env.backend != "envpool" or agent.config.env not in gym.registry:
                raise
            env = evaluation_env(agent, episodes, **how, backend="gymnasium")
    except EnvError as error:
        if family == "mujoco":
            raise EnvError(f"{str(error).rstrip('.')}; {GL_ADVICE}.") from error
        raise
    if layout(env.observation_space) != layout(agent.observation_space) or env.action_space != agent.action_space:
        release(agent, env)
        raise EnvError(f"The {agent.config.env} that can be drawn has other spaces than the one trained on.")
    return env


def layout(space: gym.Space) -> dict[str, tuple[object, object]]:
    """Shapes and types of an observation by name; bounds, which backends state differently, do not matter."""
    spaces = space.spaces if isinstance(space, gym.spaces.Dict) else {"": space}
    return {name: (part.shape, part.dtype) for name, part in spaces.items()}


def prepare_drawing(agent: Agent) -> str:
    """Let drawing libraries work without a display, before they are imported; the environment's family."""
    family = "other"
    if isinstance(agent.source, str) and not agent.source.startswith("custom:"):
        agent.require_source()  # resolving an id may import its module
        family = envs.resolve(agent.source, agent.config.env_options, render=True).family
    headless = sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if headless:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")  # glfw, MuJoCo's default, needs a display
    return family


def checked_speed(env: envs.VectorEnv, fps: float | None) -> float:
    speed = env.frames_per_second if fps is None else float(fps)
    if not 0 < speed <= 1000:
        raise ConfigError(f"fps must be above 0 and at most 1000, not {fps}.")
    return speed


def default_path(agent: Trainer, grid: bool) -> Path:
    """RUN_DIR/videos/step-N.mp4."""
    if agent.run.run_dir is None:
        raise ConfigError("The agent has no run directory: say where the video goes.")
    return agent.run.run_dir / "videos" / f"step-{agent.run.progress.step:012d}{'-grid' if grid else ''}.mp4"
