"""Runs commands where the disk fails them: read-only, full, without permission, with too many open files, no output.

`python failing_disks.py BASE PLACE CONDITION` copies BASE to a small file system of its own that is mounted on PLACE for it
alone, and runs each command there in a fork of one process, since importing torch takes seconds. It prints JSON: for each
command its exit code and what it said. Needs Linux; exit code 77 and a reason where mounting is not allowed.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18
DROP_FROM_BOUNDING_SET, MAY_WRITE_ALL, MAY_READ_ALL = 24, 1, 2
CANNOT = 77
SECONDS = 100.0

SIZES = [
    "--preset", "none", "--num-envs", "4", "--num-steps", "16", "--epochs", "1", "--num-minibatches", "2",
    "--hidden-sizes", "8", "--compile", "off",
]  # fmt: skip
TRAIN = ["train", "ppo", "--env", "CartPole-v1", *SIZES, "--checkpoint-every", "64", "--total-steps", "128", "--quiet"]
COMMANDS: dict[str, list[str]] = {
    "train": [*TRAIN, "--run-dir", "new"],
    "overwrite": [*TRAIN, "--run-dir", "run", "--overwrite"],
    "log_steps": [*TRAIN, "--run-dir", "new", "--log-steps"],
    "resume": ["resume", "run", "--total-steps", "256", "--quiet"],
    "clone": ["clone", "ppo", "--env", "CartPole-v1", *SIZES, "--data", "demo.npz", "--run-dir", "cloned", "--clone-epochs", "1"],
    "eval": ["eval", "run", "--episodes", "2", "--json"],
    "save_steps": ["eval", "run", "--episodes", "2", "--save-steps", "demo.npz"],
    "plot": ["plot", "run", "--out", "curve.png", "--csv", "curve.csv"],
    "video": ["video", "run", "--max-steps", "5", "--episodes", "2"],
    "export": ["export", "run", "--onnx", "policy.onnx"],
    "report": ["report", "run"],
    "watch": ["watch", "run", "--once"],
    "tune": ["tune", "ppo", "--env", "CartPole-v1", "--trials", "1", "--total-steps", "64", "--dir", "search"],
    "study": ["study", "small.toml", "--dir", "study", "--dry-run"],
    "study_locked": ["study", "small.toml", "--dir", "study", "--jobs", "1", "--quiet"],
    "presets": ["presets"],
}  # fmt: skip

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def own_mounts() -> None:
    """From here on mounts are this process's and its children's alone."""
    user, group = os.geteuid(), os.getegid()
    checked(libc.unshare(NEW_MOUNTS if user == 0 else NEW_MOUNTS | NEW_USER))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    checked(libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None))


def small_disk(place: str, size: str = "24m") -> None:
    checked(libc.mount(b"tmpfs", place.encode(), b"tmpfs", 0, f"size={size}".encode()))


def read_only(place: str) -> None:
    checked(libc.mount(place.encode(), place.encode(), None, BIND | RECURSIVE, None))
    checked(libc.mount(None, place.encode(), None, BIND | REMOUNT | READ_ONLY, None))


def without_privileges() -> None:
    """Root is held to the permissions of files like anybody else."""

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("process", ctypes.c_int))

    header, sets = Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
    checked(libc.capget(ctypes.byref(header), ctypes.byref(sets)))
    for index in (0, 1):  # effective, permitted
        sets[index] &= ~(1 << MAY_WRITE_ALL | 1 << MAY_READ_ALL)
    checked(libc.capset(ctypes.byref(header), ctypes.byref(sets)))
    for capability in (MAY_WRITE_ALL, MAY_READ_ALL):
        libc.prctl(DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)


def fill(place: str, leave: int) -> None:
    """All room but so many bytes is taken."""
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize - leave
    with open(f"{place}/.filler", "wb") as file:
        file.write(bytes(max(0, free)))


def forbid_writing(place: str) -> None:
    without_privileges()
    for folder, _, names in os.walk(place):
        os.chmod(folder, 0o555)
        for name in names:
            os.chmod(f"{folder}/{name}", 0o444)


def forbid_reading(*names: str) -> Callable[[str], None]:
    def forbid(place: str) -> None:
        without_privileges()
        for name in names:
            os.chmod(f"{place}/{name}", 0)

    return forbid


def few_files(more: int) -> Callable[[str], None]:
    def limit(_: str) -> None:
        most = max(map(int, os.listdir("/proc/self/fd"))) + 1
        while os.open(os.devnull, os.O_RDONLY) < most:  # numbers that are free below it
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (most + 1 + more, most + 1 + more))

    return limit


def temporary_files(size: str) -> Callable[[str], None]:
    """TMPDIR is another disk; of no size: it is missing, and so is every other place for such files."""

    def mount(place: str) -> None:
        other = f"{place}/other"
        os.mkdir(other)
        if size:
            small_disk(other, size)
        else:
            tempfile._candidate_tempdir_list = lambda: ["/nowhere"]  # type: ignore[attr-defined]
        os.environ["TMPDIR"] = other if size else "/nowhere"
        tempfile.tempdir = None

    return mount


CONDITIONS: dict[str, Callable[[str], None]] = {
    "plain": lambda place: None,
    "read-only": lambda place: (read_only(place), os.chdir(place))[0],
    "full": lambda place: fill(place, 0),
    "almost full": lambda place: fill(place, 12_288),
    "no permission to write": forbid_writing,
    "no permission for the folder": forbid_reading("run"),
    "no permission for metrics": forbid_reading("run/metrics.jsonl", "demo.npz"),
    "no permission for the config": forbid_reading("run/config.json", "small.toml"),
    "no permission for checkpoints": forbid_reading("run/checkpoints"),
    "no more files": few_files(0),
    "three more files": few_files(3),
    "temporary files on a full disk": temporary_files("16k"),
    "temporary files on another disk": temporary_files("8m"),
    "no temporary files": temporary_files(""),
    "output on a full disk": lambda place: nowhere("/dev/full"),
    "output nobody reads": lambda place: nowhere(None),
}


def nowhere(path: str | None) -> None:
    """Standard output is a file that takes nothing, or a pipe whose other end is closed."""
    if path is None:
        unread, writing = os.pipe()
        os.close(unread)
    else:
        writing = os.open(path, os.O_WRONLY)
    os.dup2(writing, 1)


def outcome(command: list[str], base: str, place: str, arrange: Callable[[str], None]) -> dict[str, Any]:
    """What a command comes to in a fork of this process, on a disk of its own."""
    said = [os.memfd_create(name) for name in ("out", "err")]
    child = os.fork()
    if child == 0:
        code = 99
        try:
            for number, target in zip(said, (1, 2), strict=True):
                os.dup2(number, target)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for the rest of the process
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            small_disk(place)
            shutil.copytree(base, place, dirs_exist_ok=True)
            os.chdir(place)
            arrange(place)
            code = main(command)
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
            code = 98
        finally:
            try:
                sys.stdout.flush()
            except OSError:
                code = 120  # as Python has it
            os._exit(code)
    until = time.monotonic() + SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.02)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    texts = []
    for number in said:
        with open(number, "rb") as file:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return {"code": os.waitstatus_to_exitcode(ended[1]) if ended[0] else "too slow", "out": texts[0], "err": texts[1]}


def report(base: str, place: str, condition: str, names: list[str]) -> int:
    try:
        own_mounts()
        small_disk(place)
    except OSError as error:
        sys.stdout.write(f"no file system can be mounted here: {error}")
        return CANNOT
    arrange = CONDITIONS[condition]
    found = {name: outcome(COMMANDS[name], base, place, arrange) for name in names or COMMANDS}
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    import importlib

    import torch

    from phasegrad.cli.main import main

    for name in ("algorithms.loading", "report.plot", "runs.session", "tune.tuning", "video.recording"):
        importlib.import_module(f"phasegrad.{name}")
    importlib.import_module("matplotlib.pyplot")
    torch.set_num_threads(1)
    sys.exit(report(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
