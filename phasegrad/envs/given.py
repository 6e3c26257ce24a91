"""Observations that a caller hands over, one or a batch, as the environment gives them: checked, batched and flattened.

Training and evaluation take theirs from the backends; what `predict` and `value` are given goes through here, and
through the same conversion. Knows spaces and arrays only.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from phasegrad.envs.contract import Observation
from phasegrad.envs.spaces import CHOICES, Leaf, ObservationAdapter, fits_dtype, follow, outside_choices
from phasegrad.errors import EnvError


def as_batch(adapter: ObservationAdapter, observation: Any) -> tuple[Observation, Any | None, bool]:
    """A flat batch, the action mask inside the observation or None, and whether it was a single observation.

    A Dict may also come flat, under its dotted names.
    """
    _refuse_answers(adapter.original, observation)
    arrays = {leaf.name: _array(observation, leaf, adapter) for leaf in adapter.leaves}
    first = adapter.leaves[0]
    single = arrays[first.name].ndim == len(first.shape)
    leading = () if single else arrays[first.name].shape[:1]
    flat: dict[str, np.ndarray] = {}
    for leaf in adapter.leaves:
        array = arrays[leaf.name]
        entry = f" entry {leaf.name!r}" if leaf.name else ""
        if array.shape != (*leading, *leaf.shape) or leading == (0,):
            among = f"; the others have {leading[0]} rows" if leading and leaf is not first else ""
            raise EnvError(
                f"The observation{entry} has shape {array.shape}; one of shape {leaf.shape} or a batch of those is "
                f"needed{among}."
            )
        if not fits_dtype(array, leaf):
            raise EnvError(f"The observation{entry} is {array.dtype}, but {leaf.original.dtype} is needed.")
        flat[leaf.name] = leaf.convert(array[None] if single else array)
        if isinstance(leaf.space, CHOICES) and (wrong := outside_choices(flat[leaf.name], leaf.space)).any():
            row = array if single else array[int(np.flatnonzero(wrong)[0])]
            raise EnvError(f"The observation{entry} is {row.tolist()}, which is not in {leaf.original}.")
    entries = [_entry(observation, leaf) for leaf in adapter.mask_leaves]
    mask = adapter.mask_of(entries) if all(entry is not None for entry in entries) else None
    return flat if adapter.nested else flat[first.name], mask, single


def missing_entry(adapter: ObservationAdapter, observation: Any, names: Collection[str]) -> str | None:
    """The first of the flat entries `names` that an observation does not have; None where it has them all."""
    wanted = [leaf for leaf in adapter.leaves if leaf.name in names]
    return next((leaf.name for leaf in wanted if _entry(observation, leaf) is None), None)


def _array(observation: Any, leaf: Leaf, adapter: ObservationAdapter) -> np.ndarray:
    found = _entry(observation, leaf)
    if found is None and leaf.name:
        names = ", ".join(each.name for each in adapter.leaves)
        raise EnvError(f"The observation has no entry {leaf.name!r}; its keys, dotted where nested, are {names}.")
    if found is None:
        raise EnvError("There is no observation: None was given.")
    try:
        return np.asarray(found)
    except (ValueError, TypeError) as error:  # rows of unlike length, a tensor of another device
        raise EnvError(f"The observation is no array of {leaf.original}: {str(error).rstrip('.')}.") from error


def _entry(observation: Any, leaf: Leaf) -> Any | None:
    """Where its space has it, or under its dotted name; None where it is not there."""
    try:
        return follow(observation, leaf.path)
    except (KeyError, IndexError, TypeError):
        return dict(_named(observation)).get(leaf.name)


def _named(nested: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(nested, dict | tuple):
        return [(prefix, nested)] if prefix else []
    entries = nested.items() if isinstance(nested, dict) else enumerate(nested)
    return [pair for key, entry in entries for pair in _named(entry, f"{prefix}.{key}" if prefix else str(key))]


def _refuse_answers(space: gym.Space, observation: Any) -> None:
    """Say so where a whole answer of `reset` or `step` was given in place of the observation in it."""
    if not isinstance(observation, tuple) or len(observation) not in (2, 5) or not isinstance(observation[-1], dict):
        return
    last = space.spaces[-1] if isinstance(space, spaces.Tuple) and len(space.spaces) == len(observation) else None
    if isinstance(last, spaces.Dict) and last.spaces.keys() <= observation[-1].keys():
        return  # the observation itself is a tuple that ends in a dict
    if len(observation) == 2:
        raise EnvError(
            "This is all that reset returned, (observation, info), but only the observation is wanted: "
            "`observation, info = env.reset()`."
        )
    raise EnvError(
        "This is all that step returned, but only the observation is wanted: "
        "`observation, reward, terminated, truncated, info = env.step(action)`."
    )
