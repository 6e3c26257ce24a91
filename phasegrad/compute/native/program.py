"""Compiled programs: a function of tensors, and the epoch of a gradient step over minibatches of a rollout.

A program reads parameters where they lie, so it stays valid while they change, not when they are replaced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from phasegrad.compute.native import dense_layers, recurrence
from phasegrad.compute.native.build import library
from phasegrad.compute.native.emit import Emitter
from phasegrad.compute.native.graph import ALIGNMENT, Unsupported
from phasegrad.compute.operations import operation_name
from phasegrad.compute.tracing import needed_nodes, record

__all__ = ["EpochProgram", "Group", "Program", "Unsupported"]

PRELUDE = Path(__file__).with_name("prelude.h")
BODY = (
    "static void body(void *const *external, void *const *inputs, void *const *outputs, char *work) {{\n{lines}\n}}\n"
)
CALL = """
void call(void *const *external, void *const *inputs, void *const *outputs, char *work) {
    body(external, inputs, outputs, work);
}
"""
EPOCH = """
enum {{ ROWS = {rows}, SCALARS = {scalars}, METRICS = {metrics} }};
static const int64_t row_bytes[] = {{ {row_bytes} }}, row_starts[] = {{ {row_starts} }};
static const int64_t row_counts[] = {{ {row_counts} }}, row_tables[] = {{ {row_tables} }};

void epoch(void *const *external, void *const *sources, const int64_t *const *tables, int64_t count, void *const *scalars,
           float *parameters, const struct group *groups, int64_t group_count, float *metrics, char *work) {{
    void *inputs[ROWS + SCALARS], *outputs[1 + METRICS];
    for (int k = 0; k < ROWS; k++) inputs[k] = work + row_starts[k];
    for (int k = 0; k < SCALARS; k++) inputs[ROWS + k] = scalars[k];
    outputs[0] = work + {gradient_start};
    for (int64_t i = 0; i < count; i++) {{
        float *own = metrics + i * (METRICS + group_count);
        for (int k = 0; k < METRICS; k++) outputs[1 + k] = own + k;
        for (int k = 0; k < ROWS; k++)
            gather_rows(inputs[k], sources[k], tables[row_tables[k]] + i * row_counts[k], row_counts[k], row_bytes[k]);
        body(external, inputs, outputs, work);
        for (int64_t g = 0; g < group_count; g++) own[METRICS + g] = move_group(groups + g, parameters, outputs[0]);
    }}
}}
"""


class Group(ctypes.Structure):
    """One optimiser's share of the flat parameters, as the C side sees it."""

    _fields_ = (
        ("start", ctypes.c_int64), ("length", ctypes.c_int64),
        ("first", ctypes.c_void_p), ("second", ctypes.c_void_p), ("steps", ctypes.c_void_p),
        ("rate", ctypes.c_double), ("eps", ctypes.c_double), ("alpha", ctypes.c_double), ("longest", ctypes.c_double),
        ("kind", ctypes.c_int64),
    )  # fmt: skip


def pointers(tensors: Sequence[Tensor]) -> np.ndarray:
    return np.array([tensor.data_ptr() for tensor in tensors], dtype=np.uint64)


