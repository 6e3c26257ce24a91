"""Action distributions as pure functions of a parameter tensor [..., P]: sample, log-probability, entropy, KL.

A rollout stores those parameters, so that every KL is the analytic one of the two full distributions. Sampling takes
its noise as an argument: a run draws it from (seed, iteration), so there is no hidden random state to save. Masks are
applied to the parameters (`masked`), after which every function here respects them. Nothing here knows about networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from phasegrad.errors import EnvError


class Distribution(ABC):
    """One kind of distribution over one action space. `params` is always [..., parameter_size].

    One of your own is registered by `register_distribution` and made from the action space.
    """

    parameter_size: int  # P
    action_shape: tuple[int, ...]  # of one stored action
    action_dtype: torch.dtype
    noise_size: int  # numbers of noise one action needs
    noise_is_normal: bool = False
    has_std: bool = False  # whether its parameters are means and logarithms of standard deviations, for `std` to decide
    bounded: bool = False  # whether its actions keep within bounds, to which `within` and then the space's scale them
    mask_size: int = 0  # entries of an action mask, 0 where masks make no sense

    @property
    def is_continuous(self) -> bool:
        """Whether actions are real numbers, of which two are seldom equal."""
        return self.action_dtype.is_floating_point

    @property
    def mask_sizes(self) -> tuple[int, ...]:
        """Entries of an action mask by the choice they belong to; each choice needs one that is allowed."""
        return (self.mask_size,) if self.mask_size else ()

    @abstractmethod
    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Actions [..., *action_shape] from params [..., P] and noise [..., noise_size]."""

    @abstractmethod
    def mode(self, params: Tensor) -> Tensor:
        """The most likely actions [..., *action_shape]."""

    @abstractmethod
    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|s), [...]."""

    @abstractmethod
    def entropy(self, params: Tensor) -> Tensor:
        """S[pi], [...]."""

    @abstractmethod
    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """KL[pi_params, pi_other], [...]: the first argument is the old policy in every loss of this library."""

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """The parameters with what `mask` [..., mask_size] forbids made impossible."""
        if mask is None:
            return params
        raise EnvError(f"{type(self).__name__} actions cannot be masked: only discrete ones can.")

    def described(self, params: Tensor) -> dict[str, Tensor]:
        """The parameters by the names that people know them by."""
        if self.has_std:
            mean, log_std = params.chunk(2, -1)
            return {"mean": mean, "std": log_std.exp()}
        return {"logits" if self.mask_size else "params": params}

    def named_actions(self, actions: Tensor) -> dict[str, Tensor]:
        """Stored actions [..., *action_shape] by name; a distribution with parts has one for each."""
        return {"action": actions}

    def within(self, actions: Tensor) -> Tensor:
        """Stored actions [..., *action_shape] of a `bounded` distribution as numbers from -1 to 1."""
        raise NotImplementedError(f"{type(self).__name__} actions have no bounds of their own.")

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Noise [*shape, noise_size] for `sample`."""
        size = (*shape, self.noise_size)
        return torch.randn(size, generator=generator) if self.noise_is_normal else torch.rand(size, generator=generator)
