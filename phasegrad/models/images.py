"""Which observations are images to a CNN, how they lie in memory, and what their numbers are divided by.

A Box that a CNN is to see becomes an `ImageSpace`, which knows all that; the rest stay as they are. Knows spaces only.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SMALLEST_GRID = 4  # pixels a side that the grid CNN's kernels need; anything smaller is a vector to `auto`
CNNS = ("nature", "impala", "grid")
# A bound beyond this, the largest of 16 bits, is none: divided by it, what an environment really gives would be nothing.
LARGEST_BOUND = 65_535.0


class ImageSpace(spaces.Box):
    """An image [C, H, W] or [H, W, C], or a stack of frames [F, ...] of such, whose channels are then all of theirs."""

    def __init__(self, low: np.ndarray, high: np.ndarray, dtype: Any, channels_first: bool) -> None:
        super().__init__(low, high, dtype=dtype)
        self.channels_first = channels_first  # of each frame

    @property
    def frames(self) -> int:
        """Of a stack; 1 for an image alone."""
        return self.shape[0] if len(self.shape) == 4 else 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width as a CNN sees them."""
        first, middle, last = self.shape[-3:]
        if self.channels_first:
            return self.frames * first, middle, last
        return self.frames * last, first, middle

    @property
    def scale(self) -> float | None:
        """What its numbers are multiplied by: 1 over the largest bound, where that is above 1; of bytes its encoder's."""
        return None if self.dtype == np.uint8 else 1 / max(1.0, largest_bound(self)) if is_bounded(self) else 1.0

    def stacked(self, count: int) -> ImageSpace:
        """`count` of them joined by their channels, or by the frames that they have already."""
        axis = 0 if len(self.shape) == 4 or self.channels_first else 2
        low, high = (np.concatenate([bound] * count, axis) for bound in (self.low, self.high))
        return ImageSpace(low, high, self.dtype.type, self.channels_first)


def with_images(space: gym.Space, encoder: Any, images: str) -> gym.Space:
    """A flat observation space in which each Box that a CNN of this package is to see is an `ImageSpace`.

    `encoder` and `images` are the settings. A user's own encoder is shown every space as it is.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _marked(part, encoder, images, alone=False) for name, part in space.items()})
    return _marked(space, encoder, images, alone=True)


def _marked(space: gym.Space, encoder: Any, images: str, alone: bool) -> gym.Space:
    if not isinstance(space, spaces.Box) or isinstance(space, ImageSpace) or encoder not in ("auto", *CNNS):
        return space
    asked_for = alone and encoder != "auto"  # whoever names a CNN for all there is means it
    if images == "uint8":
        is_one = len(space.shape) == 3 and space.dtype == np.uint8
    else:
        is_one = len(space.shape) in (3, 4) and (is_bounded(space) or asked_for)
    if not is_one:
        return space
    first = channels_first(space) if images == "uint8" or hasattr(space, "channels_first") else _lies_first(space)
    marked = ImageSpace(space.low, space.high, space.dtype.type, first)
    return space if encoder == "auto" and min(marked.image_shape[1:]) < SMALLEST_GRID else marked


def is_image(space: gym.Space) -> bool:
    """Of a space that `with_images` has seen; bytes of three dimensions always are."""
    if isinstance(space, ImageSpace):
        return True
    return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8


def has_own_scale(space: gym.Space) -> bool:
    """Whether its encoder brings it to a small range by its bounds, so that no statistics are needed."""
    return is_image(space) and (space.dtype == np.uint8 or is_bounded(space))


def is_bounded(space: gym.Space) -> bool:
    """Whether bounds say how large its numbers are."""
    return isinstance(space, spaces.Box) and largest_bound(space) <= LARGEST_BOUND


def largest_bound(space: spaces.Box) -> float:
    return float(max(np.abs(bound.astype(np.float64)).max(initial=0.0) for bound in (space.low, space.high)))


def channels_first(space: spaces.Box) -> bool:
    """Whether an image is [C, H, W]: its shortest side is the channels', unless the space knows."""
    return bool(getattr(space, "channels_first", space.shape[0] < space.shape[2]))


def _lies_first(space: spaces.Box) -> bool:
    """The same where a square tells: an image may have more channels than pixels a side."""
    first, middle, last = space.shape[-3:]
    if first == middle or middle == last:
        return bool(first != middle)
    return bool(first < last)
