"""Training mode for updates only: dropout and batch norm act differently there, so a user's own encoder may.

A network acts, is valued, evaluated and exported in evaluation mode. What dropout draws in an update depends on the
seed and the iteration alone, as all random numbers of a run do. Nothing here knows about losses or rollouts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from phasegrad.distributed.ranks import ALONE, Ranks


class Unrecordable(Exception):
    """What a network does in a call that a record of its operations would not do again."""


class TrainingMode:
    """While it is entered, a network is in training mode and torch draws this iteration's random numbers.

    `seed` gives the seed of the present iteration: a new one starts the random numbers again, the same one goes on with
    them. The caller's own are put back. Where `matters` is off (the encoders of this package) nothing is done.
    """

    def __init__(self, model: nn.Module, matters: bool, seed: Callable[[], int], ranks: Ranks = ALONE) -> None:
        self.model, self.matters, self.seed, self.ranks = model, matters, seed, ranks
        self._depth, self._seeded = 0, -1
        self._states: list[Tensor] = []  # of torch's generators, where the last update left them
        self._outside = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._depth += 1
        if not self.matters or self._depth > 1:
            return
        devices = sorted({p.device.index or 0 for p in self.model.parameters() if p.device.type == "cuda"})
        self._outside.enter_context(torch.random.fork_rng(devices))
        seed = self.seed()
        if seed != self._seeded:
            torch.manual_seed(seed)
        else:
            torch.set_rng_state(self._states[0])
            for device, state in zip(devices, self._states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
        self._seeded, self._devices, self._buffers = seed, devices, buffers_of(self.model)
        self.model.train()

    def __exit__(self, kind: object, *_: object) -> None:
        self._depth -= 1
        if not self.matters or self._depth:
            return
        self.model.eval()
        self._states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._devices)]
        self._outside.close()
        if kind is None:
            self._settle_buffers()

    @torch.no_grad()
    def _settle_buffers(self) -> None:
        """Keep buffers where compiled code reads them; of several processes all get the mean of their statistics."""
        for module, name, buffer in self._buffers:
            now = module._buffers.get(name)
            if now is not None and now is not buffer and now.shape == buffer.shape:
                buffer.copy_(now)
                module._buffers[name] = buffer
            if (
                self.ranks.size > 1
                and buffer.is_floating_point()
                and module is not getattr(self.model, "normalizer", 0)
            ):
                self.ranks.mean_(buffer)


def buffers_of(model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Every buffer of a network, with the module and the name it has there."""
    return [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def require_recordable(model: nn.Module, run: Callable[[], object]) -> None:
    """Refuse what a record of `run`'s operations would fix or leave out: random numbers, and changes to buffers."""
    held = [(module, name, buffer, buffer.clone()) for module, name, buffer in buffers_of(model)]
    state = torch.get_rng_state()
    run()
    drew = not torch.equal(state, torch.get_rng_state())
    changed = []
    torch.set_rng_state(state)
    for module, name, buffer, before in held:
        now = module._buffers.get(name)
        if now is not buffer or not torch.equal(buffer, before):
            changed.append(name)
            with torch.no_grad():
                buffer.copy_(before)
            module._buffers[name] = buffer
    if drew:
        raise Unrecordable("the network draws random numbers, as dropout does in training")
    if changed:
        raise Unrecordable(f"the network changes its buffer {changed[0]}, as batch norm does in training")
