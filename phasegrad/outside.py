"""Algorithms registered from outside this package, and how the processes that this one starts get to know them.

A run of a study and a task of a cluster are processes of their own. They are told where such an algorithm is, as
NAME=MODULE:CLASS, and register it before anything asks for its name. Imports nothing heavy.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from phasegrad.errors import ConfigError

VARIABLE = "PHASEGRAD_ALGORITHMS"  # of the environment: such entries, with commas between them


def is_outside(algorithm: type) -> bool:
    return algorithm.__module__.partition(".")[0] != "phasegrad"


def registered_outside() -> list[str]:
    """NAME=MODULE:CLASS of every algorithm that another process could not know; one of a main script cannot be told."""
    library: Any = sys.modules.get("phasegrad.algorithms.builtin")  # where it is not imported, nothing is registered
    return [
        f"{name}={algorithm.__module__}:{algorithm.__qualname__}"
        for name, algorithm in (library.ALGORITHMS.items() if library else ())
        if is_outside(algorithm) and algorithm.__module__ != "__main__"
    ]


def require_importable(name: str, algorithm: type) -> None:
    """Refuse an algorithm that a process of its own could not be told of."""
    if algorithm.__module__ == "__main__":
        raise ConfigError(
            f"Algorithm {name} is defined in the main script, which the processes of its runs cannot import: move it to a "
            "module."
        )


def told_to_children() -> dict[str, str]:
    """What the environment of a process that we start needs."""
    entries = registered_outside()
    return {VARIABLE: ",".join(entries)} if entries else {}


def register_told() -> None:
    """In such a process: register what the environment names."""
    register_entries(entry for entry in os.environ.get(VARIABLE, "").split(",") if entry)


def register_entries(entries: Iterable[str]) -> None:
    for entry in entries:
        name, _, place = entry.partition("=")
        module, _, kind = place.partition(":")
        from phasegrad.algorithms import ALGORITHMS, register

        if name in ALGORITHMS:
            continue
        try:
            register(getattr(importlib.import_module(module), kind))
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"{VARIABLE}: {entry} cannot be imported ({error}).") from None
