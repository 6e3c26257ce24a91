"""Recurrent layers in generated code: calls of recurrence.h, which has the loop over steps, with room for their work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from phasegrad.compute.native.graph import View

if TYPE_CHECKING:
    from phasegrad.compute.native.emit import Emitter

HEADER = Path(__file__).with_name("recurrence.h")
LANES = 8  # as in prelude.h


def needs_header(lines: list[str]) -> bool:
    """Whether generated code calls something of recurrence.h."""
    return any(line.startswith(("lstm_", "gru_")) for line in lines)


class _Call:
    """One call: sizes, what it reads, what it writes, and scratch that is given back."""

    def __init__(self, emitter: Emitter, name: str, rows: int, states: View, weights: View) -> None:
        self.emitter, self.name = emitter, name
        self.count, self.size, self.gates = states.shape[0], weights.shape[0], weights.shape[1] // weights.shape[0]
        self.arguments = [str(self.count), str(rows // self.count), str(self.size)]
        self._lent: list[View] = []

    def read(self, *views: View) -> None:
        for view in views:
            dense = self.emitter.dense(view)
            if dense is not view:
                self._lent.append(dense)
            self.arguments.append(dense.start)

    def write(self, rows: int, *widths: int) -> list[View]:
        results = [self.emitter.allocate((rows, width * self.size), torch.float32) for width in widths]
        self.arguments += [result.start for result in results]
        return results

    def scratch(self, *shapes: tuple[int, int]) -> None:
        """Room for these, and for what `product` puts in order."""
        inner = self.gates * self.size
        packed = (max(inner, self.size), -(-inner // LANES) * LANES)
        for shape in (*shapes, packed):
            self._lent.append(self.emitter.allocate(shape, torch.float32))
            self.arguments.append(self._lent[-1].start)

    def emit(self) -> None:
        self.emitter.lines.append(f"{self.name}({', '.join(self.arguments)});")
        for view in self._lent:
            self.emitter.workspace.give_back(view.slot)


def lstm(emitter: Emitter, example: Any, projected: View, states: View, keep: View, weights: View) -> list[View]:
    rows = projected.shape[0]
    call = _Call(emitter, "lstm_forward", rows, states, weights)
    call.read(projected, states, keep, weights)
    results = call.write(rows, 1, 1, 4)
    call.scratch((call.count, call.size))
    call.emit()
    return results


def lstm_backward(
    emitter: Emitter, example: Any, grad: View, states: View, keep: View, weights: View, cells: View, gates: View
) -> View:
    rows = grad.shape[0]
    call = _Call(emitter, "lstm_backward", rows, states, weights)
    call.read(grad, states, keep, weights, cells, gates)
    (result,) = call.write(rows, 4)
    call.scratch((call.count, call.size), (call.count, call.size), (4 * call.size, call.size))
    call.emit()
    return result


def gru(
    emitter: Emitter, example: Any, projected: View, states: View, keep: View, weights: View, new_bias: View
) -> list[View]:
    rows = projected.shape[0]
    call = _Call(emitter, "gru_forward", rows, states, weights)
    call.read(projected, states, keep, weights, new_bias)
    results = call.write(rows, 1, 4)
    call.scratch((call.count, call.size), (call.count, 3 * call.size))
    call.emit()
    return results


def gru_backward(
    emitter: Emitter, example: Any, grad: View, states: View, keep: View, weights: View, outputs: View, gates: View
) -> View:
    rows = grad.shape[0]
    call = _Call(emitter, "gru_backward", rows, states, weights)
    call.read(grad, states, keep, weights, outputs, gates)
    (result,) = call.write(rows, 3)
    size = call.size
    call.scratch((call.count, size), (call.count, 3 * size), (3 * size, size), (call.count, size))
    call.emit()
    return result
