"""Which distribution an action space gets, and those that people register."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np

from phasegrad.distributions.base import Distribution
from phasegrad.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from phasegrad.distributions.gaussian import DiagonalGaussian
from phasegrad.errors import ConfigError, EnvError


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
