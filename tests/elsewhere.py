"""Makes this Python look like one of another system, as far as a library can see: run as `python elsewhere.py windows PROGRAM`.

Third-party packages are imported first, since they are built for the system that is here; what phasegrad itself asks of the
system (modules, functions of os and signal, /proc) is then what the other one has.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import types
from importlib.abc import MetaPathFinder
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

THIRD_PARTY = (
    "torch", "torch._dynamo", "torch.distributed", "numpy", "gymnasium", "gymnasium.vector", "envpool", "safetensors.torch", "rich.console",
    "rich.progress", "rich.live", "matplotlib.pyplot", "PIL.Image", "imageio_ffmpeg", "scipy.stats",
    "tensorboard.summary.writer.event_file_writer", "torch.utils.tensorboard", "multiprocessing.shared_memory",
    "psutil", "subprocess", "asyncio", "concurrent.futures", "tempfile", "shutil",
)  # fmt: skip
POSIX_SIGNALS = ("SIGALRM", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGPIPE", "SIGXFSZ")
SIGNAL_FUNCTIONS = ("setitimer", "alarm", "pthread_kill", "pthread_sigmask", "sigwait", "ITIMER_REAL", "siginterrupt")
OS_NAMES = (
    "getuid", "geteuid", "getgid", "getegid", "fork", "register_at_fork", "mkfifo", "mknod", "killpg", "setsid", "getpgid",
    "sched_getaffinity", "uname", "getloadavg", "fchmod", "fchown", "chown", "O_NOFOLLOW", "O_NONBLOCK",
    "O_DIRECTORY", "O_CLOEXEC", "posix_fallocate", "sync", "memfd_create", "pread", "pwrite",
)  # fmt: skip
MAC_LACKS = ("sched_getaffinity", "memfd_create", "posix_fallocate")
WINDOWS_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix")


class Lacking(MetaPathFinder):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def pretend(system: str) -> None:
    for name in THIRD_PARTY:
        importlib.import_module(name)
    import imageio_ffmpeg

    os.environ["IMAGEIO_FFMPEG_EXE"] = imageio_ffmpeg.get_ffmpeg_exe()  # else that of the other system is looked for
    multiprocessing.set_start_method("spawn")  # as both have it
    resource_tracker.ensure_running()  # what multiprocessing needs of this system
    _hide_proc()
    if system == "macos":
        sys.platform = "darwin"
        for name in MAC_LACKS:
            _remove(os, name)
        return
    sys.platform = "win32"
    for name in (*POSIX_SIGNALS, *SIGNAL_FUNCTIONS):
        _remove(signal, name)
    for name in OS_NAMES:
        _remove(os, name)
    _lend_windows_locks()
    os.supports_dir_fd.clear()
    os.supports_follow_symlinks.clear()
    for name in WINDOWS_MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Lacking(WINDOWS_MODULES))
    _refuse_open_renames()


def _remove(module: Any, name: str) -> None:
    if hasattr(module, name):
        delattr(module, name)


def _hide_proc() -> None:
    """No /proc, /sys or /dev/shm."""
    real_open, real_os_open, real_stat, real_listdir = builtins.open, os.open, os.stat, os.listdir

    def hidden(path: Any) -> bool:
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        return text.startswith(("/proc", "/sys/", "/dev/shm"))

    def without(real: Any) -> Any:
        def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if hidden(path) and _asked_by_phasegrad():
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            return real(path, *arguments, **options)

        return call

    builtins.open, os.open, os.stat, os.listdir = map(without, (real_open, real_os_open, real_stat, real_listdir))
    import io

    io.open = builtins.open


def _asked_by_phasegrad() -> bool:
    """Rather than by a package that is built for the system that is here."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        parts = Path(frame.f_code.co_filename).parts
        if parts[-1] == "tempfile.py":  # which has another way there
            return False
        if "site-packages" in parts or "phasegrad" in parts:
            return "site-packages" not in parts
        frame = frame.f_back
    return False


def _lend_windows_locks() -> None:
    """msvcrt's locked bytes by this system's own: of the process, mandatory for nobody."""
    import fcntl

    def locking(descriptor: int, mode: int, count: int) -> None:
        how = fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.flock(descriptor, how)  # of the open file, as Windows has it: a second one in this process is refused
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, "Permission denied") from error

    module: Any = types.ModuleType("msvcrt")
    module.locking, module.LK_UNLCK, module.LK_NBLCK = locking, 0, 2
    sys.modules["msvcrt"] = module


def _refuse_open_renames() -> None:
    """Windows neither renames nor removes a file or folder that this process has open."""
    listdir, readlink, os_open = os.scandir, os.readlink, os.open

    def opened() -> list[str]:
        found = []
        with listdir("/proc/self/fd") as handles:
            for handle in handles:
                with contextlib.suppress(OSError):
                    found.append(readlink(handle.path))
        return found

    def open_no_folder(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if isinstance(path, (str, os.PathLike)) and os.path.isdir(path) and _asked_by_phasegrad():
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return os_open(path, flags, *arguments, **options)

    os.open = open_no_folder

    def guarded(real: Any) -> Any:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(path, (str, os.PathLike)) and _asked_by_phasegrad():
                name = os.path.abspath(os.fspath(path))
                if any(other == name or other.startswith(name + os.sep) for other in opened()):
                    raise PermissionError(errno.EACCES, "The process cannot access the file: it is being used", name)
            return real(path, *arguments, **options)

        return call

    os.rename, os.replace, os.unlink, os.remove, os.rmdir = map(
        guarded, (os.rename, os.replace, os.unlink, os.remove, os.rmdir)
    )


if __name__ == "__main__":
    pretend(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__") if sys.argv[0].endswith(".py") else runpy.run_module(
        sys.argv[0], run_name="__main__", alter_sys=True
    )
