"""Spaces as JSON, so that an agent can be loaded and act without its environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from phasegrad.errors import DamagedError

LARGEST_SIZE = 1 << 24  # entries of a space read from a file: more is refused before memory is taken


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """A flat space as plain data; bounds that are the same everywhere are written once."""
    if isinstance(space, gym.spaces.Dict):
        return {"kind": "Dict", "spaces": {name: space_to_json(part) for name, part in space.items()}}
    if isinstance(space, gym.spaces.Box):
        return {
            "kind": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bound(space.low),
            "high": _bound(space.high),
        }
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    raise DamagedError(f"Space {space} cannot be saved.")


def space_from_json(data: Any) -> gym.Space:
    """The space again; refuses what this library does not write."""
    try:
        kind = data["kind"]
        if kind == "Dict":
            return gym.spaces.Dict({str(name): space_from_json(part) for name, part in data["spaces"].items()})
        if kind == "Box":
            shape, dtype = _shape(data["shape"]), np.dtype(data["dtype"])
            if dtype.kind not in "fiub":
                raise ValueError(dtype)
            low, high = (np.broadcast_to(np.asarray(data[side], dtype=np.float64), shape) for side in ("low", "high"))
            return gym.spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
        if kind == "Discrete":
            return gym.spaces.Discrete(_size(data["n"]), start=int(data["start"]))
        if kind == "MultiDiscrete":
            nvec = np.asarray(data["nvec"], dtype=np.int64)
            for n in nvec.reshape(-1):
                _size(n)
            return gym.spaces.MultiDiscrete(nvec, start=np.asarray(data["start"], dtype=np.int64).reshape(nvec.shape))
        if kind == "MultiBinary":
            shape = _shape(data["shape"])
            return gym.spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)  # (n,) and n are unequal to gymnasium
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"The saved space is damaged: {type(error).__name__} in {str(data)[:80]}.") from None
    raise DamagedError(f"The saved space is of unknown kind {str(kind)[:40]!r}.")


def _bound(values: np.ndarray) -> Any:
    if values.size and (values == values.flat[0]).all():
        return _number(values.flat[0])
    return np.vectorize(_number, otypes=[object])(values).tolist()


def _number(value: Any) -> float | str:
    return str(float(value)) if not np.isfinite(value) else float(value)  # JSON has no infinity: "inf", "-inf"


def _shape(values: Any) -> tuple[int, ...]:
    shape = tuple(int(v) for v in values)
    if any(v < 0 for v in shape) or np.prod(shape, dtype=np.float64) > LARGEST_SIZE:
        raise ValueError(shape)
    return shape


def _size(value: Any) -> int:
    if not 0 < int(value) <= LARGEST_SIZE:
        raise ValueError(value)
    return int(value)
