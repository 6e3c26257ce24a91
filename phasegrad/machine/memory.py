"""How much memory a run will take, said before it starts."""

from __future__ import annotations

import os
from pathlib import Path

from phasegrad.errors import ConfigError


def available_bytes() -> int | None:
    """Memory that can still be taken on this machine or in this container, where the system says."""
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max")
        if limit.exists() and (text := limit.read_text().strip()).isdigit():
            limits.append(int(text) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except OSError:
        return None
    return min(limits) if limits else None


def require_room(storage_bytes: int, remedy: str) -> None:
    """Refuse a run whose stored rollouts cannot fit; `remedy` names the options that would make them."""
    available = available_bytes()
    if available is not None and 1.2 * storage_bytes > available:
        raise ConfigError(
            f"The stored rollouts need {gigabytes(storage_bytes)}, and only {gigabytes(available)} of memory are free: {remedy}."
        )


def gigabytes(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"


def resident_bytes(process: int | str = "self") -> int | None:
    """The memory that a process of this machine has now, where the system says."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
