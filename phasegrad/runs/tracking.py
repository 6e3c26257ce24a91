"""The trackers that the setting `track` names: which there are, what each needs, and the ids by which a resumed run goes on.

TensorBoard's files are a part of every run directory. Where the others send the numbers, and under which account, is set
as their own tools have it. Needs no torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phasegrad.errors import ConfigError
from phasegrad.runs.below import read_start
from phasegrad.runs.files import read_json_object, write_json
from phasegrad.runs.metrics import tag

ID_FILE = "tracking.json"  # by which a resumed run goes on in the same runs of the trackers
OLD_ID_FILE = "wandb-id.txt"  # of earlier versions
PACKAGES = {"wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}  # mlflow's local store needs the two
TOKEN = "token"  # there too: by which the user who began it is known (sending.py)
AN_ID = re.compile(r"[A-Za-z0-9_-]{4,64}")


def trackers_in(track: str) -> list[str]:
    """Of those that a setting names, the ones that are started apart."""
    return [name for name in track.split(",") if name in PACKAGES]


def require_packages(track: str) -> None:
    """Refuse a tracker whose package is not installed."""
    for name in trackers_in(track):
        for package in PACKAGES[name]:
            if not is_installed(package):
                raise ConfigError(
                    f'track {name} needs the package {package}: pip install "phasegrad[track]", or leave --track out.'
                )


def is_installed(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None
    return importlib.util.find_spec(package) is not None


def starter(name: str, folder: Path, about: Mapping[str, Any]) -> Callable[[], Any]:
    """What begins with a tracker for a run directory; `about` is the run's config with its algorithm."""

    def start() -> Any:
        if name == "wandb":
            from phasegrad.runs.tracking_wandb import Wandb

            return Wandb(folder, about)
        from phasegrad.runs.tracking_mlflow import Mlflow

        return Mlflow(folder, about)

    return start


def known_id(folder: Path, name: str) -> str | None:
    """The id that the run directory has with a tracker; what is not one counts for nothing."""
    known = read_json_object(folder / ID_FILE).get(name)
    if known is None and name == "wandb":
        with contextlib.suppress(OSError):
            known = read_start(folder / OLD_ID_FILE, 100).decode(errors="replace").strip()
    return known if isinstance(known, str) and AN_ID.fullmatch(known) else None


def remember_id(folder: Path, name: str, made: str) -> None:
    found = read_json_object(folder / ID_FILE)
    others = {each: found[each] for each in (*PACKAGES, TOKEN) if each in found and each != name}
    write_json(folder / ID_FILE, {**others, name: made})


def curves(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, by TensorBoard's names."""
    return {
        tag(name): value
        for name, value in metrics.items()
        if name != "step" and isinstance(value, (int, float)) and math.isfinite(value)
    }


def flat(result: Mapping[str, Any], prefix: str = "result") -> dict[str, Any]:
    """A result without the levels within it: result/status, result/eval/return_mean."""
    found: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}/{name}")
        elif value is not None:
            found[f"{prefix}/{name}"] = value
    return found
