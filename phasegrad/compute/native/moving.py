"""The optimisers' step as compiled code by itself, for gradients that several processes have averaged."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

from torch import Tensor

from phasegrad.compute.native.build import library
from phasegrad.compute.native.program import PRELUDE, Group

MOVE = """
void move(const struct group *groups, int64_t count, float *parameters, const float *gradients, float *norms) {
    for (int64_t g = 0; g < count; g++) norms[g] = move_group(groups + g, parameters, gradients);
}
"""


@functools.cache  # with several processes there is a Mover for every epoch
def _source() -> str:
    return PRELUDE.read_text() + MOVE


class Mover:
    """Clips each group's gradient, moves its parameters, and notes the norms before clipping."""

    def __init__(self, parameters: Tensor, groups: Sequence[Group]) -> None:
        self.function = library(_source()).move
        self.function.restype = None
        self.groups, self.count = (Group * len(groups))(*groups), ctypes.c_int64(len(groups))
        self.parameters = ctypes.c_void_p(parameters.data_ptr())

    def __call__(self, gradients: Tensor, norms: Tensor) -> None:
        self.function(
            self.groups,
            self.count,
            self.parameters,
            ctypes.c_void_p(gradients.data_ptr()),
            ctypes.c_void_p(norms.data_ptr()),
        )
