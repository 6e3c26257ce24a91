"""Compiled code among strangers, on real disks and with compilers that misbehave: nothing runs but what was built here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import strangers_hand
from machine import ROOT, needs_compiler

from phasegrad.compute.native import build, cache
from phasegrad.machine.own_folders import UnsafeFolderError, open_own

SOURCE = "int answer(void) { return 42; }\n"
STRANGER = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


def commands_with(text: str) -> list[str]:
    """The command lines of all processes that have `text` in them; a bare system has no ps."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in line and place.parent.name != str(os.getpid()):
                found.append(line)
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and a process that has loaded nothing yet."""
    monkeypatch.setenv("PHASEGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_loaded", {})
    build._tell_unsafe.cache_clear()
    return tmp_path / "cache" / "phasegrad" / "native"


def answer(number: int = 42) -> int:
    build._loaded.clear()
    return int(build.library(SOURCE.replace("42", str(number))).answer())


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody gets to; pytest's own are closed."""
    place = Path(tempfile.mkdtemp(prefix="phasegrad-test-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place, ignore_errors=True)


def evil_library(public: Path) -> Path:
    """A library that leaves a mark as soon as it is loaded."""
    (public / "marks").mkdir()
    (public / "marks").chmod(0o777)
    source = (
        "#include <stdio.h>\n#include <unistd.h>\n__attribute__((constructor)) static void mark(void) "
        f'{{ FILE *f = fopen("{public}/marks/ran", "a"); if (f) {{ fprintf(f, "%d\\n", getuid()); fclose(f); }} }}\n'
        "int answer(void) { return 666; }\n"
    )
    compiler = build.compiler()
    assert compiler is not None
    found = public / "evil.so"
    found.write_bytes(build._compile(compiler, source, None))
    found.chmod(0o644)
    return found


def as_a_stranger(place: Path, name: str, evil: bytes) -> int:
    """The process of a stranger at work; a fork, since they may not be able to run this Python."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            strangers_hand.exchange(place, name, evil)
        finally:
            os._exit(1)
    return child


@needs_root
@needs_compiler
@pytest.mark.parametrize(
    ("owner", "mode", "temporary", "loads"),
    [(0, 0o1777, False, 50), (0, 0o777, False, 10), (STRANGER, 0o755, False, 10), (STRANGER, 0o1777, True, 20)],
    ids=["as /tmp", "open to all", "a stranger's", "a stranger's, for temporary files too"],
)
def test_no_strangers_code_runs(
    owner: int, mode: int, temporary: bool, loads: int, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a stranger exchanges in a loop whatever they may."""
    assert answer() == 42
    (binary,) = cache.cache_folder().iterdir()
    evil, place = evil_library(public), public / "place"
    place.mkdir()
    os.chown(place, owner, -1)
    place.chmod(mode)
    monkeypatch.setenv("PHASEGRAD_CACHE", str(place))
    if temporary:
        monkeypatch.setattr(tempfile, "tempdir", str(place))
    stranger = as_a_stranger(place, binary.name, evil.read_bytes())
    try:
        for _ in range(loads):
            with warnings.catch_warnings(), contextlib.suppress(OSError):  # doing without is fine too
                warnings.simplefilter("ignore")
                assert answer() == 42
            with contextlib.suppress(OSError):
                if (place / "phasegrad").lstat().st_uid == 0:
                    shutil.rmtree(place / "phasegrad")  # so that there is something to race for again
        assert os.waitpid(stranger, os.WNOHANG) == (0, 0)  # busy to the end
    finally:
        os.kill(stranger, signal.SIGKILL)
        os.waitpid(stranger, 0)
    assert not (public / "marks" / "ran").exists()


@needs_compiler
def test_what_was_checked_is_what_is_loaded(public: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanged, or cut, right after it was found to be whole."""
    assert answer() == 42
    (binary,) = folder.iterdir()
    evil, whole, noted = evil_library(public), binary.read_bytes(), os.utime

    def exchange(descriptor: int) -> None:
        noted(descriptor)
        binary.write_bytes(content)

    monkeypatch.setattr(os, "utime", exchange)
    for content in (evil.read_bytes(), whole[:5000], b""):
        binary.write_bytes(whole)
        assert answer() == 42
        assert binary.read_bytes() == content
    assert not (public / "marks" / "ran").exists()


@needs_root
def test_a_folder_that_disappears_while_it_is_looked_at_is_not_trusted(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way in of old: made by a stranger, gone when it was checked, there again when it was used."""
    public.chmod(0o1777)
    made = os.mkdir

    def too_late(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        made(name, mode, dir_fd=dir_fd)
        if name == "phasegrad":
            os.chown(name, STRANGER, -1, dir_fd=dir_fd)
            raise FileExistsError(name)

    monkeypatch.setattr(os, "mkdir", too_late)
    with pytest.raises(UnsafeFolderError, match="belongs to another user"):
        open_own(public / "phasegrad" / "native", make=True)


@needs_root
def test_a_name_given_to_a_link_of_roots_is_not_followed(public: Path) -> None:
    public.chmod(0o1777)
    (public / "real").mkdir(mode=0o700)
    (public / "link").symlink_to("real")
    os.close(open_own(public / "link"))
    os.link(public / "link", public / "second", follow_symlinks=False)
    with pytest.raises(UnsafeFolderError, match="several names"):
        open_own(public / "second")


def test_the_way_to_a_folder_may_go_up_and_by_absolute_links(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / ".." / "b")
    descriptor = open_own(tmp_path / "link" / ".." / "new", make=True)
    assert os.fstat(descriptor).st_ino == (tmp_path / "a" / "new").stat().st_ino
    os.close(descriptor)
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises(OSError, match="ring of links"):
        open_own(tmp_path / "ring")
    with pytest.raises(FileNotFoundError):
        open_own(tmp_path / "missing")


@needs_compiler
def test_each_program_is_the_one_that_was_asked_for() -> None:
    """The loader knows libraries by the name of their file, and descriptors have the same numbers again and again."""
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for number in (1, 2, 3, 1, 2, 3):
        assert answer(number) == number
    assert not before or len(os.listdir("/proc/self/fd")) == before


# Disks


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@needs_root
@needs_compiler
@pytest.mark.parametrize(("options", "kept"), [("size=12k", 0), ("noexec", 1), ("ro", 0)])
def test_disks_that_are_full_read_only_or_without_execution(
    options: str, kept: int, tmp_path: Path, folder: Path
) -> None:
    with mounted(tmp_path / "cache", f"{options},mode=0700"):
        assert answer(51) == 51
        assert answer(51) == 51
        assert len(list(folder.glob("*"))) == kept
        if options == "ro":
            with pytest.raises(OSError, match="Read-only"):
                cache.contents()


@needs_compiler
def test_a_build_that_is_killed_leaves_nothing_that_is_loaded(folder: Path, tmp_path: Path) -> None:
    slow = script(tmp_path / "slow", f'case "$*" in *--version*|*probe*) ;; *) touch {tmp_path}/begun; sleep 60;; esac')
    program = "from phasegrad.compute.native import build; build.compiler = lambda: __import__('sys').argv[1]\n"
    program += f"print(build.library({SOURCE!r}).answer())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    victim = subprocess.Popen([sys.executable, "-c", program, str(slow)], env=environment)
    until = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.02)
    victim.kill()
    victim.wait()
    left = list(folder.iterdir())
    assert [path.is_dir() for path in left] == [True]
    assert answer() == 42
    assert len(list(folder.glob("*.so"))) == 1
    os.utime(left[0], (0, 0))
    assert answer(43) == 43
    assert not left[0].exists()


# Compilers


def script(path: Path, body: str) -> Path:
    path.write_text(f'#!/bin/sh\n{body}\nexec {build.compiler()} "$@"\n')
    path.chmod(0o700)
    return path


@needs_compiler
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 0", "it wrote no program, and no error"),
        ("exit 3", "it gave no reason"),
        (": > program.so; exit 0", "it wrote no program, and no error"),
        ("sleep 600 & sleep 600", "not done within 0.5 seconds"),
        ("trap '' TERM INT; while :; do :; done", "not done within 0.5 seconds"),
        ("kill -9 $$", "it gave no reason"),
        ("cat > /dev/null; echo error: nothing to read >&2; exit 1", "error: nothing to read"),
    ],
)
def test_a_compiler_that_does_not_compile_is_named(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "COMPILE_SECONDS", 0.5)
    chosen = script(tmp_path / "bad", body)
    with pytest.raises(build.CompilerError, match=said):
        build._compile(str(chosen), SOURCE, None)
    assert not build._works(str(chosen))
    time.sleep(0.05)
    assert not commands_with(str(chosen))  # nor what it started


@needs_compiler
def test_a_compiler_whose_version_cannot_be_had_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "VERSION_SECONDS", 0.5)
    assert not build._works(str(script(tmp_path / "hangs", 'case "$*" in *--version*) sleep 600;; esac')))
    assert not build._works(str(script(tmp_path / "fails", 'case "$*" in *--version*) exit 1;; esac')))


@needs_compiler
def test_warnings_bytes_that_are_no_text_and_relative_paths_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "chatty", r"printf 'warning: \377\033[31m\n' >&2")
    (tmp_path / "gcc").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    for chosen in ("./chatty", "chatty", "gcc", str(tmp_path)):
        monkeypatch.setenv("CC", chosen)
        build.compiler.cache_clear()
        found = build.compiler()
        assert found is not None
        assert os.path.isfile(found)
        assert ("chatty" in found) == ("chatty" in chosen)
        assert answer() == 42
    build.compiler.cache_clear()


@needs_compiler
def test_an_interrupt_ends_the_compiler_too(tmp_path: Path) -> None:
    slow = script(tmp_path / "slow", f"touch {tmp_path}/begun; sleep 97531")
    heeds = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # what runs behind a shell ignores it
    )
    program = f"{heeds}; from phasegrad.compute.native import build; build._compile({str(slow)!r}, 'int x;', None)"
    child = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    child.wait(30)
    assert not commands_with("97531")
