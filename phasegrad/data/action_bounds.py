"""From the action a policy sampled to the one its environment takes, and back. The stored action is always the sampled one."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    Product,
    SquashedGaussian,
)
from phasegrad.distributions.choosing import parts_of
from phasegrad.envs.actions import ActionAdapter
from phasegrad.errors import ConfigError

LARGEST_SQUASHED = 0.999  # of a demonstrator's actions, whose samples before squashing would otherwise have no limit
CHOICES = (Categorical, MultiCategorical, Bernoulli)


class ActionBounds:
    """Clips continuous actions to the space, or rescales [-1, 1] to its bounds; discrete ones pass through.

    Those of a distribution that is bounded by itself are always rescaled. Where actions have parts, each has its own.
    """

    def __init__(self, space: gym.Space, distribution: Distribution, bounds: str) -> None:
        self.space, self.distribution = space, distribution
        self.continuous = isinstance(space, gym.spaces.Box)
        self.parts: list[ActionBounds] = []
        self._there: tuple[Tensor, ...] | None = None  # the limits, on a device that actions were on
        if isinstance(distribution, Product):
            pairs = zip(parts_of(space).items(), distribution.parts.values(), strict=True)
            self.parts = [self._of_part(name, part, own, bounds) for (name, part), own in pairs]
            self.edges = np.cumsum(distribution.widths)[:-1]
        if isinstance(space, gym.spaces.Box):
            self.low, self.high = space.low.astype(np.float32), space.high.astype(np.float32)
            self.bounded = bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())
            if bounds == "rescale" and not self.bounded:
                raise ConfigError("action_bounds rescale needs finite action bounds; use --action-bounds clip.")
            self.rescale = bounds == "rescale" or distribution.bounded
            if self.rescale:
                self.half, self.centre = (self.high - self.low) / 2, (self.high + self.low) / 2

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """[N, ...] actions as sampled (flat) to [N, *space.shape] as the environment takes them; parts side by side."""
        if self.parts:
            pieces = zip(self.parts, np.split(actions, self.edges, 1), strict=True)
            return np.concatenate([part(piece).reshape(len(actions), -1) for part, piece in pieces], 1)
        if self.distribution.bounded:
            actions = self.distribution.within(torch.from_numpy(actions)).numpy()
        actions = actions.reshape(len(actions), *(self.space.shape or ()))
        if not self.continuous:
            return actions
        if self.rescale:
            return np.clip(actions, -1.0, 1.0) * self.half + self.centre
        return np.clip(actions, self.low, self.high)

    def on_device(self, actions: Tensor) -> Tensor:
        """The same of a tensor [N, ...], which stays where it is; of actions without parts."""
        if self.distribution.bounded:
            actions = self.distribution.within(actions)
        actions = actions.reshape(len(actions), *(self.space.shape or ()))
        if not self.continuous:
            return actions
        if self._there is None or self._there[0].device != actions.device:
            limits = [self.half, self.centre] if self.rescale else [self.low, self.high]
            self._there = tuple(torch.from_numpy(limit).to(actions.device) for limit in limits)
        first, second = self._there
        return actions.clamp(-1.0, 1.0) * first + second if self.rescale else actions.clamp(first, second)

    @staticmethod
    def _of_part(name: str, space: gym.Space, distribution: Distribution, bounds: str) -> ActionBounds:
        try:
            return ActionBounds(space, distribution, bounds)
        except ConfigError as error:
            raise ConfigError(f"The part {name!r} of the actions: {error}") from None


def stored_actions(actions: np.ndarray, original: gym.Space, bounds: ActionBounds) -> Tensor:
    """The way back: actions [B, ...] in the environment's own numbers, as its `original` space has them, to those that a
    policy would have stored for them [B, *action_shape].

    Refuses what is not in the space, and distributions whose way to the environment it does not know.
    """
    distribution = bounds.distribution
    if isinstance(distribution, Product):
        raise ConfigError(f"Actions with several parts cannot be cloned, and {original} has {len(distribution.parts)}.")
    if type(distribution) not in (*CHOICES, DiagonalGaussian, SquashedGaussian):  # one derived may store other numbers
        raise ConfigError(
            f"Actions of an environment cannot be turned back into samples of a {type(distribution).__name__}: clone with "
            "action_distribution gaussian or tanh."
        )
    wanted = (len(actions), *(original.shape or ()))
    if actions.shape != wanted:
        raise ConfigError(f"actions has shape {actions.shape}, but {original} needs {wanted}.")
    if isinstance(distribution, CHOICES):
        if actions.dtype.kind not in "iub":
            raise ConfigError(f"actions has type {actions.dtype}, but {original} needs whole numbers.")
        part = ActionAdapter(original).parts[0]
        numbers: np.ndarray = actions.astype(np.int64) - part.offset
        outside = (numbers < 0) | (numbers >= (np.reshape(part.sizes, original.shape or ()) if part.sizes else 2))
    else:
        if actions.dtype.kind not in "fiu":
            raise ConfigError(f"actions has type {actions.dtype}, but {original} needs real numbers.")
        numbers = actions.astype(np.float32)
        if not np.isfinite(numbers).all():
            raise ConfigError("actions has NaN or infinite entries: leave those steps out.")
        slack = 1e-5 * np.where(np.isfinite(bounds.high - bounds.low), bounds.high - bounds.low, 0)
        outside = (numbers < bounds.low - slack) | (numbers > bounds.high + slack)
        if bounds.rescale:
            numbers = (numbers - bounds.centre) / np.where(bounds.half > 0, bounds.half, 1)
        if isinstance(distribution, SquashedGaussian):  # one at a bound was squashed from infinity
            numbers = np.arctanh(np.clip(numbers, -LARGEST_SQUASHED, LARGEST_SQUASHED))
    if outside.any():
        row = int(np.flatnonzero(outside.reshape(len(actions), -1).any(1))[0])
        raise ConfigError(f"actions has {actions[row]} at step {row}, which is not in {original}.")
    return torch.from_numpy(numbers.reshape(len(actions), *distribution.action_shape)).to(distribution.action_dtype)
