"""Presets of the families that envpool brings beside Gym's: robots, roads, puzzles and games.

Chosen for PPO on seeds 11 to 14 and measured on others (docs/environments.md has the scores); PPG shares the sizes and has
phases in proportion, unmeasured.
"""

from __future__ import annotations

from phasegrad.presets.preset import ANNEALED, CONTINUOUS_A2C, NORMALISED, OFTEN, Preset

SHORT_PHASES = {
    "n_pi": 8, "e_pi": 6, "e_v": 6, "e_aux": 2, "aux_minibatches": 32, "aux_learning_rate": 1e-3,
}  # fmt: skip

SIMULATORS: dict[str, Preset] = {
    "dmc": Preset(
        "DeepMind Control: CartpoleSwingup-v1, WalkerWalk-v1, CheetahRun-v1 beyond CleanRL's PPO",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "num_minibatches": 16, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10}, "ppg": SHORT_PHASES, "a2c": CONTINUOUS_A2C, "vpg": OFTEN},
    ),
}  # fmt: skip
