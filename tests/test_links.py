"""Links and special files where a run keeps its own: nothing outside is read, written or removed, and nothing hangs.

Each file and folder of a run directory is put in turn behind a link to one of the user's, a link to nowhere, a pipe, a
socket, a device without end, a folder; then every verb that opens it must end in order or with one sentence.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import PhasegradError

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 2, "num_steps": 8, "num_minibatches": 2, "hidden_sizes": (8,), "seed": 3,
    "compile": "off", "checkpoint_every": 32, "n_pi": 8, "e_aux": 1, "log_steps": True,
}  # fmt: skip
SECONDS = 20  # for a verb that takes one
MOST_KILOBYTES = 200 * 1024

FILES = (
    ".lock", ".launch", "config.json", "metrics.jsonl", "result.json", "evaluations.jsonl", "changes.jsonl",
    "tracking.json", "levels.json", "report.html", "bad-batch.safetensors",
    "checkpoints/NEWEST/state.json", "checkpoints/NEWEST/state.safetensors", "checkpoints/NEWEST/leg.safetensors",
    "segments/FIRST", "steps/step-000000000064.npz", "tensorboard/EVENTS", "videos/eval-best.mp4", "videos/eval-best.json",
)  # fmt: skip
FOLDERS = ("checkpoints", "checkpoints/NEWEST", "segments", "steps", "tensorboard", "videos")
KINDS = ("link", "loose link", "pipe", "socket", "device", "folder")
READERS = (["watch", "RUN", "--once"], ["report", "RUN", "--out", "OUT/page.html"], ["plot", "RUN", "--out", "OUT/curve.csv"])
WRITERS = (
    ["resume", "RUN", "--quiet"],
    ["eval", "RUN", "--episodes", "1"],
    ["report", "RUN"],
    ["train", "ppg", "--env", "CartPole-v1", "--run-dir", "RUN", "--overwrite", "--quiet", "--total-steps", "64",
     *(f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name not in ("hidden_sizes", "log_steps")),
     "--hidden-sizes=8", "--log-steps"],
)  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of PPG that stopped inside a phase, with everything in it that a run can have."""
    run = tmp_path_factory.mktemp("links") / "run"
    pg.PPG("CartPole-v1", run_dir=run, **SMALL).learn(128, callback=lambda row: row["step"] < 48).close()
    (run / "videos").mkdir()
    (run / "videos" / "eval-best.mp4").write_bytes(b"\0\0\0 ftypisom")
    return run


def place(run: Path, name: str) -> Path:
    """The path of an entry of the tables above."""
    name = name.replace("NEWEST", max(entry.name for entry in (run / "checkpoints").iterdir()))
    name = name.replace("FIRST", min(entry.name for entry in (run / "segments").iterdir()))
    return run / name.replace("EVENTS", next(entry.name for entry in (run / "tensorboard").iterdir()))


def put(kind: str, path: Path, outside: Path) -> None:
    """Something of this kind in place of `path`; what was there is the user's file that a link leads to."""
    outside.mkdir(exist_ok=True)
    target = outside / path.name
    is_folder = path.is_dir()
    if path.exists():
        shutil.move(path, target)
    elif not target.exists():
        target.write_text("the user's own\n")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "loose link":
        path.symlink_to(outside / "nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("this user may not make device nodes")
    elif is_folder:
        path.write_text("a file")
    else:
        path.mkdir()


def contents(folder: Path) -> dict[str, Any]:
    """Every byte and every time of change below a folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        found[str(path)] = (about.st_mtime_ns, about.st_mode, path.read_bytes() if path.is_file() else b"")
    return found


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """In a few seconds and little memory."""

    def stop(*_: Any) -> None:
        raise AssertionError(f"it took more than {SECONDS} seconds")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert taken < MOST_KILOBYTES, f"{taken} kB"


Called = Callable[[list[str]], tuple[int, str]]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Called:
    def called(arguments: list[str]) -> tuple[int, str]:
        with bounded():
            code = main(arguments)
        told = capfd.readouterr()
        assert "Traceback" not in told.err
        assert code in (0, 2), told.err
        assert code == 0 or len(told.err.strip().splitlines()) >= 1
        return code, told.err

    return called


def verbs(table: tuple[list[str], ...], run: Path, out: Path) -> Iterator[list[str]]:
    out.mkdir(exist_ok=True)
    for arguments in table:
        yield [argument.replace("RUN", str(run)).replace("OUT", str(out)) for argument in arguments]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_readers_end_and_leave_alone_what_is_outside(
    original: Path, tmp_path: Path, call: Called, name: str, kind: str
) -> None:
    run = Path(shutil.copytree(original, tmp_path / "run"))
    put(kind, place(run, name), tmp_path / "outside")
    before = contents(tmp_path / "outside"), contents(run)
    for arguments in verbs(READERS, run, tmp_path / "out"):
        print(name, kind, arguments[0], call(arguments))
    assert (contents(tmp_path / "outside"), contents(run)) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_writers_end_and_leave_alone_what_is_outside(
    original: Path, tmp_path: Path, call: Called, name: str, kind: str
) -> None:
    for number, arguments in enumerate(WRITERS):
        run = Path(shutil.copytree(original, tmp_path / f"run{number}"))
        outside = tmp_path / f"outside{number}"
        put(kind, place(run, name), outside)
        before = contents(outside)
        arguments = [argument.replace("RUN", str(run)) for argument in arguments]
        print(name, kind, arguments[0], call(arguments))
        assert contents(outside) == before, arguments[0]
