"""Recurrent layers in generated code: calls of recurrence.h, which has the loop over steps, with room for their work."""

from __future__ import annotations

from collections.abc import Sequence
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


def _called(
    emitter: Emitter, name: str, reads: Sequence[View], widths: Sequence[int], scratch: Sequence[tuple[str, int]]
) -> list[View]:
    """A call with S, L and H, then what it reads, its results, and scratch that is given back.

    `reads` are [L S, ...] first, states second and weights fourth; results are [L S, width x H]; scratch is for each
    sequence ("S") or unit of a gate ("G") so many times H, and at last what `product` needs to put a matrix in order.
    """
    rows, (size, inner) = reads[0].shape[0], reads[3].shape
    count = reads[1].shape[0]
    dense = [emitter.dense(view) for view in reads]
    lent = [mine for mine, given in zip(dense, reads, strict=True) if mine is not given]
    results = [emitter.allocate((rows, width * size), torch.float32) for width in widths]
    shapes = [(count if of == "S" else inner, width * size) for of, width in scratch]
    work = [emitter.allocate(shape, torch.float32) for shape in [*shapes, (inner, -(-inner // LANES) * LANES)]]
    sizes = [str(count), str(rows // count), str(size)]
    arguments = [*sizes, *(view.start for view in [*dense, *results, *work])]
    emitter.lines.append(f"{name}({', '.join(arguments)});")
    for view in [*lent, *work]:
        emitter.workspace.give_back(view.slot)
    return results


def lstm(emitter: Emitter, example: Any, *reads: View) -> list[View]:
    return _called(emitter, "lstm_forward", reads, (1, 1, 4), [("S", 1)])


def lstm_backward(emitter: Emitter, example: Any, *reads: View) -> View:
    return _called(emitter, "lstm_backward", reads, (4,), [("S", 1), ("S", 1), ("G", 1)])[0]


def gru(emitter: Emitter, example: Any, *reads: View) -> list[View]:
    return _called(emitter, "gru_forward", reads, (1, 4), [("S", 1), ("S", 3)])


def gru_backward(emitter: Emitter, example: Any, *reads: View) -> View:
    return _called(emitter, "gru_backward", reads, (3,), [("S", 1), ("S", 3), ("G", 1), ("S", 1)])[0]
