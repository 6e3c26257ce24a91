"""What the numbers of a C policy are: the caller's observation, mask, state and action, each one row of numbers.

Knows the agent; nothing of C but the names of its types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad import envs
from phasegrad.data.storage import stored_dtype
from phasegrad.distributions import Product
from phasegrad.envs.spaces import CHOICES, Leaf
from phasegrad.errors import RunError
from phasegrad.export.onnx import OwnAction
from phasegrad.models.encoders import ImageEncoder

if TYPE_CHECKING:
    from phasegrad.agent import Agent
    from phasegrad.envs.actions import ActionPart

LARGEST = 1 << 24  # whole numbers up to this are exact in a float
WITH_ONNX = "export it with --onnx"


@dataclass(frozen=True)
class Entry:
    """One array of the observation: `count` numbers from `offset` on, in the network's `dtype` and `shape`."""

    leaf: Leaf
    offset: int
    count: int
    dtype: torch.dtype
    shape: tuple[int, ...]  # as the network takes it, stacked where frames are
    blocks: int  # pieces of a frame, between which those of the other frames lie
    starts: list[int]  # of choices: their first number, each
    sizes: list[int]  # and how many there are

    @property
    def is_direct(self) -> bool:
        """Whether the network takes the caller's floats as they are."""
        return self.dtype == torch.float32

    def described(self) -> str:
        name = f" {self.leaf.name}," if self.leaf.name else ""
        return f"{name} {_ranges(self.starts, self.sizes) if self.sizes else _numbers(self.leaf.shape)}"


class Layout:
    """The agent's policy for one observation, and where in its rows everything is."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.model = agent, agent.model
        if any(isinstance(module, ImageEncoder) for module in self.model.policy_encoder.modules()):
            raise RunError(f"A policy that sees images is not written as C: {WITH_ONNX}.")
        self.frames = 1 if self.model.stacking is None else self.model.stacking.count
        self.entries: list[Entry] = []
        offset = 0
        for leaf in agent.observing.without(self.model.critic_only).leaves:
            self.entries.append(self._entry(leaf, offset))
            offset += self.entries[-1].count
        self.observation_size = offset
        self.mask_size = agent.distribution.mask_size if agent.spaces.has_mask else 0
        self.memory_size = self.model.policy_state_size
        self.state_size = self.memory_size + (self.frames * offset + 1 if self.frames > 1 else 0)
        self.parts = envs.ActionAdapter(agent.spaces.original_action).parts
        self.product = agent.distribution if isinstance(agent.distribution, Product) else None
        kinds = [agent.distribution] if self.product is None else list(self.product.parts.values())
        pieces = zip(self.parts, kinds, agent.bounds.parts or [agent.bounds], strict=True)
        self.own_actions = [OwnAction(*piece) for piece in pieces]
        self.action_size = sum(part.width for part in self.parts)
        for part in self.parts:
            if part.sizes and np.abs(np.asarray(part.offset) + max(part.sizes)).max() > LARGEST:
                raise RunError(f"The actions{_of(part.name)} have numbers that no C float holds: {WITH_ONNX}.")

    def _entry(self, leaf: Leaf, offset: int) -> Entry:
        stacking = self.model.stacking
        if stacking is None:
            seen, blocks = leaf.space, 1
        elif isinstance(stacking.space, gym.spaces.Dict):
            seen, blocks = stacking.space[leaf.name], stacking.blocks(leaf.name)
        else:
            seen, blocks = stacking.space, stacking.blocks("")
        count = int(np.prod(leaf.shape, dtype=np.int64))
        starts: list[int] = []
        sizes: list[int] = []
        if isinstance(leaf.space, CHOICES):
            choices = leaf.space.nvec if isinstance(leaf.space, gym.spaces.MultiDiscrete) else leaf.space.n
            sizes = [int(size) for size in np.ravel(choices)]
            starts = [int(start) for start in np.ravel(np.asarray(leaf.start))]
            if max(abs(start) + size for start, size in zip(starts, sizes, strict=True)) > LARGEST:
                raise RunError(f"The observation{_of(leaf.name)} has numbers that no C float holds: {WITH_ONNX}.")
        shape = tuple(seen.shape or ())
        return Entry(leaf, offset, count, stored_dtype(leaf.space), shape, blocks, starts, sizes)

    # The policy as a function of one row of everything

    def examples(self) -> list[Tensor]:
        """Zeros, as the function takes them."""
        found = [torch.zeros((1, *entry.shape), dtype=entry.dtype) for entry in self.entries]
        found += [torch.ones(1, self.mask_size, dtype=torch.bool)] if self.mask_size else []
        return found + ([torch.zeros(1, self.memory_size)] if self.memory_size else [])

    def function(self, model: Any) -> Any:
        """(entries, mask, memory) -> actions [1, K] as the environment numbers them, memory."""

        def policy(*inputs: Tensor) -> list[Tensor]:
            named = {entry.leaf.name: tensor for entry, tensor in zip(self.entries, inputs, strict=False)}
            observation = named if self.agent.observing.nested else named[""]
            mask = inputs[len(self.entries)] if self.mask_size else None
            if self.memory_size:
                params, after = model.policy_step(observation, mask, inputs[-1])
                return [self._actions(params), after]
            return [self._actions(model.policy(observation, mask))]

        return policy

    def _actions(self, params: Tensor) -> Tensor:
        chosen = self.agent.distribution.mode(params)
        taken = [chosen] if self.product is None else list(self.product.divided(chosen).values())
        rows = [own.numbered(piece) for own, piece in zip(self.own_actions, taken, strict=True)]
        floats = [row.reshape(1, -1).to(torch.float32) for row in rows]
        return torch.cat(floats, 1) if len(floats) > 1 else floats[0]

    # Rows of arrays, for checking

    def observation_row(self, given: Any, index: int) -> np.ndarray:
        """One of a batch of flat observations as the caller of the C function has it."""
        named = given if isinstance(given, dict) else {"": given}
        rows = [entry.leaf.restore(named[entry.leaf.name][index : index + 1]) for entry in self.entries]
        return np.concatenate([row.astype(np.float32).reshape(-1) for row in rows])

    def by_part(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Actions [B, K] of the C function by the names and in the types and shapes that `predict` has."""
        found, start = {}, 0
        for part in self.parts:
            piece = rows[:, start : start + part.width].reshape(len(rows), *(part.original.shape or ()))
            found[f"action.{part.name}" if part.name else "action"] = piece.astype(part.dtype)
            start += part.width
        return found

    def described_action(self, part: ActionPart) -> str:
        name = f" {part.name}," if part.name else ""
        if part.bits:
            return f"{name} each 0 or 1"
        firsts = [int(first) for first in np.broadcast_to(np.ravel(part.offset), len(part.sizes))] if part.sizes else []
        return f"{name} {_ranges(firsts, part.sizes) if firsts else _numbers(part.original.shape or ())}"


def _ranges(firsts: Sequence[int], sizes: Sequence[int]) -> str:
    ranges = [f"{first} to {first + size - 1}" for first, size in zip(firsts, sizes, strict=True)]
    shown = [*ranges[:4], "..."] if len(ranges) > 4 else ranges
    return ("a whole number from " if len(ranges) == 1 else "whole numbers, ") + ", ".join(shown)


def _numbers(shape: tuple[int, ...]) -> str:
    return f"numbers of shape {shape}, row by row" if len(shape) > 1 else "numbers"


def _of(name: str) -> str:
    return f" {name!r}" if name else ""
