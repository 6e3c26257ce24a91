"""The system's C compiler, and what it has built, loaded from the user's cache folder.

The key of the cache is everything a binary depends on: the source, the compiler and its flags, the processor. A compiler
works in a folder of its own, in which nobody else can put anything, and its result is taken from there by descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import secrets
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from phasegrad.compute.native import cache
from phasegrad.compute.native.loading import load
from phasegrad.errors import PhasegradWarning
from phasegrad.machine.own_folders import UnsafeFolderError, open_private
from phasegrad.machine.regular_files import TooLargeError, by_descriptor, read_bounded

__all__ = ["CompilerError", "compiler", "compiler_version", "library"]

FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-ffp-contract=fast", "-fopenmp-simd", "-fPIC", "-shared", "-w",
)  # fmt: skip
COMPILE_SECONDS = 120
VERSION_SECONDS = 20
MESSAGE_LENGTH = 20_000  # characters of a compiler's message that are worth showing
SOURCE, BINARY = "program.c", "program.so"
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_INTO = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

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
    """The path of a C compiler that works, or None; None on Windows too, where nothing is built by descriptor."""
    if not by_descriptor():
        return None
    for name in (os.environ.get("CC"), "gcc", "cc", "clang"):
        path = shutil.which(name) if name else None
        if path and _works(os.path.abspath(path)):
            return os.path.abspath(path)
    return None


def _works(path: str) -> bool:
    try:
        _compile(path, "#include <math.h>\nfloat probe(float x) { return sqrtf(x); }\n", None)
        _identity(path)
    except (OSError, CompilerError) as error:
        log.debug("%s is not used as C compiler: %s", path, error)
        return False
    return True


@functools.cache
def _identity(path: str) -> str:
    """What else than the source decides the binary."""
    code, version = _run([path, "--version"], None, VERSION_SECONDS)
    if code:
        raise CompilerError(version)
    processor = platform.processor() + platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    except OSError:
        pass
    return "\n".join([version, processor, *FLAGS])


def compiler_version() -> str:
    """The first line that the compiler says of itself; '' where there is none."""
    path = compiler()
    return "" if path is None else _identity(path).partition("\n")[0]


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
    """From the cache folder; where that cannot be used, is full or is not to be trusted, built for this process."""
    with contextlib.ExitStack() as stack:
        try:
            kept = stack.enter_context(cache.opened())
            content = kept.find(key)
        except UnsafeFolderError as error:
            _tell_unsafe(str(error))
            return load(_compile(path, source, None), key)
        except OSError as error:
            log.debug("compiled code is not kept: %s", error)
            return load(_compile(path, source, None), key)
        if content is not None:
            try:
                return load(content, key)
            except OSError as error:  # whole, yet no library: what the compiler wrote that day
                log.debug("a kept program is built again: %s", error)
        try:
            content = _compile(path, source, kept.descriptor)
        except (OSError, CompilerError) as error:  # a full disk is the compiler's error
            log.debug("compiled code is not built in the cache: %s", error)
            content = _compile(path, source, None)
        loaded = load(content, key)  # before it is kept: what does not load is of no use tomorrow
        try:
            kept.keep(key, content)
        except OSError as error:
            log.debug("compiled code is not kept: %s", error)
        return loaded


@functools.cache
def _tell_unsafe(reason: str) -> None:
    """Once in a process."""
    warnings.warn(
        f"Compiled code is rebuilt in every run, because its folder is not safe: {reason}; PHASEGRAD_CACHE names another.",
        PhasegradWarning,
        stacklevel=6,
    )


def _compile(path: str, source: str, parent: int | None) -> bytes:
    """The binary of `source`, built in the folder `parent` is the descriptor of, or among temporary files."""
    with _workplace(parent) as (descriptor, folder):
        with open(os.open(SOURCE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=descriptor), "w") as file:
            file.write(source)
        code, said = _run([path, *FLAGS, SOURCE, "-o", BINARY, "-lm"], folder, COMPILE_SECONDS)
        if code:
            failure = CompilerError(said)
            log.debug("%s ended with code %d:\n%s", path, code, failure.message)
            raise failure
        try:
            content = read_bounded(os.open(BINARY, _READ, dir_fd=descriptor), cache.MOST_BYTES)
        except FileNotFoundError:
            content = b""
        except TooLargeError as error:
            raise CompilerError(f"its program is not to be used: {error.strerror}") from None
        if not content:
            raise CompilerError("it wrote no program, and no error")
        return content


@contextlib.contextmanager
def _workplace(parent: int | None) -> Iterator[tuple[int, str]]:
    """A new folder that is this user's alone, by descriptor and as a path by which a child process gets into it."""
    name = f"{cache.BUILDING}{secrets.token_hex(8)}"
    if parent is None:
        name = tempfile.mkdtemp(prefix=cache.BUILDING)
    else:
        os.mkdir(name, 0o700, dir_fd=parent)
    descriptor = None
    try:
        descriptor = os.open(name, _INTO, dir_fd=parent)
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise UnsafeFolderError(f"{name} was exchanged while it was made")
        yield descriptor, _way_into(descriptor, name, parent)
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                for entry in os.listdir(descriptor):
                    os.unlink(entry, dir_fd=descriptor)
            os.close(descriptor)
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=parent)


def _way_into(descriptor: int, name: str, parent: int | None) -> str:
    """By the descriptor, as the child that is about to run the compiler has it too; else by a path that is safe."""
    if os.path.isdir(f"/proc/self/fd/{descriptor}"):
        return f"/proc/self/fd/{descriptor}"
    folder = Path(name) if parent is None else cache.cache_folder() / name
    os.close(open_private(folder))
    return str(folder)


def _run(command: Sequence[str], folder: str | None, seconds: float) -> tuple[int, str]:
    """Its code and what it said; ended with all that it started where it takes too long or we are interrupted."""
    temporary = {} if folder is None else {"TMPDIR": "."}  # what passes between its parts is nobody else's to change
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **temporary},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CompilerError(f"not done within {seconds} seconds") from error
        raise
    return process.returncode, said
