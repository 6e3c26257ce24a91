"""What only the value network sees (setting `critic_only`): known while an agent trains, not where it acts.

Knows spaces and names only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from phasegrad.errors import ConfigError, nearest


def critic_only_names(space: gym.Space, wanted: Iterable[str]) -> tuple[str, ...]:
    """The entries of a flat observation space that are meant: by their names, or by that of a Dict that holds them."""
    wanted = tuple(wanted)
    if not wanted:
        return ()
    if not isinstance(space, spaces.Dict):
        raise ConfigError(
            f"critic_only names entries of a Dict observation, but the observation space is {space}: leave critic_only out."
        )
    found: set[str] = set()
    for key in wanted:
        own = {name for name in space.spaces if name == key or name.startswith(f"{key}.")}
        if not own:
            raise ConfigError(
                f"critic_only {key!r} is no entry of the observation, which has {', '.join(space.spaces)}."
                f"{nearest(key, space.spaces)}"
            )
        found |= own
    if len(found) == len(space.spaces):
        raise ConfigError(
            f"critic_only {','.join(wanted)} leaves nothing for the policy to see: leave out one of {', '.join(found)}."
        )
    return tuple(sorted(found))


def without(observation: Any, names: Iterable[str]) -> Any:
    """A flat observation less the entries `names`; itself where there are none."""
    names = set(names)
    if not names:
        return observation
    return {name: leaf for name, leaf in observation.items() if name not in names}


def space_without(space: gym.Space, names: Iterable[str]) -> gym.Space:
    """The space of such observations."""
    return spaces.Dict(without(dict(space.spaces), names)) if isinstance(space, spaces.Dict) and names else space
