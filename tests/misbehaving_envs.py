"""Environments that do what no environment should, for the tests of error paths."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Misbehaving(gym.Env):
    """Counts its steps; on step `at` of its life it does what its class is named after."""

    at = 40

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1e9, 1e9, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = 0
        self.value = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.value = float(self.np_random.uniform())
        return np.array([self.value, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        observation = np.array([self.value, self.steps], np.float32)
        if self.steps == self.at:
            return self.misbehave(observation)
        return observation, 1.0, self.steps % 10 == 0, False, {}

    def misbehave(self, observation: Any) -> Any:
        raise NotImplementedError


class Raising(Misbehaving):
    def misbehave(self, observation: Any) -> Any:
        raise ZeroDivisionError("by nothing")


class Hanging(Misbehaving):
    def misbehave(self, observation: Any) -> Any:
        with contextlib.suppress(Exception):  # as careless environments do
            time.sleep(60)
        return observation, 1.0, False, False, {}


class WrongShape(Misbehaving):
    def misbehave(self, observation: Any) -> Any:
        return np.zeros(3, np.float32), 1.0, False, False, {}


class WrongDtype(Misbehaving):
    def misbehave(self, observation: Any) -> Any:
        return np.array(["a", "b"]), 1.0, False, False, {}


class WrongReward(Misbehaving):
    def misbehave(self, observation: Any) -> Any:
        return observation, "much", False, False, {}


class NanReward(Misbehaving):
    def misbehave(self, observation: Any) -> Any:
        return observation, float("nan"), False, False, {}


class InfiniteObservation(Misbehaving):
    def misbehave(self, observation: Any) -> Any:
        return np.array([np.inf, 0], np.float32), 1.0, False, False, {}


class ChangedSpaces(Misbehaving):
    def misbehave(self, observation: Any) -> Any:
        self.action_space = spaces.Discrete(3)
        return observation, 1.0, True, False, {}


class Dying(Misbehaving):
    def misbehave(self, observation: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Collecting(Misbehaving):
    """Has Python's garbage collected, as any environment may at any moment."""

    at = 3

    def misbehave(self, observation: Any) -> Any:
        gc.collect()
        return observation, 1.0, False, False, {}
