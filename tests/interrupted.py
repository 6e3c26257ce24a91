"""A run's folder as a kill in the middle would leave it, resumed and compared with the run that was never stopped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

import phasegrad as pg
from phasegrad.runs.stopping import Stopped


class Killed(Exception, Stopped):
    """Raised by a callback in place of a SIGKILL: nothing is saved any more, as when a second signal ends a run at once."""


def resumed_to_the_same_bits(agent: Any, total: int, killed_at: int, env: Any = None, **given: Any) -> Any:
    """Train `agent` to the end and, from a copy of its run directory made at a step, another one, which must end alike."""
    whole = Path(agent.run.run_dir)
    killed = whole.with_name("killed")

    def copy(row: dict[str, Any]) -> None:
        if row["step"] >= killed_at and not killed.exists():  # that step's checkpoint is not written yet
            shutil.copytree(whole, killed)

    agent.learn(total, callback=copy)
    resumed = pg.load(killed, env=env, **given)
    assert 0 < resumed.progress.step < agent.progress.step
    resumed.learn()
    mine, theirs = agent.tensors(), resumed.tensors()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
    assert resumed.progress == agent.progress
    return resumed
