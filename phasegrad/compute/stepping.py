"""Gradient steps: the one place that calls backward, clips and moves parameters.

It works on the flat parameter vector: one norm and one Adam kernel a group, whatever the network. Metrics stay on the
device until the end of an iteration. Nothing here knows what a loss means.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from phasegrad.compute.native import EpochProgram
from phasegrad.compute.native.moving import Mover
from phasegrad.compute.optimizers import Optimizer
from phasegrad.compute.tracing import Replay
from phasegrad.config import Config
from phasegrad.data.minibatches import Minibatch, Minibatches
from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.errors import NonFiniteError, PhasegradWarning
from phasegrad.models import FlatParameters
from phasegrad.models.modes import TrainingMode, Unrecordable, require_recordable

MONITORED = {"policy_loss", "value_loss", "kl"}  # whose mean of each epoch is logged too
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


def joined(numbers: list[Tensor]) -> Tensor:
    """Numbers and vectors of them as one vector."""
    return torch.cat([number.reshape(-1) for number in numbers])


def _warn(sentence: str) -> None:
    warnings.warn(sentence, PhasegradWarning, stacklevel=4)


class Stepper:
    """Moves groups of parameters, each by its own optimiser and learning rate, down the gradient of a loss.

    There are three ways to the same numbers. With `native` the whole step of each loss is traced at its first minibatch
    of a shape and compiled; with `replay` the traced gradient is replayed without a compiler; and plain autograd, which
    is what large networks want. Small ones on a CPU spend nearly all of autograd's time on its overhead.

    A recorded loss takes its numbers (`scalars`, and the weights of `config`) as inputs, but for a 0, whose term is left
    out. What else it read in `config` is part of its program's key, so that a changed setting leads to a new program.

    With several processes each has the gradient of its part of a minibatch, all parts of one size; their mean, by one
    all-reduce of the flat vector, is the gradient of the whole, and every process takes the same step.
    """

    def __init__(
        self,
        flat: FlatParameters,
        optimizers: Mapping[str, Optimizer],
        max_grad_norm: float,
        microbatch: int,
        replay: bool = False,
        native: bool = False,
        ranks: Ranks = ALONE,
        config: Config | None = None,
        mode: TrainingMode | None = None,
    ) -> None:
        self.flat, self.optimizers, self.ranks, self.config = flat, dict(optimizers), ranks, config
        self.mode: Any = contextlib.nullcontext() if mode is None else mode
        self.max_grad_norm, self.microbatch, self.replay, self.native = max_grad_norm, microbatch, replay, native
        self.recorded: dict[str, list[Tensor]] = {}  # on the device: a number, or a vector of them, a gradient step
        self.epoch_means: dict[str, list[Tensor]] = {}  # of what is monitored by epoch, one number each
        self.count = 0  # gradient steps taken
        self._replays: dict[Any, tuple[Replay, list[str]]] = {}
        self._programs: dict[Any, tuple[EpochProgram, list[str]]] = {}
        self._scalars: dict[tuple[str, float], Tensor] = {}

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
        with self.mode:
            if self.native and minibatches.usual:
                rows, rebuild = minibatches.rows()
                for size, orders in itertools.groupby(minibatches.indices, len):
                    order, data = torch.cat(list(orders)), (rows, rebuild, minibatches.prepare)
                    if not self._run_program(name, loss, data, order, size, scalars, rates):
                        for batch in minibatches.of(order.split(size)):
                            self._step(name, loss, batch, scalars, rates)
            else:
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
        """One gradient step on `loss`, known as `name`, over `batch`, for the parameter groups that `rates` names.

        A batch that is not of the `usual` size, such as the last of a run, goes by plain autograd: tracing it would take
        longer than it is in use.
        """
        with self.mode:
            if self.native and usual:
                rows, rebuild = batch.tensors()
                order = torch.arange(len(batch))
                if self._run_program(name, loss, (rows, rebuild, None), order, len(batch), scalars, rates):
                    return
            self._step(name, loss, batch, scalars, rates, usual)

    def _step(
        self,
        name: str,
        loss: Loss,
        batch: Minibatch,
        scalars: Mapping[str, float],
        rates: Mapping[str, float],
        usual: bool = True,
    ) -> None:
        """The step by torch's kernels."""
        gradients, metrics = self.gradient(name, loss, batch, scalars, usual)
        self._move(gradients, rates)
        for key, metric in metrics.items():
            self.recorded.setdefault(key, []).append(metric)
        self.count += 1

    def _move(self, gradients: Tensor, rates: Mapping[str, float]) -> None:
        """Each group's optimiser step down its part of the flat gradient, averaged over the processes and clipped."""
        if self.ranks.size > 1:
            self.ranks.mean_(gradients[self._trained(rates)])
        for group, learning_rate in rates.items():
            optimizer = self.optimizers[group]
            own = gradients[optimizer.where]
            norm = own.norm()
            scale = (norm / self.max_grad_norm).clamp(min=1.0).float() if self.max_grad_norm > 0 else None
            optimizer.step(own, learning_rate, scale)
            self.recorded.setdefault(f"{group}_grad_norm", []).append(norm)

    # Recorded

    def _given(self, scalars: Mapping[str, float]) -> tuple[dict[str, float], list[Tensor], tuple[Any, ...]]:
        """The numbers a recorded loss gets, those but 0 as its inputs, and what tells its record from others."""
        if self.config is None:
            given, read = dict(scalars), ()
        else:
            given, read = {**self.config.weights(), **scalars}, self.config.read_by_losses()
        inputs = [self._as_tensor(key, value) for key, value in given.items() if value != 0]
        return given, inputs, (tuple(key for key, value in given.items() if value != 0), read)

    def _with_tensors(self, given: Mapping[str, float], inputs: Sequence[Tensor]) -> Any:
        """The same with its inputs as tensors, so that a record does not fix their values."""
        rest = iter(inputs)
        return {key: next(rest) if value != 0 else 0.0 for key, value in given.items()}

    def _require_recordable(self, function: Callable[..., list[Tensor]], examples: list[Tensor]) -> None:
        if isinstance(self.mode, TrainingMode) and self.mode.matters:
            require_recordable(self.mode.model, lambda: function(*examples))

    # Compiled

    def _run_program(
        self,
        name: str,
        loss: Loss,
        data: tuple[list[Tensor], Callable[..., Any], Callable[[Any], Any] | None],
        order: Tensor,
        size: int,
        scalars: Mapping[str, float],
        rates: Mapping[str, float],
    ) -> bool:
        """Gradient steps over minibatches of `size` rows in `order`; False where they cannot be compiled."""
        rows, rebuild, prepare = data
        given, values, kind = self._given(scalars)
        known = (name, size, prepare is not None, kind)
        if known not in self._programs:
            examples = [row[order[:size]] for row in rows]
            failure: Exception | None = None
            try:
                self._programs[known] = self._compile(loss, examples, rebuild, prepare, given, values)
            except Exception as error:  # a user's network may do what is not known here; it still trains
                failure = error
            if isinstance(failure, Unrecordable):
                self.replay = False
            if self.ranks.any(failure is not None):  # all processes take the same way, and so the same bits
                self.native = False
                _warn(f"The update runs without compiled code: {failure or 'another process cannot compile it'}")
                return False
        program, keys = self._programs[known]
        if self.ranks.size > 1:
            columns = self._run_together(program, [row.contiguous() for row in rows], order.split(size), values, rates)
        else:
            groups = [self.optimizers[group].native(rate, self.max_grad_norm) for group, rate in rates.items()]
            columns = program.run([row.contiguous() for row in rows], order, values, self.flat.data, groups).unbind(1)
        for key, column in zip([*keys, *(f"{group}_grad_norm" for group in rates)], columns, strict=True):
            self.recorded.setdefault(key, []).append(column)
        self.count += len(order) // size
        return True

    def _run_together(
        self,
        program: EpochProgram,
        rows: list[Tensor],
        orders: Sequence[Tensor],
        values: list[Tensor],
        rates: Mapping[str, float],
    ) -> tuple[Tensor, ...]:
        """The same minibatch by minibatch: the compiled gradient, its mean over the processes, the compiled step."""
        groups = [self.optimizers[group].native(rate, self.max_grad_norm) for group, rate in rates.items()]
        move, where = Mover(self.flat.data, groups), self._trained(rates)
        found, norms = [], torch.empty(len(orders), len(groups))
        for order, norm in zip(orders, norms, strict=True):
            gradient, metrics = program.gradient_at(rows, order, values)
            self.ranks.mean_(gradient[where])
            move(gradient, norm)
            found.append(metrics)
        return torch.cat([torch.stack(found), norms], 1).unbind(1)

    def _trained(self, rates: Mapping[str, float]) -> slice:
        """Where in the flat vector the groups of `rates` lie."""
        places = [self.optimizers[group].where for group in rates]
        return slice(min(place.start for place in places), max(place.stop for place in places))

    def _compile(
        self,
        loss: Loss,
        examples: list[Tensor],
        rebuild: Callable[..., Any],
        prepare: Callable[[Any], Any] | None,
        given: Mapping[str, float],
        values: list[Tensor],
    ) -> tuple[EpochProgram, list[str]]:
        keys: list[str] = []

        def gradient(*inputs: Tensor) -> list[Tensor]:
            batch = rebuild(inputs[: len(examples)])
            mine = self._with_tensors(given, inputs[len(examples) :])
            value, metrics = loss(batch if prepare is None else prepare(batch), mine)
            keys[:] = list(metrics)
            return [self.flat.gradient(value), *metrics.values()]

        self._require_recordable(gradient, [*examples, *values])
        program = EpochProgram(gradient, [*examples, *values], len(examples))
        for mine, wanted in zip(program.gradient(examples, values), gradient(*examples, *values), strict=True):
            tolerance = 1e-4 * float(wanted.detach().abs().max()) + 1e-5
            torch.testing.assert_close(mine, wanted.detach(), rtol=0.0, atol=tolerance)
        return program, keys

    # By torch's kernels

    def gradient(
        self, name: str, loss: Loss, batch: Minibatch, scalars: Mapping[str, float], usual: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The flat gradient of `loss` over `batch`, valid until the next one, and the loss's metrics."""
        with self.mode:
            return (self._replayed if self.replay and usual else self._backward)(name, loss, batch, scalars)

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
            value, attached = loss(part, scalars)
            (value * share).backward()
            metrics = {key: metric.detach() * share for key, metric in attached.items()}
            means = {key: means[key] + metric for key, metric in metrics.items()} if means else metrics
            del value, attached  # what the gradient needed goes before the next part's comes
        return self.flat.grad, means

    def _replayed(
        self, name: str, loss: Loss, batch: Minibatch, scalars: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The same flat gradient from the traced operations."""
        tensors, rebuild = batch.tensors()
        given, values, kind = self._given(scalars)
        known = (name, len(batch), kind)
        if known not in self._replays:
            keys: list[str] = []

            def gradient(*inputs: Tensor) -> list[Tensor]:
                value, metrics = loss(
                    rebuild(inputs[: len(tensors)]), self._with_tensors(given, inputs[len(tensors) :])
                )
                keys[:] = list(metrics)
                return [self.flat.gradient(value), *metrics.values()]

            try:
                self._require_recordable(gradient, [*tensors, *values])
                self._replays[known] = (checked_replay(gradient, [*tensors, *values]), keys)
            except Exception as error:  # a user's network may do what cannot be traced; it still trains
                self.replay = False
                _warn(f"The update runs without replay, since it cannot be traced: {error}")
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
        return self.ranks.mean(float(joined(self.recorded[name])[count - self.count :].mean()))[0]

    def take_epoch_means(self) -> dict[str, list[float]]:
        """The losses and the KL of each epoch since the last call of `take_metrics`, which is to follow."""
        by_epoch = {name: torch.stack(means) for name, means in sorted(self.epoch_means.items())}
        if self.ranks.size > 1 and by_epoch:
            together = self.ranks.mean_(torch.cat(list(by_epoch.values())))
            by_epoch = dict(zip(by_epoch, together.split([len(means) for means in by_epoch.values()]), strict=True))
        return {name: means.tolist() for name, means in by_epoch.items()}

    def take_metrics(self) -> dict[str, float]:
        """Means over the gradient steps since the last call, read from the device in one transfer."""
        names = list(self.recorded) if self.ranks.size == 1 else sorted(self.recorded)
        if not names:
            return {}
        means = self.ranks.mean_(torch.stack([joined(self.recorded[name]).mean() for name in names])).tolist()
        self.recorded, self.epoch_means = {}, {}
        metrics = dict(zip(names, means, strict=True))
        for name, mean in metrics.items():
            if not math.isfinite(mean):
                raise NonFiniteError(
                    f"{name} became NaN or infinite in this update: training has diverged; lower learning_rate."
                )
        return metrics
