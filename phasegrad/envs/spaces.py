"""Turn supported observation spaces and their batches into the flat form of the contract; actions.py has those of actions.

Knows spaces and arrays only: no environments, no backends.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from phasegrad.envs.contract import Observation
from phasegrad.envs.names import unique_names
from phasegrad.errors import EnvError

ACTION_MASK = "action_mask"
CHOICES = (spaces.Discrete, spaces.MultiDiscrete)
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

    def restore(self, batch: np.ndarray) -> np.ndarray:
        """The way back: a batch [B, ...] of `space` in the numbers, shape and dtype that the environment gives."""
        array = batch.reshape(len(batch), *self.shape)
        return (array if self.start is None else array + self.start).astype(self.original.dtype)


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
    named = walk_arrays(batch)
    return {name: np.asarray(array) for name, array in named if name.partition(".")[0] != ACTION_MASK}


class ObservationAdapter:
    """Flattens batches of one observation space and takes the action mask out of them."""

    def __init__(self, space: gym.Space, drop: Collection[str] = ()) -> None:
        if drop and isinstance(space, spaces.Dict):
            space = spaces.Dict({name: entry for name, entry in space.spaces.items() if name not in drop})
        self.original = space
        self.nested = isinstance(space, spaces.Dict | spaces.Tuple)
        self.leaves: list[Leaf] = []
        self.mask_leaves: list[Leaf] = []  # one, or several where the action mask is itself a Dict or Tuple
        found = list(walk(space))
        names = unique_names(path for _, path, _ in found)
        for name, (_, path, leaf_space) in zip(names, found, strict=True):
            if path[:1] == (ACTION_MASK,):
                self.mask_leaves.append(Leaf(name, path, leaf_space, leaf_space, tuple(leaf_space.shape or ()), None))
            else:
                self.leaves.append(_leaf(name, path, leaf_space))
        self.all_leaves = [*self.leaves, *self.mask_leaves]
        if not sum(int(np.prod(leaf.shape)) for leaf in self.leaves):
            raise EnvError(f"The observation space {space} has nothing to observe; it needs at least one entry.")
        if self.nested:
            self.space: gym.Space = spaces.Dict({leaf.name: leaf.space for leaf in self.leaves})
        else:
            self.space = self.leaves[0].space

    def without(self, names: Collection[str]) -> ObservationAdapter:
        """The same for observations that need not have the flat entries `names`."""
        if not names:
            return self
        other = copy.copy(self)
        other.leaves = [leaf for leaf in self.leaves if leaf.name not in names]
        other.all_leaves = [leaf for leaf in self.all_leaves if leaf.name not in names]
        other.space = spaces.Dict({leaf.name: leaf.space for leaf in other.leaves})
        return other

    def observation(self, batch: Any) -> Observation:
        """The flat observation of a nested batch [B, ...]."""
        if not self.nested:
            return self.leaves[0].convert(batch)
        return {leaf.name: leaf.convert(follow(batch, leaf.path)) for leaf in self.leaves}

    def restore(self, observation: Observation) -> Any:
        """The way back: a flat batch [B, ...] as the environment nests and numbers it, without the action mask."""
        if not isinstance(observation, dict):
            return self.leaves[0].restore(observation)
        arrays = {leaf.path: leaf.restore(observation[leaf.name]) for leaf in self.leaves}

        def rebuilt(space: gym.Space, path: tuple[str | int, ...]) -> Any:
            if isinstance(space, spaces.Dict):
                inner = {key: (entry, (*path, key)) for key, entry in space.spaces.items()}
                return {key: rebuilt(*at) for key, at in inner.items() if at[1] != (ACTION_MASK,)}
            if isinstance(space, spaces.Tuple):
                return tuple(rebuilt(entry, (*path, index)) for index, entry in enumerate(space.spaces))
            return arrays[path]

        return rebuilt(self.original, ())

    def mask(self, batch: Any) -> Any | None:
        """The raw action mask inside a nested batch, or None where the space has none; of a nested mask by dotted name."""
        return self.mask_of([follow(batch, leaf.path) for leaf in self.mask_leaves])

    def mask_of(self, entries: Sequence[Any]) -> Any | None:
        """The same from the entries of the mask, in the order of `mask_leaves`."""
        if not self.mask_leaves or self.mask_leaves[0].path == (ACTION_MASK,):
            return entries[0] if self.mask_leaves else None
        names = [".".join(map(str, leaf.path[1:])) for leaf in self.mask_leaves]
        return dict(zip(names, entries, strict=True))


def follow(nested: Any, path: tuple[str | int, ...]) -> Any:
    """The entry of a nested dict or tuple at `path`."""
    for key in path:
        nested = nested[key]
    return nested


def fits_dtype(array: np.ndarray, leaf: Leaf) -> bool:
    """Whether an array can be stored as its space promises without a change of meaning."""
    wanted = np.dtype(leaf.original.dtype)
    if array.dtype == wanted or np.can_cast(array.dtype, wanted, "safe"):
        return True
    if wanted.kind == "f":
        return array.dtype.kind in "fiub"
    # Integers of another width or sign, such as those of a plain list, are fine as long as they fit.
    return array.dtype.kind in "iu" and wanted.kind in "iu" and np.array_equal(array.astype(wanted), array)


def outside_choices(array: np.ndarray, space: gym.Space) -> np.ndarray:
    """[...] bool: the rows of flat observations [..., *shape] that are none of the choices of one of `CHOICES`.

    Such a row would reach the network as all zeros, like no observation at all.
    """
    if isinstance(space, spaces.Discrete):
        return (array < 0) | (array >= space.n)
    assert isinstance(space, spaces.MultiDiscrete)
    return np.logical_or.reduce((array < 0) | (array >= space.nvec), axis=-1)


def describe_outside(name: str, env: int, when: str, space: gym.Space) -> str:
    """The sentence for an observation that `outside_choices` finds."""
    entry = f" entry {name!r}" if name else ""
    return (
        f"Environment {env} returned an observation{entry} {when} that leaves its space, {space} when counted from 0."
    )


def same_form(left: gym.Space, right: gym.Space) -> bool:
    """Whether two flat spaces differ in nothing but the bounds of their boxes: a network for one serves the other."""
    if isinstance(left, spaces.Dict) and isinstance(right, spaces.Dict):
        return left.keys() == right.keys() and all(same_form(left[name], right[name]) for name in left)
    if isinstance(left, spaces.Box) and isinstance(right, spaces.Box):
        return left.shape == right.shape and left.dtype == right.dtype
    return bool(left == right)


def to_float32(space: spaces.Box) -> spaces.Box:
    """The same box in float32, of no class derived from Box; bounds beyond float32 become infinite."""
    if space.dtype == np.float32 and type(space) is spaces.Box:
        return space
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return spaces.Box(low, high, space.shape, np.float32)


def walk(space: gym.Space, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, tuple[str | int, ...], gym.Space]]:
    """The plain spaces in a nested one: dotted name, path, space."""
    if isinstance(space, spaces.Dict):
        for key, entry in space.spaces.items():
            yield from walk(entry, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, entry in enumerate(space.spaces):
            yield from walk(entry, (*path, index))
    else:
        yield ".".join(map(str, path)), path, space


def walk_arrays(nested: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested dicts and tuples by dotted name."""
    if not isinstance(nested, dict | tuple):
        yield prefix, nested
        return
    entries = nested.items() if isinstance(nested, dict) else enumerate(nested)
    for key, entry in entries:
        yield from walk_arrays(entry, f"{prefix}.{key}" if prefix else str(key))


