"""Environments that do what no environment should, for the tests of error paths."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import locale
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

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


# Ends: what an environment raises, or how its process dies, by where it does so

HOW: dict[str, Callable[[], Any]] = {}


def _named(function: Callable[[], Any]) -> Callable[[], Any]:
    HOW[function.__name__] = function
    return function


@_named
def interrupt() -> None:
    raise KeyboardInterrupt


@_named
def leave() -> None:
    sys.exit(3)


@_named
def cancel() -> None:
    raise asyncio.CancelledError("cancelled")


@_named
def vanish() -> None:
    os._exit(7)


@_named
def crash() -> None:
    faulthandler.disable()  # pytest's would write pages
    os.kill(os.getpid(), signal.SIGSEGV)


@_named
def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@_named
def hang() -> None:
    time.sleep(60)


@_named
def fail() -> None:
    raise ValueError("on two\nlines.")


def in_worker() -> bool:
    return multiprocessing.parent_process() is not None


class Ending(Misbehaving):
    """Does `how` in its `where` (init, reset, step, render, close), there where `only` is None or the environment has
    that seed's place: the second worker is the one whose file comes second."""

    at = 40
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(
        self, where: str = "step", how: str = "fail", folder: str = "", render_mode: str | None = None
    ) -> None:
        super().__init__()
        self.where, self.how, self.render_mode = where, how, render_mode
        if where == "init" and (not folder or self._is_second_worker(folder)):
            HOW[how]()

    @staticmethod
    def _is_second_worker(folder: str) -> bool:
        """Whether this is made in the second of the worker processes to come here."""
        if not in_worker():
            return False
        for count in range(2):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(f"{folder}/{count}", os.O_CREAT | os.O_EXCL))
                return count == 1
        return False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.where == "reset" and self.steps >= self.at:
            HOW[self.how]()
        if self.where == "first reset":
            HOW[self.how]()
        return super().reset(seed=seed, options=options)

    def misbehave(self, observation: Any) -> Any:
        if self.where == "step":
            HOW[self.how]()
        return observation, 1.0, self.where == "reset", False, {}

    def render(self) -> Any:
        if self.where == "render":
            HOW[self.how]()
        return np.zeros((8, 8, 3), np.uint8)

    def close(self) -> None:
        if self.where == "close" or (self.where == "worker's close" and in_worker()):
            HOW[self.how]()


# What an environment does to the process that it lives in, on its step 40


class Meddling(Misbehaving):
    """Does something to its process that it should leave alone, and goes on."""

    def misbehave(self, observation: Any) -> Any:
        self.meddle()
        return observation, 1.0, False, False, {}

    def meddle(self) -> None:
        raise NotImplementedError


class Forking(Meddling):
    def meddle(self) -> None:
        os.fork()  # and both go on


class Moving(Meddling):
    def meddle(self) -> None:
        os.chdir("/")


class Handling(Meddling):
    def meddle(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)


class Masking(Meddling):
    def meddle(self) -> None:
        os.umask(0o777 if os.getuid() == 0 else 0o077)  # a user could not read what he then writes; root can


class Localising(Meddling):
    def meddle(self) -> None:
        locale.setlocale(locale.LC_ALL, "C")
        os.environ["OMP_NUM_THREADS"] = "7"


class Seeding(Meddling):
    def meddle(self) -> None:
        np.random.seed(0)
        random.seed(0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        np.random.seed(self.steps)
        random.seed(self.steps)
        return super().step(action)


class Closing(Meddling):
    def meddle(self) -> None:
        for descriptor in range(3):
            with contextlib.suppress(OSError):  # the other environment has
                os.close(descriptor)


class Printing(Misbehaving):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        print("x" * 1000, flush=True)
        return super().step(action)

    def misbehave(self, observation: Any) -> Any:
        return observation, 1.0, False, False, {}


class Threading(Meddling):
    def meddle(self) -> None:
        threading.Thread(target=time.sleep, args=(600,), name="forgotten").start()


class Quiet(Misbehaving):
    """Does nothing wrong; each step takes a little."""

    seconds = 0.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds)
        return super().step(action)

    def misbehave(self, observation: Any) -> Any:
        return observation, 1.0, False, False, {}


class Slow(Quiet):
    seconds = 0.005


class Unwilling(Slow):
    """Hangs when it is closed."""

    def close(self) -> None:
        time.sleep(600)


for _name in ("Forking", "Moving", "Handling", "Masking", "Localising", "Seeding", "Closing", "Printing", "Threading",
              "Quiet", "Slow", "Unwilling", "Ending"):  # fmt: skip
    gym.register(f"{_name}-v0", entry_point=f"misbehaving_envs:{_name}")
