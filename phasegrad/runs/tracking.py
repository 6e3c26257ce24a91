"""The metrics sent on to Weights & Biases, under TensorBoard's names: an extra, asked for with --track wandb.

Where the numbers go and under which account is set as W&B's own tools have it (`wandb login`, WANDB_MODE=offline, WANDB_PROJECT).
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasegrad.errors import ConfigError
from phasegrad.runs.metrics import tag

ID_FILE = "wandb-id.txt"  # a resumed run goes on in the same W&B run


class Wandb:
    """One W&B run for one run directory; `step` is its x axis, so that a resumed run may repeat steps."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        self.run = require_wandb().init(
            project=os.environ.get("WANDB_PROJECT", "phasegrad"),
            name=name,
            id=run_id(folder),
            resume="allow",
            dir=str(folder),
            config=dict(config),
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def write(self, metrics: Mapping[str, Any]) -> None:
        numbers = {
            tag(name): value
            for name, value in metrics.items()
            if name != "step" and isinstance(value, (int, float)) and math.isfinite(value)
        }
        self.run.log({"step": metrics["step"], **numbers})

    def close(self) -> None:
        self.run.finish()


def require_wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise ConfigError(
            'track wandb needs the package wandb: pip install "phasegrad[track]", or leave --track out.'
        ) from None
    return wandb


def run_id(folder: Path) -> str:
    """The run directory's own W&B id, made once."""
    path = folder / ID_FILE
    if path.is_file():
        known = path.read_text(errors="replace")[:100].strip()
        if re.fullmatch(r"[a-z0-9]{4,64}", known):
            return known
    made = secrets.token_hex(8)
    path.write_text(made + "\n")
    return made
