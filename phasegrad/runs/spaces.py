"""Spaces as JSON, so that an agent can be loaded and act without its environment."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np

from phasegrad.errors import DamagedError

LARGEST_SIZE = 1 << 24  # entries of a space read from a file: more is refused before memory is taken
DEEPEST = 64  # Dicts within Dicts


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """A space as plain data; bounds that are the same everywhere are written once."""
    if isinstance(space, gym.spaces.Dict):
        return {"kind": "Dict", "spaces": {str(name): space_to_json(part) for name, part in space.items()}}
    if isinstance(space, gym.spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    if isinstance(space, gym.spaces.Box):
        return {
            "kind": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bound(space.low),
            "high": _bound(space.high),
        }
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {
            "kind": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": str(space.dtype),
        }
    if isinstance(space, gym.spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    raise DamagedError(f"Space {space} cannot be saved.")


def space_from_json(data: Any, depth: int = 0) -> gym.Space:
    """The space again; refuses what this library does not write."""
    try:
        if depth > DEEPEST:
            raise ValueError(depth)
        kind = data["kind"]
        if kind == "Dict":
            # In the order of the file: gymnasium would sort a plain dict.
            return gym.spaces.Dict(
                OrderedDict((str(name), space_from_json(part, depth + 1)) for name, part in data["spaces"].items())
            )
        if kind == "Tuple":
            return gym.spaces.Tuple([space_from_json(part, depth + 1) for part in data["spaces"]])
        if kind == "Box":
            shape, dtype = _shape(data["shape"]), np.dtype(data["dtype"])
            if dtype.kind not in "fiub":
                raise ValueError(dtype)
            # Integers as they are: the largest of 64 bits are no floats.
            read = np.float64 if dtype.kind == "f" else dtype
            low, high = (np.broadcast_to(np.asarray(data[side], dtype=read), shape) for side in ("low", "high"))
            return gym.spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
        if kind == "Discrete":
            integer = _integer(data)
            return gym.spaces.Discrete(_size(data["n"]), start=int(data["start"]), dtype=integer)
        if kind == "MultiDiscrete":
            nvec = np.asarray(data["nvec"], dtype=np.int64)
            for n in nvec.reshape(-1):
                _size(n)
            start = np.asarray(data["start"], dtype=np.int64).reshape(nvec.shape)
            return gym.spaces.MultiDiscrete(nvec, dtype=_integer(data), start=start)
        if kind == "MultiBinary":
            shape = _shape(data["shape"])
            return gym.spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)  # (n,) and n are unequal to gymnasium
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, AssertionError) as error:
        raise DamagedError(f"The saved space is damaged: {type(error).__name__} in {str(data)[:80]}.") from None
    raise DamagedError(f"The saved space is of unknown kind {str(kind)[:40]!r}.")


def _bound(values: np.ndarray) -> Any:
    if values.size and (values == values.flat[0]).all():
        return _number(values.flat[0])
    return np.vectorize(_number, otypes=[object])(values).tolist()


def _integer(data: Any) -> type[np.integer[Any]]:
    """The dtype of the choices; a file without one is older than it."""
    dtype = np.dtype(data.get("dtype", "int64"))
    if dtype.kind not in "iu":
        raise ValueError(dtype)
    kind: type[np.integer[Any]] = dtype.type
    return kind


def _number(value: Any) -> float | int | str:
    if isinstance(value, np.integer | np.bool_):
        return int(value)
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
