"""The cache of compiled programs: what is loaded from it, whom it trusts, how it is bounded, and doing without it."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from machine import ROOT, needs_compiler
from own_cache import SOURCE, answer, new_cache

from phasegrad.cli import main
from phasegrad.compute.native import build, cache, loading
from phasegrad.compute.native.moving import Mover
from phasegrad.errors import PhasegradWarning

STRANGER = 12345
MEMORY = Path("memory")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return new_cache(tmp_path, monkeypatch)


def loaded_from(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where all binaries come from that are opened from now on: memory, which has no path, or a folder."""
    places: list[Path] = []
    opened = ctypes.CDLL

    def open_and_note(name: str) -> Any:
        places.append(MEMORY if name.startswith("/proc/self/fd/") else Path(name).parent)
        return opened(name)

    monkeypatch.setattr(ctypes, "CDLL", open_and_note)
    return places


def is_whole(path: Path) -> bool:
    return path.stem.endswith(hashlib.sha256(path.read_bytes()).hexdigest())


@needs_compiler
def test_a_binary_is_built_once_and_for_its_user_alone(folder: Path) -> None:
    assert answer() == 42
    (binary,) = folder.iterdir()  # and no remains of the build
    first = binary.stat()
    assert answer() == 42
    assert binary.stat().st_ino == first.st_ino
    for path in (binary, folder, folder.parent, folder.parent.parent):
        assert path.stat().st_mode & 0o077 == 0


def cut(binary: Path) -> None:
    binary.write_bytes(binary.read_bytes()[:5000])


def empty(binary: Path) -> None:
    binary.write_bytes(b"")


def altered(binary: Path) -> None:
    content = bytearray(binary.read_bytes())
    content[-1] ^= 1
    binary.write_bytes(content)


def writable(binary: Path) -> None:
    binary.chmod(0o777)


def linked_twice(binary: Path) -> None:
    os.link(binary, binary.with_name("other"))


def link(binary: Path) -> None:
    binary.rename(binary.with_name("elsewhere"))
    binary.symlink_to("elsewhere")


def pipe(binary: Path) -> None:
    binary.unlink()
    os.mkfifo(binary, 0o700)


def strangers(binary: Path) -> None:
    os.chown(binary, STRANGER, -1)


@needs_compiler
@pytest.mark.parametrize(
    "harm", [cut, empty, altered, writable, linked_twice, link, pipe, pytest.param(strangers, marks=needs_root)]
)
def test_a_binary_that_is_not_whole_or_not_ours_is_built_again(
    harm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer()
    (binary,) = folder.iterdir()
    harm(binary)
    before = binary.lstat().st_ino
    assert answer() == 42
    assert not binary.is_symlink()
    found = binary.stat()
    assert found.st_ino != before
    assert (found.st_uid, found.st_mode & 0o777, found.st_nlink) == (os.getuid(), 0o700, 1)
    assert is_whole(binary)


@needs_compiler
def test_programs_built_at_the_same_time_are_whole(folder: Path) -> None:
    compiler = build.compiler()
    assert compiler is not None

    def keep(_: int) -> str:
        with cache.opened() as kept:
            return kept.keep("0" * 32, build._compile(compiler, SOURCE, kept.descriptor))

    with ThreadPoolExecutor(4) as pool:
        for name in pool.map(keep, range(8)):
            assert is_whole(folder / name)
    with cache.opened() as kept:
        assert kept.find("0" * 32) is not None
    assert len(list(folder.iterdir())) == 1


# Whom the folder belongs to


def others_write_here(folder: Path) -> None:
    folder.chmod(0o702)


def others_write_above(folder: Path) -> None:
    folder.parent.chmod(0o707)


def belongs_to_another(folder: Path) -> None:
    os.chown(folder, STRANGER, -1)


def lies_with_another(folder: Path) -> None:
    os.chown(folder.parent.parent, STRANGER, -1)


def is_a_strangers_link(folder: Path) -> None:
    folder.rename(folder.with_name("real"))
    folder.symlink_to("real")
    os.chown(folder, STRANGER, -1, follow_symlinks=False)


@needs_compiler
@pytest.mark.parametrize(
    "harm",
    [others_write_here, others_write_above]
    + [pytest.param(each, marks=needs_root) for each in (belongs_to_another, lies_with_another, is_a_strangers_link)],
)
def test_a_folder_that_others_can_change_is_not_used(harm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer()
    harm(folder)
    (binary,) = folder.iterdir()
    before = binary.lstat()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert answer() == 42
        assert answer(43) == 43
    (sentence,) = [str(warning.message) for warning in told if issubclass(warning.category, PhasegradWarning)]
    assert "its folder is not safe: " in sentence
    assert list(folder.iterdir()) == [binary]
    assert binary.lstat().st_mtime_ns == before.st_mtime_ns  # not even used


@needs_compiler
def test_a_users_own_link_and_a_folder_for_everybody_on_the_way_are_fine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = tmp_path / "everybody"
    everybody.mkdir()
    everybody.chmod(0o1777)
    (everybody / "mine").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to("nowhere/../everybody/mine")
    (tmp_path / "nowhere").mkdir()
    assert answer() == 42
    assert len(list((everybody / "mine" / "phasegrad" / "native").iterdir())) == 1


# Doing without


def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)


def missing_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))


