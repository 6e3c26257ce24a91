"""PPG's buffer: which of the stored rollouts hold data, and in what minibatches the auxiliary phase sees them.

The rollouts' observations and value targets are stored once, where they were collected; this only keeps positions, and
the policy pi_old that an auxiliary phase begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phasegrad.data.minibatches import Minibatch, gather
from phasegrad.data.storage import Rollout, Storage, fill
from phasegrad.errors import DamagedError
from phasegrad.tree import named_leaves

MOST_PROBED = 4096  # states that the explained variance before and after a phase is measured on


@dataclass
class AuxiliaryBatch(Minibatch):
    """What an auxiliary update needs of the buffer."""

    old_params: Tensor  # of pi_old, the policy at the beginning of the phase


@dataclass
class BufferedStates:
    """The states in the buffer [kept, T, N, ...]; of a slot that is not full only the first steps count."""

    observations: Any
    masks: Tensor | None
    value_targets: Tensor
    old_params: Tensor  # of pi_old at those states that the phase trains on


def buffered_tensors(rollout: Rollout) -> dict[str, Tensor]:
    """What an auxiliary phase reads of a rollout, by name, without copying."""
    named = {f"observations.{name}".rstrip("."): leaf for name, leaf in named_leaves(rollout.observations)}
    named["value_targets"] = rollout.value_targets
    return named if rollout.masks is None else named | {"masks": rollout.masks}


class PhaseBuffer:
    """A ring of the last `kept` rollouts of `storage`; an auxiliary phase is due every `interval` of them."""

    def __init__(
        self,
        kept: int,
        interval: int,
        num_steps: int,
        num_envs: int,
        storage: Callable[[], Storage] | None = None,
        most_bytes: int = 0,
    ) -> None:
        self.kept, self.interval, self.num_steps, self.num_envs = kept, interval, num_steps, num_envs
        self.most_bytes = most_bytes  # that the rollouts held can take on disk
        self._storage = storage
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.filled = [0] * self.kept  # steps in each slot; a last rollout may be shorter than the others
        self.numbers = [-1] * self.kept  # the iteration each slot's rollout was collected in
        self.next_slot = 0
        self.since_phase = 0  # iterations
        self._old_params: Tensor | None = None

    @property
    def storage(self) -> Storage:
        assert self._storage is not None
        return self._storage()

    def free_next_slot(self) -> int:
        """The slot that is written next, which holds nothing from now on."""
        self.filled[self.next_slot] = 0
        return self.next_slot

    def add(self, num_steps: int, number: int = 0) -> None:
        """The slot `next_slot` now holds a rollout of `num_steps`, collected in the iteration `number`."""
        self.filled[self.next_slot] = num_steps
        self.numbers[self.next_slot] = number
        self.next_slot = (self.next_slot + 1) % self.kept
        self.since_phase += 1

    def phase_is_over(self) -> bool:
        """Whether no policy phase is under way: its auxiliary phase is due, or has been."""
        return self.since_phase % self.interval == 0

    def is_full(self) -> bool:
        return all(steps == self.num_steps for steps in self.filled)

    def end_phase(self) -> None:
        """After an auxiliary phase: one N_pi for both lengths starts the next phase with an empty buffer."""
        self.since_phase = 0
        if self.kept == self.interval:
            self.clear()

    # What the auxiliary phase trains on

    @torch.no_grad()
    def store_policy(
        self, policy: Callable[[Any, Tensor | None], Tensor], positions: Tensor, chunk: int, device: torch.device
    ) -> BufferedStates:
        """Compute pi_old(.|s) at flat `positions`, and give all states with it."""
        whole = self.storage.whole
        if self._old_params is None:
            self._old_params = torch.zeros_like(whole.behaviour_params)
        stored = self._old_params.flatten(0, 2)
        for part in positions.split(chunk):
            batch = gather(whole, part, device, Minibatch)
            stored[part] = policy(batch.observations, batch.masks).cpu()
        return BufferedStates(whole.observations, whole.masks, whole.value_targets, self._old_params)

    @torch.no_grad()
    def evaluated(
        self, functions: Mapping[str, Callable[[Any], Tensor]], positions: Tensor, chunk: int, device: torch.device
    ) -> tuple[dict[str, Tensor], Tensor]:
        """What each of `functions` makes of the observations at flat `positions`, by name, and their value targets."""
        found: dict[str, list[Tensor]] = {name: [] for name in functions}
        targets = []
        for part in positions.split(chunk):
            batch = gather(self.storage.whole, part, device, Minibatch)
            targets.append(batch.value_targets)
            for name, function in functions.items():
                found[name].append(function(batch.observations))
        return {name: torch.cat(parts) for name, parts in found.items()}, torch.cat(targets)

    # Checkpoints

    def pieces(self) -> dict[int, dict[str, Tensor]]:
        """The rollouts held, as an auxiliary phase needs them, by the iteration they were collected in."""
        if not any(self.filled):
            return {}
        return {
            number: buffered_tensors(rollout.first(steps))
            for rollout, number, steps in zip(self.storage.rollouts, self.numbers, self.filled, strict=True)
            if steps
        }

    def state(self) -> dict[str, Any]:
        """Where everything lies, as plain data."""
        return {name: getattr(self, name) for name in ("filled", "numbers", "next_slot", "since_phase")}

    def restore(self, state: Mapping[str, Any], pieces: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Take over what `state` and `pieces` gave, if it is a state that this buffer can be in."""
        lists = [state.get("filled"), state.get("numbers")]
        values = [state.get("next_slot"), state.get("since_phase")]
        whole = all(isinstance(each, list) and len(each) == self.kept for each in lists)
        if whole:
            values += [value for each in lists for value in each or ()]
        if (
            not whole
            or not all(type(value) is int for value in values)
            or not all(0 <= steps <= self.num_steps for steps in state["filled"])
            or not (0 <= state["next_slot"] < self.kept and state["since_phase"] >= 0)
            or (state["since_phase"] > self.interval > 1)  # without a phase to end, runs of version 0.1.0 counted on
            or {n for n, steps in zip(state["numbers"], state["filled"], strict=True) if steps} - pieces.keys()
        ):
            raise DamagedError("The saved state of the auxiliary phase's buffer is damaged.")
        self.filled, self.numbers = list(state["filled"]), list(state["numbers"])
        self.next_slot, self.since_phase = state["next_slot"], state["since_phase"] if self.interval > 1 else 0
        for slot, steps in enumerate(self.filled):
            if steps:
                saved = pieces[self.numbers[slot]]
                for name, target in buffered_tensors(self.storage.rollouts[slot].first(steps)).items():
                    fill(target, saved.get(name), name)

    # Minibatches

    def segment_positions(self) -> list[Tensor]:
        """Flat positions [steps] in the storage [kept, T, N] of each environment's segment of each rollout."""
        size = self.num_steps * self.num_envs
        return [
            slot * size + env + self.num_envs * torch.arange(steps)
            for slot, steps in enumerate(self.filled)
            if steps
            for env in range(self.num_envs)
        ]

    def positions(self) -> Tensor:
        """Flat positions of all valid samples."""
        return torch.cat(self.segment_positions())

    def probe(self, trained: int) -> Tensor:
        """Positions of an even subset of the samples, small beside the `trained` samples of the phase."""
        positions = self.positions()
        size = max(64, min(MOST_PROBED, trained // 16))
        return positions[:: max(1, len(positions) // size)]

    def epochs(
        self, epochs: int, count: int, size: int, steps: int, whole_segments: bool, generator: torch.Generator
    ) -> list[list[Tensor]]:
        """Minibatch positions of each auxiliary epoch.

        `count` minibatches an epoch, or as many as `size` samples each make. With `steps`, that many minibatches in
        all, drawn from as many shuffled passes as they need (whole or in part), reported as one epoch.
        """
        units = self.segment_positions() if whole_segments else [self.positions()]
        total = sum(len(unit) for unit in units)
        count = max(1, -(-total // size)) if size else count
        count = min(count, len(units) if whole_segments else total)
        passes: list[list[Tensor]] = []
        while len(passes) * count < steps if steps else len(passes) < epochs:
            if whole_segments:
                order = torch.randperm(len(units), generator=generator)
                passes.append([torch.cat([units[i] for i in part]) for part in order.tensor_split(count)])
            else:
                shuffled = units[0][torch.randperm(total, generator=generator)]
                passes.append(list(shuffled.tensor_split(count)))
        if not steps:
            return passes
        return [[index for minibatches in passes for index in minibatches][:steps]]
