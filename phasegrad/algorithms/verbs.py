"""What one does with an agent, whatever trains it: learn, change, predict, value, evaluate, record, save, close."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from phasegrad.agent import Agent
from phasegrad.algorithms.experience import Experience
from phasegrad.distributed.ranks import Ranks
from phasegrad.machine.paths import as_path
from phasegrad.runs import changing, saving
from phasegrad.runs.contract import Trainer
from phasegrad.runs.evaluation import Evaluation, run_evaluation
from phasegrad.runs.session import train
from phasegrad.video.recorders import Video
from phasegrad.video.recording import record_video


class Verbs:
    """Each hands on to where it is done."""

    agent: Agent
    experience: Experience
    ranks: Ranks

    def learn(
        self,
        total_steps: int | None = None,
        *,
        callback: Callable[[dict[str, Any]], object] | Any = None,
        loggers: Any = None,
        progress: bool = False,
    ) -> Self:
        """Train until `total_steps` environment steps in all; again with more to go on.

        `callback`, or each of a list, is a function that gets each iteration's metrics and ends the training early by
        returning False, or an object with some of the methods of `phasegrad.Callback`. `loggers`, one or a list, are
        objects whose `write(row)` gets each iteration's metrics as metrics.jsonl has them. `progress` shows the live
        display.
        """
        with self.ranks.in_step():
            train(cast(Trainer, self), total_steps, callback=callback, loggers=loggers, progress=progress)
        return self

    def change(self, **settings: Any) -> None:
        """Change settings between two iterations, as a callback may: learning rates, coefficients, clip range.

        It holds from the next iteration on. The run directory remembers it, and a resumed run makes it again.
        """
        changing.change(cast(Trainer, self), settings)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        mask: Any = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, Any]:
        """Actions for one observation or a batch, as the environment gives and takes them, and the next state.

        With a memory, give back the state that the last call returned, None at the start; where `episode_start` [B] is
        true it counts for nothing. Without one `state` is passed through. `mask` [M] or [B, M] says what is allowed;
        without it an `action_mask` entry of the observation does.
        """
        return self.agent.predict(observation, state, episode_start, mask, deterministic)

    def value(self, observation: Any, state: Any = None, episode_start: Any = None) -> np.ndarray:
        """V(s) of a batch of observations [B], in the units of the unnormalised reward; `state` as `predict` takes it."""
        return self.agent.value(observation, state, episode_start)

    def evaluate(
        self,
        episodes: int = 20,
        *,
        deterministic: bool = True,
        seed: int | None = None,
        levels: str = "train",
        max_steps: int | None = None,
    ) -> Evaluation:
        """Raw returns of whole episodes in fresh environments, with normalisers frozen.

        An episode that has not ended after `max_steps` is cut there and counts with the return it has; by default after
        10,000 where the environment has no time limit of its own.
        """
        how: dict[str, Any] = {"deterministic": deterministic, "seed": seed, "levels": levels}
        return run_evaluation(self.agent, episodes, **how, max_steps=max_steps)

    def record(self, path: str | Path | None = None, **options: Any) -> Video:
        """Film evaluation episodes as an mp4; `options` are those of `phasegrad.record_video`."""
        return record_video(cast(Trainer, self), path, **options)

    def save(self, path: str | Path) -> None:
        """Write the agent, and all that continuing its training needs, to a folder that `phasegrad.load` reads.

        A save that is there is replaced, and stays until the new one is on the disk; any other file is left alone.
        """
        saving.save(cast(Trainer, self), as_path(path))

    def close(self) -> None:
        """Free the environments; learning again makes new ones."""
        self.experience.close()
