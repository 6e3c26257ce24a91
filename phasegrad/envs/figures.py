"""Figures to read a score by: what random actions get, what counts as solved, what counts as 0 and 1. Each has its source.

Nothing is made or imported here for an environment's sake: an id that nobody has registered has no figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

RANDOM_FROM = "uniformly random actions, measured with phasegrad"
# Mean returns of whole episodes, 1000 of them (100 of HalfCheetah and Swimmer), by studies/random_policy.py.
RANDOM_RETURNS = {
    "CartPole-v1": 22.1, "Acrobot-v1": -499.0, "MountainCar-v0": -200.0, "MountainCarContinuous-v0": -33.1,
    "Pendulum-v1": -1237.0, "LunarLander-v3": -182.5, "BipedalWalker-v3": -100.1, "HalfCheetah-v5": -304.3,
    "Hopper-v5": 17.9, "InvertedDoublePendulum-v5": 47.2, "InvertedPendulum-v5": 4.95, "Reacher-v5": -42.8,
    "Swimmer-v5": 0.6, "Walker2d-v5": 1.5, "Ant-v5": -54.6, "Humanoid-v5": 114.9,
}  # fmt: skip

SOLVED_FROM = "gymnasium's reward_threshold"

PROCGEN_FROM = "the Procgen authors' released code"
# Scores that count as 0 and 1: (hard, easy).
PROCGEN_SCALES = {
    "coinrun": ((5, 10), (5, 10)), "starpilot": ((1.5, 35), (2.5, 64)), "caveflyer": ((2, 13.4), (3.5, 12)),
    "dodgeball": ((1.5, 19), (1.5, 19)), "fruitbot": ((-0.5, 27.2), (-1.5, 32.4)), "chaser": ((0.5, 14.2), (0.5, 13)),
    "miner": ((1.5, 20), (1.5, 13)), "jumper": ((1, 10), (1, 10)), "leaper": ((1.5, 10), (1.5, 10)),
    "maze": ((4, 10), (5, 10)), "bigfish": ((0, 40), (1, 40)), "heist": ((2, 10), (3.5, 10)),
    "climber": ((1, 12.6), (2, 12.6)), "plunder": ((3, 30), (4.5, 30)), "ninja": ((2, 10), (3.5, 10)),
    "bossfight": ((0.5, 13), (0.5, 13)),
}  # fmt: skip


def procgen_scale(env_id: str, options: Mapping[str, Any]) -> tuple[float, float] | None:
    """The scores that count as 0 and 1 in a Procgen game of the difficulty in `options`."""
    game = env_id.lower().removeprefix("procgen/")
    distribution = options.get("distribution", "easy")
    if game not in PROCGEN_SCALES or not env_id.lower().startswith("procgen/") or distribution not in ("hard", "easy"):
        return None
    low, high = PROCGEN_SCALES[game][("hard", "easy").index(distribution)]
    return float(low), float(high)


def random_figure(env_id: str, options: Mapping[str, Any]) -> float | None:
    """What random actions score, where it was measured; options may change the rewards, so with them it is not known."""
    return None if options else RANDOM_RETURNS.get(env_id)


def solved_at(env_id: str, options: Mapping[str, Any]) -> float | None:
    """The reward threshold that gymnasium's registry has for this id, as it is without importing anything for it."""
    spec = None if options else gym.registry.get(env_id)
    threshold = getattr(spec, "reward_threshold", None)
    return float(threshold) if isinstance(threshold, (int, float)) and not isinstance(threshold, bool) else None
