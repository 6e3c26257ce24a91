"""Where the networks live and how many threads their kernels get."""

from __future__ import annotations

import os

import torch

from phasegrad.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """The device of a setting; auto is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device {name} is not available on this machine: use --device cpu or auto.")
    return torch.device(name)


def pick_threads(wanted: int, large_network: bool) -> int:
    """Torch threads: one beats several for small networks on a CPU, convolutions take all cores."""
    return wanted or (os.cpu_count() or 1 if large_network else 1)
