"""Natural gradients: products with the Fisher matrix, and the conjugate gradient method that divides by it.

The Fisher matrix of a policy is the Hessian of the mean KL at the policy itself, so a product with it is two backward
passes; the matrix is never formed. Nothing here knows about environments or advantages.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from phasegrad.data.minibatches import Minibatch
from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.models import FlatParameters
from phasegrad.models.flat import as_laid_out


class FisherProduct:
    """(F + damping I) v for the parameters of one group, F the Hessian of the mean KL[pi, pi_theta] at theta.

    `kl` is the mean KL over a batch from the policy, held fixed, to itself as a function of its parameters. A batch of
    at most `microbatch` samples keeps its graph from product to product; a larger one is passed through in pieces. Of
    several processes the matrix is that of all their batches, each of one size.
    """

    def __init__(
        self,
        flat: FlatParameters,
        where: slice,
        kl: Callable[[Minibatch], Tensor],
        batch: Minibatch,
        damping: float,
        microbatch: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.places = [(p, start) for p, start in flat.places if where.start <= start < where.stop]
        self.size, self.offset, self.damping = where.stop - where.start, where.start, damping
        self.kl, self.batch, self.microbatch, self.ranks = kl, batch, microbatch, ranks
        self._kept = self._slope(batch) if len(batch) <= microbatch else None

    def __call__(self, vector: Tensor) -> Tensor:
        product = self.damping * vector
        if self._kept is not None:
            return self.ranks.mean_(self._add_product(self._kept, vector, 1.0, product))
        for part in self.batch.split(self.microbatch):
            product = self._add_product(self._slope(part), vector, len(part) / len(self.batch), product)
        return self.ranks.mean_(product)

    def _slope(self, part: Minibatch) -> tuple[Tensor, ...]:
        """The gradient of the KL, itself differentiable; zero in value."""
        parameters = [parameter for parameter, _ in self.places]
        return torch.autograd.grad(self.kl(part), parameters, create_graph=True, materialize_grads=True)

    def _add_product(self, slope: tuple[Tensor, ...], vector: Tensor, share: float, product: Tensor) -> Tensor:
        """`product` + `share` times the derivative of (slope . vector)."""
        pieces = [as_laid_out(vector, start - self.offset, p) for p, start in self.places]
        along = torch.stack([(own * piece).sum() for own, piece in zip(slope, pieces, strict=True)]).sum()
        parameters = [parameter for parameter, _ in self.places]
        second = torch.autograd.grad(along, parameters, retain_graph=self._kept is not None, materialize_grads=True)
        for (parameter, start), own in zip(self.places, second, strict=True):
            as_laid_out(product, start - self.offset, parameter).add_(own, alpha=share)
        return product


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], target: Tensor, iterations: int, tolerance: float = 1e-10
) -> tuple[Tensor, Tensor]:
    """x with `product`(x) near `target`, for a symmetric positive definite product; and |target - product(x)|^2."""
    solution = torch.zeros_like(target)
    residual, direction = target.clone(), target.clone()
    squared = residual @ residual
    waits = target.device.type == "cpu"  # elsewhere to ask would be to wait: what is near enough is left as it is
    for _ in range(iterations):
        if waits and squared <= tolerance:
            break
        image = product(direction)
        length = squared / (direction @ image)
        if not waits:
            length = torch.where(squared <= tolerance, 0.0, length)
        solution += length * direction
        residual -= length * image
        before, squared = squared, residual @ residual
        direction = residual + squared / before * direction
    return solution, squared
