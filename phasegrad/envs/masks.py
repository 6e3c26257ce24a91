"""Action masks: from what an environment or a caller gives, flat or nested, to [N, M] bool, True = allowed.

M: the entries of all choices side by side, in the order of the action space; a number that is 0 or 1 has one, which
forbids the 1. A nested mask is as gymnasium's `space.sample(mask=...)` takes it. Knows spaces and arrays only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from phasegrad.envs.spaces import ACTION_MASK, Leaf, walk_arrays
from phasegrad.errors import EnvError

if TYPE_CHECKING:
    from phasegrad.envs.actions import ActionPart


class MaskLayout:
    """Where in a mask the entries of each choice are; `size` is 0 where there is nothing to mask."""

    def __init__(self, original: gym.Space, parts: Sequence[ActionPart]) -> None:
        self.original = original
        self.nested = isinstance(original, spaces.Dict | spaces.Tuple)
        self._slots: dict[str, slice] = {}  # of parts, and of the single choices of a part that has several
        self._sizes: list[int] = []  # of the groups of entries: one a choice, and one for all bits of a part
        self._is_choice: list[bool] = []  # whether a group needs one that is allowed
        self._of: list[str] = []  # the part of each group
        self._free = [part.name for part in parts if not part.sizes and not part.bits]  # that no mask can speak of
        start = 0
        for part in parts:
            groups = part.sizes or ((part.bits,) if part.bits and self.nested else ())
            self._sizes += groups
            self._is_choice += [bool(part.sizes)] * len(groups)
            self._of += [part.name] * len(groups)
            if groups:
                self._slots[part.name] = slice(start, start + sum(groups))
            if len(part.sizes) > 1 or isinstance(part.space, spaces.MultiDiscrete):
                edges = np.cumsum([start, *groups]).tolist()
                for place, at in zip(np.ndindex(part.original.shape or ()), range(len(groups)), strict=True):
                    name = ".".join(map(str, (*([part.name] if part.name else []), *place)))
                    self._slots.setdefault(name, slice(edges[at], edges[at + 1]))
            start += sum(groups)
        self.size = start
        self._offsets = np.cumsum([0, *self._sizes[:-1]])

    def check_space(self, leaves: Sequence[Leaf]) -> None:
        """Refuse an `action_mask` entry of observations that cannot be the mask of these actions."""
        if not self.size:
            raise EnvError(f"The observation has an action_mask, but the action space {self.original} is not discrete.")
        if leaves[0].path != (ACTION_MASK,):
            for leaf in leaves:
                name = ".".join(map(str, leaf.path[1:]))
                self._require(name, leaf.shape, int(np.prod(leaf.shape)), "The action_mask of the observation", 1)
        elif int(np.prod(leaves[0].shape)) != self.size:
            raise EnvError(
                f"The action_mask has shape {leaves[0].shape}, but the action space {self.original} needs {self.size} "
                f"entries{self._of_combinations(leaves[0].shape)}."
            )

    def _of_combinations(self, shape: tuple[int, ...]) -> str:
        """What to do about a mask that speaks of combinations of several choices."""
        if len(self._sizes) < 2 or shape != tuple(self._sizes):
            return ""
        return f": for a mask of every combination make the action one Discrete({np.prod(shape)}) and divide it by numpy's unravel_index"

    def row(self, raw: Any, index: int) -> np.ndarray:
        """The mask of environment `index` alone, [M]."""
        if self._is_nested(raw):
            return self._joined(raw, 1, f"The action_mask of environment {index}")[0]
        if np.size(raw) != self.size:
            raise EnvError(
                f"Environment {index} gave an action_mask of shape {np.shape(raw)}, but its action space "
                f"{self.original} needs {self.size} entries."
            )
        return np.array(raw).reshape(-1)

    def batch(self, raw: Any, num_envs: int, of: str = "environment", first: int = 0) -> np.ndarray:
        """A mask [N, M] bool of environments or observations, with an allowed action for every choice.

        `first` is the number by which the first is named.
        """
        mask = self.gathered(raw, num_envs, of)
        allowed = np.logical_or.reduceat(mask, self._offsets, axis=1) | ~np.array(self._is_choice)  # [N, groups]
        if not allowed.all():
            index, group = (int(place[0]) for place in np.nonzero(~allowed))
            name = f" for {self._of[group]!r}" if self._of[group] else ""
            raise EnvError(f"The action mask of {of} {first + index} allows no action at all{name}.")
        return mask

    def gathered(self, raw: Any, num_envs: int, of: str = "environment") -> np.ndarray:
        """The same, whatever it allows."""
        several = f"{num_envs} {of}s" if num_envs != 1 else f"one {of}"
        if self._is_nested(raw):
            return self._joined(raw, num_envs, f"The action mask of {several}")
        mask = _as_array(raw)
        if mask.size != num_envs * self.size:
            raise EnvError(
                f"The action mask has shape {mask.shape}, but {several} with the action space {self.original} "
                f"need{'s' if num_envs == 1 else ''} {(num_envs, self.size)}."
            )
        return mask.reshape(num_envs, self.size).astype(bool)

    def rows(self, raw: Any, num_envs: int, first: int = 0) -> np.ndarray:
        """The masks in the info of a vector environment, [N, M]: one batch, nested or not, or an object each."""
        if isinstance(raw, dict):  # where gymnasium gathers dicts, it puts who gave an entry beside it
            return self._joined(_without_given(raw), num_envs, "The action_mask of the vector environment")
        return np.stack([self.row(row, first + index) for index, row in enumerate(raw)])

    def _is_nested(self, raw: Any) -> bool:
        if isinstance(raw, dict):
            return True
        if not isinstance(raw, tuple) or any(np.ndim(entry) == 0 and entry is not None for entry in raw):
            return False
        if isinstance(self.original, spaces.Tuple):
            return len(raw) == len(self.original.spaces)
        if self.nested or len(raw) != len(self._sizes):
            return False
        lengths = [size if entry is None else np.shape(entry)[-1] for entry, size in zip(raw, self._sizes, strict=True)]
        return lengths == self._sizes

    def _joined(self, raw: Any, num_envs: int, whose: str) -> np.ndarray:
        """A nested mask as one, [N, M]; what it does not speak of is allowed."""
        mask = np.ones((num_envs, self.size), bool)
        for name, entry in walk_arrays(raw):
            if entry is None:
                continue
            array = _as_array(entry)
            if array.dtype == object:  # one for each environment, or none
                if all(one is None for one in array.reshape(-1)):
                    continue
                array = np.stack([np.concatenate([np.ravel(group) for group in _groups(one)]) for one in array])
            slot = self._require(name, array.shape, array.size, whose, num_envs)
            if slot is not None:
                mask[:, slot] = array.reshape(num_envs, -1).astype(bool)
        return mask

    def _require(self, name: str, shape: tuple[int, ...], size: int, whose: str, num_envs: int) -> slice | None:
        """The columns of an entry of a nested mask, once it fits; None for an empty one of a part without choices."""
        slot = self._slots.get(name)
        if slot is None:
            if name in self._free and not size:
                return None
            wrong = "has no choices" if name in self._free else "does not exist"
            raise EnvError(
                f"{whose} names the part {name!r}, which {wrong}; those of the action space that can be masked are "
                f"{', '.join(dict.fromkeys(self._of))}."
            )
        needed = num_envs * (slot.stop - slot.start)
        if size != needed:
            raise EnvError(f"{whose} has shape {shape} for the part {name!r}, which needs {needed} entries.")
        return slot


def _as_array(raw: Any) -> np.ndarray:
    try:
        return np.asarray(raw)
    except ValueError:  # rows of unlike length
        raise EnvError(
            "The action mask has rows of unlike length; give one row of entries, or one for each part."
        ) from None


def _groups(mask: Any) -> tuple[Any, ...]:
    return mask if isinstance(mask, tuple) else (mask,)


def _without_given(info: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_given(entry) if isinstance(entry, dict) else entry
        for key, entry in info.items()
        if not (str(key).startswith("_") and str(key)[1:] in info)
    }
