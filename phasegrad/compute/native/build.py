"""The system's C compiler, and what it has built, loaded from the user's cache folder.

The key of the cache is everything a binary depends on: the source, the compiler and its flags, the processor.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from phasegrad.compute.native.cache import cache_folder, find, keep, private_folder, usable_folder

__all__ = ["CompilerError", "cache_folder", "compiler", "library"]

FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-ffp-contract=fast", "-fopenmp-simd", "-fPIC", "-shared", "-w",
)  # fmt: skip
COMPILE_SECONDS = 120
MESSAGE_LENGTH = 20_000  # characters of a compiler's message that are worth showing

log = logging.getLogger("phasegrad")
_loaded: dict[str, ctypes.CDLL] = {}  # for the life of the process, as ctypes never unloads; a fork has them too


class CompilerError(Exception):
    """The compiler did not build a program: its first error; all it said is in `message`, and logged for debugging."""

    def __init__(self, message: str) -> None:
        self.message = message if len(message) <= MESSAGE_LENGTH else message[:MESSAGE_LENGTH] + "\n..."
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        first = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "it gave no reason")
        super().__init__(f"the compiler failed: {first[:300]}")


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
    except (OSError, CompilerError) as error:
        log.debug("%s is not used as C compiler: %s", path, error)
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


def library(source: str) -> ctypes.CDLL:
    """The loaded binary of `source`, built now if it never was on this machine."""
    path = compiler()
    if path is None:
        raise OSError("no C compiler")
    key = hashlib.sha256((_identity(path) + source).encode()).hexdigest()[:32]
    if key not in _loaded:
        _loaded[key] = _load(path, key, source)
    return _loaded[key]


def _load(path: str, key: str, source: str) -> ctypes.CDLL:
    """From the cache folder, or where that cannot be used, full or not to be trusted, from a folder of this process."""
    try:
        return _load_from(usable_folder(), path, key, source)
    except (OSError, CompilerError) as error:  # a full disk is the compiler's error
        log.debug("compiled code is not kept: %s", error)
        reason = error
    try:
        return _load_from(private_folder(), path, key, source)
    except OSError as error:
        raise OSError(f"there is no folder to load compiled code from: {reason}; {error}") from error


def _load_from(folder: Path, path: str, key: str, source: str) -> ctypes.CDLL:
    binary = find(folder, key) or keep(folder, key, lambda built: _compile(path, source, built))
    return ctypes.CDLL(str(binary))


def _compile(path: str, source: str, binary: Path | None) -> None:
    """Build in a folder of its own, the one of `binary` where something is to be kept."""
    with tempfile.TemporaryDirectory(prefix="phasegrad-", dir=binary.parent if binary else None) as folder:
        written = Path(folder) / "program.c"
        written.write_text(source)
        command = [path, *FLAGS, str(written), "-o", str(binary or Path(folder) / "program.so"), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise CompilerError(f"not done within {COMPILE_SECONDS} seconds") from error
        if done.returncode:
            failure = CompilerError((done.stderr or done.stdout).replace(f"{folder}/", ""))
            log.debug("%s ended with code %d:\n%s", path, done.returncode, failure.message)
            raise failure
