"""Another environment than the one an agent was made for: what it is called, and which options it is made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from phasegrad.envs.families import resolve
from phasegrad.errors import EnvError

ALIKE = ("atari", "procgen")  # families whose environments all take the same options


def setting_of(source: Any) -> str:
    """The setting `env` of an environment."""
    return source if isinstance(source, str) else f"custom:{name_of(source)}"


def name_of(source: Any) -> str:
    """What to call a source in a sentence or a file."""
    if isinstance(source, gym.Env):
        return type(source.unwrapped).__name__
    return source if isinstance(source, str) else str(getattr(source, "__name__", type(source).__name__))


def kept_options(
    present: str, options: Mapping[str, Any], source: Any, given: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """The options of `source`: as given, or those of the `present` environment where they mean the same for it."""
    if given is not None:
        if not isinstance(source, str) and not callable(source) and given:
            raise EnvError(f"An environment that is made already, {name_of(source)}, takes no env_options.")
        return given
    if not isinstance(source, str) or source == present:
        return options if source == present else {}
    if ":" in source or ":" in present:  # a module to import, or an environment that only Python knows
        return {}
    families = [resolve(each, options).family for each in (present, source)]
    return options if families[0] == families[1] and families[0] in ALIKE else {}
