"""How many processors are this process's own, where several share a machine. Imports nothing heavy."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """The processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_processors() -> int:
    """Those, divided among the processes that torchrun started on this machine."""
    sharing = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, usable_processors() // max(1, int(sharing) if sharing.isdigit() else 1))


def let_waiting_threads_sleep() -> None:
    """Before torch is imported: its threads then sleep between parallel regions, where they would spin.

    Compiled convolutions and environments have threads of their own, which a spinning one keeps from a processor.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
