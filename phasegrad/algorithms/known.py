"""The algorithms by name before any of them is imported: what each is, in a line, and its settings. Needs no torch."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from phasegrad.config import Config

ABOUT = {
    "ppo": "Proximal Policy Optimization: clipped steps, in epochs",
    "ppg": "Phasic Policy Gradient: PPO with an auxiliary phase",
    "a2c": "Advantage Actor-Critic: one step on each short rollout",
    "vpg": "vanilla policy gradient: one step on the policy, many on the value",
    "trpo": "Trust Region Policy Optimization: steps of bounded KL",
    "acer": "Actor-Critic with Experience Replay: for discrete actions",
}


def registered() -> dict[str, Any]:
    """The algorithms that can be trained with, by name; none while nothing has asked for one."""
    library: Any = sys.modules.get("phasegrad.algorithms.builtin")
    return dict(library.ALGORITHMS) if library else {}


def algorithm_names() -> tuple[str, ...]:
    """What can be trained with: the registered algorithms, or those of this package while nothing has imported them."""
    return tuple(registered()) or tuple(ABOUT)


def about(name: str) -> str:
    """An algorithm in a line."""
    found = registered().get(name)
    return ABOUT[name] if name in ABOUT else (found.__doc__ or name).strip().splitlines()[0].rstrip(".")


def settings_of(name: str) -> type[Config]:
    """The config class of an algorithm; that of one of this package lies in a module that imports no torch."""
    found = registered().get(name)
    if found is not None:
        return found.config_class
    return getattr(importlib.import_module(f"phasegrad.algorithms.{name}_settings"), f"{name.upper()}Config")