class _Compiled:
    """What both kinds of program share: the traced function as C, its workspace and the memory it reads."""

    def __init__(self, function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> None:
        graph, fixed = record(function, examples)
        self.emitter = Emitter(graph, fixed, needed_nodes(graph, fixed), operation_name)
        self.kept = list(self.emitter.external)
        self.external = pointers(self.kept)
        needed = [part.HEADER for part in (recurrence, dense_layers) if part.needs_header(self.emitter.lines)]
        headers = "".join(file.read_text() for file in (PRELUDE, *needed))
        self.body = headers + BODY.format(lines="\n".join(self.emitter.lines))

    def workspace(self, size: int) -> None:
        self._work = np.zeros(size + ALIGNMENT, dtype=np.uint8)
        start = self._work.ctypes.data
        self.work = start + -start % ALIGNMENT


class Program(_Compiled):
    """`function(*inputs) -> list of tensors`, whose inputs and results lie where two tables of addresses say.

    The tables are `inputs` and `outputs`, uint64 arrays that the caller fills before `run`.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> None:
        super().__init__(function, examples)
        self.function = library(self.body + CALL).call
        self.function.restype = None
        self.workspace(self.emitter.workspace.bytes)
        self.inputs = np.zeros(len(self.emitter.inputs), dtype=np.uint64)
        self.outputs = np.zeros(len(self.emitter.outputs), dtype=np.uint64)
        tables = (self.external, self.inputs, self.outputs)
        self._arguments = [ctypes.c_void_p(table.ctypes.data) for table in tables] + [ctypes.c_void_p(self.work)]

    def run(self) -> None:
        self.function(*self._arguments)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """For tests and other callers in no hurry: dense inputs in, fresh results out."""
        dense = [tensor.contiguous() for tensor in inputs]
        results = [torch.empty(view.shape, dtype=view.dtype) for view in self.emitter.outputs]
        self.inputs[:], self.outputs[:] = pointers(dense), pointers(results)
        self.run()
        return results


class EpochProgram(_Compiled):
    """Gradient steps over minibatches of one size: gather, gradient, clipping, optimiser, all in one call.

    `function(*rows, *scalars)` returns the flat gradient and then metrics.
    """

    def __init__(
        self, function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor], chosen_by: Sequence[int]
    ) -> None:
        """The first examples are the rows of a minibatch; `chosen_by` says by which table each of them is gathered."""
        super().__init__(function, examples)
        emitter, rows = self.emitter, len(chosen_by)
        if any(view.dtype != torch.float32 for view in emitter.outputs):
            raise Unsupported("a model in another precision than float32")
        starts, end = [], emitter.workspace.bytes
        for example in examples[:rows]:
            starts.append(end)
            end += -(-example.nbytes // ALIGNMENT) * ALIGNMENT
        self.metrics, self.chosen_by = len(emitter.outputs) - 1, list(chosen_by)
        source = EPOCH.format(
            rows=rows, scalars=len(examples) - rows, metrics=self.metrics, gradient_start=end,
            row_bytes=", ".join(str(example.nbytes // len(example)) for example in examples[:rows]),
            row_counts=", ".join(str(len(example)) for example in examples[:rows]),
            row_tables=", ".join(map(str, chosen_by)),
            row_starts=", ".join(map(str, starts)),
        )  # fmt: skip
        self.gradient_start = end
        self.function = library(self.body + source).epoch
        self.function.restype = None
        self.workspace(end + 4 * emitter.outputs[0].size)

    def run(
        self,
        sources: Sequence[Tensor],
        tables: Sequence[Tensor],
        count: int,
        scalars: Sequence[Tensor],
        parameters: Tensor,
        groups: Sequence[Group],
    ) -> Tensor:
        """Step through `count` minibatches, one after another in each of the `tables` of rows of `sources`.

        Returns metrics and norms [count, M + G].
        """
        results = torch.empty(count, self.metrics + len(groups))
        source_table, row_tables, scalar_table = pointers(sources), pointers(tables), pointers(scalars)
        self.function(
            ctypes.c_void_p(self.external.ctypes.data),
            ctypes.c_void_p(source_table.ctypes.data),
            ctypes.c_void_p(row_tables.ctypes.data),
            ctypes.c_int64(count),
            ctypes.c_void_p(scalar_table.ctypes.data),
            ctypes.c_void_p(parameters.data_ptr()),
            (Group * len(groups))(*groups),
            ctypes.c_int64(len(groups)),
            ctypes.c_void_p(results.data_ptr()),
            ctypes.c_void_p(self.work),
        )
        return results

    def gradient_at(
        self, sources: Sequence[Tensor], tables: Sequence[Tensor], scalars: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The gradient, valid until the next call, and the metrics [M] of one minibatch; nothing moved."""
        metrics = self.run(sources, tables, 1, scalars, torch.empty(0), [])[0]
        offset = self.gradient_start + self.work - self._work.ctypes.data
        gradient = self._work[offset : offset + 4 * self.emitter.outputs[0].size].view(np.float32)
        return torch.from_numpy(gradient), metrics

    def gradient(self, rows: Sequence[Tensor], scalars: Sequence[Tensor]) -> list[Tensor]:
        """The gradient and metrics of one minibatch, nothing moved: to check the program against torch."""
        dense, sizes = [row.contiguous() for row in rows], dict(zip(self.chosen_by, map(len, rows), strict=True))
        tables = [torch.arange(sizes.get(table, 0)) for table in range(max(self.chosen_by) + 1)]
        results = self.run(dense, tables, 1, scalars, torch.empty(0), [])
        offset = self.gradient_start + self.work - self._work.ctypes.data
        size = 4 * self.emitter.outputs[0].size
        gradient = torch.from_numpy(self._work[offset : offset + size].view(np.float32).copy())
        return [gradient, *results[0]]
