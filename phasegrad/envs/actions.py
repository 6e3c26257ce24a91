"""The action space an agent sees, and the way from its actions to what the environment takes: one plain space, or the
parts of a Dict or Tuple side by side. masks.py has what is allowed of them.

Knows spaces and arrays only: no environments, no backends.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from phasegrad.envs.masks import MaskLayout
from phasegrad.envs.spaces import follow, to_float32, walk
from phasegrad.errors import EnvError

MOST_CHOICES = 1 << 20  # of a Box of integers, all its numbers taken together: each choice is an output of the network
_SUPPORTED = "Discrete, MultiDiscrete, MultiBinary, Box, and Dict or Tuple of those"


@dataclass(slots=True)
class ActionPart:
    """A plain space: the whole action space, or what a Dict or Tuple has at `path`."""

    name: str  # dotted; empty where it is the whole action space
    path: tuple[str | int, ...]
    original: gym.Space
    space: gym.Space  # as a policy acts in it: choices counted from 0 and without shape, floats of 32 bits
    dtype: np.dtype[Any]  # the environment's own
    offset: np.ndarray | int = 0  # of the environment's choices
    sizes: tuple[int, ...] = ()  # of its choices

    @property
    def bits(self) -> int:
        """Numbers that are 0 or 1."""
        return int(np.prod(self.space.shape)) if isinstance(self.space, spaces.MultiBinary) else 0

    @property
    def width(self) -> int:
        """Numbers of one action."""
        return math.prod(self.space.shape or ())

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """[N, ...] of `space` in the environment's own numbering, shape and dtype; always a copy."""
        shape = tuple(self.original.shape or ())
        if self.sizes and actions.dtype.kind == "f":
            actions = actions.astype(np.int64)  # before the offset, which floats might not hold
        if (self.offset if isinstance(self.offset, int) else np.any(self.offset)) or actions.shape[1:] != shape:
            actions = actions.reshape(len(actions), *shape) + self.offset
        return np.array(actions, dtype=self.dtype, order="C")


