"""What films an evaluation as it is played: chosen episodes as a file each, or all environments at once in a grid.

Draws and counts; which episodes and which files is decided in recording.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phasegrad import envs
from phasegrad.runs.evaluation import Spectator, play
from phasegrad.video.film import Film, captioned, scaled

if TYPE_CHECKING:
    from phasegrad.agent import Agent

LONGEST_SIDE = 512  # of a picture, in pixels, before its caption
GRID_SIDE = 1024  # of a grid's pictures together
HOLD_SECONDS = 0.75  # how long the last frame of an episode stays


@dataclass(frozen=True)
class Video:
    """A written video and the episodes in it, in the order they are shown."""

    path: Path
    returns: list[float]
    lengths: list[int]
    frames: int


class Recorder(Spectator):
    """What both ways of filming share: running returns, and when an episode is over."""

    def __init__(self, env: envs.VectorEnv, max_steps: int) -> None:
        self.env, self.max_steps = env, max_steps
        self.returns = np.zeros(env.num_envs)  # [N] of the running episodes
        self.steps = np.zeros(env.num_envs, np.int64)

    def frames(self, indices: np.ndarray, longest_side: int) -> dict[int, np.ndarray]:
        """The pictures of some environments, by index."""
        if indices.size == 0:
            return {}
        drawn = self.env.render([int(index) for index in indices])
        assert drawn is not None
        return {int(index): scaled(frame, longest_side) for index, frame in zip(indices, drawn, strict=True)}

    def advance(self, step: envs.Step) -> dict[int, tuple[float, int]]:
        """Count a step; return and length of the episodes that are over, or as long as a video may be."""
        self.returns += step.reward
        self.steps += 1
        over = {
            int(index): (float(self.returns[index]), int(self.steps[index]))
            for index in np.flatnonzero(self.steps == self.max_steps)
        }
        over |= {episode.env: (episode.episode_return, episode.length) for episode in step.episodes}
        for episode in step.episodes:
            self.returns[episode.env] = self.steps[episode.env] = 0
        return over

    def restarted(self) -> None:
        self.returns[:], self.steps[:] = 0.0, 0


class EpisodeRecorder(Recorder):
    """Films chosen episodes, each as a file of its own: `films` by (environment, number of its episode)."""

    def __init__(
        self,
        env: envs.VectorEnv,
        films: dict[tuple[int, int], Film],
        titles: dict[tuple[int, int], str],
        max_steps: int,
    ) -> None:
        super().__init__(env, max_steps)
        self.films, self.titles = films, titles
        self.last: dict[int, np.ndarray] = {}
        self.finished: dict[tuple[int, int], Video] = {}

    def run(self, agent: Agent, episodes: int, deterministic: bool, seed: int | None) -> None:
        try:
            how: dict[str, Any] = {"deterministic": deterministic, "seed": seed, "max_steps": self.max_steps}
            play(agent, self.env, episodes, **how, spectator=self)
        finally:
            for film in self.films.values():
                film.give_up()

    def before(self, playing: np.ndarray) -> None:
        keys = [(index, int(number)) for index, number in enumerate(playing)]
        filmed = np.array([key in self.films and key not in self.finished for key in keys])
        self.last = self.frames(np.flatnonzero(filmed), LONGEST_SIDE)
        for index, frame in self.last.items():
            left, right = caption(self.returns[index], int(self.steps[index]), self.titles.get(keys[index], ""))
            self.films[keys[index]].write(captioned(frame, left, right))

    def after(self, step: envs.Step, playing: np.ndarray) -> bool:
        for index, (episode_return, length) in self.advance(step).items():
            key = (index, int(playing[index]))
            if index in self.last and key not in self.finished:
                film = self.films[key]
                left, right = caption(episode_return, length, self.titles.get(key, ""))
                film.write(captioned(self.last[index], left, right, finished=True), hold_frames(film))
                film.close()
                self.finished[key] = Video(film.path, [episode_return], [length], film.frames)
        return len(self.finished) < len(self.films)


class GridRecorder(Recorder):
    """Films all environments at once, a cell each; a cell whose episodes are over keeps its last picture."""

    def __init__(self, env: envs.VectorEnv, film: Film, episodes: int, max_steps: int) -> None:
        super().__init__(env, max_steps)
        self.film, self.episodes = film, episodes
        self.cells = min(episodes, env.num_envs)
        self.columns = int(np.ceil(np.sqrt(self.cells)))
        self.canvas: np.ndarray | None = None
        self.last: dict[int, np.ndarray] = {}
        self.over: dict[tuple[int, int], tuple[float, int]] = {}

    def before(self, playing: np.ndarray) -> None:
        running = [i for i, number in enumerate(playing) if number >= 0 and (i, int(number)) not in self.over]
        for index, frame in self.frames(np.array(running, np.int64), GRID_SIDE // self.columns).items():
            self.last[index] = frame
            self.put(index, *caption(self.returns[index], int(self.steps[index])))
        if self.canvas is not None:
            self.film.write(self.canvas)

    def after(self, step: envs.Step, playing: np.ndarray) -> bool:
        for index, (episode_return, length) in self.advance(step).items():
            key = (index, int(playing[index]))
            if key[1] >= 0 and key not in self.over:
                self.over[key] = (episode_return, length)
                self.put(index, *caption(episode_return, length), finished=True)
        return len(self.over) < self.episodes

    def finish(self) -> None:
        """Hold the last picture for a moment and close the film."""
        if self.canvas is not None:
            self.film.write(self.canvas, hold_frames(self.film))
        self.film.close()

    def put(self, index: int, left: str, right: str, finished: bool = False) -> None:
        cell = captioned(self.last[index], left, right, finished=finished)
        height, width, _ = cell.shape
        gap = 4
        if self.canvas is None:
            rows = -(-self.cells // self.columns)
            size = (rows * (height + gap) - gap, self.columns * (width + gap) - gap, 3)
            self.canvas = np.full(size, 60, np.uint8)
        y, x = index // self.columns * (height + gap), index % self.columns * (width + gap)
        self.canvas[y : y + height, x : x + width] = cell


def hold_frames(film: Film) -> int:
    return max(1, round(HOLD_SECONDS * film.frames_per_second))


def caption(episode_return: float, step: int, title: str = "") -> tuple[str, str]:
    """The texts above a picture: the return, and where the episode is."""
    shown = f"{episode_return:.2f}" if abs(episode_return) < 100 else f"{episode_return:,.1f}"
    return f"return {shown}", f"{title}  step {step}".strip()
