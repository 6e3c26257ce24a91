"""An agent's weights and normalisers as a plain dictionary, and back: named as the tensors of a checkpoint.

Optimisers' state is not among them. Values are put where the agent's tensors lie, so that what shares their memory (flat
parameters, compiled programs) sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phasegrad.agent import Agent
from phasegrad.errors import ConfigError, nearest


class LeftOut(NamedTuple):
    """What `load_parameters(..., strict=False)` did not load."""

    missing: list[str]  # parameters of this agent that stayed as they were
    unexpected: list[str]  # names that were given and have no place in it, or another shape or type there


def parameters_of(agent: Agent) -> dict[str, np.ndarray]:
    """Copies of the model's weights and the normalisers' statistics, by name."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in agent.tensors().items()}


def load_parameters(agent: Agent, given: Mapping[str, Any], strict: bool = True) -> LeftOut:
    """Put in what was given, all of it or nothing; what does not fit is refused, or where not `strict` left out."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"Parameters are a dictionary of names and arrays, not a {type(given).__name__}.")
    mine = agent.tensors()
    fitting: dict[str, Tensor] = {}
    unexpected: list[str] = []
    for name, value in given.items():
        found = _as_tensor(name, value)
        fault = _misfit(str(name), found, mine)
        if fault and strict:
            raise ConfigError(fault)
        if fault:
            unexpected.append(str(name))
            continue
        if found.is_floating_point() and not torch.isfinite(found).all():
            raise ConfigError(f"The parameter {name} holds NaN or infinity: nothing was loaded.")
        fitting[name] = found
    missing = [name for name in mine if name not in fitting]
    if missing and strict:
        raise ConfigError(
            f"The parameter {missing[0]} is missing: give all that agent.parameters() has, or strict=False to load the "
            "others."
        )
    if not fitting:
        raise ConfigError("None of the parameters fits this agent: give those of one with such networks.")
    with torch.no_grad():
        for name, tensor in fitting.items():
            mine[name].copy_(tensor)
    return LeftOut(missing, unexpected)


def _as_tensor(name: Any, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    array = np.asarray(value)
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError):
        raise ConfigError(f"The parameter {name} is no array of numbers, but {type(value).__name__}.") from None


def _misfit(name: str, found: Tensor, mine: Mapping[str, Tensor]) -> str:
    """Why a parameter has no place here; empty where it has one."""
    if name not in mine:
        return f"This agent has no parameter {name!r}.{nearest(name, mine)} strict=False leaves out what has no place."
    wanted = mine[name]
    if found.shape != wanted.shape:
        return f"The parameter {name} has shape {tuple(found.shape)}, but {tuple(wanted.shape)} is needed."
    if found.dtype != wanted.dtype:
        types = [str(dtype).removeprefix("torch.") for dtype in (found.dtype, wanted.dtype)]
        return f"The parameter {name} is {types[0]}, but {types[1]} is needed: convert it with .astype({types[1]!r})."
    return ""
