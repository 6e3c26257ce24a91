"""Minibatches: which samples of a rollout a gradient step sees, gathered from storage in an order given by a generator.

Samples are named by flat positions [B] in [T, N], or in [count, T, N]. Where the policy has a memory a minibatch is of
whole sequences, whose positions are [L, S]: a column is a sequence, and its state is kept for its first step. Where it
sees stacks of observations those are put together here, of observations that are stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from phasegrad.data.stacking import frame_rows
from phasegrad.data.storage import Rollout
from phasegrad.data.transfers import device_of, send, send_tree, to_device
from phasegrad.models.memory import Sequences
from phasegrad.tree import named_leaves, tree_map

MOST_GATHERED_BYTES = 1 << 25  # beyond this a copy of the whole rollout would cost memory worth speaking of
# Tables of the rows that an epoch's minibatches are gathered from: one row for each sample, sequence, or frame of a sample.
SAMPLES, SEQUENCES, FRAMES = range(3)
STORED_AS = {"old_log_probs": "log_probs", "old_values": "values"}
SomeBatch = TypeVar("SomeBatch", bound="Minibatch")


@dataclass
class Minibatch:
    """Tensors [B, ...] on the device: states, and what their values should be."""

    observations: Any
    masks: Tensor | None
    value_targets: Tensor
    starts: Tensor | None = field(default=None, kw_only=True)  # of sequences: whether an episode starts with this step
    states: Tensor | None = field(default=None, kw_only=True)  # [S, K] before their first steps

    @property
    def seen(self) -> Any:
        """What a model is given: the observations, with what came before them where it has a memory."""
        if self.states is None or self.starts is None:
            return self.observations
        return Sequences(self.observations, self.states, self.starts)

    def __len__(self) -> int:
        return len(self.value_targets)

    @property
    def sequences(self) -> int:
        """How many there are; 0 where samples stand for themselves."""
        return 0 if self.states is None else len(self.states)

    def tensors(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
        """All tensors in a fixed order, and how to put a batch together from as many others."""
        present = self._present()
        flat = [leaf for tree in present.values() for _, leaf in named_leaves(tree)]

        def rebuild(leaves: Sequence[Tensor]) -> Any:
            rest = iter(leaves)
            values: dict[str, Any] = {f.name: None for f in fields(self)}
            for name, tree in present.items():
                values[name] = {key: next(rest) for key in sorted(tree)} if isinstance(tree, dict) else next(rest)
            return type(self)(**values)

        return flat, rebuild

    def tables(self, stacked: bool = False) -> list[int]:
        """For each of its tensors what it has a row for; where it is `stacked` its observations are still single ones."""
        special = {"states": SEQUENCES} | ({"observations": FRAMES} if stacked else {})
        return [special.get(name, SAMPLES) for name, tree in self._present().items() for _ in named_leaves(tree)]

    def _present(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def split(self, size: int) -> Iterator[Self]:
        """Micro-batches of at most `size` samples, in order; of sequences as many as fit, but one at least."""
        if self.states is not None:
            length = len(self) // self.sequences
            for chosen in torch.arange(self.sequences, device=self.states.device).split(max(1, size // length)):
                yield type(self)(**{f.name: self._columns(f.name, length, chosen) for f in fields(self)})
            return
        for start in range(0, len(self), size):
            yield type(self)(**{f.name: _part(getattr(self, f.name), start, start + size) for f in fields(self)})

    def _columns(self, name: str, length: int, chosen: Tensor) -> Any:
        """Of the field `name` what belongs to some of the sequences."""
        tree = getattr(self, name)
        if tree is None or name == "states":
            return None if tree is None else tree[chosen]
        return tree_map(lambda leaf: leaf.unflatten(0, (length, -1))[:, chosen].flatten(0, 1), tree)


@dataclass
class Batch(Minibatch):
    """What a policy and value update needs of a rollout."""

    actions: Tensor
    behaviour_params: Tensor  # of the policy that acted
    old_log_probs: Tensor
    advantages: Tensor
    old_values: Tensor
    leash_params: Tensor | None = field(default=None, kw_only=True)  # of the one it is held to, where it is


def gather(source: Any, index: Tensor, device: torch.device, kind: type[SomeBatch]) -> SomeBatch:
    """The samples at flat positions `index` of a rollout [T, N, ...], or of a whole storage [count, T, N, ...]."""
    index = to_device(index, source.value_targets.device)
    return _gathered(source, index.flatten(), state_rows(source, [index]), device, kind)


def _gathered(source: Any, positions: Tensor, rows: Tensor, device: torch.device, kind: type[SomeBatch]) -> SomeBatch:
    flat = flattened(source, kind)

    def pick(name: str) -> Any:  # index_select copies whole rows, where indexing goes byte by byte
        if name == "observations" and source.stacking is not None:
            return stacked_rows(source, positions)
        index = rows if name == "states" else positions
        return None if flat[name] is None else tree_map(lambda leaf: leaf.index_select(0, index), flat[name])

    picked = dict(zip(flat, send_tree([pick(name) for name in flat], device), strict=True))
    if source.stacking is not None:
        picked["observations"] = source.stacking.joined(picked["observations"])
    return kind(**picked)


def stacks(source: Any, positions: Tensor, device: torch.device) -> Any:
    """The stacks of observations [B, ...] at flat positions [B]."""
    return source.stacking.joined(send_tree([stacked_rows(source, positions)], device)[0])


def stacked_rows(source: Any, positions: Tensor) -> Any:
    """The observations that those stacks are made of, one after another."""
    rows, last = frame_rows(source, positions).flatten(), source.since.dim() - 1
    return tree_map(lambda leaf: leaf.flatten(0, last).index_select(0, rows), source.frames)


def flattened(source: Any, kind: type[Minibatch]) -> dict[str, Any]:
    """What a batch of this `kind` is gathered from, by its fields: tensors [rows, ...] that share the storage."""
    last = source.value_targets.dim() - 1
    stored = {f.name: getattr(source, STORED_AS.get(f.name, f.name), None) for f in fields(kind)}
    if source.stacking is not None:
        stored["observations"] = source.frames
    return {
        name: None if tree is None else tree_map(lambda leaf: leaf.flatten(0, last), tree)
        for name, tree in stored.items()
    }


def state_rows(source: Any, indices: Sequence[Tensor]) -> Tensor:
    """Where the states of sequences at flat positions [L, S] lie among the source's; none for other positions."""
    firsts = [index[0] for index in indices if index.dim() == 2]
    if not firsts:
        return torch.empty(0, dtype=torch.int64, device=source.value_targets.device)
    num_envs, first = source.value_targets.shape[-1], torch.cat(firsts)
    return first // (source.sequence * num_envs) * num_envs + first % num_envs


