"""Gradient steps whose gradient comes from traced kernels: the operations of autograd without its overhead.

Small networks on a CPU spend nearly all of autograd's time on that. It needs no compiler and finds the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from phasegrad.compute.checking import require_agreement, resampled
from phasegrad.compute.plain import Loss, Metrics, PlainSteps
from phasegrad.compute.recording import LossRecorder, Numbers, made_by_all
from phasegrad.compute.tracing import Traced
from phasegrad.data.minibatches import Minibatch

TOLERANCE = 1e-6  # the kernels are torch's own: only the order of a sum may differ


@dataclass
class TracedSteps(PlainSteps):
    """Traces the gradient of each loss at its first minibatch of a size; otherwise as plain steps."""

    recorder: LossRecorder = field(kw_only=True)
    traces: dict[Any, tuple[Traced, list[str]]] = field(default_factory=dict, init=False)

    def gradient(self, name: str, loss: Loss, batch: Minibatch, scalars: Mapping[str, float]) -> tuple[Tensor, Metrics]:
        numbers = self.recorder.numbers(scalars)
        key = (name, len(batch), batch.sequences, numbers.key)
        if key not in self.traces:
            self.traces[key] = made_by_all(self.ranks, lambda: self._trace(loss, batch, numbers), instead="plain")
        traced, names = self.traces[key]
        with torch.no_grad():
            gradient, *metrics = traced(*batch.tensors()[0], *numbers.inputs)
        return gradient, dict(zip(names, metrics, strict=True))

    def _trace(self, loss: Loss, batch: Minibatch, numbers: Numbers) -> tuple[Traced, list[str]]:
        """The traced gradient, which has shown that it finds what autograd does, and the names of the metrics."""
        rows, rebuild = batch.tensors()
        function, names = self.recorder.gradient_function(loss, rebuild, len(rows), numbers)
        self.recorder.require_recordable(function, [*rows, *numbers.inputs])
        traced = Traced(function, [*rows, *numbers.inputs])
        minibatches = [[*rows, *numbers.inputs], [*resampled(rows), *numbers.inputs]]
        require_agreement(traced, function, minibatches, self.flat, names, TOLERANCE)
        return traced, names
