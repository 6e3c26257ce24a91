"""Videos of an agent: episodes one after another, several at once in a grid, or the ones an evaluation picks out.

What is filmed is an evaluation (same environments, seeds and actions), so the returns shown are those it reports.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from phasegrad import envs
from phasegrad.config import coerce
from phasegrad.errors import ConfigError, PhasegradWarning
from phasegrad.machine.paths import as_path
from phasegrad.runs.below import named_output
from phasegrad.runs.contract import Trainer
from phasegrad.runs.evaluation import (
    Evaluation,
    Played,
    as_evaluation,
    checked_episodes,
    checked_max_steps,
    play,
    release,
    step_limit,
)
from phasegrad.video.animation import SUFFIXES, checked_format, convert, every_nth, is_encoded_again
from phasegrad.video.drawing import checked_speed, drawing_env
from phasegrad.video.film import Film, copy, join, move, working_folder
from phasegrad.video.notes import require_free, write_notes
from phasegrad.video.recorders import STUCK, EpisodeRecorder, Filming, GridRecorder, Shown, Video, columns_of
from phasegrad.video.stuck import steps_without_change

PICKS = ("best", "median", "worst")
SIDE, SIDE_OF_ANIMATION = 512, 400  # of a picture, in pixels: in an mp4, and in a GIF or WebP
WHOLE = 1024  # of all pictures of a grid, or of a row of checkpoints


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
    size: int | None = None,
    full: bool = False,
) -> Video:
    """Film `episodes` (1; 4 with `grid`) of the agent as an mp4, .gif or .webp, with a bar of text above each picture.

    The episodes are those of `agent.evaluate` with the same arguments. `fps` is the speed, by default the
    environment's own; `size` the longest side of a picture in pixels. Episodes are cut as in `agent.evaluate`, and where
    nothing has changed for 10 seconds of film, unless `full`. Without `path` it goes to the run directory, and what is
    in the film to a .json beside it.
    """
    episodes = (4 if grid else 1) if episodes is None else checked_episodes(episodes)
    path = default_path(agent, grid) if path is None else named_film(as_path(path))
    checked_format(path)
    require_free(path)
    side = side_of(path, size, columns_of(min(episodes, 16)) if grid else 1)
    env = drawing_env(agent.agent, episodes, seed=seed, levels=levels)
    try:
        speed, most = checked_speed(env, fps), step_limit(env, checked_max_steps(max_steps))
        how = Filming(deterministic, seed, most, label_of(agent), stuck_after(speed, full), side)
        with working_folder() as folder:
            whole = folder / "whole.mp4"
            film = _film_grid if grid else _film_in_turn
            video = film(agent, env, how, episodes, whole, speed, is_encoded_again(path))
            video = in_place(video, path, speed)
    finally:
        release(agent.agent, env)
    write_notes(video, [agent], seed=seed, levels=levels, deterministic=deterministic)
    return video


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
    full: bool = False,
) -> tuple[Evaluation, dict[str, Video]]:
    """Evaluate, then film the `picks` among its episodes (best, median, worst) as `folder`/eval-PICK.mp4.

    The evaluation is played again from the same seeds to film them: keeping the frames of all would need the memory.
    """
    folder = as_path(folder)
    for pick in picks:
        if pick not in PICKS:
            raise ConfigError(f"Unknown episode to record {pick!r}; choose from {', '.join(PICKS)}.")
        checked_format(folder / f"eval-{pick}.mp4")
        require_free(folder / f"eval-{pick}.mp4")
    episodes, max_steps = checked_episodes(episodes), checked_max_steps(max_steps)
    env = drawing_env(agent.agent, episodes, seed=seed, levels=levels)
    try:
        speed, most = checked_speed(env, fps), step_limit(env, max_steps)
        played = play(agent.agent, env, episodes, deterministic=deterministic, seed=seed, max_steps=most)
        chosen = {pick: picked(played, pick) for pick in picks}
        films: dict[tuple[int, int], Film] = {}
        with working_folder() as making:
            for pick, episode in chosen.items():
                films.setdefault((episode.env, episode.number), Film(making / f"eval-{pick}.mp4", speed))
            how = Filming(deterministic, seed, most, label_of(agent), stuck_after(speed, full), SIDE)
            recorder = EpisodeRecorder(agent.agent, env, how, films, {})
            recorder.run(episodes)
            _put_in_place(films, chosen, folder)
    finally:
        release(agent.agent, env)
    videos = {}
    for pick, episode in chosen.items():
        key = (episode.env, episode.number)
        videos[pick] = _of_an_evaluation(pick, episode, films[key], recorder.finished[key], folder)
        write_notes(videos[pick], [agent], seed=seed, levels=levels, deterministic=deterministic)
    return as_evaluation(played), videos


def _put_in_place(films: Mapping[tuple[int, int], Film], chosen: Mapping[str, Played], folder: Path) -> None:
    """The films of the episodes that were picked as `folder`/eval-PICK.mp4; one episode may be picked twice."""
    placed: dict[tuple[int, int], Path] = {}
    for pick, episode in chosen.items():
        key, path = (episode.env, episode.number), folder / f"eval-{pick}.mp4"
        if key in placed:
            copy(placed[key], path)
        else:
            move(films[key].path, path)
            placed[key] = path


def _of_an_evaluation(pick: str, episode: Played, film: Film, shown: Shown, folder: Path) -> Video:
    """The film of an episode that was picked, with the return that the evaluation counts."""
    path = folder / f"eval-{pick}.mp4"
    if shown.episode_return != episode.episode_return and shown.ending != STUCK:
        warnings.warn(
            f"The {pick} episode made {episode.episode_return:g} and then {shown.episode_return:g} when it was "
            "filmed: the environment does not repeat itself on the same seed.",
            PhasegradWarning,
            stacklevel=3,
        )
    elif shown.ending == STUCK:
        shown = dataclasses.replace(shown, episode_return=episode.episode_return, length=episode.length)
    return dataclasses.replace(
        video_of(path, [shown], film.frames, film.size), frames_per_second=film.frames_per_second
    )


def picked(played: Sequence[Played], pick: str) -> Played:
    """The best, worst or (lower) median episode; of equals the one that ended first."""
    ordered = sorted(played, key=lambda episode: episode.episode_return)
    if pick == "best":
        return max(played, key=lambda episode: episode.episode_return)
    return ordered[0] if pick == "worst" else ordered[(len(ordered) - 1) // 2]


def _film_in_turn(
    agent: Trainer, env: envs.VectorEnv, how: Filming, episodes: int, path: Path, speed: float, lossless: bool
) -> Video:
    """Episodes one after another."""
    parts = film_parts(agent, env, how, episodes, path.parent, speed, lossless)
    join([film.path for film, _ in parts], path)
    return video_of(path, [shown for _, shown in parts], sum(film.frames for film, _ in parts), parts[0][0].size)


def film_parts(
    agent: Trainer, env: envs.VectorEnv, how: Filming, episodes: int, folder: Path, speed: float, lossless: bool
) -> list[tuple[Film, Shown]]:
    """Episodes are played side by side, as in an evaluation, into a file each."""
    keys = episode_keys(episodes, env.num_envs)
    titles = {key: f"episode {i + 1} of {episodes}" for i, key in enumerate(keys)} if episodes > 1 else {}
    films = {key: Film(folder / f"{i:06d}.mp4", speed, lossless) for i, key in enumerate(keys)}
    recorder = EpisodeRecorder(agent.agent, env, how, films, titles)
    recorder.run(episodes)
    return [(films[key], recorder.finished[key]) for key in keys]


def _film_grid(
    agent: Trainer, env: envs.VectorEnv, how: Filming, episodes: int, path: Path, speed: float, lossless: bool
) -> Video:
    """All episodes at once."""
    film = Film(path, speed, lossless)
    recorder = GridRecorder(agent.agent, env, how, film, episodes)
    try:
        recorder.play(episodes)
        recorder.finish()
    finally:
        film.give_up()
    shown = [recorder.over[key] for key in episode_keys(episodes, env.num_envs)]
    return video_of(path, shown, film.frames, film.size)


def video_of(path: Path, shown: Sequence[Shown], frames: int, size: tuple[int, int]) -> Video:
    returns, lengths = [part.episode_return for part in shown], [part.length for part in shown]
    return Video(path, returns, lengths, frames, [part.ending for part in shown], size)


def in_place(video: Video, path: Path, speed: float) -> Video:
    """The film in its place and its format."""
    convert(video.path, path, speed)
    step, (width, height) = every_nth(path, speed), video.size
    size = video.size if is_encoded_again(path) else (width + width % 2, height + height % 2)
    return dataclasses.replace(
        video, path=path, frames=-(-video.frames // step), size=size, frames_per_second=speed / step
    )


def side_of(path: Path, size: int | None, columns: int) -> int:
    """The longest side of a picture, of which `columns` stand side by side."""
    if size is not None:
        return int(coerce("size", size, int, {"low": 16, "high": 4096}))
    animation = is_encoded_again(path)
    return min(
        SIDE_OF_ANIMATION if animation else SIDE, (WHOLE * SIDE_OF_ANIMATION // SIDE if animation else WHOLE) // columns
    )


def stuck_after(speed: float, full: bool) -> int | None:
    return None if full else steps_without_change(speed)


def label_of(agent: Trainer) -> str:
    return f"{agent.name.upper()}, {agent.run.progress.step:,} steps"


def episode_keys(episodes: int, num_envs: int) -> list[tuple[int, int]]:
    """(environment, number of its episode) of all episodes of an evaluation, environment by environment."""
    parts = np.array_split(np.arange(episodes), num_envs)
    return [(index, number) for index, part in enumerate(parts) for number in range(len(part))]


def default_path(agent: Trainer, grid: bool) -> Path:
    """RUN_DIR/videos/step-N.mp4."""
    return videos_of(agent) / f"step-{agent.run.progress.step:012d}{'-grid' if grid else ''}.mp4"


def named_film(path: Path) -> Path:
    """Where a film that the user named is written: what a link leads to, if its name is a film's too."""
    if path.is_dir() or path.suffix.lower() not in SUFFIXES:
        return path  # which is refused
    return named_output(path)


def videos_of(agent: Trainer) -> Path:
    if agent.run.place is None:
        raise ConfigError("The agent has no run directory: say where the video goes.")
    return agent.run.place / "videos"
