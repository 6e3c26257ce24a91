"""By which kernels an agent's networks are computed: compiled, traced or plain. Decided once a run, by its settings alone."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from phasegrad.compute import native
from phasegrad.errors import PhasegradWarning
from phasegrad.models.encoders import ImageEncoder

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm

WORTH_COMPILING = 20_000  # environment steps of a run: a shorter one is over before a second of compiling is repaid
COMPUTATIONS = {"on": "compiled", "replay": "traced kernels", "off": "plain kernels"}  # for people


def settle_computation(agent: Algorithm) -> None:
    """Make the setting `compile` definite: it decides the last bits of a run, so the run's config must say it."""
    config, dense = agent.config, agent.flat.is_dense
    without = "replay" if dense else "off"  # what goes on where nothing can be compiled
    why = ""
    if agent.device.type != "cpu" or not (dense or agent.first_derivatives_only):
        config.compile = "off"
    elif config.compile == "auto" and config.total_steps < WORTH_COMPILING:
        config.compile, why = "off", f": compiling pays from {WORTH_COMPILING:,} steps on"
    elif config.compile == "replay" or agent.flat.data.dtype != torch.float32:
        config.compile = "off" if config.compile == "off" else without
    elif config.compile != "off" and agent.ranks.any(native.compiler() is None):
        if config.compile == "on":
            warnings.warn(
                "There is no C compiler here, so the run goes without compiled code and its last bits may differ: "
                f"install gcc, or set compile {without}.",
                PhasegradWarning,
                stacklevel=4,
            )
        config.compile, why = without, ": no C compiler"
    elif config.compile == "auto":
        config.compile = "on"
    agent.computation = COMPUTATIONS[config.compile] + why
    choose_kernels(agent)


def choose_kernels(agent: Algorithm) -> None:
    """What `compile` says, but for the first iteration of a run, which goes by plain kernels.

    Tracing makes torch import its own compiler, for seconds in which nothing would be seen of the run.
    """
    begun, dense = agent.progress.iteration > 0, agent.flat.is_dense
    agent.actor.compiled = begun and agent.config.compile == "on"
    ways = {"on": "compiled", "replay": "traced"}
    for stepper in agent.steppers:
        stepper.way = ways.get(agent.config.compile, "plain") if begun and dense else "plain"


@contextlib.contextmanager
def compiled_encoders(agent: Algorithm) -> Iterator[None]:
    """Convolutions as machine code, where `compile` says so, for as long as the context lasts."""
    encoders = [module for module in agent.model.modules() if isinstance(module, ImageEncoder)]
    if agent.config.compile == "on":
        for encoder in encoders:
            failure: Exception | None = None
            try:
                encoder.trunk = native.compile_trunk(encoder)
            except Exception as error:  # a network that is not known here still trains
                failure = error
            if agent.ranks.any(failure is not None):  # all processes take the same way
                encoder.trunk = None
                reason = failure or "another process cannot compile them"
                warnings.warn(f"Convolutions run without compiled code: {reason}", PhasegradWarning, stacklevel=4)
    try:
        yield
    finally:
        for encoder in encoders:
            encoder.trunk = None
