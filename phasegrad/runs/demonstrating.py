"""The steps of evaluation episodes as an .npz, in the environment's own numbers: what a policy can be cloned from.

Its arrays are those that data/demonstrations.py reads, an episode after the other, with each one's return.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from phasegrad import envs
from phasegrad.agent import Agent
from phasegrad.data.demonstrations import STEPS_FILE
from phasegrad.errors import ConfigError
from phasegrad.runs.below import named_output
from phasegrad.runs.evaluation import Evaluation, Moment, Spectator, run_evaluation
from phasegrad.runs.files import replacing_file, writing


class StepsKept(Spectator):
    """Keeps every step of the episodes that count."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.actions = agent, envs.ActionAdapter(agent.spaces.original_action)
        if self.actions.nested:
            raise ConfigError(
                f"The steps of an environment whose actions have several parts, {self.actions.original}, cannot be kept: "
                "nothing could be cloned from them."
            )
        self.running: dict[int, list[dict[str, Any]]] = {}  # steps of each environment's episode
        self.episodes: list[list[dict[str, Any]]] = []
        self._latest: dict[int, dict[str, Any]] = {}

    def before(self, playing: np.ndarray) -> None:
        self._cut(np.flatnonzero(playing < 0).tolist())

    def acting(self, moment: Moment) -> None:
        taken = self.actions.to_environment(moment.actions, len(moment.actions))
        leaves = {leaf.name: leaf for leaf in self.agent.observing.leaves}
        flat = moment.observation if isinstance(moment.observation, dict) else {"": moment.observation}
        own = {
            f"observations.{name}" if name else "observations": leaves[name].restore(array)
            for name, array in flat.items()
        }
        rows = own | {"actions": taken} | ({} if moment.mask is None else {"masks": moment.mask})
        self._latest = {env: {name: array[env].copy() for name, array in rows.items()} for env in range(len(taken))}

    def after(self, step: envs.Step, playing: np.ndarray) -> bool:
        for env in np.flatnonzero(playing >= 0).tolist():
            ends = {"terminated": bool(step.terminated[env]), "truncated": bool(step.truncated[env])}
            self.running.setdefault(env, []).append(self._latest[env] | {"rewards": float(step.reward[env])} | ends)
            if any(episode.env == env for episode in step.episodes):
                self.episodes.append(self.running.pop(env))
        return True

    def _cut(self, environments: list[int]) -> None:
        """Episodes that were ended at the most steps allowed."""
        for env in environments:
            if env in self.running:
                self.running[env][-1]["truncated"] = True
                self.episodes.append(self.running.pop(env))

    def write(self, path: Path) -> int:
        """Write what was kept; the number of steps."""
        self._cut(list(self.running))
        steps = [step for episode in self.episodes for step in episode]
        arrays = {name: np.stack([np.asarray(step[name]) for step in steps]) for name in steps[0]}
        returns = np.array([sum(step["rewards"] for step in episode) for episode in self.episodes])
        with writing(path, "try again"), replacing_file(path) as temporary, open(temporary, "xb") as file:
            np.savez_compressed(file, allow_pickle=False, returns=returns, **arrays)
        return len(steps)


def evaluate_and_keep(agent: Agent, episodes: int, path: Path, **how: Any) -> Evaluation:
    """An evaluation whose every step is written to `path`."""
    if path.suffix != STEPS_FILE:
        raise ConfigError(f"save_steps writes an {STEPS_FILE} file, not {path.name}: give it that ending.")
    if not path.parent.is_dir():
        raise ConfigError(f"save_steps writes a file into a folder that exists, which {path.parent} does not.")
    path = named_output(path, "save_steps")
    kept = StepsKept(agent)
    result = run_evaluation(agent, episodes, **how, spectator=kept)
    kept.write(path)
    return result
