"""Turn supported spaces and their batches into the flat form of the contract, and actions back into the environment's.

Knows spaces and arrays only: no environments, no backends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from phasegrad.envs.contract import Observation
from phasegrad.errors import EnvError

ACTION_MASK = "action_mask"
_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of those"


@dataclass(slots=True, frozen=True)
class Leaf:
    """One array of an observation: where it sits in the nested original and what it becomes."""

    name: str
    path: tuple[str | int, ...]
    original: gym.Space
    space: gym.Space
    shape: tuple[int, ...]  # as the environment gives it
    start: np.ndarray | int | None  # subtracted, so that Discrete and MultiDiscrete count from 0

    def convert(self, batch: Any) -> np.ndarray:
        """A batch [B, ...] of this leaf in the dtype and shape of `space`; copies only where something changes."""
        array = np.asarray(batch)
        if self.start is not None:
            array = array.astype(np.int64) - self.start
        array = array.astype(self.space.dtype, copy=False)
        shape = self.space.shape or ()
        return array if array.shape[1:] == shape else array.reshape(array.shape[0], *shape)


def flatten(space: gym.Space) -> gym.Space:
    """The space an agent sees: plain, or for Dict and Tuple a Dict without nesting and without the action mask."""
    return ObservationAdapter(space).space


def flatten_observation(batch: Any, space: gym.Space | None = None) -> Observation:
    """Nested observations in the form of `flatten(space)`, without the action mask.

    Without the original `space` only the names are flattened: dtypes and the start of Discrete stay as they are.
    """
    if space is not None:
        return ObservationAdapter(space).observation(batch)
    if not isinstance(batch, dict | tuple):
        return np.asarray(batch)
    return {name: np.asarray(array) for name, array in _walk_arrays(batch) if name != ACTION_MASK}


class ObservationAdapter:
    """Flattens batches of one observation space and takes the action mask out of them."""

    def __init__(self, space: gym.Space, drop: Collection[str] = ()) -> None:
        self.nested = isinstance(space, spaces.Dict | spaces.Tuple)
        self.leaves: list[Leaf] = []
        self.mask_leaf: Leaf | None = None
        for name, path, leaf_space in _walk(space):
            if name in drop:
                continue
            if path == (ACTION_MASK,):
                self.mask_leaf = Leaf(name, path, leaf_space, leaf_space, tuple(leaf_space.shape or ()), None)
            else:
                self.leaves.append(_leaf(name, path, leaf_space))
        if not self.leaves:
            raise EnvError(f"The observation space {space} has nothing to observe; it needs at least one entry.")
        names = [leaf.name for leaf in self.leaves]
        if len(set(names)) != len(names):
            raise EnvError(f"The observation space has two entries that flatten to one name: {sorted(names)}.")
        if self.nested:
            self.space: gym.Space = spaces.Dict({leaf.name: leaf.space for leaf in self.leaves})
        else:
            self.space = self.leaves[0].space

    def observation(self, batch: Any) -> Observation:
        """The flat observation of a nested batch [B, ...]."""
        if not self.nested:
            return self.leaves[0].convert(batch)
        return {leaf.name: leaf.convert(follow(batch, leaf.path)) for leaf in self.leaves}

    def mask(self, batch: Any) -> Any | None:
        """The raw action mask inside a nested batch, or None where the space has none."""
        return None if self.mask_leaf is None else follow(batch, self.mask_leaf.path)


class ActionAdapter:
    """The action space an agent sees, and the way from its actions to what the environment takes."""

    def __init__(self, original: gym.Space) -> None:
        self.original = original
        self.offset: np.ndarray | int = 0
        self.parts: list[int] = []  # sizes of the groups of an action mask: one per categorical choice
        self.dtype: np.dtype[Any] = np.dtype(original.dtype) if original.dtype is not None else np.dtype(np.int64)
        if isinstance(original, spaces.Discrete):
            self.space: gym.Space = spaces.Discrete(int(original.n))
            self.offset = int(original.start)
            self.parts = [int(original.n)]
        elif isinstance(original, spaces.MultiDiscrete):
            self.parts = [int(size) for size in original.nvec.reshape(-1)]
            self.space = spaces.MultiDiscrete(self.parts)
            self.offset = np.asarray(original.start)
        elif isinstance(original, spaces.MultiBinary):
            self.space = spaces.MultiBinary(int(np.prod(original.shape)))
        elif isinstance(original, spaces.Box) and np.issubdtype(original.dtype, np.floating):
            self.space = to_float32(original)
        else:
            raise EnvError(
                f"The action space {original} is not supported; Discrete, MultiDiscrete, MultiBinary and Box of "
                "floats are."
            )
        self._shape = tuple(self.space.shape or ())
        self._original_shape = tuple(original.shape or ())
        self._plain = not np.any(self.offset) and self._shape == self._original_shape
        self._mask_offsets = np.cumsum([0, *self.parts[:-1]])
        self.mask_size = sum(self.parts)

    def to_environment(self, actions: np.ndarray, num_envs: int) -> np.ndarray:
        """`actions` [N, ...] in the environment's own numbering, shape and dtype."""
        actions = np.asarray(actions)
        if actions.shape != (num_envs, *self._shape):
            raise EnvError(
                f"The actions have shape {actions.shape}, but {num_envs} environments with the action space "
                f"{self.space} take {(num_envs, *self._shape)}."
            )
        if not self._plain:
            actions = actions.reshape(num_envs, *self._original_shape) + self.offset
        return np.ascontiguousarray(actions, dtype=self.dtype)

    def check_mask_space(self, leaf: Leaf) -> None:
        """Refuse an `action_mask` entry that cannot be the mask of these actions."""
        if not self.parts:
            raise EnvError(f"The observation has an action_mask, but the action space {self.original} is not discrete.")
        if int(np.prod(leaf.shape)) != self.mask_size:
            raise EnvError(
                f"The action_mask has shape {leaf.shape}, but the action space {self.original} needs {self.mask_size} "
                "entries."
            )

    def to_mask(self, raw: Any, num_envs: int) -> np.ndarray:
        """An action mask [N, M] bool, with at least one allowed action for every choice."""
        mask = np.asarray(raw)
        if mask.size != num_envs * self.mask_size:
            raise EnvError(
                f"The action mask has shape {mask.shape}, but {num_envs} environments with the action space "
                f"{self.original} need {(num_envs, self.mask_size)}."
            )
        mask = mask.reshape(num_envs, self.mask_size).astype(bool)
        allowed = np.logical_or.reduceat(mask, self._mask_offsets, axis=1)  # [N, choices]
        if not allowed.all():
            index = int(np.flatnonzero(~allowed.all(axis=1))[0])
            raise EnvError(f"The action mask of environment {index} allows no action at all.")
        return mask


