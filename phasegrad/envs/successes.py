"""Whether an episode was a success, as environments say it in the info of its last step: `is_success`, or `success`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

KEYS = ("is_success", "success")  # the second is that of some robotics environments


def success_in(info: Mapping[str, Any]) -> bool | None:
    """What the last info of one environment's episode says; None where it says nothing that can be understood."""
    for key in KEYS:
        if key in info:
            return as_success(info[key])
    return None


def as_success(value: Any) -> bool | None:
    """A boolean, or a number that is one, as such."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return bool(array.reshape(-1)[0]) if array.size == 1 and np.isfinite(array).all() else None


def success_in_batch(info: Mapping[str, Any], index: int) -> bool | None:
    """What the infos of a gymnasium VectorEnv say of the episode that environment `index` has just ended.

    Where it was reset on the same step its last info is under `final_info`: a dict of arrays, each with a mask of who
    gave it, or before gymnasium 1.1 an array of dicts.
    """
    final = info.get("final_info")
    if final is not None and not isinstance(final, Mapping):
        own = final[index] if index < len(final) else None
        return success_in(own) if isinstance(own, Mapping) else None
    batch = info if final is None else final
    for key in KEYS:
        values, given = batch.get(key), batch.get(f"_{key}")
        if values is None or np.ndim(values) == 0 or index >= len(values):
            continue
        if given is None or (np.ndim(given) and bool(given[index])):
            return as_success(values[index])
    return None