class ActionAdapter:
    """The action space an agent sees, and the way from its actions to what the environment takes.

    Where the original is a Dict or Tuple, `space` is a Dict of its plain parts by dotted name, in their order, and an
    action is one row of numbers: the parts' side by side.
    """

    def __init__(self, original: gym.Space) -> None:
        self.original = original
        self.nested = isinstance(original, spaces.Dict | spaces.Tuple)
        self.parts = [_part(*found) for found in walk(original)]
        if self.nested:
            _require_names(original, self.parts)
            # An OrderedDict: gymnasium sorts the keys of a plain one.
            self.space: gym.Space = spaces.Dict(OrderedDict((part.name, part.space) for part in self.parts))
            self._shape: tuple[int, ...] = (sum(part.width for part in self.parts),)
        else:
            self.space = self.parts[0].space
            self._shape = tuple(self.space.shape or ())
        self.masks = MaskLayout(original, self.parts)

    def to_environment(self, actions: np.ndarray, num_envs: int) -> Any:
        """`actions` [N, ...] as N environments take them: an array, or for a Dict or Tuple one of arrays [N, ...].

        Always a copy: the environment may write into what it is given, which is what the policy learns from.
        """
        actions = np.asarray(actions)
        if actions.shape != (num_envs, *self._shape):
            raise EnvError(
                f"The actions have shape {actions.shape}, but {num_envs} environments with the action space "
                f"{self.space} take {(num_envs, *self._shape)}."
            )
        if not self.nested:
            return self.parts[0].to_environment(actions)
        edges = np.cumsum([part.width for part in self.parts])[:-1]
        pieces = zip(self.parts, np.split(actions, edges, 1), strict=True)
        columns = {
            part.path: part.to_environment(piece.reshape(num_envs, *(part.space.shape or ()))) for part, piece in pieces
        }
        return self._nest(columns)

    def require(self, actions: Any, num_envs: int) -> None:
        """Refuse what is no batch of actions of the space an agent sees: what is not Python would take it for one."""
        found = np.asarray(actions)
        if found.dtype.kind not in "biuf":
            raise EnvError(f"The actions are {found.dtype}, but the action space {self.space} takes numbers.")
        if found.shape != (num_envs, *self._shape):
            return  # `to_environment` says so
        flat = found.reshape(num_envs, -1)
        start = 0
        for part in self.parts:
            columns = flat[:, start : start + part.width]
            start += part.width
            whole = columns.dtype.kind != "f"
            wrong = np.zeros(columns.shape, bool) if whole else ~np.isfinite(columns)
            if not isinstance(part.space, spaces.Box):
                sizes = np.reshape(part.sizes, -1) if part.sizes else 2
                wrong |= (columns < 0) | (columns >= sizes)
                wrong |= False if whole else columns != np.trunc(columns)
            if wrong.any():
                env = int(wrong.any(1).argmax())
                of = f" for its part {part.name!r}" if part.name else ""
                raise EnvError(
                    f"Environment {env} was given the action {columns[env].tolist()}{of}, which {part.space} does not have."
                )

    def rows(self, batch: Any, count: int) -> list[Any]:
        """A batch as `to_environment` gives it as single actions, choices among them as plain integers."""
        columns = {part.path: _listed(part, follow(batch, part.path)) for part in self.parts}
        if not self.nested:
            return list(columns[()])
        return [self._nest({path: column[index] for path, column in columns.items()}) for index in range(count)]

    def row(self, batch: Any, index: int) -> Any:
        """One action of a batch as `to_environment` gives it."""
        return self._nest({part.path: _single(part, follow(batch, part.path)[index]) for part in self.parts})

    def _nest(self, values: Mapping[tuple[str | int, ...], Any]) -> Any:
        def built(space: gym.Space, path: tuple[str | int, ...]) -> Any:
            if isinstance(space, spaces.Dict):
                return {key: built(entry, (*path, key)) for key, entry in space.spaces.items()}
            if isinstance(space, spaces.Tuple):
                return tuple(built(entry, (*path, index)) for index, entry in enumerate(space.spaces))
            return values[path]

        return built(self.original, ())


def flat_actions(space: gym.Space, batch: Any) -> np.ndarray:
    """Actions sampled from `batch_space` of the space an agent sees, as environments are stepped with: [N, ...]."""
    if not isinstance(space, spaces.Dict):
        return np.asarray(batch)
    columns = [np.asarray(batch[name]) for name in space.spaces]
    joined = np.concatenate([column.reshape(len(column), -1) for column in columns], 1)
    return joined.astype(np.float32 if joined.dtype.kind == "f" else np.int64)


def random_actions(space: gym.Space, num_envs: int, random: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
    """Actions [N, ...] of a random agent that keeps to the mask, in the space an agent sees."""
    if isinstance(space, spaces.Dict):
        columns, start = {}, 0
        for name, part in space.spaces.items():
            size = mask_size(part)
            own = None if mask is None or not size else mask[:, start : start + size]
            columns[name] = random_actions(part, num_envs, random, own)
            start += size
        return flat_actions(space, columns)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(size) for size in space.nvec]
        allowed = np.ones((num_envs, sum(sizes)), bool) if mask is None else mask
        parts = np.split(allowed, np.cumsum(sizes)[:-1], 1)
        chosen = [[random.choice(np.flatnonzero(row)) for row in part] for part in parts]
        actions = np.array(chosen, np.int64).T  # [N, choices]
        return actions[:, 0] if isinstance(space, spaces.Discrete) else actions
    if isinstance(space, spaces.MultiBinary):
        bits = random.integers(0, 2, (num_envs, *space.shape)).astype(np.int8)
        return bits if mask is None else bits * mask
    assert isinstance(space, spaces.Box)
    low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
    return random.uniform(low, high, (num_envs, *space.shape)).astype(np.float32)


def mask_size(space: gym.Space) -> int:
    """Entries of the action mask of a plain space that an agent sees."""
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(getattr(space, "n", 0)) if isinstance(space, spaces.Discrete | spaces.MultiBinary) else 0


