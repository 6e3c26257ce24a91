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
    from phasegrad.export.c import export_c
    from phasegrad.export.onnx import export_onnx
    from phasegrad.runs.callbacks import Callback, SaveBest, StopAtScore, StopWithoutImprovement, TimeLimit
    from phasegrad.video.recording import record_video

LAZY = dict.fromkeys(("A2C", "ACER", "PPG", "PPO", "TRPO", "VPG", "Algorithm", "register"), "phasegrad.algorithms") | {
    **dict.fromkeys(
        ("Callback", "SaveBest", "StopAtScore", "StopWithoutImprovement", "TimeLimit"), "phasegrad.runs.callbacks"
    ),
    "load": "phasegrad.algorithms.loading",
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
    "record_video",
    "register",
    "register_distribution",
    "register_encoder",
]


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(importlib.import_module(LAZY[name]), name)
    raise AttributeError(f"module 'phasegrad' has no attribute {name!r}")
