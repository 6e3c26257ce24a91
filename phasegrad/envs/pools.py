"""Environments of several envpools stepped as one: while some are being made anew, or wait to be played back.

envpool seeds all environments of a pool when it makes the pool, so an environment that is made anew moves to another.
Every pool has room for all of them; each is used for those that live there.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Homes:
    """Which pool each of `num_envs` environments lives in, and which are to move when their episode ends."""

    def __init__(
        self, pool: Any, num_envs: int, still: list[np.ndarray] | None = None, waits: np.ndarray | None = None
    ) -> None:
        """All live in `pool`. Environment i answers with its row of `still` until it was to be stepped `waits[i]` times."""
        self.pools: list[Any] = [pool]
        self.home = np.zeros(num_envs, np.int64)  # [N] which of the pools
        self.still, self.waits = still, None if waits is None else waits.copy()
        self.to_move = np.zeros(num_envs, bool)
        self.seeds: list[int] = []  # on which those that move begin

    @property
    def only(self) -> Any | None:
        """The one pool that all live in, where none is to move or to wait."""
        alone = len(self.pools) == 1 and not self.to_move.any() and self.waits is None
        return self.pools[0] if alone else None

    def prepare(self, pool: Any, seeds: list[int], chosen: np.ndarray) -> None:
        """The `chosen` environments are to move to `pool`, which was made on `seeds`."""
        self.pools.append(pool)
        self.seeds, self.to_move = seeds, chosen.copy()

    def to_renew(self, over: np.ndarray) -> list[int]:
        """Those of the environments whose episode is over that are to move."""
        return over[self.to_move[over]].tolist()

    def move(self, ids: np.ndarray) -> list[np.ndarray]:
        """Begin environments in the pool made last; their first state."""
        newest = len(self.pools) - 1
        self.pools[newest]._reset(ids)
        state: list[np.ndarray] = self.pools[newest]._recv()
        self.home[ids], self.to_move[ids] = newest, False
        for index in reversed(range(newest)):
            if not (self.home == index).any():
                self.pools.pop(index).close()
                self.home[self.home > index] -= 1
        return state

    def exchange(self, ids: np.ndarray, actions: np.ndarray) -> list[np.ndarray]:
        """Step the environments `ids`, each in its own pool; their states, in that order."""
        states: list[tuple[np.ndarray, list[np.ndarray]]] = []
        awake = np.ones(len(ids), bool)
        if self.waits is not None and self.still is not None:
            awake = self.waits[ids] == 0
            self.waits[ids[~awake]] -= 1
            if not awake.all():
                states.append((~awake, [array[ids[~awake]] for array in self.still]))
        parts = [(awake & (self.home[ids] == number), pool) for number, pool in enumerate(self.pools)]
        parts = [(chosen, pool) for chosen, pool in parts if chosen.any()]
        for chosen, pool in parts:
            pool._send([ids[chosen], ids[chosen], actions[chosen]])
        states += [(chosen, pool._recv()) for chosen, pool in parts]
        if self.waits is not None and not self.waits.any():
            self.waits = self.still = None
        return merged(states, len(ids))

    def close(self) -> None:
        for pool in self.pools:
            pool.close()


def merged(states: list[tuple[np.ndarray, list[np.ndarray]]], count: int) -> list[np.ndarray]:
    """One state of `count` rows from those of parts, each with the places [count] of its rows."""
    if len(states) == 1:
        return states[0][1]
    result = [np.empty((count, *array.shape[1:]), array.dtype) for array in states[0][1]]
    for places, state in states:
        for joined, array in zip(result, state, strict=True):
            joined[places] = array
    return result
