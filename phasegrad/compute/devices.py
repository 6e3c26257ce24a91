"""Where the networks live and how many threads their kernels get."""

from __future__ import annotations

import torch

from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.errors import ConfigError
from phasegrad.machine.processors import own_processors


def pick_device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """The device of a setting; auto is CUDA where there is one. Several processes take a GPU of the machine each."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device {name} is not available on this machine: use --device cpu or auto.")
    if name.startswith("cuda") and ranks.size > 1:
        if name != "cuda":
            raise ConfigError(f"device {name} is one GPU, but each process takes its own: use --device cuda or auto.")
        if ranks.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"This machine has {torch.cuda.device_count()} GPUs for {ranks.local_size} processes: start one process a "
                "GPU (--nproc-per-node), or use --device cpu."
            )
        name = f"cuda:{ranks.local_rank}"
    return torch.device(name)


def pick_threads(wanted: int, large_network: bool, kept: int = 0) -> int:
    """Torch threads: one beats several for small networks on a CPU, convolutions take all cores of this process.

    `kept`: how many a run has had so far, which its last bits depend on.
    """
    return wanted or kept or (own_processors() if large_network else 1)
