"""Seeds for environments: one independent stream for each (run seed, leg, purpose, environment index).

Counting up from the run's seed would make neighbouring seeds share almost every environment, so seeds are spawned.
"""

from __future__ import annotations

import numpy as np

from phasegrad.errors import ConfigError

# The values enter the seeds: changing one changes every run.
_PURPOSES = {"train": 0, "eval": 1, "video": 2}


def env_seeds(seed: int, leg: int, num_envs: int, first_index: int = 0, *, purpose: str = "train") -> list[int]:
    """Seeds in [0, 2**31) of the environments `first_index` to `first_index + num_envs - 1`.

    An environment's seed depends on its own index only, so neither the number of environments nor the way they are
    divided among workers changes it. `leg` counts how often it was made anew.
    """
    if purpose not in _PURPOSES:
        raise ConfigError(f"Unknown purpose {purpose!r} of environment seeds; use one of {', '.join(_PURPOSES)}.")
    if min(seed, leg, first_index) < 0:
        raise ConfigError(
            f"Seeds, legs and indices must be 0 or more, got seed {seed}, leg {leg}, index {first_index}."
        )
    indices = range(first_index, first_index + num_envs)
    streams = (np.random.SeedSequence((seed, leg, _PURPOSES[purpose]), spawn_key=(index,)) for index in indices)
    return [int(stream.generate_state(1, np.uint64)[0] & 0x7FFFFFFF) for stream in streams]
