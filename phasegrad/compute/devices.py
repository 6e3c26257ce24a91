"""Where the networks live and how many threads their kernels get."""

from __future__ import annotations

import torch

from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.errors import ConfigError
from phasegrad.machine.memory import gigabytes
from phasegrad.machine.processors import own_processors

MOST_OF_FREE = (
    0.5  # memory of a device that rollouts may take: networks, their activations and minibatches need the rest
)


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


def pick_storage(wanted: str, device: torch.device, needed: int, ranks: Ranks = ALONE) -> str:
    """Where stored rollouts of `needed` bytes lie beside networks on `device`: "device" or "host"; auto on a CPU stays so.

    The answer is that of all processes, so that they compute alike.
    """
    if device.type == "cpu" or wanted == "host":
        return wanted
    free = int(torch.cuda.mem_get_info(device)[0])
    fits = not ranks.any(needed > MOST_OF_FREE * free)
    if wanted == "device" and not fits:
        raise ConfigError(
            f"storage device does not fit: the stored rollouts need {gigabytes(needed)} of the {gigabytes(free)} that are "
            "free on the device: set storage host, or lower num_envs or num_steps."
        )
    return "device" if fits else "host"


def require_precision(device: torch.device, **asked: str) -> None:
    """Refuse bfloat16, `asked` for by these settings, on a GPU that has no such numbers."""
    for name, precision in asked.items():
        if precision == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise ConfigError(f"{name} bfloat16 needs a GPU that computes in it, which this one does not: set float32.")
