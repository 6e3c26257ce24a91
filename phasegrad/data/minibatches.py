"""Minibatches: which samples of a rollout a gradient step sees, gathered from storage in an order given by a generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from phasegrad.data.storage import Rollout
from phasegrad.tree import named_leaves, tree_map

MOST_GATHERED_BYTES = 1 << 25  # beyond this a copy of the whole rollout would cost memory worth speaking of
STORED_AS = {"old_log_probs": "log_probs", "old_values": "values"}
SomeBatch = TypeVar("SomeBatch", bound="Minibatch")


@dataclass
class Minibatch:
    """Tensors [B, ...] on the device: states, and what their values should be."""

    observations: Any
    masks: Tensor | None
    value_targets: Tensor

    def __len__(self) -> int:
        return len(self.value_targets)

    def tensors(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
        """All tensors in a fixed order, and how to put a batch together from as many others."""
        present = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        flat = [leaf for tree in present.values() for _, leaf in named_leaves(tree)]

        def rebuild(leaves: Sequence[Tensor]) -> Any:
            rest = iter(leaves)
            values: dict[str, Any] = {f.name: None for f in fields(self)}
            for name, tree in present.items():
                values[name] = {key: next(rest) for key in sorted(tree)} if isinstance(tree, dict) else next(rest)
            return type(self)(**values)

        return flat, rebuild

    def split(self, size: int) -> Iterator[Self]:
        """Micro-batches of at most `size` samples, in order."""
        for start in range(0, len(self), size):
            yield type(self)(**{f.name: _part(getattr(self, f.name), start, start + size) for f in fields(self)})


@dataclass
class Batch(Minibatch):
    """What a policy and value update needs of a rollout."""

    actions: Tensor
    behaviour_params: Tensor  # of the policy that acted
    old_log_probs: Tensor
    advantages: Tensor
    old_values: Tensor


def gather(rollout: Any, index: Tensor, device: torch.device, kind: type[SomeBatch]) -> SomeBatch:
    """The samples at flat positions `index` [B] of a rollout [T, N, ...], or of a whole storage [count, T, N, ...]."""
    last = rollout.value_targets.dim() - 1

    def pick(tree: Any) -> Any:  # index_select copies whole rows, where indexing goes byte by byte
        if tree is None:
            return None
        return tree_map(lambda leaf: leaf.flatten(0, last).index_select(0, index).to(device), tree)

    return kind(**{f.name: pick(getattr(rollout, STORED_AS.get(f.name, f.name))) for f in fields(kind)})


def everything(rollout: Rollout, device: torch.device, kind: type[SomeBatch]) -> SomeBatch:
    """All samples of a rollout as one batch, in order; on the CPU it shares the rollout's memory."""

    def flat(tree: Any) -> Any:
        return None if tree is None else tree_map(lambda leaf: leaf.flatten(0, 1).to(device), tree)

    return kind(**{f.name: flat(getattr(rollout, STORED_AS.get(f.name, f.name))) for f in fields(kind)})


def gather_each(
    rollout: Rollout, indices: list[Tensor], device: torch.device, kind: type[SomeBatch]
) -> Iterator[SomeBatch]:
    """The minibatches at each of `indices`; small observations are gathered for all of them at once, then sliced."""
    bytes_each = sum(leaf[0, 0].numel() * leaf.element_size() for _, leaf in named_leaves(rollout.observations))
    if bytes_each * sum(map(len, indices)) > MOST_GATHERED_BYTES:
        for index in indices:
            yield gather(rollout, index, device, kind)
        return
    everything = gather(rollout, torch.cat(indices), device, kind)
    start = 0
    for index in indices:
        end = start + len(index)
        yield kind(**{f.name: _part(getattr(everything, f.name), start, end) for f in fields(kind)})
        start = end


@dataclass
class Minibatches(Generic[SomeBatch]):
    """One pass over stored samples: the flat positions of each minibatch, and what is done to it before its loss."""

    source: Any  # what has the batch's tensors: a rollout [T, N, ...], or a buffer of them [count, T, N, ...]
    indices: Sequence[Tensor]
    device: torch.device
    kind: type[SomeBatch]
    prepare: Callable[[SomeBatch], SomeBatch] | None = None
    usual: bool = True  # of the sizes that most passes have: an odd last one is not worth compiling for

    def __iter__(self) -> Iterator[SomeBatch]:
        return self.of(self.indices)

    def of(self, indices: Sequence[Tensor]) -> Iterator[SomeBatch]:
        """The minibatches at other positions."""
        for batch in gather_each(self.source, list(indices), self.device, self.kind):
            yield batch if self.prepare is None else self.prepare(batch)

    def rows(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], SomeBatch]]:
        """All stored samples as tensors [rows, ...] that share the storage, and how to make a batch of such rows."""
        last = self.source.value_targets.dim() - 1

        def flat(tree: Any) -> Any:
            return None if tree is None else tree_map(lambda leaf: leaf.flatten(0, last), tree)

        names = [f.name for f in fields(self.kind)]
        whole = self.kind(**{name: flat(getattr(self.source, STORED_AS.get(name, name))) for name in names})
        return whole.tensors()


def _part(tree: Any, start: int, end: int) -> Any:
    return None if tree is None else tree_map(lambda leaf: leaf[start:end], tree)


def minibatch_indices(
    num_steps: int, num_envs: int, num_minibatches: int, whole_segments: bool, generator: torch.Generator
) -> list[Tensor]:
    """Flat positions of each minibatch of one epoch: random steps, or all steps of randomly chosen environments."""
    if whole_segments:
        steps = torch.arange(num_steps)[:, None] * num_envs
        envs = torch.randperm(num_envs, generator=generator).tensor_split(num_minibatches)
        return [(steps + chosen).flatten() for chosen in envs]
    return list(torch.randperm(num_steps * num_envs, generator=generator).tensor_split(num_minibatches))


def in_chunks(function: Callable[..., Tensor], inputs: tuple[Any, ...], leading: int, device: torch.device) -> Tensor:
    """`function` over inputs with `leading` batch dimensions, a cache-sized piece at a time; the result on the CPU."""
    flat = [None if tree is None else tree_map(lambda leaf: leaf.flatten(0, leading - 1), tree) for tree in inputs]
    shape = named_leaves(inputs[0])[0][1].shape[:leading]
    size = chunk_size(flat[0])
    pieces = []
    for start in range(0, int(np.prod(shape)), size):
        pieces.append(function(*(_to(_part(tree, start, start + size), device) for tree in flat)).cpu())
    result = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
    return result.reshape(*shape, *result.shape[1:])


def _to(tree: Any, device: torch.device) -> Any:
    return None if tree is None else tree_map(lambda leaf: leaf.to(device), tree)


def chunk_size(flat_observations: Any) -> int:
    """Images go through a network 256 at a time, where its activations stay in the cache; vectors all together."""
    widest = max(int(np.prod(leaf.shape[1:])) for _, leaf in named_leaves(flat_observations))
    return 256 if widest >= 1024 else 1 << 16
