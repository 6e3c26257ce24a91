"""How an agent's networks are computed while it trains: compiled, traced or plain, decided once a run by its settings alone.

`Computation` owns what that concerns: the flat parameters, the acting step, the gradient steps, training mode.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import nn

from phasegrad.compute import native
from phasegrad.compute.acting import Actor
from phasegrad.compute.devices import require_precision
from phasegrad.compute.optimizers import Optimizer
from phasegrad.compute.stepping import Stepper
from phasegrad.config import Config
from phasegrad.distributed.ranks import Ranks
from phasegrad.errors import PhasegradWarning
from phasegrad.models import ActorCritic, FlatParameters
from phasegrad.models.encoders import OWN_ENCODERS, ImageEncoder
from phasegrad.models.modes import TrainingMode
from phasegrad.models.precision import FULL, in_precision

WORTH_COMPILING = 20_000  # environment steps of a run: a shorter one is over before a second of compiling is repaid
WORTH_WITH_MEMORY = 4_000  # where plain kernels are many times as slow, step after step of a sequence
WAYS = {"on": "compiled", "replay": "traced", "off": "plain", "auto": "plain"}
DESCRIPTIONS = {"on": "compiled", "replay": "traced kernels", "off": "plain kernels"}
SMALL_BATCH, ANY_BATCH = 256, 1 << 30  # samples that go through a network together: large observations fill the cache
MOST_AT_ONCE = 1 << 16  # samples of a pass without gradients


class Computation:
    """The networks of one agent in training.

    `large` says that its observations are, `second_derivatives` that the algorithm needs them, which compiled
    convolutions do not have; `seed` gives the seed of what a network draws in the present iteration.
    """

    def __init__(
        self,
        model: ActorCritic,
        device: torch.device,
        config: Config,
        ranks: Ranks,
        *,
        large: bool,
        second_derivatives: bool,
        seed: Callable[[], int],
    ) -> None:
        self.model, self.device, self.config, self.ranks = model, device, config, ranks
        self.large, self.second_derivatives = large, second_derivatives
        self.microbatch = SMALL_BATCH if large else ANY_BATCH  # samples of a gradient that are computed together
        self.chunk = min(self.microbatch, MOST_AT_ONCE)  # and without one
        # One from outside may have dropout or batch norm; those of this package have neither.
        own_encoder = not isinstance(config.encoder, str) or config.encoder in OWN_ENCODERS
        self.training_mode = TrainingMode(model, own_encoder, seed, ranks)
        self.flat = FlatParameters(model.parameter_groups())
        require_precision(device, act_precision=config.act_precision)
        self.actor = Actor(model, device, precision=config.act_precision)
        self.steppers: list[Stepper] = []
        self.lowered: list[Stepper] = []  # those that compute in another precision, by plain autograd alone
        self.described = ""  # how the networks are computed, and why so

    def stepper(self, optimizers: Mapping[str, Optimizer], max_grad_norm: float, precision: str = FULL) -> Stepper:
        """Gradient steps with these optimisers, whose networks compute in `precision`."""
        stepper = Stepper(
            self.flat,
            optimizers,
            max_grad_norm,
            self.microbatch,
            ranks=self.ranks,
            config=self.config,
            mode=self.training_mode,
            precision=None if precision == FULL else partial(in_precision, self.model, precision),
        )
        if precision != FULL:
            require_precision(self.device, aux_precision=precision)
            self.lowered.append(stepper)
        self.steppers.append(stepper)
        return stepper

    def settle(self) -> None:
        """Make the setting `compile` definite: it decides the last bits of a run, so the run's config must say it."""
        config, dense, wanted = self.config, self.flat.is_dense, self.config.compile
        without = "replay" if dense else "off"  # what goes on where nothing can be compiled
        worth = WORTH_COMPILING if config.memory == "none" else WORTH_WITH_MEMORY
        chosen, why = wanted, ""
        if self.device.type != "cpu":
            chosen, why = self._on_device(wanted)
        elif not (dense or not self.second_derivatives):
            chosen = "off"
        elif wanted == "auto" and config.total_steps < worth:
            chosen, why = "off", f": compiling pays from {worth:,} steps on"
        elif wanted == "replay" or self.flat.data.dtype != torch.float32:
            chosen = "off" if wanted == "off" else without
        elif wanted != "off" and self.ranks.any(native.compiler() is None):
            if wanted == "on":
                warnings.warn(
                    "There is no C compiler here, so the run goes without compiled code and its last bits may differ: "
                    f"install gcc, or set compile {without}.",
                    PhasegradWarning,
                    stacklevel=4,
                )
            chosen, why = without, ": no C compiler"
        elif wanted == "auto":
            chosen = "on"
        config.settle(compile=chosen)
        self.described = DESCRIPTIONS[chosen] + why
        if chosen == "on" and self.device.type == "cpu" and self._foreign_convolutions():
            self.described += ", the encoder's own convolutions by torch"
        if chosen != "off" and (self.lowered or self.actor.precision != FULL):
            parts = ["the auxiliary phase"] * bool(self.lowered) + ["acting"] * (self.actor.precision != FULL)
            self.described += f", {' and '.join(parts)} in bfloat16 by plain kernels"

    def _on_device(self, wanted: str) -> tuple[str, str]:
        """What `compile` comes to on a GPU, where nobody has measured yet whether it pays; and why."""
        if wanted in ("off", "auto"):
            return "off", ": compiling is not measured on a GPU yet, compile on tries it" if wanted == "auto" else ""
        if wanted == "replay":
            reason = "compile replay calls the kernels of a CPU"
        elif not self.flat.is_dense or self.second_derivatives:
            reason = "compile on is for networks without convolutions, and not for trpo, on a GPU so far"
        else:
            return "on", " by torch, where that is measured to be sooner"
        warnings.warn(f"{reason}: the run goes on with plain kernels.", PhasegradWarning, stacklevel=5)
        return "off", ""

    def _foreign_convolutions(self) -> bool:
        """Whether an encoder from outside has convolutions that are not the `layers` of an ImageEncoder."""
        known = {id(m) for e in self.model.modules() if isinstance(e, ImageEncoder) for m in e.modules()}
        return any(isinstance(m, nn.Conv2d) and id(m) not in known for m in self.model.modules())

    def choose(self, begun: bool) -> None:
        """Compute as `compile` says, but for the first iteration of a run, which is plain.

        Compiling may take seconds, in which nothing would be seen of the run. It stays so: which iterations are plain decides
        the last bits of a run.
        """
        on_host = self.device.type == "cpu"
        self.actor.compiled = begun and self.config.compile == "on" and on_host and self.actor.precision == FULL
        ways = WAYS if on_host else WAYS | {"on": "device", "replay": "plain"}
        for stepper in self.steppers:
            may = begun and self.flat.is_dense and stepper not in self.lowered
            stepper.way = ways[self.config.compile] if may else "plain"

    @contextlib.contextmanager
    def compiled_encoders(self) -> Iterator[None]:
        """Convolutions as machine code, where `compile` says so, for as long as the context lasts."""
        encoders = [module for module in self.model.modules() if isinstance(module, ImageEncoder)]
        if self.config.compile == "on" and self.device.type == "cpu":
            for encoder in encoders:
                failure: Exception | None = None
                try:
                    encoder.compiled_layers = native.compile_convolutions(encoder)
                except Exception as error:  # a network that is not known here still trains
                    failure = error
                if self.ranks.any(failure is not None):  # all processes take the same way
                    encoder.compiled_layers = None
                    reason = failure or "another process cannot compile them"
                    warnings.warn(f"Convolutions run without compiled code: {reason}", PhasegradWarning, stacklevel=4)
        try:
            yield
        finally:
            for encoder in encoders:
                encoder.compiled_layers = None
