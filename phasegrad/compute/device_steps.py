"""Gradient steps on a GPU by what torch makes of their recorded operations: one kernel for many, or a CUDA graph of all.

Which of them, if any, is sooner depends on the network and the GPU, so it is measured at the first minibatch of a size, after
each has shown that it finds what autograd does. Nothing here knows what a loss means.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phasegrad.compute.checking import require_agreement, resampled
from phasegrad.compute.plain import Loss
from phasegrad.compute.recording import Numbers
from phasegrad.compute.traced import TracedSteps
from phasegrad.data.minibatches import Minibatch
from phasegrad.errors import PhasegradWarning

# By the name that people know it by, what torch.compile is asked for.
CANDIDATES: dict[str, dict[str, Any]] = {"torch.compile": {}, "CUDA graphs": {"mode": "reduce-overhead"}}
TOLERANCE = 1e-3  # a GPU sums in another order, and its compiler contracts products with sums
REPEATS = 10  # of a step that is measured
PLAIN = "plain kernels"


@dataclass
class DeviceSteps(TracedSteps):
    """As traced steps, but each trace is what was measured to be the soonest; plain autograd among them."""

    def _trace(self, loss: Loss, batch: Minibatch, numbers: Numbers) -> tuple[Any, list[str]]:
        from torch.fx.experimental.proxy_tensor import make_fx  # here, since it imports torch's compilers

        rows, rebuild = batch.tensors()
        function, names = self.recorder.gradient_function(loss, rebuild, len(rows), numbers)
        inputs = [*rows, *numbers.inputs]
        self.recorder.require_recordable(function, inputs)

        def plain(*given: Tensor) -> list[Tensor]:
            with torch.enable_grad():
                return function(*given)

        seconds = {PLAIN: measured(plain, inputs)}
        found: dict[str, Callable[..., Sequence[Tensor]]] = {PLAIN: plain}
        minibatches = [inputs, [*resampled(rows), *numbers.inputs]]
        for name, asked in CANDIDATES.items():
            try:
                module = make_fx(lambda *given: list(function(*given)))(*inputs)
                made = copying(torch.compile(module, dynamic=False, **asked))
                require_agreement(made, function, minibatches, self.flat, names, TOLERANCE)
                seconds[name], found[name] = measured(made, inputs), made
            except Exception as error:  # of a compiler that is not there, or cannot
                reason = str(error).strip().splitlines() or [type(error).__name__]
                warnings.warn(f"{name} cannot be had for the update: {reason[0][:200]}", PhasegradWarning, stacklevel=2)
        chosen = min(seconds, key=lambda name: seconds[name])
        if self.ranks.size > 1:  # the first process's, so that all compute alike
            chosen = self.ranks.from_first(lambda: chosen)
        return found.get(chosen, plain), names


def copying(compiled: Callable[..., Sequence[Tensor]]) -> Callable[..., list[Tensor]]:
    """Results that the next call does not write over, as a CUDA graph's are."""

    def called(*given: Tensor) -> list[Tensor]:
        return [each.detach().clone() for each in compiled(*given)]

    return called


def measured(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> float:
    """Seconds of a call once it is warm."""
    for _ in range(3):
        function(*inputs)
    wait_for(inputs[0].device)
    start = time.perf_counter()
    for _ in range(REPEATS):
        function(*inputs)
    wait_for(inputs[0].device)
    return (time.perf_counter() - start) / REPEATS


def wait_for(device: torch.device) -> None:
    """Until a device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
