"""PPG's buffer: which of the stored rollouts hold data, and in what minibatches the auxiliary phase sees them.

The rollouts' observations and value targets are stored once, where they were collected; this only keeps positions, and
the policy pi_old that an auxiliary phase begins with. Where the policy has a memory, so do the states that its sequences
begin with: found anew, by the networks as they are then, through all rollouts in the order they were collected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phasegrad.data.minibatches import Minibatch, gather, sequence_positions, shuffled_sequences
from phasegrad.data.restored import DamagedPieceError, require_sound
from phasegrad.data.storage import Rollout, Storage, fill
from phasegrad.data.transfers import to_device
from phasegrad.errors import DamagedError
from phasegrad.models import ActorCritic
from phasegrad.models.stacking import Stacking
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
    starts: Tensor | None = None
    states: Tensor | None = None  # [kept, T / L, N, K], what pi_old remembers before each sequence
    sequence: int = 0
    frames: Any = None
    since: Tensor | None = None
    stacking: Stacking | None = None


def buffered_tensors(rollout: Rollout) -> dict[str, Tensor]:
    """What an auxiliary phase reads of a rollout, by name, without copying."""
    observations = rollout.observations if rollout.frames is None else rollout.frames
    named = {f"observations.{name}" if name else "observations": leaf for name, leaf in named_leaves(observations)}
    if rollout.since is not None:
        named["since"] = rollout.since
    named["value_targets"] = rollout.value_targets
    if rollout.states is not None and rollout.starts is not None:
        named |= {"starts": rollout.starts, "states": rollout.states[:1]}  # the others are found anew
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
        self._states: Tensor | None = None

    @property
    def remembers(self) -> bool:
        """Whether the rollouts are of a policy with a memory."""
        return self._storage is not None and self.storage.whole.states is not None

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
    def store_policy(self, model: ActorCritic, positions: Tensor, chunk: int, device: torch.device) -> BufferedStates:
        """Compute pi_old(.|s) at flat `positions`, and give all states with it."""
        whole = self.storage.whole
        if self._old_params is None:
            self._old_params = torch.zeros_like(whole.behaviour_params)
        stored = self._old_params.flatten(0, 2)
        held = BufferedStates(whole.observations, whole.masks, whole.value_targets, self._old_params)
        held.frames, held.since, held.stacking = whole.frames, whole.since, whole.stacking
        if whole.states is not None:
            if self._states is None:
                self._states = torch.zeros_like(whole.states)
            held.starts, held.states, held.sequence = whole.starts, self._states, whole.sequence
            self._recall(model, held, stored, chunk, device)
            return held
        for part in to_device(positions, stored.device).split(chunk):
            batch = gather(whole, part, device, Minibatch)
            stored[part] = model.policy(batch.observations, batch.masks).to(stored.device)
        return held

    def _recall(
        self, model: ActorCritic, held: BufferedStates, stored: Tensor, chunk: int, device: torch.device
    ) -> None:
        """Go through all rollouts as they followed each other, for pi_old and what it remembers before each sequence.

        Only the oldest begins with a state as it was when it was collected.
        """
        assert held.states is not None
        before = -1  # the number of the rollout that `states` are at the end of
        states = held.states[0, 0]
        for slot in sorted((s for s, steps in enumerate(self.filled) if steps), key=lambda s: self.numbers[s]):
            kept = self.storage.rollouts[slot].states
            if kept is not None and before != self.numbers[slot] - 1:
                states = kept[0]
            before = self.numbers[slot]
            for number, (start, end) in enumerate(self._spans(slot, held.sequence)):
                held.states[slot, number] = states
                rows = self._rows(slot, start, end)
                after = []
                for part in to_device(rows, stored.device).split(max(1, chunk // len(rows)), 1):
                    batch = gather(held, part, device, Minibatch)
                    params, last = model.policy_and_states(batch.seen, batch.masks)
                    stored[part.flatten()] = params.to(stored.device)
                    after.append(last.to(stored.device))
                states = torch.cat(after)

    def _spans(self, slot: int, length: int) -> list[tuple[int, int]]:
        """The first and last step of each sequence of a rollout."""
        steps = self.filled[slot]
        return [(start, min(start + length, steps)) for start in range(0, steps, length)]

    def _rows(self, slot: int, start: int, end: int) -> Tensor:
        """Flat positions [steps, N] of some steps of a rollout."""
        first = slot * self.num_steps * self.num_envs
        return first + torch.arange(start, end)[:, None] * self.num_envs + torch.arange(self.num_envs)

    @torch.no_grad()
    def evaluated(
        self,
        functions: Mapping[str, Callable[[Any], Tensor]],
        states: BufferedStates,
        positions: Tensor,
        chunk: int,
        device: torch.device,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """What each of `functions` makes of the states at flat `positions`, by name, and their value targets."""
        found: dict[str, list[Tensor]] = {name: [] for name in functions}
        targets = []
        whole_sequences = positions.dim() == 2
        positions = to_device(positions, states.value_targets.device)
        for part in positions.split(
            max(1, chunk // len(positions)) if whole_sequences else chunk, int(whole_sequences)
        ):
            batch = gather(states, part, device, Minibatch)
            targets.append(batch.value_targets)
            for name, function in functions.items():
                found[name].append(function(batch.seen))
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
                number = self.numbers[slot]
                targets = buffered_tensors(self.storage.rollouts[slot].first(steps))
                for name, target in targets.items():
                    try:
                        fill(target, pieces[number].get(name), name)
                    except DamagedError as error:
                        raise DamagedPieceError(number, str(error).removesuffix(".")) from None
                require_sound(number, targets, None, self.storage.whole.stacking)

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

    def sequences(self) -> list[Tensor]:
        """Flat positions [L, S] of all valid sequences of one length, for each length there is."""
        size, length = self.num_steps * self.num_envs, self.storage.whole.sequence
        by_length: dict[int, list[Tensor]] = {}
        for slot, steps in enumerate(self.filled):
            for positions in sequence_positions(steps, self.num_envs, length, slot * size) if steps else []:
                by_length.setdefault(len(positions), []).append(positions)
        return [torch.cat(by_length[length], 1) for length in sorted(by_length, reverse=True)]

    def probe(self, trained: int) -> Tensor:
        """Positions of an even subset of the samples, or sequences, small beside the `trained` samples of the phase."""
        size = max(64, min(MOST_PROBED, trained // 16))
        if self.remembers:
            whole = self.sequences()[0]
            return whole[:, :: max(1, whole.numel() // size)]
        positions = self.positions()
        return positions[:: max(1, len(positions) // size)]

    def epochs(
        self, epochs: int, count: int, size: int, steps: int, whole_segments: bool, generator: torch.Generator
    ) -> list[list[Tensor]]:
        """Minibatch positions of each auxiliary epoch.

        `count` minibatches an epoch, or as many as `size` samples each make. With `steps`, that many minibatches in
        all, drawn from as many shuffled passes as they need (whole or in part), reported as one epoch.
        """
        sequences = self.sequences() if self.remembers else []
        units = self.segment_positions() if whole_segments or sequences else [self.positions()]
        total = sum(len(unit) for unit in units)
        count = max(1, -(-total // size)) if size else count
        if sequences:
            count = min(count, sum(kind.shape[1] for kind in sequences))
        else:
            count = min(count, len(units) if whole_segments else total)
        passes: list[list[Tensor]] = []
        while sum(map(len, passes)) < steps if steps else len(passes) < epochs:
            if sequences:
                passes.append(shuffled_sequences(sequences, count, generator))
            elif whole_segments:
                order = torch.randperm(len(units), generator=generator)
                passes.append([torch.cat([units[i] for i in part]) for part in order.tensor_split(count)])
            else:
                shuffled = units[0][torch.randperm(total, generator=generator)]
                passes.append(list(shuffled.tensor_split(count)))
        if not steps:
            return passes
        return [[index for minibatches in passes for index in minibatches][:steps]]
