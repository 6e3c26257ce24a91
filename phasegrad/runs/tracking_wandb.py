"""One Weights & Biases run for one run directory. W&B sends in a process of its own, so training does not wait for it."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasegrad.errors import PhasegradWarning
from phasegrad.machine.terminals import as_it_writes
from phasegrad.runs.tracking import curves, flat, known_id, remember_id
from phasegrad.versions import __version__

SECONDS_TO_START = 30  # before the run is kept here, to be sent later


class Wandb:
    """`step` is its x axis, so that a resumed run may repeat steps."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        import wandb

        known = known_id(folder, "wandb")
        name = secrets.token_hex(8) if known is None else known
        given: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", "phasegrad"),
            "name": folder.resolve().name,
            "id": name,
            "resume": "allow",
            "dir": str(folder),
            "config": {**about, "phasegrad": __version__},
            "tags": [str(about[each])[:64] for each in ("algorithm", "env") if about.get(each)],
            "reinit": "create_new",  # a run that the user has begun in this process is left alone
        }
        settings = wandb.Settings(console="off", init_timeout=SECONDS_TO_START)  # the display is no log
        try:
            with as_it_writes():
                self.run = wandb.init(**given, settings=settings)
        except Exception as error:  # no account, no network: W&B has a type of error for each
            given |= {"mode": "offline", "resume": None, "settings": settings}
            try:
                self.run = wandb.init(**given)
            except Exception:  # it may hold on to the id of a run that it could not begin
                self.run = wandb.init(**given | {"id": secrets.token_hex(8)})
            sync = "wandb sync" if known is None else f"wandb sync --id {known}"
            warnings.warn(
                f"W&B cannot be reached ({' '.join(str(error).split())[:200]}): the run is kept in {folder / 'wandb'}, "
                f"from where `{sync}` sends it.",
                PhasegradWarning,
                stacklevel=2,
            )
        if known is None:
            remember_id(folder, "wandb", self.run.id)
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        self.is_over = False

    def write(self, metrics: Mapping[str, Any]) -> None:
        self.run.log({"step": metrics["step"], **curves(metrics)})

    def finish(self, result: Mapping[str, Any]) -> None:
        self.run.summary.update(flat(result))
        self.is_over = True

    def close(self) -> None:
        with as_it_writes():
            self.run.finish(exit_code=0 if self.is_over else 1)
