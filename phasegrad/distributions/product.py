"""Several distributions side by side, for actions with unlike parts: what they put out is independent given the state.

Parameters, noise, masks and actions of the parts lie side by side in one vector each, in the order of the parts. So
log-probability, entropy and KL are sums over the parts, whatever their kind; a product may be a part itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phasegrad.distributions.base import Distribution
from phasegrad.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_CHOICE = 1 << 24  # that single precision holds exactly, in which actions with a continuous part are stored


class Product(Distribution):
    """Independent `parts` by name. An action is one row of numbers, in float32 where any part is continuous."""

    def __init__(self, parts: Mapping[str, Distribution]) -> None:
        self.parts = dict(parts)
        kinds = list(self.parts.values())
        self.widths = [int(torch.Size(part.action_shape).numel()) for part in kinds]
        self.parameter_sizes = [part.parameter_size for part in kinds]
        self.noise_sizes = [part.noise_size for part in kinds]
        self.parameter_size, self.noise_size = sum(self.parameter_sizes), sum(self.noise_sizes)
        self.mask_size = sum(part.mask_size for part in kinds)
        self.action_shape = (sum(self.widths),)
        continuous = [part.action_dtype for part in kinds if part.is_continuous]
        self.action_dtype = continuous[0] if continuous else torch.int64
        self.bounded = any(part.bounded for part in kinds)
        for name, part in self.parts.items():
            largest = max(part.mask_sizes, default=0)
            if continuous and not part.is_continuous and largest > LARGEST_CHOICE:
                raise EnvError(
                    f"The part {name!r} of the actions has a choice of {largest:,}; beside real numbers it may have "
                    f"{LARGEST_CHOICE:,} at most."
                )

    @property
    def mask_sizes(self) -> tuple[int, ...]:
        return tuple(size for part in self.parts.values() for size in part.mask_sizes)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        pieces = zip(self._params(params), noise.split(self.noise_sizes, -1), strict=True)
        return self._joined([part.sample(own, random) for (part, own), random in pieces])

    def mode(self, params: Tensor) -> Tensor:
        return self._joined([part.mode(own) for part, own in self._params(params)])

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        pieces = zip(self._params(params), self.divided(actions).values(), strict=True)
        return torch.stack([part.log_prob(own, taken) for (part, own), taken in pieces]).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        return torch.stack([part.entropy(own) for part, own in self._params(params)]).sum(0)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        pieces = zip(self._params(params), other.split(self.parameter_sizes, -1), strict=True)
        return torch.stack([part.kl(own, theirs) for (part, own), theirs in pieces]).sum(0)

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return params
        pieces = zip(self._params(params), self.divided_mask(mask), strict=True)
        return torch.cat([part.masked(own, allowed) for (part, own), allowed in pieces], -1)

    def within(self, actions: Tensor) -> Tensor:
        """The parts that are `bounded` as numbers from -1 to 1; the others as they are."""
        pieces = zip(self.parts.values(), self.divided(actions).values(), strict=True)
        return self._joined([part.within(taken) if part.bounded else taken for part, taken in pieces])

    def described(self, params: Tensor) -> dict[str, Tensor]:
        pieces = zip(self.parts.items(), self._params(params), strict=True)
        return {
            f"{name}.{key}": tensor for (name, part), (_, own) in pieces for key, tensor in part.described(own).items()
        }

    def named_actions(self, actions: Tensor) -> dict[str, Tensor]:
        return {
            f"action.{name}{rest.removeprefix('action')}": tensor
            for name, taken in self.divided(actions).items()
            for rest, tensor in self.parts[name].named_actions(taken).items()
        }

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Each part's own kind, drawn one part after the other."""
        return torch.cat([part.draw_noise(shape, generator) for part in self.parts.values()], -1)

    def divided(self, actions: Tensor) -> dict[str, Tensor]:
        """Stored actions [..., K] by part, each in its own shape and type."""
        pieces = zip(self.parts.items(), actions.split(self.widths, -1), strict=True)
        return {
            name: piece.reshape(*piece.shape[:-1], *part.action_shape).to(part.action_dtype)
            for (name, part), piece in pieces
        }

    def divided_mask(self, mask: Tensor | None) -> list[Tensor | None]:
        """A mask [..., M] by part; None for parts that have no choices."""
        if mask is None:
            return [None] * len(self.parts)
        pieces = iter(mask.split([part.mask_size for part in self.parts.values() if part.mask_size], -1))
        return [next(pieces) if part.mask_size else None for part in self.parts.values()]

    def _params(self, params: Tensor) -> Iterator[tuple[Distribution, Tensor]]:
        return zip(self.parts.values(), params.split(self.parameter_sizes, -1), strict=True)

    def _joined(self, pieces: list[Tensor]) -> Tensor:
        """The parts' actions [..., *action_shape] as one row of numbers."""
        rows = [
            piece.reshape(*piece.shape[: piece.dim() - len(part.action_shape)], width).to(self.action_dtype)
            for part, piece, width in zip(self.parts.values(), pieces, self.widths, strict=True)
        ]
        return torch.cat(rows, -1)
