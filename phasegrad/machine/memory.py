"""How much memory is free for this process, and the sentence for a run that needs more. Knows nothing of runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from phasegrad.errors import ConfigError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

GROUPS = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")
MACHINE = Path("/proc/meminfo")
UNLIMITED = 1 << 60  # bytes; the first version of control groups writes a number near 2^63 for none
SLACK = 1.2  # of what is needed beside what is counted
FAILED = re.compile(
    r"DefaultCPUAllocator|can't allocate memory|not enough memory|out of memory|Cannot allocate memory", re.I
)


def available_bytes() -> int | None:
    """Memory that can still be taken: on this machine, in this container, by the limits of this process."""
    found = [*_of_the_machine(), *_of_the_groups(), *_of_the_process()]
    return max(0, min(found)) if found else None


def _of_the_machine() -> Iterator[int]:
    for line in _text(MACHINE).splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
            return
    yield int(psutil.virtual_memory().available)


def _of_the_groups() -> Iterator[int]:
    """Of each control group that this process is in, and of those above it; in both versions that systems have."""
    for line in _text(PROCESS / "cgroup").splitlines() or ["0::/"]:
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if number == "0" and not kinds:
            root, limit, used = GROUPS, "memory.max", "memory.current"
        elif "memory" in kinds.split(","):
            root, limit, used = GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / path.strip("/")
        for place in (group, *group.parents):
            most, now = _number(place / limit), _number(place / used)
            if most is not None and now is not None and most < UNLIMITED:
                yield most - now + _reclaimable(place / "memory.stat")
            if place == root:
                break


def _reclaimable(stat: Path) -> int:
    """Copies of files, which a group gives up where it needs room."""
    found = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(stat), re.M)
    return int(found[1]) if found else 0


def _of_the_process() -> Iterator[int]:
    """What `ulimit -v` and `ulimit -d` leave."""
    if resource is None:
        return
    sizes = dict(re.findall(r"^(VmSize|VmData):\s+(\d+) kB$", _text(PROCESS / "status"), re.M))
    for kind, size in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY and size in sizes:
            yield limit - 1024 * int(sizes[size])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def require_room(needed: Mapping[str, int], remedy: str) -> None:
    """Refuse a run that cannot fit: `needed` bytes by what they are for; `remedy` names the settings to make smaller."""
    available, total = available_bytes(), sum(needed.values())
    if available is None or SLACK * total <= available:
        return
    parts = [f"{name} need {gigabytes(count)}" for name, count in needed.items() if count]
    raise ConfigError(
        f"The run needs {gigabytes(SLACK * total)} of memory, and only {gigabytes(available)} are free "
        f"({', '.join(parts)}): {remedy}."
    )


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error is that of Python, numpy or torch about memory that they did not get."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError) and bool(FAILED.search(str(error)))
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
