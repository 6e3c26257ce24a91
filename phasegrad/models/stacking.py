"""Frame stacking: the last observations of an episode seen as one, oldest first, and the space they make together.

Images are joined by their channels; everything else lies side by side, each frame encoded as it would be alone. Knows
spaces and tensors only: which observations belong together is the data's business.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from torch import Tensor

from phasegrad.models.images import ImageSpace, channels_first
from phasegrad.tree import tree_map


class ImageStack(spaces.Box):
    """Images joined by their channels: there may be more of those than pixels a side, so that the shape does not tell
    which dimension they are.
    """

    def __init__(self, space: spaces.Box, count: int) -> None:
        self.channels_first = channels_first(space)
        axis = 0 if self.channels_first else 2
        low, high = (np.concatenate([bound] * count, axis) for bound in (space.low, space.high))
        super().__init__(low, high, dtype=space.dtype.type)


class Stacking:
    """`count` observations of `single` seen as one observation of `space`."""

    def __init__(self, single: gym.Space, count: int) -> None:
        self.single, self.count = single, count
        if isinstance(single, spaces.Dict):
            self.space: gym.Space = spaces.Dict({name: _stacked(part, count) for name, part in single.items()})
            self._shapes: Any = {name: tuple(part.shape or ()) for name, part in self.space.spaces.items()}
            self._blocks: Any = {name: _blocks(part) for name, part in single.items()}
        else:
            self.space = _stacked(single, count)
            self._shapes, self._blocks = tuple(self.space.shape or ()), _blocks(single)

    def joined(self, frames: Any) -> Any:
        """Frames [B * count, ...], those of a stack one after another, as stacks [B, ...]."""
        return tree_map(self._joined, frames, self._blocks, self._shapes)

    def joined_entry(self, frames: Tensor, name: str) -> Tensor:
        """The same of the entry `name`; a plain observation has the empty name."""
        if isinstance(self._blocks, dict):
            return self._joined(frames, self._blocks[name], self._shapes[name])
        return self._joined(frames, self._blocks, self._shapes)

    def blocks(self, name: str) -> int:
        """Pieces that a frame of the entry `name` is cut into, between which those of the other frames lie."""
        return int(self._blocks[name] if isinstance(self._blocks, dict) else self._blocks)

    def _joined(self, leaf: Tensor, blocks: int, shape: tuple[int, ...]) -> Tensor:
        if blocks == 1:
            return leaf.reshape(-1, *shape)
        return leaf.reshape(-1, self.count, blocks, leaf[0].numel() // blocks).transpose(1, 2).reshape(-1, *shape)

    def frames(self, stacks: Any) -> Any:
        """Stacks [B, ...], arrays in one piece, as views [B, count, ...] of their frames, each in `cut` form."""
        return tree_map(
            lambda leaf, blocks: leaf.reshape(len(leaf), blocks, self.count, -1).swapaxes(1, 2), stacks, self._blocks
        )

    def cut(self, observation: Any) -> Any:
        """Single observations [B, ...], arrays, in the form in which stacks hold them."""
        return tree_map(lambda leaf, blocks: leaf.reshape(len(leaf), blocks, -1), observation, self._blocks)


def _stacked(space: gym.Space, count: int) -> gym.Space:
    """The space of `count` observations together, which an encoder turns into as many times the numbers of one."""
    if isinstance(space, spaces.Discrete):
        return spaces.MultiDiscrete([int(space.n)] * count)
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(np.tile(space.nvec.reshape(-1), count))
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary(count * int(np.prod(space.shape)))
    assert isinstance(space, spaces.Box)
    if isinstance(space, ImageSpace):
        return space.stacked(count)
    if len(space.shape) == 3:
        return ImageStack(space, count)
    low, high = (np.tile(bound.reshape(-1), count) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype.type)


def _blocks(space: gym.Space) -> int:
    """Pieces that a frame is cut into, between which those of the other frames lie: the pixels, where channels are last."""
    if isinstance(space, spaces.Box) and len(space.shape) == 3 and not channels_first(space):
        return space.shape[0] * space.shape[1]
    return 1
