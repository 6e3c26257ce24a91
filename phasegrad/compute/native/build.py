"""The system's C compiler, and a cache of what it has built, in the user's cache folder.

The key of the cache is everything a binary depends on: the source, the compiler and its flags, the processor.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-ffp-contract=fast", "-fopenmp-simd", "-fPIC", "-shared", "-w",
)  # fmt: skip
COMPILE_SECONDS = 120


@functools.cache
def compiler() -> str | None:
    """The path of a C compiler that works, or None."""
    for name in (os.environ.get("CC"), "gcc", "cc", "clang"):
        path = shutil.which(name) if name else None
        if path and _works(path):
            return path
    return None


def _works(path: str) -> bool:
    try:
        _compile(path, "#include <math.h>\nfloat probe(float x) { return sqrtf(x); }\n", None)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


@functools.cache
def _identity(path: str) -> str:
    """What else than the source decides the binary."""
    version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    processor = platform.processor() + platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    except OSError:
        pass
    return "\n".join([version, processor, *FLAGS])


def cache_folder() -> Path:
    """Where binaries are kept: PHASEGRAD_CACHE, or the user's cache folder."""
    root = os.environ.get("PHASEGRAD_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "phasegrad" / "native"


def library(source: str) -> ctypes.CDLL:
    """The loaded binary of `source`, built now if it never was on this machine."""
    path = compiler()
    if path is None:
        raise OSError("no C compiler")
    key = hashlib.sha256((_identity(path) + source).encode()).hexdigest()[:32]
    binary = cache_folder() / f"{key}.so"
    try:
        binary.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours(binary):
            _compile(path, source, binary)
    except OSError:  # a home that cannot be written: a folder of this process
        binary = Path(_private_folder().name) / f"{key}.so"
        if not binary.exists():
            _compile(path, source, binary)
    return ctypes.CDLL(str(binary))


def _is_ours(binary: Path) -> bool:
    """Whether the file is there and nobody else could have written it."""
    try:
        status = binary.stat()
    except FileNotFoundError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


@functools.cache
def _private_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="phasegrad-")


def _compile(path: str, source: str, binary: Path | None) -> None:
    """Build in a folder of its own, then move into place, so that no half-written binary is ever loaded."""
    with tempfile.TemporaryDirectory(prefix="phasegrad-", dir=binary.parent if binary else None) as folder:
        written = Path(folder) / "program.c"
        written.write_text(source)
        built = Path(folder) / "program.so"
        command = [path, *FLAGS, str(written), "-o", str(built), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_SECONDS)
        if binary is not None:
            built.chmod(0o700)
            built.replace(binary)
