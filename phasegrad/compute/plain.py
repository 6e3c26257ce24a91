"""The gradient step as it is written down: loss, backward, mean over the processes, clipping, optimiser.

It works on the flat parameter vector: one norm and one optimiser kernel a group, whatever the network. Traced and
compiled steps have the same methods and find the same numbers sooner. Nothing here knows what a loss means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from phasegrad.compute.optimizers import Optimizer
from phasegrad.data.minibatches import Minibatch
from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.models import FlatParameters

# By name, on the device: of one gradient step a number, of several a vector of them.
Metrics = dict[str, Tensor]
# From a minibatch and the iteration's scalars to (loss, metrics); a metric is a 0-d tensor, a mean over the samples.
Loss = Callable[[Any, Mapping[str, float]], tuple[Tensor, Metrics]]


@dataclass
class PlainSteps:
    """Moves groups of parameters, each by its own optimiser and learning rate, down the gradient of a loss.

    With several processes each has the gradient of its part of a minibatch, all parts of one size; their mean, by one
    all-reduce of the flat vector, is the gradient of the whole, and every process takes the same step.
    """

    flat: FlatParameters
    optimizers: dict[str, Optimizer]  # by parameter group
    max_grad_norm: float  # longest gradient of a group; 0 for no clipping
    microbatch: int  # samples that go through the network at once
    ranks: Ranks = ALONE

    def step(
        self, name: str, loss: Loss, batch: Minibatch, scalars: Mapping[str, float], rates: Mapping[str, float]
    ) -> Metrics:
        """One gradient step on `loss`, known as `name`, over `batch`, for the parameter groups that `rates` names."""
        gradient, metrics = self.gradient(name, loss, batch, scalars)
        return self.move(gradient, rates) | metrics

    def gradient(self, name: str, loss: Loss, batch: Minibatch, scalars: Mapping[str, float]) -> tuple[Tensor, Metrics]:
        """The flat gradient of `loss` over `batch`, valid until the next one, and the loss's metrics."""
        self.flat.grad.zero_()
        if len(batch) <= self.microbatch:
            value, metrics = loss(batch, scalars)
            value.backward()
            return self.flat.grad, {key: metric.detach() for key, metric in metrics.items()}
        means: Metrics = {}
        for part in batch.split(self.microbatch):
            share = len(part) / len(batch)
            value, attached = loss(part, scalars)
            (value * share).backward()  # adds to what the parts before it have left in flat.grad
            metrics = {key: metric.detach() * share for key, metric in attached.items()}
            means = {key: means[key] + metric for key, metric in metrics.items()} if means else metrics
            del value, attached  # what the gradient needed goes before the next part's comes
        return self.flat.grad, means

    def move(self, gradient: Tensor, rates: Mapping[str, float]) -> Metrics:
        """Each group's step down its part of the gradient, averaged over the processes and clipped; the norms before."""
        if self.ranks.size > 1:
            self.ranks.mean_(gradient[self.trained(rates)])
        norms: Metrics = {}
        for group, learning_rate in rates.items():
            own = gradient[self.optimizers[group].where]
            norm = norms[f"{group}_grad_norm"] = own.norm()
            too_long = (norm / self.max_grad_norm).clamp(min=1.0).float() if self.max_grad_norm > 0 else None
            self.optimizers[group].step(own, learning_rate, too_long)
        return norms

    def trained(self, rates: Mapping[str, float]) -> slice:
        """Where in the flat vector the groups of `rates` lie."""
        places = [self.optimizers[group].where for group in rates]
        return slice(min(place.start for place in places), max(place.stop for place in places))
