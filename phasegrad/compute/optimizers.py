"""Adam and RMSProp on a slice of the flat parameter vector: one kernel a step, whatever the network."""

from __future__ import annotations

import torch
from torch import Tensor

from phasegrad.models import FlatParameters


class Adam:
    """Adam (Kingma and Ba 2015) on one slice of the flat parameters."""

    def __init__(self, flat: FlatParameters, where: slice, eps: float = 1e-5) -> None:
        self.parameters, self.gradients, self.where = flat.data[where], flat.grad[where], where
        self.first, self.second = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self.steps = torch.zeros((), dtype=torch.float32, device=self.parameters.device)
        self.eps = eps

    def step(self, gradients: Tensor, learning_rate: float, scale: Tensor | None = None) -> None:
        """Move down `gradients`, divided by `scale`."""
        self.steps += 1
        torch._fused_adam_(
            [self.parameters], [gradients], [self.first], [self.second], [], [self.steps],
            lr=learning_rate, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=self.eps, amsgrad=False, maximize=False,
            grad_scale=scale,
        )  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """The tensors a checkpoint must hold."""
        return {"first": self.first, "second": self.second, "steps": self.steps}

    def native(self, learning_rate: float, max_grad_norm: float) -> tuple[float, ...]:
        """This optimiser's step as compiled code is told of it: places in memory and numbers."""
        return (
            self.where.start, len(self.first), self.first.data_ptr(), self.second.data_ptr(), self.steps.data_ptr(),
            learning_rate, self.eps, 0.0, max_grad_norm, 0,
        )  # fmt: skip


class RMSProp:
    """RMSProp (Tieleman and Hinton 2012) on one slice of the flat parameters.

    `inside_root` is the original A2C and ACER code's form: epsilon under the square root, and a mean square that starts
    at 1, so that the first steps are short. Without it the form is torch's.
    """

    def __init__(
        self, flat: FlatParameters, where: slice, eps: float = 1e-5, alpha: float = 0.99, inside_root: bool = False
    ) -> None:
        self.parameters, self.gradients, self.where = flat.data[where], flat.grad[where], where
        self.square = torch.ones_like(self.parameters) if inside_root else torch.zeros_like(self.parameters)
        self.eps, self.alpha, self.inside_root = eps, alpha, inside_root

    @torch.no_grad()
    def step(self, gradients: Tensor, learning_rate: float, scale: Tensor | None = None) -> None:
        """Move down `gradients`, divided by `scale`."""
        if scale is not None:
            gradients = gradients / scale
        self.square.mul_(self.alpha).addcmul_(gradients, gradients, value=1 - self.alpha)
        root = (self.square + self.eps).sqrt_() if self.inside_root else self.square.sqrt().add_(self.eps)
        self.parameters.addcdiv_(gradients, root, value=-learning_rate)

    def state(self) -> dict[str, Tensor]:
        """The tensors a checkpoint must hold."""
        return {"square": self.square}

    def native(self, learning_rate: float, max_grad_norm: float) -> tuple[float, ...]:
        """This optimiser's step as compiled code is told of it: places in memory and numbers."""
        return (
            self.where.start, len(self.square), 0, self.square.data_ptr(), 0,
            learning_rate, self.eps, self.alpha, max_grad_norm, 2 if self.inside_root else 1,
        )  # fmt: skip


Optimizer = Adam | RMSProp
