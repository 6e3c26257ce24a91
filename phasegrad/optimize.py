"""Gradient steps: the one place that calls backward, clips and moves parameters.

It works on the flat parameter vector: one norm and one Adam kernel a group, whatever the network. Metrics stay on the
device until the end of an iteration. Nothing here knows what a loss means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from phasegrad.errors import NonFiniteError
from phasegrad.models import FlatParameters

# From a minibatch and the iteration's scalars to (loss, metrics); a metric is a 0-d tensor, a mean over the samples.
Loss = Callable[[Any, Mapping[str, float]], tuple[Tensor, dict[str, Tensor]]]


class Adam:
    """Adam (Kingma and Ba 2015) on one slice of the flat parameters."""

    def __init__(self, flat: FlatParameters, where: slice, eps: float = 1e-5) -> None:
        self.parameters, self.gradients = flat.data[where], flat.grad[where]
        self.first, self.second = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self.steps = torch.zeros((), dtype=torch.float32, device=self.parameters.device)
        self.eps = eps

    def step(self, learning_rate: float) -> None:
        self.steps += 1
        torch._fused_adam_(
            [self.parameters], [self.gradients], [self.first], [self.second], [], [self.steps],
            lr=learning_rate, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=self.eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """The tensors a checkpoint must hold."""
        return {"first": self.first, "second": self.second, "steps": self.steps}


class Stepper:
    """Moves groups of parameters, each by its own optimiser and learning rate, down the gradient of a loss."""

    def __init__(self, optimizers: Mapping[str, Adam], max_grad_norm: float, microbatch: int) -> None:
        self.optimizers, self.max_grad_norm, self.microbatch = dict(optimizers), max_grad_norm, microbatch
        self.recorded: dict[str, list[Tensor]] = {}  # 0-d tensors on the device, one a gradient step

    def step(self, loss: Loss, batch: Any, scalars: Mapping[str, float], rates: Mapping[str, float]) -> None:
        """One gradient step on `loss` over `batch`, for the groups that `rates` names.

        Gradients are accumulated over micro-batches where the batch is large.
        """
        optimizers = {name: self.optimizers[name] for name in rates}
        for optimizer in optimizers.values():
            optimizer.gradients.zero_()
        if len(batch) <= self.microbatch:
            value, metrics = loss(batch, scalars)
            value.backward()
        else:
            metrics = {}
            for part in batch.split(self.microbatch):
                share = len(part) / len(batch)
                value, part_metrics = loss(part, scalars)
                (value * share).backward()
                for name, metric in part_metrics.items():
                    metrics[name] = metrics.get(name, 0.0) + metric.detach() * share
        for name, optimizer in optimizers.items():
            metrics[f"{name}_grad_norm"] = self._clip(optimizer.gradients)
            optimizer.step(rates[name])
        for name, metric in metrics.items():
            self.recorded.setdefault(name, []).append(metric.detach())

    def _clip(self, gradients: Tensor) -> Tensor:
        norm = gradients.norm()
        if self.max_grad_norm > 0:
            gradients.mul_((self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def latest(self, name: str, count: int) -> float:
        """The mean of a metric over the last `count` gradient steps; waits for the device."""
        return float(torch.stack(self.recorded[name][-count:]).mean())

    def take_metrics(self) -> dict[str, float]:
        """Means over the gradient steps since the last call, read from the device in one transfer."""
        names = list(self.recorded)
        if not names:
            return {}
        means = torch.stack([torch.stack(self.recorded[name]).mean() for name in names]).tolist()
        self.recorded = {}
        metrics = dict(zip(names, means, strict=True))
        for name, mean in metrics.items():
            if not math.isfinite(mean):
                raise NonFiniteError(
                    f"{name} became NaN or infinite in this update: training has diverged; lower learning_rate."
                )
        return metrics
