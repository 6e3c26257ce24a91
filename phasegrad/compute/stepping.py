"""The algorithms' side of gradient steps: which way they are computed, what they say of themselves.

There are three ways to the same numbers: `PlainSteps` by autograd, `TracedSteps` and `CompiledSteps`. Metrics stay on the
device until the end of an iteration. Nothing here knows what a loss means.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from phasegrad.compute.compiled import CompiledSteps
from phasegrad.compute.device_steps import DeviceSteps
from phasegrad.compute.optimizers import Optimizer
from phasegrad.compute.plain import Loss, Metrics, PlainSteps
from phasegrad.compute.recording import CannotCompute, LossRecorder
from phasegrad.compute.traced import TracedSteps
from phasegrad.config import Config
from phasegrad.data.minibatches import Minibatch, Minibatches
from phasegrad.data.transfers import fetched
from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.errors import NonFiniteError, PhasegradWarning
from phasegrad.models import FlatParameters
from phasegrad.models.modes import TrainingMode

__all__ = ["Loss", "Stepper"]

MONITORED = {"policy_loss", "value_loss", "kl"}  # whose mean of each epoch is logged too
CODE = {
    "compiled": "compiled code",
    "traced": "traced kernels",
    "device": "torch's compiler",
}  # that a warning says the update is without


class Stepper:
    """Gradient steps by the `way` that is set: "plain", "traced", "compiled" or (on a GPU) "device".

    A way that cannot is left for a plainer one.

    What is not of the `usual` size, such as the last batch of a run, takes plain autograd: tracing it would take longer
    than it is in use.
    """

    def __init__(
        self,
        flat: FlatParameters,
        optimizers: Mapping[str, Optimizer],
        max_grad_norm: float,
        microbatch: int,
        ranks: Ranks = ALONE,
        config: Config | None = None,
        mode: TrainingMode | None = None,
        precision: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        """`precision` is a context in which plain steps compute their losses and gradients; other ways do not know it."""
        recorder = LossRecorder(flat, config, mode)
        given = (flat, dict(optimizers), max_grad_norm, microbatch, ranks)
        self.way = "plain"
        self.plain = PlainSteps(*given)
        self.device = DeviceSteps(*given, recorder=recorder)
        self.precision = precision
        self.traced = TracedSteps(*given, recorder=recorder)
        self.compiled = CompiledSteps(*given, recorder=recorder)
        self.ranks, self.training = ranks, recorder.training()
        self.recorded: dict[str, list[Tensor]] = {}  # on the device: a number, or a vector of them, a gradient step
        self.epoch_means: dict[str, list[Tensor]] = {}  # of what is monitored by epoch, one number each
        self.count = 0  # gradient steps taken

    def epoch(
        self,
        name: str,
        loss: Loss,
        minibatches: Minibatches[Any],
        scalars: Mapping[str, float],
        rates: Mapping[str, float],
    ) -> None:
        """A gradient step on each of `minibatches`: see `step`."""
        before = {key: len(entries) for key, entries in self.recorded.items()}
        with self.training:
            whole = self.way == "compiled" and minibatches.usual
            if not whole or not self._compiled_epoch(name, loss, minibatches, scalars, rates):
                for batch in minibatches:
                    self.step(name, loss, batch, scalars, rates, minibatches.usual)
        for key in self.recorded.keys() & MONITORED:
            own = self.recorded[key][before.get(key, 0) :]
            if own:
                self.epoch_means.setdefault(f"{key}_by_epoch", []).append(joined(own).mean())

    def step(
        self,
        name: str,
        loss: Loss,
        batch: Minibatch,
        scalars: Mapping[str, float],
        rates: Mapping[str, float],
        usual: bool = True,
    ) -> None:
        """One gradient step on `loss`, known as `name`, over `batch`, for the parameter groups that `rates` names."""
        self._record(self._computed("step", usual, name, loss, batch, scalars, rates))

    def gradient(
        self, name: str, loss: Loss, batch: Minibatch, scalars: Mapping[str, float], usual: bool = True
    ) -> tuple[Tensor, Metrics]:
        """The flat gradient of `loss` over `batch`, valid until the next one, and the loss's metrics."""
        return self._computed("gradient", usual, name, loss, batch, scalars)

    def _compiled_epoch(self, *arguments: Any) -> bool:
        """All of an epoch as one call, or nothing of it, where it cannot be compiled."""
        try:
            computed = self.compiled.epoch(*arguments)
        except CannotCompute as reason:
            self._leave_way(reason)
            return False
        for metrics in computed:
            self._record(metrics)
        return True

    def _computed(self, method: str, usual: bool, *arguments: Any) -> Any:
        """The result of a method of the way that is set, or of the first plainer one that can."""
        with self.training if self.precision is None else self._lowered():
            while True:
                steps: PlainSteps = getattr(self, self.way if usual else "plain")
                try:
                    return getattr(steps, method)(*arguments)
                except CannotCompute as reason:
                    self._leave_way(reason)

    def _leave_way(self, reason: CannotCompute) -> None:
        sentence = f"The update runs without {CODE[self.way]}: {reason}"
        warnings.warn(sentence, PhasegradWarning, stacklevel=5)
        self.way = reason.instead

    def _record(self, metrics: Metrics) -> None:
        for key, metric in metrics.items():
            self.recorded.setdefault(key, []).append(metric)
        self.count += next(iter(metrics.values())).numel()

    @contextmanager
    def _lowered(self) -> Iterator[None]:
        assert self.precision is not None
        with self.training, self.precision():
            yield

    # Metrics

    def mean_since(self, name: str, count: int) -> Any:
        """The mean of a metric over the gradient steps since `self.count` was `count`, a number on the device."""
        return self.ranks.mean_of(joined(self.recorded[name])[count - self.count :].mean())[0]

    def take_epoch_means(self) -> dict[str, list[float]]:
        """The losses and the KL of each epoch since the last call of `take_metrics`, which is to follow."""
        return fetched(self._epoch_means())

    def take_metrics(self) -> dict[str, float]:
        """Means over the gradient steps since the last call, read from the device in one transfer."""
        return require_finite(fetched(self.take_tensors()))

    def take_all(self, metrics: Mapping[str, Any], by_epoch: bool = True) -> dict[str, Any]:
        """`metrics`, the means of each epoch if asked for, and those over all steps since the last call, in one transfer."""
        epochs, steps = self._epoch_means() if by_epoch else {}, self.take_tensors()
        return require_finite(fetched({**metrics, **epochs, **steps}), steps)

    def _epoch_means(self) -> dict[str, list[Tensor]]:
        by_epoch = {name: torch.stack(means) for name, means in sorted(self.epoch_means.items())}
        if self.ranks.size > 1 and by_epoch:
            together = self.ranks.mean_(torch.cat(list(by_epoch.values())))
            by_epoch = dict(zip(by_epoch, together.split([len(means) for means in by_epoch.values()]), strict=True))
        return {name: [means] for name, means in by_epoch.items()}

    def take_tensors(self) -> dict[str, Tensor]:
        """Means over the gradient steps since the last call, which stay on the device."""
        names = list(self.recorded) if self.ranks.size == 1 else sorted(self.recorded)
        if not names:
            return {}
        means = self.ranks.mean_(torch.stack([joined(self.recorded[name]).mean() for name in names]))
        self.recorded, self.epoch_means = {}, {}
        return dict(zip(names, means.unbind(), strict=True))


def require_finite(metrics: dict[str, Any], names: Iterable[str] | None = None) -> dict[str, Any]:
    """Refuse an update of whose metrics some (those of `names`), or some of their epochs, are no numbers."""
    for name in metrics if names is None else names:
        if not all(map(math.isfinite, metrics[name] if isinstance(metrics[name], list) else [metrics[name]])):
            raise NonFiniteError(
                f"{name.removesuffix('_by_epoch')} became NaN or infinite in this update: training has diverged; lower "
                "learning_rate."
            )
    return metrics


def joined(numbers: list[Tensor]) -> Tensor:
    """Numbers and vectors of them as one vector."""
    return torch.cat([number.reshape(-1) for number in numbers])
