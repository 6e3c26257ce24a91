"""PPG's buffer: which of the storage's segments hold data, and in what minibatches the auxiliary phase sees them.

The rollouts' observations and value targets are stored once, where they were collected; this only keeps positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_PROBED = 4096  # states that the explained variance before and after a phase is measured on


class PhaseBuffer:
    """A ring of the last `kept` rollouts; an auxiliary phase is due every `interval` of them."""

    def __init__(self, kept: int, interval: int, num_steps: int, num_envs: int) -> None:
        self.kept, self.interval, self.num_steps, self.num_envs = kept, interval, num_steps, num_envs
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.filled = [0] * self.kept  # steps in each slot; a last rollout may be shorter than the others
        self.next_slot = 0
        self.since_phase = 0  # iterations

    def add(self, num_steps: int) -> None:
        """The slot `next_slot` now holds a rollout of `num_steps`."""
        self.filled[self.next_slot] = num_steps
        self.next_slot = (self.next_slot + 1) % self.kept
        self.since_phase += 1

    def phase_is_over(self) -> bool:
        return self.since_phase % self.interval == 0

    def end_phase(self) -> None:
        """After an auxiliary phase: one N_pi for both lengths starts the next phase with an empty buffer."""
        self.since_phase = 0
        if self.kept == self.interval:
            self.clear()

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