def nameless_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")


def file_for_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))


def file_for_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PHASEGRAD_CACHE", str(tmp_path / "file"))


def not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a folder that may not be written to; root may write to any."""
    make = os.mkdir

    def refuse(path: Any, *arguments: Any, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            raise PermissionError(13, "Permission denied", str(path))
        make(path, *arguments)

    monkeypatch.setenv("PHASEGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "mkdir", refuse)


def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a disk on which the compiler finds no room."""
    compile_ = build._compile

    def refuse(compiler: str, source: str, parent: int | None) -> bytes:
        if parent is not None:
            raise build.CompilerError("/usr/bin/ld: final link failed: No space left on device")
        return compile_(compiler, source, parent)

    monkeypatch.setenv("PHASEGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_compile", refuse)


def full_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a disk that is full once the compiler has had its share."""

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("PHASEGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "fsync", refuse)


def not_executable(monkeypatch: pytest.MonkeyPatch, *places: Path) -> None:
    """As where the loader may not map what is to be executed."""
    opened = ctypes.CDLL

    def refuse(name: str) -> Any:
        if any(Path(name).is_relative_to(place) for place in places):
            raise OSError(f"{name}: failed to map segment from shared object")
        return opened(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)


def memory_noexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHASEGRAD_CACHE", str(tmp_path / "cache"))
    not_executable(monkeypatch, Path("/proc"))


def no_memory_of_that_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that is not Linux."""
    monkeypatch.setenv("PHASEGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delattr(os, "memfd_create", raising=False)


@needs_compiler
@pytest.mark.parametrize(
    "harm",
    [
        no_home,
        missing_home,
        nameless_home,
        file_for_a_home,
        file_for_a_cache,
        not_writable,
        full,
        full_after,
        memory_noexec,
        no_memory_of_that_kind,
    ],
)
def test_without_a_folder_to_keep_them_programs_are_still_compiled(
    harm: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PHASEGRAD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    harm(tmp_path, monkeypatch)
    places = loaded_from(monkeypatch)
    assert answer(7) == 7
    kept = harm in (full, memory_noexec, no_memory_of_that_kind)
    assert (list(folder.iterdir()) != [] if folder.is_dir() else False) == kept
    assert places[-1] == (loading.private_folder() if kept and harm is not full else MEMORY)
    assert list(loading.private_folder().iterdir()) == []


@needs_compiler
def test_where_nothing_may_be_executed_the_caller_hears_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    not_executable(monkeypatch, Path("/"))
    with pytest.raises(OSError, match=r"nowhere to load compiled code from: .* failed to map segment"):
        answer()


def test_a_fork_leaves_the_private_folder_to_its_parent() -> None:
    program = (
        "import os, sys; from phasegrad.compute.native.loading import private_folder; mine = private_folder(); child = os.fork()\n"
        "if child == 0: sys.exit(private_folder() == mine)\n"
        "print(os.waitpid(child, 0)[1], mine.is_dir(), mine)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    status, was_left, mine = done.stdout.split()
    assert (status, was_left) == ("0", "True"), done.stderr
    assert not Path(mine).exists()  # once its process has ended


# Its size


@needs_compiler
def test_what_was_longest_not_used_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binaries = {}
    for number in range(4):
        answer(number)
        (binaries[number],) = set(folder.iterdir()) - set(binaries.values())
        os.utime(binaries[number], (number, number))
    killed, building = folder / "phasegrad-killed", folder / "phasegrad-building"
    killed.mkdir()
    building.mkdir()
    os.utime(killed, (0, time.time() - 2 * cache.KILLED_AFTER))
    answer(0)  # used again
    monkeypatch.setattr(cache, "MOST_FILES", 3)
    answer(4)
    left = set(folder.glob("*.so"))
    assert {binaries[0], binaries[3]} < left
    assert len(left) == 3
    assert not killed.exists()
    assert building.exists()
    monkeypatch.setattr(cache, "MOST_BYTES", binaries[0].stat().st_size)
    answer(5)
    (last,) = folder.glob("*.so")
    assert last not in left


@needs_compiler
def test_the_doctor_shows_and_clears_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(1)
    answer(2)
    (folder / "notes.txt").write_text("mine")
    (folder / f"{'0' * 32}.so").write_bytes(b"of an older version")

    def shown() -> dict[str, Any]:
        assert main(["doctor", "--json"]) == 0
        (check,) = [check for check in json.loads(capsys.readouterr().out) if check["name"] == "compile cache"]
        return check

    assert shown()["ok"]
    assert cache.contents().describe() == f"3 files, 0.0 MB of at most 256, in {folder}"
    assert main(["doctor", "--clear-cache"]) == 0
    assert f"removed 3 compiled programs, 0.0 MB, from {folder}" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    folder.chmod(0o777)
    check = shown()
    assert not check["ok"]
    assert check["found"] == f"others may write to {folder}: chmod go-w {folder}"
    assert main(["doctor", "--clear-cache"]) == 2
    assert "not touched: others may write" in capsys.readouterr().err


# Compiling and loading


@needs_compiler
def test_what_the_compiler_says_is_kept_in_one_line_and_logged_whole(caplog: pytest.LogCaptureFixture) -> None:
    source = "".join(f"int f{number}(void) {{ return nothing_{number}; }}\n" for number in range(500))
    with caplog.at_level(logging.DEBUG, "phasegrad"), pytest.raises(build.CompilerError) as failure:
        build.library(source)
    assert str(failure.value).startswith("the compiler failed: program.c:1:")
    assert "nothing_0" in str(failure.value)
    assert "\n" not in str(failure.value)
    assert "nothing_7" in failure.value.message
    assert len(failure.value.message) < build.MESSAGE_LENGTH + 10
    assert failure.value.message in caplog.text


@needs_compiler
def test_a_compiler_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILE_SECONDS", 0.001)
    with pytest.raises(build.CompilerError, match="the compiler failed: not done within"):
        build.library(SOURCE.replace("42", "99"))


@needs_compiler
def test_a_program_is_opened_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several processes every epoch makes a Mover."""
    places = loaded_from(monkeypatch)
    for _ in range(3):
        Mover(torch.zeros(3), [])
    assert len(places) == 1


@needs_compiler
def test_debug_shows_all_the_compiler_says(tmp_path: Path) -> None:
    """A compiler that works until it is given a program of the library's."""
    refuses = tmp_path / "refuses"
    refuses.write_text(
        '#!/bin/sh\nfor a in "$@"; do case "$a" in *.c) grep -q "float probe" "$a" || '
        '{ echo "program.c:7: error: a first" >&2; echo "note: and more" >&2; exit 1; };; esac; done\n'
        f'exec {build.compiler()} "$@"\n'
    )
    refuses.chmod(0o700)
    command = [sys.executable, "-m", "phasegrad", "train", "ppo", "--env", "CartPole-v1", "--num-envs", "4", "--quiet"]
    command += ["--num-steps", "32", "--total-steps", "256", "--compile", "on", "--run-dir", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CC": str(refuses)}
    for options, shown in (([], False), (["--debug", "--overwrite"], True)):
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "without compiled code: the compiler failed: program.c:7: error: a first\n" in done.stderr
        assert ("note: and more" in done.stderr) == shown
