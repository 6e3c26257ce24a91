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
        "DeepMind Control: WalkerWalk-v1 to 440 within 300k steps, CheetahRun-v1 to 560 within 1M",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "num_minibatches": 16, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10}, "ppg": SHORT_PHASES, "a2c": CONTINUOUS_A2C, "vpg": OFTEN},
    ),
    "metaworld": Preset(
        "MetaWorld: Reach-v3 to 3,000 within 80k steps",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "num_minibatches": 16, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10}, "ppg": SHORT_PHASES, "a2c": CONTINUOUS_A2C, "vpg": OFTEN},
    ),
    "myosuite": Preset(
        "MyoSuite: myoFingerReachFixed-v0 to 700 within 60k steps",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.95, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "num_minibatches": 16, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10}, "ppg": SHORT_PHASES, "a2c": CONTINUOUS_A2C, "vpg": OFTEN},
    ),
    "playground": Preset(
        "MuJoCo Playground: PandaPickCube-v1 to 430 within 80k steps",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.97, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "num_minibatches": 16, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 6}, "ppg": SHORT_PHASES, "a2c": CONTINUOUS_A2C, "vpg": OFTEN},
    ),
    "robotics": Preset(
        "gymnasium-robotics: FetchReachDense-v4 to -1 within 20k steps",
        {"num_envs": 16, "num_steps": 64, "gamma": 0.95, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "num_minibatches": 8, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 10}, "ppg": SHORT_PHASES, "a2c": CONTINUOUS_A2C, "vpg": OFTEN},
    ),
    "highway": Preset(
        "highway-env: HighwayFast-v0 to 21 within 40k steps",
        {"num_envs": 16, "num_steps": 64, "gamma": 0.9, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "entropy_coef": 0.01, "num_minibatches": 8, **ANNEALED},
        {"ppo": {"epochs": 8}, "ppg": SHORT_PHASES, "vpg": OFTEN},
    ),
    "jumanji": Preset(
        "Jumanji: Game2048-v1 to 2,600 within 150k steps",
        {"num_envs": 16, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 1e-3,
         "entropy_coef": 0.01, "num_minibatches": 8, **NORMALISED, **ANNEALED},
        {"ppo": {"epochs": 6}, "ppg": SHORT_PHASES, "vpg": OFTEN},
    ),
    "vizdoom": Preset(
        "ViZDoom: combinations of buttons as one choice, sizes as for Atari; not measured",
        {"env_options": {"use_combined_action": True}, "num_envs": 8, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95,
         "learning_rate": 5e-4, "entropy_coef": 0.01, "num_minibatches": 4, "value_coef": 1.0, "normalize_reward": True,
         **ANNEALED},
        {"ppo": {"epochs": 3},
         "ppg": {"arch": "detach", "n_pi": 8, "e_pi": 2, "e_v": 2, "e_aux": 3, "aux_learning_rate": 5e-4}},
    ),
}  # fmt: skip
