"""How much memory a run will take, said before it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from phasegrad.errors import ConfigError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def available_bytes() -> int | None:
    """Memory that can still be taken on this machine or in this container, where the system says."""
    limits = [int(psutil.virtual_memory().available)]
    try:
        limit = Path("/sys/fs/cgroup/memory.max")
        if limit.exists() and (text := limit.read_text().strip()).isdigit():
            limits.append(int(text) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except OSError:
        pass  # of no container
    return min(limits)


def require_room(storage_bytes: int, remedy: str) -> None:
    """Refuse a run whose stored rollouts cannot fit; `remedy` names the options that would make them."""
    available = available_bytes()
    if available is not None and 1.2 * storage_bytes > available:
        raise ConfigError(
            f"The stored rollouts need {gigabytes(storage_bytes)}, and only {gigabytes(available)} of memory are free: {remedy}."
        )


def gigabytes(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"


def resident_bytes(process: int | None = None) -> int | None:
    """The memory that a process of this machine (this one unless told) has now, where the system says."""
    try:
        return int(psutil.Process(process).memory_info().rss)
    except (psutil.Error, ValueError, OverflowError):
        return None


def peak_bytes() -> int:
    """The most memory that this process has had."""
    if resource is None:
        found = psutil.Process().memory_info()
        return int(getattr(found, "peak_wset", found.rss))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
