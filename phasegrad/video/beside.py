"""Several checkpoints of one run side by side: the same seed, played by what the run was early and what it became."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phasegrad.config import coerce
from phasegrad.errors import ConfigError
from phasegrad.machine.paths import as_path
from phasegrad.runs.contract import Trainer
from phasegrad.runs.directory import RunDirectory, step_of
from phasegrad.runs.evaluation import checked_episodes, checked_max_steps, release, step_limit
from phasegrad.runs.reading import CONFIG
from phasegrad.video.animation import checked_format, in_turn_beside, is_encoded_again
from phasegrad.video.drawing import checked_speed, drawing_env
from phasegrad.video.film import working_folder
from phasegrad.video.notes import require_free, write_notes
from phasegrad.video.recorders import Filming, Shown, Video
from phasegrad.video.recording import (
    film_parts,
    in_place,
    label_of,
    named_film,
    side_of,
    stuck_after,
    video_of,
    videos_of,
)

MOST_BESIDE = 6


def chosen_steps(run: str | Path, wanted: str) -> tuple[list[int], str]:
    """The steps that a text such as first,last or 10000,best,last names, and a sentence about `first` where it is there."""
    directory = RunDirectory(run)
    if not (directory.path / CONFIG).is_file():
        raise ConfigError(f"--checkpoints needs a run directory, and {directory.path} is none: it has no {CONFIG}.")
    directory.checkpoint()  # says so where there is none
    kept = [step_of(path) for path in directory.checkpoints()]
    named = {"first": kept[0], "last": kept[-1]}
    limit = directory.read_config().get("keep_checkpoints")
    because = "" if limit is None else f" (keep_checkpoints {limit})"
    steps: list[int] = []
    for word in filter(None, (part.strip() for part in wanted.split(","))):
        if word in named:
            step = named[word]
        else:
            which = word if word == "best" else coerce("checkpoints", word, int, {"low": 0})
            step = step_of(directory.checkpoint(which))
        if step not in steps:
            steps.append(step)
    if not 2 <= len(steps) <= MOST_BESIDE:
        has = ", ".join(map(str, kept))
        raise ConfigError(
            f"--checkpoints {wanted} names {len(steps)} of the checkpoints that {directory.path} has ({has}), and 2 to "
            f"{MOST_BESIDE} can be shown side by side{because}."
        )
    said = (
        f"first is step {kept[0]:,}, the earliest checkpoint that the run still has{because}."
        if "first" in wanted
        else ""
    )
    return steps, said


def default_path(agents: Sequence[Trainer]) -> Path:
    """RUN_DIR/videos/steps-N-M.mp4."""
    return videos_of(agents[0]) / f"steps-{'-'.join(str(agent.run.progress.step) for agent in agents)}.mp4"


def record_checkpoints(
    agents: Sequence[Trainer],
    path: str | Path | None = None,
    *,
    episodes: int | None = None,
    deterministic: bool = True,
    seed: int | None = None,
    levels: str = "train",
    fps: float | None = None,
    max_steps: int | None = None,
    size: int | None = None,
    full: bool = False,
) -> Video:
    """Film several checkpoints of a run side by side, each on the same seed, under its step.

    The arguments are those of `record_video`. The video's returns are those of the first agent's episodes, then of the
    second's.
    """
    if not 2 <= len(agents) <= MOST_BESIDE:
        raise ConfigError(f"From 2 to {MOST_BESIDE} checkpoints can be shown side by side, not {len(agents)}.")
    episodes = 1 if episodes is None else checked_episodes(episodes)
    path = default_path(agents) if path is None else named_film(as_path(path))
    checked_format(path)
    require_free(path)
    side, again = side_of(path, size, len(agents)), is_encoded_again(path)
    shown: list[Shown] = []
    columns: list[list[tuple[Path, int]]] = []
    with working_folder() as folder:
        for number, agent in enumerate(agents):
            env = drawing_env(agent.agent, episodes, seed=seed, levels=levels)
            try:
                speed, most = checked_speed(env, fps), step_limit(env, checked_max_steps(max_steps))
                how = Filming(deterministic, seed, most, label_of(agent), stuck_after(speed, full), side)
                parts = film_parts(agent, env, how, episodes, folder / str(number), speed, lossless=True)
            finally:
                release(agent.agent, env)
            columns.append([(film.path, film.frames) for film, _ in parts])
            shown.extend(part for _, part in parts)
        whole = folder / "whole.mp4"
        in_turn_beside(columns, whole, folder, lossless=again)
        width, height = parts[0][0].size
        frames = sum(max(frames for _, frames in episode) for episode in zip(*columns, strict=True))
        video = video_of(whole, shown, frames, ((width + 4) * len(agents) - 4, height))
        video = in_place(video, path, speed)
    write_notes(video, agents, seed=seed, levels=levels, deterministic=deterministic)
    return video
