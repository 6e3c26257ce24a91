"""Where a run's rollouts lie, and which collector fills them there. Knows nothing of what is learnt from them."""

from __future__ import annotations

from typing import Any

import torch

from phasegrad.compute.devices import pick_storage
from phasegrad.config import Config
from phasegrad.data.collecting import Collector
from phasegrad.data.transfers import CPU
from phasegrad.distributed.ranks import Ranks


def place_of_storage(config: Config, device: torch.device, needed: int, ranks: Ranks) -> torch.device:
    """The device of rollouts that take `needed` bytes. It decides the last bits of a run, so the run's config says it."""
    chosen = pick_storage(config.storage, device, needed, ranks)
    if chosen != config.storage:
        config.settle(storage=chosen)
    return CPU if chosen == "host" else device


def kind_of_collector(env: Any, place: torch.device, stacked: bool) -> type[Collector]:
    """Environments that are tensors, beside rollouts on their device, need nothing of the host."""
    if getattr(env, "backend", "") != "tensor" or stacked or place.type == "cpu":
        return Collector
    from phasegrad.data.tensor_collecting import TensorCollector

    return TensorCollector
