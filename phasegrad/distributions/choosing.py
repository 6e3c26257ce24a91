"""Which distribution an action space gets, and those that people register."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np

from phasegrad.distributions.base import Distribution
from phasegrad.distributions.bounded import Beta, SquashedGaussian
from phasegrad.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from phasegrad.distributions.gaussian import DiagonalGaussian
from phasegrad.distributions.product import Product
from phasegrad.errors import ConfigError, EnvError


def distribution_for(space: gym.Space, name: str = "auto") -> Distribution:
    """The distribution that fits an action space, or the one registered under a name: where there are parts, for its
    Boxes.
    """
    if has_boxes(space) or (name == "auto" and isinstance(space, NESTED)):
        return Product({key: distribution_for(part, own_name(part, name)) for key, part in parts_of(space).items()})
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
        return box_distribution(space)
    raise EnvError(f"Action space {space} is not supported: it must be Discrete, MultiDiscrete, MultiBinary or Box.")


NESTED = (gym.spaces.Dict, gym.spaces.Tuple)


def parts_of(space: gym.Space) -> dict[str, gym.Space]:
    """The parts of a Dict or Tuple by name, in their order; none of another space."""
    if isinstance(space, gym.spaces.Dict):
        return {str(key): part for key, part in space.spaces.items()}
    return {str(place): part for place, part in enumerate(space.spaces)} if isinstance(space, gym.spaces.Tuple) else {}


def has_boxes(space: gym.Space) -> bool:
    """Whether a Dict or Tuple has a Box somewhere in it."""
    return any(isinstance(part, gym.spaces.Box) or has_boxes(part) for part in parts_of(space).values())


def own_name(part: gym.Space, name: str) -> str:
    """What `action_distribution` says for a part: choices have but one distribution."""
    return name if isinstance(part, gym.spaces.Box) or has_boxes(part) else "auto"


BOX_DISTRIBUTIONS: dict[str, Callable[[int], Distribution]] = {
    "gaussian": DiagonalGaussian,
    "tanh": SquashedGaussian,
    "beta": Beta,
}


def box_distribution(space: gym.spaces.Box, name: str = "auto") -> Distribution:
    """The distribution that a Box gets for one of the built-in names: of as many numbers as the Box has."""
    made = BOX_DISTRIBUTIONS["gaussian" if name == "auto" else name](int(np.prod(space.shape)))
    with np.errstate(over="ignore"):
        width = space.high.astype(np.float32) - space.low.astype(np.float32)
    if made.bounded and not np.isfinite(width).all():
        raise ConfigError(f"action_distribution {name} needs finite action bounds, which {space} lacks: use gaussian.")
    return made


def _for_boxes(name: str) -> Callable[[gym.Space], Distribution]:
    def make(space: gym.Space) -> Distribution:
        if not isinstance(space, gym.spaces.Box):
            raise ConfigError(f"action_distribution {name} needs a Box action space, not {space}: use auto.")
        return box_distribution(space, name)

    return make


DISTRIBUTIONS: dict[str, Callable[[gym.Space], Distribution]] = {name: _for_boxes(name) for name in BOX_DISTRIBUTIONS}
BUILT_IN = frozenset(DISTRIBUTIONS)


def register_distribution(name: str, make: Callable[[gym.Space], Distribution]) -> None:
    """Make a distribution of your own known as `action_distribution` `name`; `make` is its class, called with the space.

    It raises a ConfigError for a space that it does not fit. Registering a name again takes its place.
    """
    if not name.isidentifier() or name == "auto" or name in BUILT_IN:
        raise ConfigError(f"A distribution's name is a word that is not taken, such as logistic, not {name!r}.")
    if not callable(make):
        raise ConfigError("A distribution is registered with its class, or a function from the action space to one.")
    DISTRIBUTIONS[name] = make