def everything(rollout: Rollout, device: torch.device, kind: type[SomeBatch]) -> SomeBatch:
    """All samples of a rollout as one batch; in order and, on the CPU, in the rollout's memory where that can be."""
    steps, num_envs = rollout.num_steps, rollout.num_envs
    if rollout.states is not None and rollout.sequence < steps:
        if steps % rollout.sequence == 0:
            return gather(rollout, sequence_positions(steps, num_envs, rollout.sequence)[0], device, kind)
        return gather(rollout, sequence_positions(steps, num_envs, steps)[0], device, kind)  # through all of it
    flat = flattened(rollout, kind)
    if rollout.stacking is not None:
        every = torch.arange(steps * num_envs, device=rollout.value_targets.device)
        flat["observations"] = stacks(rollout, every, device)
    return kind(**dict(zip(flat, send_tree(list(flat.values()), device), strict=True)))


def gather_each(source: Any, indices: list[Tensor], device: torch.device, kind: type[SomeBatch]) -> Iterator[SomeBatch]:
    """The minibatches at each of `indices`; small observations are gathered for all of them at once, then sliced."""
    indices = send(indices, source.value_targets.device)
    last = source.value_targets.dim()
    bytes_each = sum(
        int(np.prod(leaf.shape[last:])) * leaf.element_size() for _, leaf in named_leaves(source.observations)
    ) * frames_each(source)
    if bytes_each * sum(index.numel() for index in indices) > MOST_GATHERED_BYTES:
        for index in indices:
            yield gather(source, index, device, kind)
        return
    positions = torch.cat([index.flatten() for index in indices])
    everything = _gathered(source, positions, state_rows(source, indices), device, kind)
    start = sequences = 0
    for index in indices:
        end, more = start + index.numel(), sequences + (index.shape[1] if index.dim() == 2 else 0)
        ends = {f.name: (sequences, more) if f.name == "states" else (start, end) for f in fields(kind)}
        yield kind(**{name: _part(getattr(everything, name), *place) for name, place in ends.items()})
        start, sequences = end, more


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

    def rows(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], SomeBatch], list[int]]:
        """All stored samples as tensors [rows, ...] that share the storage, how to make a batch of such rows, and by
        which of the tables they are chosen.
        """
        whole, stacking = self.kind(**flattened(self.source, self.kind)), self.source.stacking
        tensors, rebuild = whole.tensors()

        def stacked(leaves: Sequence[Tensor]) -> SomeBatch:
            batch: SomeBatch = rebuild(leaves)
            return replace(batch, observations=stacking.joined(batch.observations))

        return tensors, rebuild if stacking is None else stacked, whole.tables(stacking is not None)

    def tables(self, indices: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The rows of the minibatches at `indices`, one after another: of samples, of sequences, of frames."""
        positions = torch.cat([index.flatten() for index in indices])
        frames = frame_rows(self.source, positions).flatten() if self.source.stacking is not None else positions[:0]
        return positions, state_rows(self.source, indices), frames


def _part(tree: Any, start: int, end: int) -> Any:
    return None if tree is None else tree_map(lambda leaf: leaf[start:end], tree)


def epoch_indices(rollout: Rollout, count: int, whole_segments: bool, generator: torch.Generator) -> list[Tensor]:
    """Positions of each minibatch of one epoch: random steps, or all steps of randomly chosen environments or sequences.

    There are `count` of them, or as many as there are samples, environments or sequences.
    """
    num_steps, num_envs = rollout.num_steps, rollout.num_envs
    if rollout.states is not None:
        return shuffled_sequences(sequence_positions(num_steps, num_envs, rollout.sequence), count, generator)
    count = min(count, num_envs if whole_segments else num_steps * num_envs)
    return minibatch_indices(num_steps, num_envs, count, whole_segments, generator)


def minibatch_indices(
    num_steps: int, num_envs: int, num_minibatches: int, whole_segments: bool, generator: torch.Generator
) -> list[Tensor]:
    """Flat positions of each minibatch of one epoch: random steps, or all steps of randomly chosen environments."""
    if whole_segments:
        steps = torch.arange(num_steps)[:, None] * num_envs
        envs = torch.randperm(num_envs, generator=generator).tensor_split(num_minibatches)
        return [(steps + chosen).flatten() for chosen in envs]
    return list(torch.randperm(num_steps * num_envs, generator=generator).tensor_split(num_minibatches))


def some_indices(rollout: Rollout, samples: int, generator: torch.Generator) -> Tensor:
    """Positions of about `samples` random samples of a rollout, in whole sequences where there are some."""
    if rollout.states is None:
        return torch.randperm(rollout.num_steps * rollout.num_envs, generator=generator)[:samples]
    sequences = sequence_positions(rollout.num_steps, rollout.num_envs, rollout.sequence)[0]
    chosen = torch.randperm(sequences.shape[1], generator=generator)[: max(1, samples // len(sequences))]
    return sequences[:, chosen]


def sequence_positions(num_steps: int, num_envs: int, length: int, first: int = 0) -> list[Tensor]:
    """Positions [L, S] of the sequences of a rollout that begins at `first`.

    Those of full length are the first entry; where `num_steps` is no multiple of it, the rest is the last.
    """
    whole, rest = divmod(num_steps, length)
    envs = first + torch.arange(num_envs)
    found = []
    if whole:
        starts = (torch.arange(whole)[:, None] * (length * num_envs) + envs).flatten()
        found.append(torch.arange(length)[:, None] * num_envs + starts)
    if rest:
        found.append(torch.arange(whole * length, num_steps)[:, None] * num_envs + envs)
    return found


def shuffled_sequences(kinds: Sequence[Tensor], count: int, generator: torch.Generator) -> list[Tensor]:
    """About `count` minibatches of sequences of one length each; every sequence of each [L, S] is in one of them."""
    total = sum(positions.numel() for positions in kinds)
    indices: list[Tensor] = []
    for positions in kinds:
        own = min(positions.shape[1], max(1, round(count * positions.numel() / total)))
        order = torch.randperm(positions.shape[1], generator=generator)
        indices += [positions[:, part] for part in order.tensor_split(own)]
    return indices


def over_rollout(function: Callable[..., Tensor], rollout: Rollout, device: torch.device) -> Tensor:
    """`function` of what is seen and of the masks over a whole rollout, [T, N, ...] where that lies."""
    if rollout.states is None and rollout.stacking is None:
        return in_chunks(function, (rollout.observations, rollout.masks), 2, device)
    steps, num_envs, result = rollout.num_steps, rollout.num_envs, None
    size = chunk_size(tree_map(lambda leaf: leaf.flatten(0, 1), rollout.observations), frames_each(rollout))
    parts: list[Tensor] = []
    if rollout.states is None:
        parts += torch.arange(steps * num_envs).split(size)
    for positions in [] if rollout.states is None else sequence_positions(steps, num_envs, rollout.sequence):
        parts += positions.split(max(1, size // len(positions)), 1)
    for part in send(parts, rollout.value_targets.device):
        batch = gather(rollout, part, device, Minibatch)
        found = function(batch.seen, batch.masks).to(part.device)
        if result is None:
            result = found.new_empty(steps * num_envs, *found.shape[1:])
        result[part.flatten()] = found
    assert result is not None
    return result.unflatten(0, (steps, num_envs))


def in_chunks(function: Callable[..., Tensor], inputs: tuple[Any, ...], leading: int, device: torch.device) -> Tensor:
    """`function` over inputs with `leading` batch dimensions, a cache-sized piece at a time; the result is where they are."""
    flat = [None if tree is None else tree_map(lambda leaf: leaf.flatten(0, leading - 1), tree) for tree in inputs]
    shape = named_leaves(inputs[0])[0][1].shape[:leading]
    size, where = chunk_size(flat[0]), device_of(inputs[0])
    pieces = []
    for start in range(0, int(np.prod(shape)), size):
        pieces.append(function(*send_tree([_part(tree, start, start + size) for tree in flat], device)).to(where))
    result = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
    return result.reshape(*shape, *result.shape[1:])


def chunk_size(flat_observations: Any, frames: int = 1) -> int:
    """Images go through a network 256 at a time, where its activations stay in the cache; vectors all together."""
    widest = max(int(np.prod(leaf.shape[1:])) for _, leaf in named_leaves(flat_observations))
    return 256 if frames * widest >= 1024 else 1 << 16


def frames_each(source: Any) -> int:
    """Stored observations that make up one that is seen."""
    return 1 if source.stacking is None else int(source.stacking.count)
