"""Gradient steps: the one place that calls backward, clips and moves parameters.

It works on the flat parameter vector: one norm and one Adam kernel a group, whatever the network. Metrics stay on the
device until the end of an iteration. Nothing here knows what a loss means.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from phasegrad.errors import NonFiniteError, PhasegradWarning
from phasegrad.models import FlatParameters
from phasegrad.replay import Replay
from phasegrad.rollout import Minibatch

# From a minibatch and the iteration's scalars to (loss, metrics); a metric is a 0-d tensor, a mean over the samples.
Loss = Callable[[Any, Mapping[str, float]], tuple[Tensor, dict[str, Tensor]]]


def checked_replay(function: Callable[..., list[Tensor]], examples: list[Tensor]) -> Replay:
    """A replay that has shown on `examples` that it computes what `function` does."""
    replay = Replay(function, examples)
    with torch.no_grad():
        found = replay(*examples)
    for mine, wanted in zip(found, function(*examples), strict=True):
        torch.testing.assert_close(mine, wanted.detach(), rtol=1e-5, atol=1e-6)
    return replay


class Adam:
    """Adam (Kingma and Ba 2015) on one slice of the flat parameters."""

    def __init__(self, flat: FlatParameters, where: slice, eps: float = 1e-5) -> None:
        self.parameters, self.gradients, self.where = flat.data[where], flat.grad[where], where
        self.first, self.second = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self.steps = torch.zeros((), dtype=torch.float32, device=self.parameters.device)
        self.eps = eps

    def step(self, gradients: Tensor, learning_rate: float, scale: Tensor | None = None) -> None:
        """Move down `gradients`, divided by `scale`."""
        self.steps += 1
        torch._fused_adam_(
            [self.parameters], [gradients], [self.first], [self.second], [], [self.steps],
            lr=learning_rate, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=self.eps, amsgrad=False, maximize=False,
            grad_scale=scale,
        )  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """The tensors a checkpoint must hold."""
        return {"first": self.first, "second": self.second, "steps": self.steps}


class Stepper:
    """Moves groups of parameters, each by its own optimiser and learning rate, down the gradient of a loss.

    With `replay` the gradient of each loss is traced at its first minibatch of a shape and replayed from then on:
    the same numbers without autograd's overhead, which is most of the time for small networks on a CPU.
    """

    def __init__(
        self, flat: FlatParameters, optimizers: Mapping[str, Adam], max_grad_norm: float, microbatch: int, replay: bool
    ) -> None:
        self.flat, self.optimizers = flat, dict(optimizers)
        self.max_grad_norm, self.microbatch, self.replay = max_grad_norm, microbatch, replay
        self.recorded: dict[str, list[Tensor]] = {}  # 0-d tensors on the device, one a gradient step
        self.count = 0  # gradient steps taken
        self._replays: dict[Any, tuple[Replay, list[str]]] = {}
        self._scalars: dict[tuple[str, float], Tensor] = {}

    def step(
        self, name: str, loss: Loss, batch: Minibatch, scalars: Mapping[str, float], rates: Mapping[str, float]
    ) -> None:
        """One gradient step on `loss`, known as `name`, over `batch`, for the parameter groups that `rates` names."""
        gradients, metrics = (self._replayed if self.replay else self._backward)(name, loss, batch, scalars)
        for group, learning_rate in rates.items():
            optimizer = self.optimizers[group]
            own = gradients[optimizer.where]
            norm = own.norm()
            scale = (norm / self.max_grad_norm).clamp(min=1.0).float() if self.max_grad_norm > 0 else None
            optimizer.step(own, learning_rate, scale)
            self.recorded.setdefault(f"{group}_grad_norm", []).append(norm)
        for key, metric in metrics.items():
            self.recorded.setdefault(key, []).append(metric)
        self.count += 1

    def _backward(
        self, _: str, loss: Loss, batch: Minibatch, scalars: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The flat gradient by autograd, accumulated over micro-batches where the batch is large."""
        self.flat.grad.zero_()
        if len(batch) <= self.microbatch:
            value, metrics = loss(batch, scalars)
            value.backward()
            return self.flat.grad, {key: metric.detach() for key, metric in metrics.items()}
        means: dict[str, Tensor] = {}
        for part in batch.split(self.microbatch):
            share = len(part) / len(batch)
            value, metrics = loss(part, scalars)
            (value * share).backward()
            for key, metric in metrics.items():
                means[key] = means[key] + metric.detach() * share if key in means else metric.detach() * share
        return self.flat.grad, means

    def _replayed(
        self, name: str, loss: Loss, batch: Minibatch, scalars: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The same flat gradient from the traced operations."""
        tensors, rebuild = batch.tensors()
        values = [self._as_tensor(key, value) for key, value in scalars.items()]
        known = (name, len(batch))
        if known not in self._replays:
            keys: list[str] = []

            def gradient(*inputs: Tensor) -> list[Tensor]:
                mine = dict(zip(scalars, inputs[len(tensors) :], strict=True))
                value, metrics = loss(rebuild(inputs[: len(tensors)]), mine)  # type: ignore[arg-type]
                keys[:] = list(metrics)
                return [self.flat.gradient(value), *metrics.values()]

            try:
                self._replays[known] = (checked_replay(gradient, [*tensors, *values]), keys)
            except Exception as error:  # a user's network may do what cannot be traced; it still trains
                self.replay = False
                warnings.warn(
                    f"The update runs without replay, since it cannot be traced: {error}",
                    PhasegradWarning,
                    stacklevel=2,
                )
                return self._backward(name, loss, batch, scalars)
        run, keys = self._replays[known]
        with torch.no_grad():
            flat_gradient, *metrics = run(*tensors, *values)
        return flat_gradient, dict(zip(keys, metrics, strict=True))

    def _as_tensor(self, key: str, value: float) -> Tensor:
        """A scalar as a tensor of its own, so that the trace does not fix its value; made once for each value."""
        if (key, value) not in self._scalars:
            self._scalars = {known: tensor for known, tensor in self._scalars.items() if known[0] != key}
            self._scalars[key, value] = torch.tensor(value, dtype=self.flat.data.dtype, device=self.flat.data.device)
        return self._scalars[key, value]

    def mean_since(self, name: str, count: int) -> float:
        """The mean of a metric over the gradient steps since `self.count` was `count`; waits for the device."""
        return float(torch.stack(self.recorded[name][count - self.count :]).mean())

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
