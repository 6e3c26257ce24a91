"""Action distributions as pure functions of a parameter tensor [..., P]: sample, log-probability, entropy, KL.

A rollout stores those parameters, so that every KL is the analytic one of the two full distributions. Sampling takes
its noise as an argument: a run draws it from (seed, iteration), so there is no hidden random state to save. Masks are
applied to the parameters (`masked`), after which every function here respects them. Nothing here knows about networks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from phasegrad.errors import ConfigError, EnvError

MASKED_LOGIT = -1e8  # finite, so that 0 * log 0 stays 0 in entropy and KL instead of NaN
LARGEST_UNIFORM = 1.0 - 1e-6  # below 1 in float32, so that the inverse CDF never runs past the last possible action


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

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Noise [*shape, noise_size] for `sample`."""
        size = (*shape, self.noise_size)
        return torch.randn(size, generator=generator) if self.noise_is_normal else torch.rand(size, generator=generator)


class Categorical(Distribution):
    """One choice of n; the parameters are logits."""

    action_shape = ()
    action_dtype = torch.int64
    noise_size = 1

    def __init__(self, n: int) -> None:
        self.parameter_size = self.mask_size = n

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        cumulative = params.softmax(-1).cumsum(-1)
        level = noise.clamp(max=LARGEST_UNIFORM) * cumulative[..., -1:]
        return (cumulative <= level).sum(-1)  # the first action whose cumulative probability passes the level

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return params.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        log_probs = params.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        log_p = params.log_softmax(-1)
        return (log_p.exp() * (log_p - other.log_softmax(-1))).sum(-1)

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return params if mask is None else params.masked_fill(~mask, MASKED_LOGIT)


class MultiCategorical(Distribution):
    """Several independent choices; the parameters are their logits side by side."""

    action_dtype = torch.int64

    def __init__(self, sizes: list[int]) -> None:
        self.parts = [Categorical(n) for n in sizes]
        self.sizes = list(sizes)
        self.parameter_size = self.mask_size = sum(sizes)
        self.action_shape = (len(sizes),)
        self.noise_size = len(sizes)

    @property
    def mask_sizes(self) -> tuple[int, ...]:
        return tuple(self.sizes)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        pieces = zip(self.parts, params.split(self.sizes, -1), noise.split(1, -1), strict=True)
        return torch.stack([part.sample(logits, u) for part, logits, u in pieces], -1)

    def mode(self, params: Tensor) -> Tensor:
        return torch.stack([logits.argmax(-1) for logits in params.split(self.sizes, -1)], -1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        pieces = zip(self.parts, params.split(self.sizes, -1), actions.unbind(-1), strict=True)
        return torch.stack([part.log_prob(logits, action) for part, logits, action in pieces]).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        pieces = zip(self.parts, params.split(self.sizes, -1), strict=True)
        return torch.stack([part.entropy(logits) for part, logits in pieces]).sum(0)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        pieces = zip(self.parts, params.split(self.sizes, -1), other.split(self.sizes, -1), strict=True)
        return torch.stack([part.kl(p, q) for part, p, q in pieces]).sum(0)

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return params if mask is None else params.masked_fill(~mask, MASKED_LOGIT)


class Bernoulli(Distribution):
    """n independent bits; the parameters are the logits of a 1. A mask entry forbids that bit's 1."""

    action_dtype = torch.int64

    def __init__(self, n: int) -> None:
        self.parameter_size = self.mask_size = self.noise_size = n
        self.action_shape = (n,)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return (noise < params.sigmoid()).long()

    def mode(self, params: Tensor) -> Tensor:
        return (params > 0).long()

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return -F.binary_cross_entropy_with_logits(params, actions.to(params.dtype), reduction="none").sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(params, params.sigmoid(), reduction="none").sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        p = params.sigmoid()
        on = p * (F.logsigmoid(params) - F.logsigmoid(other))
        off = (1 - p) * (F.logsigmoid(-params) - F.logsigmoid(-other))
        return (on + off).sum(-1)

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return params if mask is None else params.masked_fill(~mask, MASKED_LOGIT)


class DiagonalGaussian(Distribution):
    """n independent normals; the parameters are the means, then the logarithms of the standard deviations."""

    action_dtype = torch.float32
    noise_is_normal = has_std = True

    def __init__(self, n: int) -> None:
        self.parameter_size = 2 * n
        self.noise_size = n
        self.action_shape = (n,)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        return mean + log_std.exp() * noise

    def mode(self, params: Tensor) -> Tensor:
        return params.chunk(2, -1)[0]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        standardized = (actions - mean) * (-log_std).exp()
        return (-0.5 * standardized.square() - log_std).sum(-1) - 0.5 * math.log(2 * math.pi) * self.noise_size

    def entropy(self, params: Tensor) -> Tensor:
        return params.chunk(2, -1)[1].sum(-1) + 0.5 * math.log(2 * math.pi * math.e) * self.noise_size

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        mean_p, log_std_p = params.chunk(2, -1)
        mean_q, log_std_q = other.chunk(2, -1)
        ratio = (2 * (log_std_p - log_std_q)).exp()
        distance = ((mean_p - mean_q) * (-log_std_q).exp()).square()
        return (0.5 * (ratio + distance - 1) + log_std_q - log_std_p).sum(-1)


def distribution_for(space: gym.Space, name: str = "auto") -> Distribution:
    """The distribution that fits an action space, or the one registered under a name."""
    if name != "auto":
        if name not in DISTRIBUTIONS:
            known = ", ".join(("auto", *DISTRIBUTIONS))
            raise ConfigError(
                f"action_distribution must be one of {known}, not {name!r}: where it is one of your own, register it with "
                "phasegrad.register_distribution first."
            )
        return DISTRIBUTIONS[name](space)
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return MultiCategorical([int(n) for n in np.asarray(space.nvec).reshape(-1)])
    if isinstance(space, gym.spaces.MultiBinary):
        return Bernoulli(int(np.prod(space.shape)))
    if isinstance(space, gym.spaces.Box):
        return gaussian(space)
    raise EnvError(f"Action space {space} is not supported: it must be Discrete, MultiDiscrete, MultiBinary or Box.")


def gaussian(space: gym.Space) -> DiagonalGaussian:
    if not isinstance(space, gym.spaces.Box):
        raise ConfigError(f"action_distribution gaussian needs a Box action space, not {space}: use auto.")
    return DiagonalGaussian(int(np.prod(space.shape)))


DISTRIBUTIONS: dict[str, Callable[[gym.Space], Distribution]] = {"gaussian": gaussian}
BUILT_IN = frozenset(DISTRIBUTIONS)


def register_distribution(name: str, make: Callable[[gym.Space], Distribution]) -> None:
    """Make a distribution of your own known as `action_distribution` `name`; `make` is its class, called with the space.

    It raises a ConfigError for a space that it does not fit. Registering a name again takes its place.
    """
    if not name.isidentifier() or name == "auto" or name in BUILT_IN:
        raise ConfigError(f"A distribution's name is a word that is not taken, such as beta, not {name!r}.")
    if not callable(make):
        raise ConfigError("A distribution is registered with its class, or a function from the action space to one.")
    DISTRIBUTIONS[name] = make
