"""What one does with an agent, whatever trains it: learn, change, predict, value, evaluate, record, save, close."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from phasegrad.agent import Agent
from phasegrad.algorithms import copying, moving
from phasegrad.algorithms.cloning import Cloning, clone_from
from phasegrad.algorithms.experience import Experience
from phasegrad.algorithms.leash import Leash
from phasegrad.algorithms.parameters import LeftOut, load_parameters, parameters_of
from phasegrad.algorithms.presenting import as_html, as_text, figure_of, public_names
from phasegrad.algorithms.signatures import ShownSignature, documentation
from phasegrad.distributed.ranks import Ranks
from phasegrad.machine.paths import as_path
from phasegrad.runs import changing, saving
from phasegrad.runs.contract import Trainer
from phasegrad.runs.demonstrating import evaluate_and_keep
from phasegrad.runs.evaluation import Evaluation, elsewhere, run_evaluation
from phasegrad.runs.history import History, history_of
from phasegrad.runs.session import train
from phasegrad.video.inline import inline_path
from phasegrad.video.recorders import Video
from phasegrad.video.recording import record_video

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from phasegrad.algorithms.base import Algorithm


class Verbs:
    """Each hands on to where it is done."""

    agent: Agent
    experience: Experience
    leash: Leash
    ranks: Ranks
    if not TYPE_CHECKING:
        __signature__ = ShownSignature()

    def __init_subclass__(cls, **how: Any) -> None:
        super().__init_subclass__(**how)
        name, about = getattr(cls, "name", ""), cls.__dict__.get("__doc__")
        if name and about:
            cls.__doc__ = documentation(name, about, cls.config_class)  # type: ignore[attr-defined]

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
        self.leash.require_policy()
        with self.ranks.in_step():
            train(cast(Trainer, self), total_steps, callback=callback, loggers=loggers, progress=progress)
        return self

    def clone(
        self,
        observations: Any,
        actions: Any = None,
        *,
        rewards: Any = None,
        terminated: Any = None,
        truncated: Any = None,
        masks: Any = None,
        **settings: Any,
    ) -> Cloning:
        """Fit the policy to a demonstrator's steps before it trains; training is then held to it (`leash`).

        `observations` and `actions` are [B, ...] as the environment gives and takes them, one step after another; or
        the first is the path of an .npz that holds them, or minari:ID. With `rewards`, and `terminated` and
        `truncated` to say where episodes end, the value function is fitted to the discounted returns too. `settings`:
        epochs, minibatch_size, learning_rate, held_out, patience, least_std.
        """
        return clone_from(
            cast("Algorithm", self), observations, actions, settings,
            rewards=rewards, terminated=terminated, truncated=truncated, masks=masks,
        )  # fmt: skip

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
        env: Any = None,
        env_options: Mapping[str, Any] | None = None,
        save_steps: str | Path | None = None,
    ) -> Evaluation:
        """Raw returns of whole episodes in fresh environments, with normalisers frozen.

        An episode that has not ended after `max_steps` is cut there and counts with the return it has; by default after
        10,000 where the environment has no time limit of its own. `env` is another environment of the same form to play
        in: an id or a function, with `env_options`, a gymnasium VectorEnv, or one gymnasium environment. `save_steps` is
        an .npz to write every step to, which another agent can be cloned from.
        """
        how: dict[str, Any] = {"deterministic": deterministic, "seed": seed, "levels": levels}
        played = self.agent
        if (env is not None and env is not played.source) or env_options is not None:
            played = elsewhere(played, played.source if env is None else env, env_options)
        if save_steps is not None:
            return evaluate_and_keep(played, episodes, as_path(save_steps), **how, max_steps=max_steps)
        return run_evaluation(played, episodes, **how, max_steps=max_steps)

    def set_env(self, env: Any, env_options: Mapping[str, Any] | None = None) -> None:
        """Train on in another environment with spaces of the same form: an id, a function or a VectorEnv, as at the start.

        Episodes begin anew there; recent returns and the run's evaluations so far are forgotten. The run directory
        remembers it. The options of the environment before stay among Atari games and among Procgen games.
        """
        moving.move(cast("Algorithm", self), env, env_options)

    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the weights and the normalisers' statistics, by their names in a checkpoint."""
        return parameters_of(self.agent)

    def load_parameters(self, given: Mapping[str, Any], strict: bool = True) -> LeftOut:
        """Take over weights and normalisers as `parameters` gives them, arrays or tensors; optimisers stay as they are.

        Each must have a place here, and each place one, unless `strict` is off: then what fits is loaded, and what was
        left out on either side is returned.
        """
        left_out = load_parameters(self.agent, given, strict)
        cast("Algorithm", self).run.unsaved = True
        return left_out

    def __copy__(self) -> Self:
        """An agent of its own, which goes on from the same place, without a run directory."""
        return cast(Self, copying.assembled(copying.parts_of(cast("Algorithm", self))))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, where it goes on from the same place, without a run directory."""
        parts = copying.parts_of(cast("Algorithm", self))
        copying.require_picklable(parts)
        return copying.assembled, (parts,)

    def record(self, path: str | Path | None = None, **options: Any) -> Video:
        """Film evaluation episodes as an mp4; `options` are those of `phasegrad.record_video`."""
        return record_video(cast(Trainer, self), path, **options)

    def video(self, path: str | Path | None = None, **options: Any) -> Video:
        """Film an episode to look at in a notebook: `record`, into a folder of this process where there is no run directory."""
        return record_video(cast(Trainer, self), inline_path(cast(Trainer, self), path), **options)

    @property
    def history(self) -> History:
        """The metrics of its training as numpy arrays by name, `agent.history["return_mean"]`, one entry an iteration.

        With a run directory all that its metrics.jsonl has up to the agent's step; without, what it has learnt in this
        process.
        """
        return history_of(cast(Trainer, self))

    def plot(self, *, title: str | None = None, smooth: float = 0.0) -> Figure:
        """Its learning curve, as `phasegrad plot` draws it: a matplotlib figure, which a notebook shows.

        `smooth` averages over so many environment steps.
        """
        return figure_of(cast("Algorithm", self), title, smooth)

    def __repr__(self) -> str:
        return as_text(cast("Algorithm", self))

    def _repr_html_(self) -> str:
        return as_html(cast("Algorithm", self))

    def __dir__(self) -> list[str]:
        return public_names(cast("Algorithm", self), object.__dir__(self))

    def save(self, path: str | Path, *, training: bool = True, episodes: int | None = None) -> None:
        """Write the agent with its card to a folder, or where `path` ends with .zip to one file, for `phasegrad.load`.

        It has all that continuing its training needs, unless `training` is off: then it is the agent alone, small enough
        to be mailed, whose training would begin with fresh optimisers. `episodes` are played greedily first, for the score
        on its card. A save that is there is replaced, and stays until the new one is on the disk; any other file is left
        alone.
        """
        saving.save(cast(Trainer, self), as_path(path), training=training, episodes=episodes)

    def close(self) -> None:
        """Free the environments; learning again makes new ones."""
        self.experience.close()
