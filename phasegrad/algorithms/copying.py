"""Copies of an agent in training, in this process or sent to another, by the parts that a checkpoint is made of.

Nothing of the machine is in them: no compiled code, no running environments, no open files. A copy makes its own, and
goes on from the same place; it has no run directory. Pickling is how Python sends objects to another process: files of
phasegrad never hold pickles.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import safetensors.torch

from phasegrad import envs
from phasegrad.agent import Spaces
from phasegrad.algorithms.leash import PREFIX as LEASH
from phasegrad.config import Config
from phasegrad.errors import ConfigError, EnvError, RunError
from phasegrad.runs.carried import take_up_carried
from phasegrad.runs.checkpoint import as_bytes, fill, fill_legs, saved_legs, state_of
from phasegrad.runs.evaluating import untouched_randomness

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm

NOWHERE = Path("a copy")  # in place of a file, in a sentence about what does not fit


@dataclass
class Parts:
    """What an agent in training is made of, without what belongs to a process."""

    kind: type[Algorithm]
    source: Any
    may_import: bool
    config: Config
    spaces: Spaces
    state: Mapping[str, Any]
    tensors: bytes  # as safetensors, so that no memory is shared with another process
    legs: tuple[Mapping[str, Any], bytes]
    carried: tuple[Mapping[str, Any], Mapping[int, bytes]] | None
    seconds: tuple[float, float]


def parts_of(algorithm: Algorithm) -> Parts:
    """Copies of them all. An environment that was given ready-made stays with the original."""
    if algorithm.ranks.size > 1:
        raise RunError(
            "An agent that several processes train has a part in each, so it cannot be copied: agent.save(FOLDER) and "
            "phasegrad.load(FOLDER) make another."
        )
    agent, run, carries = algorithm.agent, algorithm.run, algorithm.carries
    take_up_carried(algorithm)  # a loaded agent reads what it carries only when it is needed
    source = envs.setting_of(agent.source) if isinstance(agent.source, gym.vector.VectorEnv) else agent.source
    config = copy.copy(algorithm.config)
    vars(config).update(env_options=dict(config.env_options), _derived={})
    legs = saved_legs(algorithm)
    pieces = {} if carries is None else {number: as_bytes(piece) for number, piece in carries.pieces().items()}
    return Parts(
        kind=type(algorithm),
        source=source,
        may_import=agent.may_import,
        config=config,
        spaces=agent.spaces,
        state=state_of(algorithm),
        tensors=as_bytes(algorithm.tensors()),
        legs=(legs["state"], as_bytes(legs["tensors"])),
        carried=None if carries is None else (carries.state(), pieces),
        seconds=(run.seconds_before, run.seconds_evaluating),
    )


def assembled(parts: Parts) -> Algorithm:
    """An agent of these parts, which are its own from now on."""
    with untouched_randomness():
        algorithm = parts.kind(parts.source, config=parts.config, spaces=parts.spaces)
    algorithm.agent.may_import = parts.may_import
    read = safetensors.torch.load
    tensors = read(parts.tensors)
    if any(name.startswith(LEASH) for name in tensors):
        algorithm.leash.take()
    fill(algorithm, tensors, parts.state, NOWHERE)
    fill_legs(algorithm, read(parts.legs[1]), parts.legs[0], 0, NOWHERE)
    if parts.carried is not None and algorithm.carries is not None:
        state, pieces = parts.carried
        algorithm.carries.restore(state, {number: read(piece) for number, piece in pieces.items()})
    algorithm.run.seconds_before, algorithm.run.seconds_evaluating = parts.seconds
    return algorithm


def require_picklable(parts: Parts) -> None:
    """Refuse, in words, what Python cannot send to another process."""
    encoder = parts.config.encoder
    given = {"environment": parts.source, "encoder": encoder, "algorithm": parts.kind}
    for what, thing in given.items():
        try:
            ForkingPickler.dumps(thing)
        except Exception as error:  # whatever a user's object raises
            name = getattr(thing, "__qualname__", type(thing).__name__)
            raise (EnvError if what == "environment" else ConfigError)(
                f"This agent cannot be sent to another process, since its {what} {name} cannot be pickled "
                f"({str(error)[:80].rstrip('.')}): use a function or class at the top level of a module"
                + (", or an environment id." if what == "environment" else ".")
            ) from error
