"""phasegrad: on-policy reinforcement learning in phases.

    import phasegrad as pg

    agent = pg.PPO("CartPole-v1", seed=1)
    agent.learn(100_000)
    print(agent.evaluate(episodes=20).return_mean)

Names are imported when first used, so that `import phasegrad` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phasegrad.errors import ConfigError, EnvError, NonFiniteError, PhasegradError, RunError
from phasegrad.versions import __version__

if TYPE_CHECKING:
    from phasegrad.algorithms import A2C, ACER, PPG, PPO, TRPO, VPG, Algorithm, register
    from phasegrad.algorithms.loading import load
    from phasegrad.distributions import Distribution, register_distribution
    from phasegrad.export.c import export_c
    from phasegrad.export.onnx import export_onnx
    from phasegrad.models import register_encoder
    from phasegrad.report.figure import plot
    from phasegrad.runs.callbacks import Callback, SaveBest, StopAtScore, StopWithoutImprovement, TimeLimit
    from phasegrad.runs.record import read_run
    from phasegrad.video.recording import record_video

LAZY = dict.fromkeys(("A2C", "ACER", "PPG", "PPO", "TRPO", "VPG", "Algorithm", "register"), "phasegrad.algorithms") | {
    **dict.fromkeys(
        ("Callback", "SaveBest", "StopAtScore", "StopWithoutImprovement", "TimeLimit"), "phasegrad.runs.callbacks"
    ),
    "load": "phasegrad.algorithms.loading",
    "plot": "phasegrad.report.figure",
    "read_run": "phasegrad.runs.record",
    "record_video": "phasegrad.video.recording",
    "export_c": "phasegrad.export",
    "export_onnx": "phasegrad.export",
    "Distribution": "phasegrad.distributions",
    "register_distribution": "phasegrad.distributions",
    "register_encoder": "phasegrad.models",
}

__all__ = [
    "A2C",
    "ACER",
    "PPG",
    "PPO",
    "TRPO",
    "VPG",
    "Algorithm",
    "Callback",
    "ConfigError",
    "Distribution",
    "EnvError",
    "NonFiniteError",
    "PhasegradError",
    "RunError",
    "SaveBest",
    "StopAtScore",
    "StopWithoutImprovement",
    "TimeLimit",
    "__version__",
    "export_c",
    "export_onnx",
    "load",
    "plot",
    "read_run",
    "record_video",
    "register",
    "register_distribution",
    "register_encoder",
]


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(importlib.import_module(LAZY[name]), name)
    raise AttributeError(f"module 'phasegrad' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What the package offers, whether it was imported yet or not."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
