"""Whether a wide network fits into memory, looked at before it is made: its weights are counted on torch's meta device.

Where they do not fit, the kernel would end the process at some layer, without a word. Knows nothing of training but what it takes
beside the weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from phasegrad.config import Config
from phasegrad.machine.memory import require_room

WIDE = 2048  # narrower layers fit anywhere
COPIES = (
    3  # of the weights at the least: themselves, their gradients, and what they are made from or an optimiser keeps
)


def require_room_for(config: Config, build: Callable[[], nn.Module]) -> None:
    """Refuse the network that `build` makes where its settings make it wide and there is no room for it."""
    widths = {
        "hidden_sizes": max(config.hidden_sizes, default=0),
        "value_hidden_sizes": max(config.value_hidden_sizes or (), default=0),
        "memory_size": config.memory_size if config.memory != "none" else 0,
    }
    wide = [name for name, width in widths.items() if width >= WIDE]
    if not wide or not isinstance(config.encoder, str):  # a class of the user's may do anything when it is made
        return
    try:
        with torch.device("meta"):
            weights = sum(tensor.numel() * tensor.element_size() for tensor in build().state_dict().values())
    except (RuntimeError, NotImplementedError, MemoryError, OverflowError):  # what the real one would say is said there
        return
    require_room(
        {"the network's weights, gradients and optimiser": COPIES * weights}, f"make {' or '.join(wide)} smaller"
    )
