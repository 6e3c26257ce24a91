"""Environments that only a policy that remembers can solve, with what one without a memory gets in them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces

Answer = tuple[int, float, bool, bool, dict[str, Any]]


class RecallEnv(gym.Env):
    """Shows a random symbol on every step and pays 1 for the action that names the one of `delay` steps ago.

    The symbols are independent and equally likely, so what is shown says nothing of the one asked for: whatever a policy
    without a memory does, each of the `length` - `delay` steps that count pays 1 / `symbols` in the mean, neither more
    nor less.
    """

    def __init__(self, symbols: int = 3, delay: int = 1, length: int = 16) -> None:
        self.symbols, self.delay, self.length = symbols, delay, length
        self.observation_space = spaces.Discrete(symbols)
        self.action_space = spaces.Discrete(symbols)
        self.best = float(length - delay)
        self.chance = self.best / symbols

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown = self.np_random.integers(self.symbols, size=self.length + 1).tolist()
        self.steps = 0
        return self.shown[0], {}

    def step(self, action: int) -> Answer:
        right = self.steps >= self.delay and action == self.shown[self.steps - self.delay]
        self.steps += 1
        return self.shown[self.steps], float(right), self.steps == self.length, False, {}


class CueEnv(gym.Env):
    """Shows a cue on the first step, then nothing, and pays 1 for naming the cue on the last of `length` steps.

    What is shown on the last step is the same for all cues, which are equally likely: whatever a policy without a memory
    does there, it is right in 1 / `cues` of the episodes, neither more nor less.
    """

    best = 1.0

    def __init__(self, cues: int = 3, length: int = 6) -> None:
        self.cues, self.length = cues, length
        self.observation_space = spaces.Discrete(cues + 2)  # a cue, nothing, the question
        self.action_space = spaces.Discrete(cues)
        self.chance = 1 / cues

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.steps = int(self.np_random.integers(self.cues)), 0
        return self.cue, {}

    def step(self, action: int) -> Answer:
        self.steps += 1
        ended = self.steps == self.length
        asked = self.steps == self.length - 1
        return self.cues + int(asked), float(ended and action == self.cue), ended, False, {}
