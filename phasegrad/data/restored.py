"""What a file gives back of rollouts, looked at before it is learnt from: whoever made the file made its checksum too.

Compiled steps take an action for a place in a row and a number of frames for a distance, as environments in C++ do, and
read wherever those lead. Knows tensors and spaces; which file it was is its reader's business.
"""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium as gym
import torch
from torch import Tensor

from phasegrad.data.legs import can_be_taken
from phasegrad.distributions import Bernoulli, Categorical, Distribution, MultiCategorical, Product
from phasegrad.envs.spaces import CHOICES, outside_choices
from phasegrad.errors import DamagedError
from phasegrad.models.stacking import Stacking

OBSERVATIONS, NEXT, FINAL = "observations", "next_observations", "final_observations"


class DamagedPieceError(DamagedError):
    """The piece `number` of what a run carries is not what it can be; the message says how."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"Rollout {number} is damaged: {what}.")
        self.number, self.what = number, what


def require_sound(
    number: int,
    named: Mapping[str, Tensor],
    observation_space: gym.Space | None,
    stacking: Stacking | None,
    distribution: Distribution | None = None,
) -> None:
    """Refuse a piece, tensors of the right shapes and types by name, whose numbers cannot have been collected."""
    for name, tensor in named.items():
        kind, _, entry = name.partition(".")
        if name == "actions" and distribution is not None:
            if not _are_samples(tensor, distribution):
                raise DamagedPieceError(number, "it has actions that the action space does not have")
        elif name == "since":
            if int(tensor.max()) >= (stacking.count if stacking else 1):
                raise DamagedPieceError(number, "it has frames that no stack holds")
        elif tensor.is_floating_point() and tensor.isnan().any():
            raise DamagedPieceError(number, f"{name} has entries that are no numbers")
        elif kind in (OBSERVATIONS, NEXT, FINAL) and observation_space is not None:
            space = observation_space if stacking is None or kind == OBSERVATIONS else stacking.space
            part = space.spaces[entry] if isinstance(space, gym.spaces.Dict) else space
            if isinstance(part, CHOICES) and outside_choices(tensor.numpy(), part).any():
                raise DamagedPieceError(number, f"{name} has observations that {part} does not have")


def _are_samples(actions: Tensor, distribution: Distribution) -> bool:
    """Whether actions [..., *action_shape] are such as a distribution samples."""
    if isinstance(distribution, Product):
        columns = actions.split(distribution.widths, -1)
        return all(
            _are_samples(_whole(column, part).reshape(*column.shape[:-1], *part.action_shape), part)
            for column, part in zip(columns, distribution.parts.values(), strict=True)
        )
    if isinstance(distribution, Categorical):
        return can_be_taken(actions, gym.spaces.Discrete(distribution.mask_sizes[0]))
    if isinstance(distribution, MultiCategorical):
        return can_be_taken(actions, gym.spaces.MultiDiscrete(list(distribution.mask_sizes)))
    if isinstance(distribution, Bernoulli):
        return bool(((actions == 0) | (actions == 1)).all())
    return not actions.is_floating_point() or bool(torch.isfinite(actions).all())


def _whole(column: Tensor, part: Distribution) -> Tensor:
    """Choices that lie beside real numbers are stored as such; one that is none becomes none of the choices."""
    if part.action_dtype.is_floating_point or not column.is_floating_point():
        return column
    return torch.where(column == column.trunc(), column, torch.full_like(column, -1)).long()