def _part(name: str, path: tuple[str | int, ...], original: gym.Space) -> ActionPart:
    dtype = np.dtype(original.dtype) if original.dtype is not None else np.dtype(np.int64)
    if isinstance(original, spaces.Discrete):
        n = int(original.n)
        return ActionPart(name, path, original, spaces.Discrete(n), dtype, int(original.start), (n,))
    if isinstance(original, spaces.MultiDiscrete):
        sizes = tuple(int(size) for size in original.nvec.reshape(-1))
        offset = np.asarray(original.start, np.int64)
        return ActionPart(name, path, original, spaces.MultiDiscrete(list(sizes)), dtype, offset, sizes)
    if isinstance(original, spaces.MultiBinary):
        return ActionPart(name, path, original, spaces.MultiBinary(int(np.prod(original.shape))), dtype)
    if isinstance(original, spaces.Box) and dtype.kind == "f":
        return ActionPart(name, path, original, to_float32(original), dtype)
    if isinstance(original, spaces.Box):
        sizes = _sizes_of_integers(name, original)
        offset = np.asarray(original.low).astype(np.int64)
        return ActionPart(name, path, original, spaces.MultiDiscrete(list(sizes)), dtype, offset, sizes)
    raise EnvError(f"The {_called(name)} {original} is not supported; {_SUPPORTED} are.")


def _sizes_of_integers(name: str, box: spaces.Box) -> tuple[int, ...]:
    """How many values each number of a Box of integers has; the sentence for one without bounds, or too wide."""
    pairs = zip(box.low.reshape(-1).tolist(), box.high.reshape(-1).tolist(), strict=True)
    wide = [int(high) - int(low) + 1 for low, high in pairs]
    advice = "give it narrower bounds, or floats, which the environment rounds"
    if not (box.bounded_below.all() and box.bounded_above.all()):
        raise EnvError(f"The {_called(name)} {box} has integers without bounds: {advice}.")
    if not wide or sum(wide) > MOST_CHOICES:
        raise EnvError(
            f"The {_called(name)} {box} has {sum(wide):,} choices in all, which must be 1 to {MOST_CHOICES:,}: {advice}."
        )
    return tuple(wide)


def _require_names(original: gym.Space, parts: list[ActionPart]) -> None:
    """Refuse a Dict or Tuple whose parts cannot be told apart, or that has none."""
    names = [part.name for part in parts]
    if not sum(part.width for part in parts):
        raise EnvError(f"The action space {original} has nothing to choose; it needs at least one part.")
    for part in parts:
        if not all(isinstance(key, str | int) for key in part.path) or _has_number_for_name(original, part.path):
            raise EnvError(f"The action space {original} has a key that is no text; name its parts by text.")
        if not part.name:
            raise EnvError(f"The action space {original} has a part whose name is empty; give it one.")
        if not part.width:
            raise EnvError(f"The part {part.name!r} of the action space is {part.original}, which has no numbers.")
    if len(set(names)) != len(names):
        raise EnvError(f"The action space has two parts that flatten to one name: {sorted(names)}.")


def _has_number_for_name(space: gym.Space, path: tuple[str | int, ...]) -> bool:
    """Whether a key on the way of a Dict is a number: a file would give it back as text."""
    for key in path:
        if isinstance(space, spaces.Dict) and not isinstance(key, str):
            return True
        space = space[key]  # type: ignore[index]
    return False


def _called(name: str) -> str:
    return f"part {name!r} of the action space," if name else "action space"


def _listed(part: ActionPart, column: np.ndarray) -> Any:
    """Plain integers where an environment written for one action expects them."""
    if isinstance(part.original, spaces.Discrete):
        return column.tolist()
    return column if part.original.shape else [_single(part, entry) for entry in column]


def _single(part: ActionPart, entry: Any) -> Any:
    """A Box without shape has arrays without shape, not numbers."""
    return np.asarray(entry) if isinstance(part.original, spaces.Box) else entry