def follow(nested: Any, path: tuple[str | int, ...]) -> Any:
    """The entry of a nested dict or tuple at `path`."""
    for key in path:
        nested = nested[key]
    return nested


def to_float32(space: spaces.Box) -> spaces.Box:
    """The same box in float32; bounds beyond float32 become infinite."""
    if space.dtype == np.float32:
        return space
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return spaces.Box(low, high, space.shape, np.float32)


def _walk(space: gym.Space, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, tuple[str | int, ...], gym.Space]]:
    if isinstance(space, spaces.Dict):
        for key, entry in space.spaces.items():
            yield from _walk(entry, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, entry in enumerate(space.spaces):
            yield from _walk(entry, (*path, index))
    else:
        yield ".".join(map(str, path)), path, space


def _walk_arrays(nested: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(nested, dict | tuple):
        yield prefix, nested
        return
    entries = nested.items() if isinstance(nested, dict) else enumerate(nested)
    for key, entry in entries:
        yield from _walk_arrays(entry, f"{prefix}.{key}" if prefix else str(key))


def _leaf(name: str, path: tuple[str | int, ...], original: gym.Space) -> Leaf:
    start: np.ndarray | int | None = None
    flat: gym.Space = original
    # Subclasses are refused: minigrid's MissionSpace and the like give their values another meaning.
    if type(original) is spaces.Box and np.dtype(original.dtype).kind in "fiub":
        if original.dtype.kind in "fb":
            flat = to_float32(original)
    elif isinstance(original, spaces.Discrete):
        start = int(original.start)
        flat = original if start == 0 else spaces.Discrete(int(original.n))
    elif isinstance(original, spaces.MultiDiscrete):
        start = np.asarray(original.start)
        if original.nvec.ndim != 1 or np.any(start):
            flat = spaces.MultiDiscrete(original.nvec.reshape(-1))
    elif not isinstance(original, spaces.MultiBinary):
        where = f"entry {name!r} of the observation space" if name else "observation space"
        raise EnvError(f"The {where} is {original}, which is not supported; {_SUPPORTED} are.")
    return Leaf(name, path, original, flat, tuple(original.shape or ()), start)
