"""What films an evaluation as it is played: chosen episodes as a file each, or all environments at once in a grid.

Draws and counts; which episodes and which files is decided in recording.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phasegrad import envs
from phasegrad.runs.evaluation import Moment, Spectator, play
from phasegrad.tree import named_leaves
from phasegrad.video.actions import names_of, said_of
from phasegrad.video.captions import Caption, captioned
from phasegrad.video.film import Film, scaled
from phasegrad.video.flames import with_flames
from phasegrad.video.inline import embedded
from phasegrad.video.stuck import Watch

if TYPE_CHECKING:
    from phasegrad.agent import Agent

HOLD_SECONDS = 0.75  # how long the last frame of an episode stays
OVER, STUCK, TOO_LONG = "over", "stuck", "max_steps"


@dataclass(frozen=True)
class Video:
    """A written video and the episodes in it, in the order they are shown."""

    path: Path
    returns: list[float]
    lengths: list[int]
    frames: int
    endings: list[str] = field(default_factory=list)  # of each episode: over, stuck or max_steps
    size: tuple[int, int] = (0, 0)  # width and height in pixels
    frames_per_second: float = 0.0

    def _repr_html_(self) -> str:
        return embedded(self)

    def describe(self) -> str:
        """Where it is, what it takes and what it shows, as the command line prints it."""
        size, returns = self.path.stat().st_size, ", ".join(f"{value:,.2f}" for value in self.returns)
        shown = f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3))} kB"
        stuck = sum(ending == STUCK for ending in self.endings)
        cut = f"; {stuck} of {len(self.endings)} cut where nothing changed any more (--full shows all)" if stuck else ""
        return (
            f"{self.path}: {self.frames} frames of {self.size[0]} x {self.size[1]}, "
            f"{self.frames_per_second:.3g} a second, {shown}, return {returns}{cut}"
        )


@dataclass(frozen=True)
class Shown:
    """An episode as far as it was filmed."""

    episode_return: float
    length: int
    ending: str


@dataclass(frozen=True)
class Filming:
    """How episodes are played and drawn. `label` is the algorithm and its checkpoint, `stuck_after` None for never."""

    deterministic: bool
    seed: int | None
    max_steps: int
    label: str = ""
    stuck_after: int | None = None  # steps in which nothing changes
    longest_side: int = 512  # of a picture, in pixels, before its caption


class Recorder(Spectator):
    """What both ways of filming share: running returns, pictures, captions, and when an episode is over."""

    def __init__(self, agent: Agent, env: envs.VectorEnv, how: Filming) -> None:
        self.agent, self.env, self.how = agent, env, how
        self.returns = np.zeros(env.num_envs)  # [N] of the running episodes
        self.steps = np.zeros(env.num_envs, np.int64)
        self.last: dict[int, np.ndarray] = {}  # pictures by environment, without their captions
        self.drawn: list[int] = []  # the environments that this step is filmed of
        self.watch = None if how.stuck_after is None else Watch(env.num_envs, how.stuck_after)
        self.own_actions = envs.ActionAdapter(agent.spaces.original_action)
        self.names = names_of(agent.config.env, int(getattr(agent.spaces.action, "n", 0)))
        # gymnasium draws the engines' particles itself
        self.has_flames = env.backend == "envpool" and str(agent.config.env).startswith("LunarLander")

    def play(self, episodes: int) -> None:
        how: dict[str, Any] = {"deterministic": self.how.deterministic, "seed": self.how.seed}
        play(self.agent, self.env, episodes, **how, max_steps=self.how.max_steps, spectator=self)

    def filmed(self, playing: np.ndarray) -> list[int]:
        """The environments whose episodes are to be drawn now."""
        raise NotImplementedError

    def put(self, index: int, caption: Caption) -> None:
        """Show the picture of environment `index` under this caption."""
        raise NotImplementedError

    def before(self, playing: np.ndarray) -> None:
        self.playing, self.drawn = playing, self.filmed(playing)
        self.pictures = np.zeros(0) if not self.drawn else self.env.render(self.drawn)

    def acting(self, moment: Moment) -> None:
        if not self.drawn:
            return
        assert self.pictures is not None
        values = self.agent.values(moment.seen, moment.states)
        taken = self.own_actions.to_environment(moment.actions, self.env.num_envs)
        for index, picture in zip(self.drawn, self.pictures, strict=True):
            shown = [array[index] for _, array in named_leaves(moment.observation)]
            if self.watch is not None:
                self.watch.see(index, shown, picture)
            if self.has_flames:
                picture = with_flames(picture, shown[0], self.own_actions.row(taken, index), int(self.steps[index]))
            self.last[index] = scaled(picture, self.how.longest_side)
            said = said_of(self.own_actions, taken, index, self.names)
            self.put(index, self.caption(index, **said, value=float(values[index])))

    def caption(self, index: int, **more: Any) -> Caption:
        return Caption(float(self.returns[index]), int(self.steps[index]), agent=self.how.label, **more)

    def advance(self, step: envs.Step) -> dict[int, Shown]:
        """Count a step; the episodes that are over, or that the film shows no further."""
        self.returns += step.reward
        self.steps += 1
        over = {}
        for index in range(self.env.num_envs):
            if self.watch is not None and step.reward[index] > 0:
                self.watch.clear(index)
            if self.steps[index] == self.how.max_steps:
                over[index] = Shown(float(self.returns[index]), int(self.steps[index]), TOO_LONG)
            elif self.watch is not None and self.watch.is_stuck(index):
                over[index] = Shown(float(self.returns[index]), int(self.steps[index]), STUCK)
        for episode in step.episodes:
            over[episode.env] = Shown(episode.episode_return, episode.length, OVER)
            self._begin(episode.env)
        return over

    def last_caption(self, shown: Shown, title: str = "") -> Caption:
        """What stands above the last picture."""
        endings = {OVER: "episode over", TOO_LONG: f"cut after {shown.length:,} steps", STUCK: "cut: nothing changes"}
        return Caption(
            shown.episode_return,
            shown.length,
            title=title,
            agent=self.how.label,
            ending=endings[shown.ending],
            cut=shown.ending != OVER,
        )

    def _begin(self, index: int) -> None:
        self.returns[index] = self.steps[index] = 0
        if self.watch is not None:
            self.watch.clear(index)

    def restarted(self) -> None:
        for index in range(self.env.num_envs):
            self._begin(index)


class EpisodeRecorder(Recorder):
    """Films chosen episodes, each as a file of its own: `films` by (environment, number of its episode)."""

    def __init__(
        self,
        agent: Agent,
        env: envs.VectorEnv,
        how: Filming,
        films: dict[tuple[int, int], Film],
        titles: dict[tuple[int, int], str],
    ) -> None:
        super().__init__(agent, env, how)
        self.films, self.titles = films, titles
        self.finished: dict[tuple[int, int], Shown] = {}

    def run(self, episodes: int) -> None:
        try:
            self.play(episodes)
        finally:
            for film in self.films.values():
                film.give_up()

    def filmed(self, playing: np.ndarray) -> list[int]:
        keys = [(index, int(number)) for index, number in enumerate(playing)]
        return [key[0] for key in keys if key in self.films and key not in self.finished]

    def caption(self, index: int, **more: Any) -> Caption:
        return super().caption(index, title=self.titles.get((index, int(self.playing[index])), ""), **more)

    def put(self, index: int, caption: Caption) -> None:
        self.films[index, int(self.playing[index])].write(captioned(self.last[index], caption))

    def after(self, step: envs.Step, playing: np.ndarray) -> bool:
        for index, shown in self.advance(step).items():
            key = (index, int(playing[index]))
            if index in self.drawn and key not in self.finished:
                film = self.films[key]
                caption = self.last_caption(shown, self.titles.get(key, ""))
                film.write(captioned(self.last[index], caption), hold_frames(film))
                film.close()
                self.finished[key] = shown
        return len(self.finished) < len(self.films)


class GridRecorder(Recorder):
    """Films all environments at once, a cell each; a cell whose episodes are over keeps its last picture."""

    def __init__(self, agent: Agent, env: envs.VectorEnv, how: Filming, film: Film, episodes: int) -> None:
        super().__init__(agent, env, how)
        self.film, self.episodes = film, episodes
        self.cells = min(episodes, env.num_envs)
        self.columns = columns_of(self.cells)
        self.canvas: np.ndarray | None = None
        self.over: dict[tuple[int, int], Shown] = {}

    def filmed(self, playing: np.ndarray) -> list[int]:
        return [i for i, number in enumerate(playing) if number >= 0 and (i, int(number)) not in self.over]

    def acting(self, moment: Moment) -> None:
        super().acting(moment)
        if self.canvas is not None:
            self.film.write(self.canvas)

    def after(self, step: envs.Step, playing: np.ndarray) -> bool:
        for index, shown in self.advance(step).items():
            key = (index, int(playing[index]))
            if key[1] >= 0 and key not in self.over:
                self.over[key] = shown
                self.put(index, self.last_caption(shown))
        return len(self.over) < self.episodes

    def finish(self) -> None:
        """Hold the last picture for a moment and close the film."""
        if self.canvas is not None:
            self.film.write(self.canvas, hold_frames(self.film))
        self.film.close()

    def put(self, index: int, caption: Caption) -> None:
        cell = captioned(self.last[index], caption)
        height, width, _ = cell.shape
        gap = 4
        if self.canvas is None:
            rows = -(-self.cells // self.columns)
            size = (rows * (height + gap) - gap, self.columns * (width + gap) - gap, 3)
            self.canvas = np.full(size, 60, np.uint8)
        y, x = index // self.columns * (height + gap), index % self.columns * (width + gap)
        self.canvas[y : y + height, x : x + width] = cell


def columns_of(cells: int) -> int:
    return int(np.ceil(np.sqrt(cells)))


def hold_frames(film: Film) -> int:
    return max(1, round(HOLD_SECONDS * film.frames_per_second))
