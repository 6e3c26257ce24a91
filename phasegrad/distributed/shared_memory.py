"""How the processes of one machine exchange tensors: a piece of memory that all of them see.

A round takes microseconds where a network library takes hundreds, which small networks with their thousands of short
gradient steps need. Nothing here knows what is exchanged. Only on x86-64, whose stores appear to others in their order.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from phasegrad.machine.regular_files import open_regular

FOLDER = Path("/dev/shm")
LINE = 64  # bytes of a cache line: each process's counter has its own
SPINS = 2_000  # looks at a counter, some 100 us, before the processor is offered to others
SECONDS_BEFORE_SLEEP = 0.005
SECONDS_OF_PATIENCE = 1800  # for a process that lives but does not come
MOST_VIEWS = 64
SECONDS_BETWEEN_CHECKS = 0.2  # of whether the awaited process still lives


def is_possible() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and FOLDER.is_dir()


def create(size: int, capacity: int) -> str | None:
    """A new file in memory for `size` processes and tensors of up to `capacity` bytes; None where there is no room."""
    if not is_possible():
        return None
    try:
        handle, path = tempfile.mkstemp(prefix="phasegrad-", dir=FOLDER)
    except OSError:
        return None
    try:
        os.posix_fallocate(handle, 0, _bytes(size, capacity))
    except OSError:
        os.unlink(path)
        return None
    finally:
        os.close(handle)
    return path


def _bytes(size: int, capacity: int) -> int:
    return size * LINE + 2 * size * capacity


class SharedMemory:
    """A place for each process's tensor in even rounds and one in odd ones, and counters of the rounds they are in.

    A process that enters round k + 1 has read all of round k - 1, so that with two places one wait a round is enough.
    """

    def __init__(self, path: str, rank: int, size: int, capacity: int, processes: list[int]) -> None:
        with open(open_regular(path, os.O_RDWR, links=False), "r+b") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():  # in a folder for everybody
                raise OSError(f"{path} belongs to another user")
            self.map = mmap.mmap(file.fileno(), _bytes(size, capacity))
        self.rank, self.capacity, self.round = rank, capacity, 0
        self.counters = memoryview(self.map)[: size * LINE].cast("q")
        self.waits = [(other * LINE // 8, processes[other]) for other in range(size) if other != rank]
        whole = torch.frombuffer(self.map, dtype=torch.uint8)[size * LINE :]
        self.places = whole.view(2, size, capacity).unbind(0)
        self._views: dict[tuple[torch.Size, torch.dtype], list[list[Tensor]]] = {}

    def exchange(self, tensor: Tensor) -> list[Tensor] | None:
        """Every process's tensor, readable until the next round; None where a process has ended or given up."""
        kind = tensor.shape, tensor.dtype
        places = (self._views.get(kind) or self._view(*kind))[self.round % 2]
        places[self.rank].copy_(tensor.detach())
        self.round += 1
        self.counters[self.rank * LINE // 8] = self.round
        for counter, process in self.waits:
            if not self._wait(counter, process):
                return None
        return places

    def give_up(self) -> None:
        """Let the others know that this process enters no further round, though it lives."""
        self.counters[self.rank * LINE // 8 + 1] = 1

    def _view(self, shape: torch.Size, dtype: torch.dtype) -> list[list[Tensor]]:
        """The places as tensors of a kind, made once for each."""
        length = shape.numel() * dtype.itemsize
        if len(self._views) >= MOST_VIEWS:  # of tables that are never as long as before
            self._views.clear()
        self._views[shape, dtype] = views = [
            [place[:length].view(dtype).view(shape) for place in places] for places in self.places
        ]
        return views

    def _wait(self, counter: int, process: int) -> bool:
        """Until another process has entered this round; False where it has ended before, or is not to be expected."""
        counters, round_ = self.counters, self.round
        for _ in range(SPINS):
            if counters[counter] >= round_:
                return True
        begun = checked = time.monotonic()
        while counters[counter] < round_:
            now = time.monotonic()
            if now - begun < SECONDS_BEFORE_SLEEP:
                os.sched_yield()
            else:
                time.sleep(1e-4)
            if now - checked > SECONDS_BETWEEN_CHECKS:
                checked = now
                over = counters[counter + 1] or has_ended(process) or now - begun > SECONDS_OF_PATIENCE
                if over and counters[counter] < round_:
                    return False
        return True


def has_ended(process: int) -> bool:
    """Whether a process of this machine is over, if perhaps not yet forgotten by its parent."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return True
