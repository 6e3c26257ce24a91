"""Where the values of a traced graph lie in memory: a view is a pointer, a shape and strides, as in torch.

Operations that only look at memory in another way (transpose, slice, expand, split ...) make a new view and no code.
Results of the others get a slot in a workspace, which is used again as soon as nothing needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

C_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.int64: "int64_t", torch.int32: "int32_t",
    torch.int16: "int16_t", torch.int8: "int8_t", torch.uint8: "uint8_t", torch.bool: "uint8_t",
}  # fmt: skip
ALIGNMENT = 64  # bytes


class Unsupported(Exception):
    """The graph holds something that is not known here."""


@dataclass(frozen=True)
class View:
    """Memory that starts at the C expression `pointer`; strides and offset count elements."""

    pointer: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    slot: int = -1  # which piece of the workspace it lies in, -1 for memory that is not ours

    @property
    def c_type(self) -> str:
        return C_TYPES[self.dtype]

    @property
    def size(self) -> int:
        return product_of(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie one after another, in order."""
        return all(
            size == 1 or stride == wanted
            for size, stride, wanted in zip(self.shape, self.strides, dense_strides(self.shape), strict=True)
        )

    def at(self, index: str) -> str:
        """The element at an index expression that counts from the view's start."""
        return f"{self.pointer}[{self.offset} + {index}]" if self.offset else f"{self.pointer}[{index}]"

    @property
    def start(self) -> str:
        return f"{self.pointer} + {self.offset}" if self.offset else self.pointer

    def broadcast(self, shape: Sequence[int]) -> View:
        """The same elements repeated to a larger shape."""
        missing = len(shape) - len(self.shape)
        sizes, strides = (1,) * missing + self.shape, (0,) * missing + self.strides
        widened = tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))
        return replace(self, shape=tuple(shape), strides=widened)

    # Views of views

    def transposed(self, first: int, second: int) -> View:
        order = list(range(len(self.shape)))
        order[first], order[second] = order[second], order[first]
        return self.permuted(order)

    def permuted(self, order: Sequence[int]) -> View:
        return replace(self, shape=tuple(self.shape[d] for d in order), strides=tuple(self.strides[d] for d in order))

    def sliced(self, dim: int, start: int, length: int, step: int = 1) -> View:
        dim %= len(self.shape)
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[dim]
        shape[dim], strides[dim] = length, strides[dim] * step
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def selected(self, dim: int, index: int) -> View:
        dim %= len(self.shape)
        index %= self.shape[dim]
        cut = self.sliced(dim, index, 1)
        return replace(
            cut, shape=cut.shape[:dim] + cut.shape[dim + 1 :], strides=cut.strides[:dim] + cut.strides[dim + 1 :]
        )

    def unsqueezed(self, dim: int) -> View:
        dim %= len(self.shape) + 1
        return replace(
            self,
            shape=(*self.shape[:dim], 1, *self.shape[dim:]),
            strides=(*self.strides[:dim], 0, *self.strides[dim:]),
        )

    def reshaped(self, shape: Sequence[int]) -> View:
        """As torch's view: of dense memory, or where only dimensions of size 1 come and go."""
        shape = tuple(shape)
        if self.is_dense:
            return replace(self, shape=shape, strides=dense_strides(shape))
        mine = [(size, stride) for size, stride in zip(self.shape, self.strides, strict=True) if size != 1]
        if [size for size, _ in mine] != [size for size in shape if size != 1]:
            raise Unsupported("a view of memory that is not dense")
        rest = iter(mine)
        return replace(self, shape=shape, strides=tuple(0 if size == 1 else next(rest)[1] for size in shape))


def product_of(sizes: Iterable[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def view_of(pointer: str, tensor: Any) -> View:
    """A tensor's memory, its first element at `pointer`."""
    if tensor.dtype not in C_TYPES:
        raise Unsupported(f"numbers of type {tensor.dtype}")
    return View(pointer, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))


class Workspace:
    """Slots in one block of memory; a slot that is given back is used again."""

    def __init__(self) -> None:
        self.slots: list[tuple[int, int]] = []  # (start, bytes)
        self.free: list[int] = []
        self.bytes = 0

    def take(self, size: int) -> int:
        size = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        fitting = [slot for slot in self.free if self.slots[slot][1] == size]
        if fitting:
            self.free.remove(fitting[-1])
            return fitting[-1]
        self.slots.append((self.bytes, size))
        self.bytes += size
        return len(self.slots) - 1

    def give_back(self, slot: int) -> None:
        self.free.append(slot)

    def pointer(self, slot: int, c_type: str) -> str:
        return f"(({c_type} *)(work + {self.slots[slot][0]}))"
