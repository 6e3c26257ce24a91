"""What traced and compiled losses take from outside: the minibatch, and every float that may change while they are in use.

A float that a loss reads is an input of its program (the weights of its terms, the iteration's scalars) or part of the
program's key (every other setting), so that no way of computing overlooks a change. This is the one place for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from phasegrad.compute.plain import Loss
from phasegrad.config import Config
from phasegrad.distributed.joining import Ranks
from phasegrad.machine.clock import compiling
from phasegrad.models import FlatParameters
from phasegrad.models.modes import TrainingMode, Unrecordable, require_recordable

Function = Callable[..., list[Tensor]]
Made = TypeVar("Made")


class CannotCompute(Exception):
    """Why a way of computing is left, and which one takes over: "traced" or "plain"."""

    def __init__(self, reason: str, instead: str) -> None:
        super().__init__(reason)
        self.instead = instead


@dataclass(frozen=True)
class Numbers:
    """The floats that a loss is given: as inputs all but those that are 0, whose terms its program leaves out."""

    values: dict[str, float]
    inputs: list[Tensor]  # 0-d
    key: tuple[
        Any, ...
    ]  # what tells the programs of one loss apart: the names of the inputs, the settings that are none

    def named(self, inputs: Sequence[Tensor]) -> Any:
        """The scalars of a loss, those that are inputs as tensors, so that a record does not fix their values."""
        rest = iter(inputs)
        return {name: next(rest) if value != 0 else 0.0 for name, value in self.values.items()}


class LossRecorder:
    """Losses as functions of tensors alone, which can be traced."""

    def __init__(self, flat: FlatParameters, config: Config | None, mode: TrainingMode | None) -> None:
        self.flat, self.config, self.mode = flat, config, mode
        self._tensors: dict[tuple[str, float], Tensor] = {}

    def numbers(self, scalars: Mapping[str, float]) -> Numbers:
        """What a loss is given beside its minibatch: `scalars`, and the weights of the settings."""
        if self.config is None:
            values, read = dict(scalars), ()
        else:
            values, read = {**self.config.weights(), **scalars}, self.config.read_by_losses()
        inputs = [self._as_tensor(name, value) for name, value in values.items() if value != 0]
        return Numbers(values, inputs, (tuple(name for name, value in values.items() if value != 0), read))

    def _as_tensor(self, name: str, value: float) -> Tensor:
        """A float as a tensor, made once for each value."""
        if (name, value) not in self._tensors:
            self._tensors = {known: tensor for known, tensor in self._tensors.items() if known[0] != name}
            self._tensors[name, value] = torch.tensor(value, dtype=self.flat.data.dtype, device=self.flat.data.device)
        return self._tensors[name, value]

    def gradient_function(
        self, loss: Loss, rebuild: Callable[[Sequence[Tensor]], Any], rows: int, numbers: Numbers
    ) -> tuple[Function, list[str]]:
        """From `rows` tensors of a minibatch and the numbers to the flat gradient and the metrics, and these by name.

        The names are there once the function has been called.
        """
        names: list[str] = []

        def function(*inputs: Tensor) -> list[Tensor]:
            value, metrics = loss(rebuild(inputs[:rows]), numbers.named(inputs[rows:]))
            names[:] = list(metrics)
            return [self.flat.gradient(value), *metrics.values()]

        return function, names

    def require_recordable(self, function: Function, examples: Sequence[Tensor]) -> None:
        """Refuse a network that does in training what a record of its operations would not do again."""
        if self.mode is not None and self.mode.matters:
            require_recordable(self.mode.model, lambda: function(*examples))

    def training(self) -> Any:
        """The context in which updates are computed."""
        return contextlib.nullcontext() if self.mode is None else self.mode


def made_by_all(ranks: Ranks, make: Callable[[], Made], instead: str) -> Made:
    """What `make` returns; where it fails in one process all go on by `instead`, and so to the same bits."""
    failure: Exception | None = None
    try:
        with compiling():
            made = make()
    except Exception as error:  # a user's network may do what is not known here; it still trains
        failure = error
    if not ranks.any(failure is not None):
        return made
    if ranks.any(isinstance(failure, Unrecordable)):  # then traced kernels cannot take over either
        instead = "plain"
    raise CannotCompute(str(failure or "another process cannot do it"), instead)
