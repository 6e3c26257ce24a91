"""Environments that do what no environment should, by id: `naughty:ACT-PLACE-v0` does ACT in PLACE: constructor, worker
(the constructor, in a worker process only), reset, step or close.

Imports nothing of the campaign: the commands under test import it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

AT = int(os.environ.get("NAUGHTY_AT", "40"))  # the step of its life on which an environment misbehaves


def _raise() -> None:
    raise ZeroDivisionError("by nothing")


def _shout() -> None:
    raise ValueError("\x1b]0;title\x07\x1b[31mred\x9b2J\r\nsecond line \u202e")


def _interrupt() -> None:
    raise KeyboardInterrupt


def _leave() -> None:
    raise SystemExit(3)


def _nameless() -> None:
    class Odd(BaseException):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raise Odd


def _hang() -> None:
    time.sleep(600)


def _die() -> None:
    os._exit(7)


def _crash() -> None:
    ctypes.string_at(0)


def _fork() -> None:
    """The child goes on as if it were the parent."""
    if not os.environ.get("NAUGHTY_FORKED"):
        os.environ["NAUGHTY_FORKED"] = "1"
        os.fork()


def _leave_a_child() -> None:
    if not os.environ.get("NAUGHTY_FORKED"):
        os.environ["NAUGHTY_FORKED"] = "1"
        if os.fork() == 0:
            time.sleep(4)
            os._exit(0)


def _move() -> None:
    os.chdir(os.environ["NAUGHTY_PLACE"])


def _mute() -> None:
    """Closes the standard streams."""
    for stream in (sys.stdin, sys.stdout):
        stream.close()


def _thread() -> None:
    threading.Thread(target=time.sleep, args=(1,), daemon=False).start()


def _recurse() -> None:
    _recurse()


ACTS: dict[str, Callable[[], None]] = {
    "raise": _raise, "shout": _shout, "interrupt": _interrupt, "leave": _leave, "nameless": _nameless, "hang": _hang,
    "die": _die, "crash": _crash, "fork": _fork, "child": _leave_a_child, "move": _move, "mute": _mute, "thread": _thread,
    "recurse": _recurse, "nothing": lambda: None,
}  # fmt: skip
PLACES = ("constructor", "worker", "reset", "step", "close")


class Naughty(gym.Env):
    def __init__(self, act: str, place: str, index: int = -1) -> None:
        self.observation_space = spaces.Box(-1e9, 1e9, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.act, self.place = act, place
        self.steps = 0
        self._perhaps("constructor")
        if multiprocessing.parent_process() is not None:
            self._perhaps("worker")

    def _perhaps(self, place: str) -> None:
        if place == self.place:
            ACTS[self.act]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self.steps >= AT - 10:  # the first reset is part of being checked
            self._perhaps("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == AT:
            self._perhaps("step")
        return np.array([self.steps % 7, int(action)], np.float32), 1.0, self.steps % 10 == 0, False, {}

    def close(self) -> None:
        if self.steps:  # one that was only looked at goes without trouble
            self._perhaps("close")


for _act in ACTS:
    for _place in PLACES:
        gym.register(f"{_act}-{_place}-v0", lambda act=_act, place=_place, **_: Naughty(act, place))
