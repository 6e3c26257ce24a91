"""One flat vector under all parameters of a model, and one under their gradients.

Clipping, Adam and (across processes) averaging are then one kernel each. The module keeps working as before: its
parameters become views of the vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

ALIGNMENT = 16  # floats: convolution weights start on a cache line, which the vectorised kernels like


class FlatParameters:
    """Lays groups of parameters end to end; `slices[group]` is where each group lies."""

    def __init__(self, groups: Mapping[str, Sequence[nn.Parameter]]) -> None:
        parameters = [parameter for group in groups.values() for parameter in group]
        sample = parameters[0]
        self.is_dense = all(parameter.dim() < 4 for parameter in parameters)
        alignment = 1 if self.is_dense else ALIGNMENT
        self.slices: dict[str, slice] = {}
        places: list[tuple[nn.Parameter, int]] = []
        end = 0
        for name, group in groups.items():
            start = end
            for parameter in group:
                places.append((parameter, end))
                end += -(-parameter.numel() // alignment) * alignment
            self.slices[name] = slice(start, end)
        self.places = places
        self.data = torch.zeros(end, dtype=sample.dtype, device=sample.device)
        self.grad = torch.zeros_like(self.data)
        for parameter, start in places:
            view = as_laid_out(self.data, start, parameter)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = as_laid_out(self.grad, start, parameter)

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient of `loss` as one vector in the layout of `data`, of a model without convolutions."""
        parameters = [parameter for parameter, _ in self.places]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1)
                for parameter, gradient in zip(parameters, gradients, strict=True)
            ]
        )


def as_laid_out(flat: Tensor, start: int, parameter: Tensor) -> Tensor:
    """The part of `flat` that belongs to a parameter, in its shape; convolution weights in channels_last order."""
    piece = flat[start : start + parameter.numel()]
    if parameter.dim() == 4:
        outputs, inputs, height, width = parameter.shape
        return piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
    return piece.view(parameter.shape)
