"""Gradient steps as machine code: a whole epoch (gather, gradient, clipping, optimiser) is one call.

Each loss is traced at its first minibatch of a size, written as C and compiled. With several processes the gradient
and the optimiser are two calls, between which the processes average.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from phasegrad.compute.checking import require_agreement
from phasegrad.compute.native import EpochProgram
from phasegrad.compute.native.moving import Mover
from phasegrad.compute.native.program import Group
from phasegrad.compute.plain import Loss, Metrics
from phasegrad.compute.recording import Numbers, made_by_all
from phasegrad.compute.traced import TracedSteps
from phasegrad.data.minibatches import Minibatch, Minibatches

TOLERANCE = 1e-4  # of float32 sums in another order, and of exponentials that differ in the last bits


@dataclass(frozen=True)
class Order:
    """The rows of `count` minibatches of one size, one after another, in each of the tables of `Minibatches.tables`."""

    tables: tuple[Tensor, ...]
    count: int

    def each(self) -> list[tuple[Tensor, ...]]:
        """The tables of each minibatch."""
        return list(zip(*(table.tensor_split(self.count) for table in self.tables), strict=True))

    def random(self) -> list[Tensor]:
        """As many rows as one minibatch has, drawn with replacement: another one to check a program on."""
        draw = torch.Generator().manual_seed(0)
        return [
            table[torch.randint(max(1, len(table)), (len(first),), generator=draw)]
            for table, first in zip(self.tables, self.each()[0], strict=True)
        ]


@dataclass
class CompiledSteps(TracedSteps):
    """Compiles each loss at its first minibatch of a size; a gradient by itself comes from traced kernels."""

    programs: dict[Any, tuple[EpochProgram, list[str]]] = field(default_factory=dict, init=False)
    movers: dict[tuple[str, ...], Mover] = field(default_factory=dict, init=False)

    def epoch(
        self,
        name: str,
        loss: Loss,
        minibatches: Minibatches[Any],
        scalars: Mapping[str, float],
        rates: Mapping[str, float],
    ) -> list[Metrics]:
        """A gradient step on each of `minibatches`; metrics of those of one size are together."""
        rows, rebuild, chosen_by = minibatches.rows()
        prepare, numbers = minibatches.prepare, self.recorder.numbers(scalars)

        def batch_of(tensors: Sequence[Tensor]) -> Any:
            return rebuild(tensors) if prepare is None else prepare(rebuild(tensors))

        programs = []  # all before the first step, so that an epoch is compiled as a whole or not at all
        for shape, grouped in itertools.groupby(minibatches.indices, lambda index: tuple(index.shape)):
            indices = list(grouped)
            order = Order(minibatches.tables(indices), len(indices))
            key = (name, shape, prepare is not None, numbers.key)
            programs.append((*self._program(key, loss, rows, chosen_by, batch_of, order, numbers), order))
        dense = [row.contiguous() for row in rows]
        return [self._run(program, names, dense, order, numbers, rates) for program, names, order in programs]

    def step(
        self, name: str, loss: Loss, batch: Minibatch, scalars: Mapping[str, float], rates: Mapping[str, float]
    ) -> Metrics:
        rows, rebuild = batch.tensors()
        numbers = self.recorder.numbers(scalars)
        order = Order((torch.arange(len(batch)), torch.arange(batch.sequences), torch.arange(0)), 1)
        key = (name, (len(batch), batch.sequences), False, numbers.key)
        program, names = self._program(key, loss, rows, batch.tables(), rebuild, order, numbers)
        return self._run(program, names, [row.contiguous() for row in rows], order, numbers, rates)

    def _program(
        self,
        key: tuple[Any, ...],
        loss: Loss,
        rows: list[Tensor],
        chosen_by: list[int],
        batch_of: Callable[[Sequence[Tensor]], Any],
        order: Order,
        numbers: Numbers,
    ) -> tuple[EpochProgram, list[str]]:
        """The program of a loss and the names of its metrics, compiled now if it is the first minibatch of its kind."""

        def compiled() -> tuple[EpochProgram, list[str]]:
            function, names = self.recorder.gradient_function(loss, batch_of, len(rows), numbers)
            examples = [
                [*(row[tables[table]] for row, table in zip(rows, chosen_by, strict=True)), *numbers.inputs]
                for tables in (order.each()[0], order.random())
            ]
            self.recorder.require_recordable(function, examples[0])
            program = EpochProgram(function, examples[0], chosen_by)

            def gradient(*inputs: Tensor) -> list[Tensor]:
                return program.gradient(inputs[: len(rows)], inputs[len(rows) :])

            require_agreement(gradient, function, examples, self.flat, names, TOLERANCE)
            return program, names

        if key not in self.programs:
            self.programs[key] = made_by_all(self.ranks, compiled, instead="traced")
        return self.programs[key]

    def _run(
        self,
        program: EpochProgram,
        names: list[str],
        rows: list[Tensor],
        order: Order,
        numbers: Numbers,
        rates: Mapping[str, float],
    ) -> Metrics:
        """Gradient steps over the minibatches that lie one after another in `order`."""
        groups = [Group(*self.optimizers[group].native(rate, self.max_grad_norm)) for group, rate in rates.items()]
        if self.ranks.size > 1:
            found = self._run_together(program, rows, order, numbers, rates, groups)
        else:
            found = program.run(rows, order.tables, order.count, numbers.inputs, self.flat.data, groups)
        return dict(zip([*names, *(f"{group}_grad_norm" for group in rates)], found.unbind(1), strict=True))

    def _run_together(
        self,
        program: EpochProgram,
        rows: list[Tensor],
        order: Order,
        numbers: Numbers,
        rates: Mapping[str, float],
        groups: list[Any],
    ) -> Tensor:
        """The same minibatch by minibatch: the compiled gradient, its mean over the processes, the compiled step."""
        mover = self.movers.get(tuple(rates))
        if mover is None:
            mover = self.movers[tuple(rates)] = Mover(self.flat.data, groups)
        mover.groups[:] = groups  # this epoch's learning rates
        where, metrics, norms = self.trained(rates), [], torch.empty(order.count, len(groups))
        for tables, norm in zip(order.each(), norms, strict=True):
            gradient, described = program.gradient_at(rows, tables, numbers.inputs)
            self.ranks.mean_(gradient[where])
            mover(gradient, norm)
            metrics.append(described)
        return torch.cat([torch.stack(metrics), norms], 1)