_UNREADABLE = (
    (spaces.Text, ", since networks here read no text"),
    (spaces.Graph, ", since networks here read no graphs"),
    (spaces.Sequence, ", since its length varies"),
    (spaces.OneOf, ", since it is one of several spaces at a time"),
)


def _without(path: tuple[str | int, ...]) -> str:
    """How to leave an entry out, where that can be done by name."""
    named = len(path) == 1 and isinstance(path[0], str)
    return ": gymnasium.wrappers.FilterObservation leaves an entry out" if named else ""


def _leaf(name: str, path: tuple[str | int, ...], original: gym.Space) -> Leaf:
    start: np.ndarray | int | None = None
    flat: gym.Space = original
    # Of a class derived from one of these the plain space is seen: it is what files hold and networks are made for.
    if isinstance(original, spaces.Box) and np.dtype(original.dtype).kind in "fiub":
        if type(original) is not spaces.Box:
            flat = spaces.Box(original.low, original.high, original.shape, original.dtype.type)
        if original.dtype.kind in "fb" or original.dtype in (np.uint16, np.uint32, np.uint64):  # little known to torch
            flat = to_float32(original)
    elif isinstance(original, spaces.Discrete):
        start = int(original.start)
        plain = type(original) is spaces.Discrete and start == 0 and original.dtype == np.int64
        flat = original if plain else spaces.Discrete(int(original.n))
    elif isinstance(original, spaces.MultiDiscrete):
        start = np.asarray(original.start, np.int64)
        plain = type(original) is spaces.MultiDiscrete and original.nvec.ndim == 1 and original.dtype == np.int64
        if not plain or np.any(start):
            flat = spaces.MultiDiscrete(original.nvec.reshape(-1).astype(np.int64))
    elif isinstance(original, spaces.MultiBinary):
        if len(original.shape) == 1:  # n and (n,) are unequal to gymnasium, and a file cannot tell them apart
            flat = spaces.MultiBinary(original.shape[0])
        elif type(original) is not spaces.MultiBinary:
            flat = spaces.MultiBinary(original.shape)
    else:
        where = f"entry {name!r} of the observation space" if name else "observation space"
        why = next((told for kind, told in _UNREADABLE if isinstance(original, kind)), "")
        raise EnvError(f"The {where} is {original}, which is not supported{why}; {_SUPPORTED} are{_without(path)}.")
    return Leaf(name, path, original, flat, tuple(original.shape or ()), start)
