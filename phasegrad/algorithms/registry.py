"""The algorithms by name: those of this package, and any that is registered from outside."""

from __future__ import annotations

from typing import TypeVar

from phasegrad.algorithms.base import Algorithm
from phasegrad.config import Config
from phasegrad.errors import ConfigError

ALGORITHMS: dict[str, type[Algorithm]] = {}
SomeAlgorithm = TypeVar("SomeAlgorithm", bound=type[Algorithm])


def register(algorithm: SomeAlgorithm) -> SomeAlgorithm:
    """Make an algorithm known by its `name`: to load and resume its runs, to the command line, studies and reports.

    Also a decorator of its class. Registering a class of the same name again, as a notebook does, takes its place.
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
        raise ConfigError(f"An algorithm is a subclass of phasegrad.Algorithm, not {algorithm!r}.")
    name, known = algorithm.name, ALGORITHMS.get(algorithm.name)
    if not name.isidentifier() or name != name.lower():
        raise ConfigError(
            f"{algorithm.__name__} needs a name in small letters, such as name = 'reinforce', not {name!r}."
        )
    if not issubclass(algorithm.config_class, Config):
        raise ConfigError(f"config_class of {algorithm.__name__} must be a subclass of phasegrad.config.Config.")
    if known is not None and (known.__module__, known.__qualname__) != (algorithm.__module__, algorithm.__qualname__):
        raise ConfigError(f"There is an algorithm named {name} already ({known.__module__}): choose another name.")
    ALGORITHMS[name] = algorithm
    return algorithm
