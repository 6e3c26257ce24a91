"""The table of action spaces by algorithm on docs/actions.md says what the code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import phasegrad as pg

PAGE = Path(__file__).parents[1] / "docs" / "actions.md"
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
SPACES: dict[str, list[gym.Space]] = {
    "`Discrete`": [gym.spaces.Discrete(3)],
    "`MultiDiscrete`": [gym.spaces.MultiDiscrete([2, 3])],
    "`MultiBinary`": [gym.spaces.MultiBinary(3)],
    "`Box` of floats": [BOX],
    "`Box` of integers": [gym.spaces.Box(-1, 1, (2,), np.int8)],
    "`Dict` and `Tuple` of those": [
        gym.spaces.Dict({"what": gym.spaces.Discrete(3), "how": BOX}),
        gym.spaces.Tuple((gym.spaces.Discrete(3), BOX)),
    ],
}
SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "hidden_sizes": (8,), "compile": "off", "preset": "none"}


class Still(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, space: gym.Space) -> None:
        self.action_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        return np.zeros(2, np.float32), 0.0, False, False, {}


def table() -> dict[str, dict[str, str]]:
    """What the page says, by space and algorithm."""
    rows = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    header = next(row for row in rows if row[0] == "action space")
    return {row[0]: dict(zip(header[2:], row[2:])) for row in rows if row[0] in SPACES and len(row) == len(header)}


def test_the_table_has_every_space_and_algorithm() -> None:
    found = table()
    assert found.keys() == SPACES.keys()
    assert all(row.keys() == {"PPO", "PPG", "A2C", "VPG", "TRPO", "ACER"} for row in found.values())


@pytest.mark.parametrize("algorithm", ["PPO", "PPG", "A2C", "VPG", "TRPO", "ACER"])
def test_the_table_says_what_the_code_does(algorithm: str) -> None:
    more = {"num_minibatches": 2} if algorithm in ("PPO", "PPG", "TRPO") else {}
    for name, spaces in SPACES.items():
        for space in spaces:
            works = "yes"
            try:
                agent = getattr(pg, algorithm)(lambda space=space: Still(space), **SMALL, **more)
                agent.learn(16)
                agent.close()
            except pg.EnvError as error:
                works = "no" if "action space" in str(error) else str(error)
            assert table()[name][algorithm] == works, (name, algorithm)
