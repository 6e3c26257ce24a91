"""What the last bits of a run depend on beside its settings: threads, processor, compiler, device.

A checkpoint records it, so that a run which goes on elsewhere keeps what it can and says what it cannot. Packages are in
versions.py. Knows nothing of files.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from phasegrad.compute.native.build import compiler_version
from phasegrad.machine.processors import own_processors

Circumstances = dict[str, str | int]
# What each is called in a sentence; the order is that of the sentence.
NAMES = {
    "torch_threads": "torch_threads", "device": "the device", "instructions": "the instructions",
    "processor": "the processor", "compiler": "the compiler",
}  # fmt: skip
LENGTH = 80  # characters of a name that is worth showing
MOST_THREADS = 1 << 12


def circumstances(threads: int, device: torch.device, compiled: bool) -> Circumstances:
    """Those of training in this process."""
    found: Circumstances = {
        "torch_threads": threads,
        "device": _device_name(device),
        "instructions": str(torch.backends.cpu.get_cpu_capability()),
        "processor": _processor(),
    }
    return found | ({"compiler": _plain(compiler_version())} if compiled else {})


def from_json(saved: Any) -> Circumstances:
    """As a checkpoint has them; what is none of them is left out."""
    found: Circumstances = {}
    for name in NAMES if isinstance(saved, Mapping) else ():
        value = saved.get(name)
        if isinstance(value, str):
            found[name] = _plain(value)
        elif name == "torch_threads" and type(value) is int and 0 < value <= MOST_THREADS:
            found[name] = value
    return found


def threads_to_keep(before: Circumstances) -> int:
    """The number of threads that a run was computed with, where this machine has as many processors; else 0."""
    threads = before.get("torch_threads", 0)
    return threads if isinstance(threads, int) and threads <= own_processors() else 0


def differences(before: Circumstances, now: Circumstances) -> str:
    """'the processor B in place of A and ...', of what both know and is not the same; '' where nothing differs."""
    told = [
        f"{label} {now[name]} in place of {before[name]}"
        for name, label in NAMES.items()
        if name in before and name in now and before[name] != now[name]
    ]
    return " and ".join(filter(None, [", ".join(told[:-1]), *told[-1:]]))


def _device_name(device: torch.device) -> str:
    """A GPU's model; "cuda" where the driver does not tell it, which is no reason to stop a run."""
    if device.type == "cuda":
        with contextlib.suppress(AssertionError, RuntimeError):  # a torch without CUDA asserts
            return _plain(torch.cuda.get_device_name(device))
    return device.type


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return _plain(line.partition(":")[2])
    except OSError:
        pass
    return _plain(platform.processor() or platform.machine())


def _plain(text: str) -> str:
    """One short line without anything that a terminal would act on."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))[:LENGTH]
