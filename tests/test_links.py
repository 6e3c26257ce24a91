"""Links and special files where a run keeps its own: nothing outside is read, written or removed, and nothing hangs.

Each file and folder of a run directory is put in turn behind a link to one of the user's, a link to nowhere, a pipe, a
socket, a device without end, a folder; then every verb that opens it must end in order or with one sentence.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import PhasegradError, RunError
from phasegrad.studies.runner import execute
from phasegrad.studies.standing import RunPlace, Standing

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
KINDS = ("link", "loose link", "pipe", "socket", "device", "folder", "huge")
# what other processes are shown of a run
SHOWN = (
    ".lock", "config.json", "metrics.jsonl", "result.json", "evaluations.jsonl", "levels.json", "videos/eval-best.mp4",
    "videos/eval-best.json", "checkpoints", "videos",
)  # fmt: skip
READERS = (
    ["watch", "RUN", "--once"], ["report", "RUN", "--out", "OUT/page.html"], ["plot", "RUN", "--out", "OUT/curve.csv"],
)  # fmt: skip
RESUME = ["resume", "RUN", "--quiet"]
EVAL = ["eval", "RUN", "--episodes", "1"]
OVERWRITE = [
    "train", "ppg", "--env", "CartPole-v1", "--run-dir", "RUN", "--overwrite", "--quiet", "--total-steps", "64",
    *(f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name not in ("hidden_sizes", "log_steps")),
    "--hidden-sizes=8", "--log-steps",
]  # fmt: skip
# every name with a link and a pipe, a few with everything
WRITTEN = [(name, kind) for name in (*FILES, *FOLDERS) for kind in ("link", "pipe")]
WRITTEN += [
    (name, kind)
    for name in ("metrics.jsonl", "checkpoints/NEWEST/state.safetensors", "checkpoints/NEWEST", "checkpoints")
    for kind in ("loose link", "socket", "device", "folder", "huge")
    if kind != "huge" or "." in name
]


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
    if kind == "huge":  # and without any blocks, so that it costs nothing
        with open(path, "ab") as file:
            file.truncate(1 << 36)
        return
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
        found[str(path)] = (
            about.st_mtime_ns,
            about.st_mode,
            path.read_bytes() if path.is_file() and about.st_size < 1 << 24 else b"",
        )
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
@pytest.mark.parametrize("name", SHOWN)
def test_readers_end_and_change_nothing(original: Path, tmp_path: Path, call: Called, name: str, kind: str) -> None:
    run = Path(shutil.copytree(original, tmp_path / "run"))
    if kind == "huge" and (run / name).is_dir():
        return
    put(kind, place(run, name), tmp_path / "outside")
    before = contents(tmp_path / "outside"), contents(run)
    for arguments in verbs(READERS, run, tmp_path / "out"):
        code, said = call(arguments)
        if name == "config.json" and kind not in ("huge", "loose link"):
            assert code == 2, arguments
        if code and kind != "huge":
            assert f"{name} is a" in said, arguments
            assert f"not a {'folder' if name in FOLDERS else 'file'}, so it is not read." in said, arguments
    assert (contents(tmp_path / "outside"), contents(run)) == before


@pytest.mark.parametrize(("name", "kind"), WRITTEN)
def test_a_run_is_resumed_or_replaced_without_touching_what_is_outside(
    original: Path, tmp_path: Path, call: Called, name: str, kind: str
) -> None:
    for number, arguments in enumerate((RESUME, OVERWRITE)):
        run = Path(shutil.copytree(original, tmp_path / f"run{number}"))
        outside = tmp_path / f"outside{number}"
        path = place(run, name)
        put(kind, path, outside)
        before, was = contents(outside), contents(run)
        code, said = call([argument.replace("RUN", str(run)) for argument in arguments])
        assert contents(outside) == before, arguments[0]
        if code:
            assert f"{path.name} {'has 68,719,476,736 bytes' if kind == 'huge' else 'is a'}" in said, said
            after = contents(run)
            for each, about in was.items():  # refused before anything is written
                assert after[each][2] == about[2], each
        elif name.startswith("checkpoints/NEWEST/") and number == 0:
            assert "The checkpoint before it is used." in said
            assert kind == "huge" or f"{name.rpartition('/')[2]} is a" in said
        if not code:
            assert json.loads((run / "result.json").read_text())["step"] == (128 if number == 0 else 64)
            assert not (run / "metrics.jsonl").is_symlink()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", [name for name in FILES if name in ("config.json", "evaluations.jsonl") or name.startswith("checkpoints")]
)
def test_an_agent_is_loaded_from_what_is_its_own(
    original: Path, tmp_path: Path, call: Called, name: str, kind: str
) -> None:
    run = Path(shutil.copytree(original, tmp_path / "run"))
    put(kind, place(run, name), tmp_path / "outside")
    before = contents(tmp_path / "outside")
    code, said = call([argument.replace("RUN", str(run)) for argument in EVAL])
    assert contents(tmp_path / "outside") == before
    if name == "config.json":
        assert code == 2
    else:
        assert code == 0
        assert ("The checkpoint before it is used." in said) == name.startswith("checkpoints")
    with (
        bounded(),
        contextlib.suppress(PhasegradError),
        pytest.warns() if code == 0 and said else contextlib.nullcontext(),
    ):
        assert pg.load(run).progress.step == (32 if name.startswith("checkpoints") else 48)


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "huge"])
@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "leg.safetensors"])
def test_a_saved_agent_is_what_it_seems(original: Path, tmp_path: Path, name: str, kind: str) -> None:
    pg.load(original).save(tmp_path / "agent")
    (tmp_path / "mine").symlink_to(tmp_path / "agent")  # the folder itself is the user's
    assert pg.load(tmp_path / "mine").progress.step == 48
    put(kind, tmp_path / "agent" / name, tmp_path / "outside")
    before = contents(tmp_path / "outside")
    with bounded(), pytest.raises(RunError) as error:
        pg.load(tmp_path / "mine")
    assert f"{name} is " in str(error.value)
    assert contents(tmp_path / "outside") == before


@pytest.mark.parametrize("name", ["checkpoints", "steps", "metrics.jsonl", "result.json"])
def test_what_is_exchanged_for_a_link_while_it_trains_is_not_followed(tmp_path: Path, name: str) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    states: list[dict[str, Any]] = []

    def exchange(row: dict[str, Any]) -> None:
        if row["step"] == 48:
            outside.mkdir()
            if (run / name).exists():
                shutil.move(run / name, outside / name)
            else:
                (outside / name).write_text("the user's own")
            (run / name).symlink_to(outside / name)
            states.append(contents(outside))

    agent = pg.PPG("CartPole-v1", run_dir=run, **SMALL)
    if name in ("checkpoints", "steps"):
        with pytest.raises(RunError, match=f"{name} is a link, not a folder"):
            agent.learn(128, callback=exchange)
    else:
        agent.learn(128, callback=exchange)
    after = contents(outside)
    if name == "metrics.jsonl":  # the very file that the run had opened, which somebody moved, is still written
        assert after.keys() == states[0].keys()
    else:
        assert after == states[0]
    agent.close()


def test_the_run_directory_itself_may_be_a_link(tmp_path: Path, call: Called) -> None:
    """Whatever it is called: these are names that a run has of its own."""
    for name in ("run", "checkpoints", "videos", "segments"):
        (tmp_path / f"disk-{name}").mkdir()
        (tmp_path / name).symlink_to(tmp_path / f"disk-{name}")
        agent = pg.PPG("CartPole-v1", run_dir=tmp_path / name, **SMALL)
        agent.learn(128, callback=lambda row: row["step"] < 48).close()
        assert call(["resume", str(tmp_path / name), "--quiet"])[0] == 0
        assert call(["report", str(tmp_path / name)])[0] == 0
        assert (tmp_path / f"disk-{name}" / "report.html").is_file()
        agent.save(tmp_path / name / "agent")
        assert pg.load(tmp_path / name / "agent").progress.step == 48


# What the user names to be written

OUTPUTS = {
    "page.html": ["report", "RUN", "--out", "NAMED"],
    "curve.csv": ["plot", "RUN", "--out", "NAMED"],
    "curve.png": ["plot", "RUN", "--out", "NAMED"],
    "steps.npz": ["eval", "RUN", "--episodes", "1", "--save-steps", "NAMED"],
    "film.mp4": ["video", "RUN", "--max-steps", "3", "--out", "NAMED"],
    "policy.onnx": ["export", "RUN", "--onnx", "NAMED"],
    "bench.json": ["bench", "none", "--out", "NAMED"],
}


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_do_not_replace_what_is_no_file(
    original: Path, tmp_path: Path, call: Called, name: str, kind: str
) -> None:
    put(kind, tmp_path / name, tmp_path / "outside")
    before = (tmp_path / name).lstat()
    code, said = call([a.replace("RUN", str(original)).replace("NAMED", str(tmp_path / name)) for a in OUTPUTS[name]])
    assert code == 2
    assert name in said
    assert " is a " in said
    after = (tmp_path / name).lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert {path.name for path in tmp_path.iterdir()} == {name, "outside"}


@pytest.mark.parametrize("name", ["page.html", "curve.csv", "curve.png", "steps.npz", "film.mp4"])
def test_a_link_that_the_user_names_stays_and_its_file_is_written(
    original: Path, tmp_path: Path, call: Called, name: str
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "disk" / name)
    command = [a.replace("RUN", str(original)).replace("NAMED", str(tmp_path / name)) for a in OUTPUTS[name]]
    for _ in range(2):  # to nowhere, then to a file
        assert call(command)[0] == 0
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "disk" / name).stat().st_size > 100
        assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("kind", KINDS)
def test_demonstrations_are_read_from_files_alone(tmp_path: Path, call: Called, kind: str) -> None:
    (tmp_path / "steps.npz").write_bytes(b"")
    put(kind, tmp_path / "steps.npz", tmp_path / "outside")
    code, said = call(
        [
            "clone",
            "ppo",
            "--env",
            "CartPole-v1",
            "--data",
            str(tmp_path / "steps.npz"),
            "--run-dir",
            str(tmp_path / "x"),
        ]
    )
    assert code == 2
    assert "steps.npz" in said


# A study's folder, and a search's


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "folder"])
@pytest.mark.parametrize("name", [".lock", "study.json", "page.json", "table.md", "report.html", "logs", "runs"])
def test_a_study_is_written_into_its_folder_alone(tmp_path: Path, call: Called, name: str, kind: str) -> None:
    (tmp_path / "small.toml").write_text(
        'title = "Small"\nabout = "A small one"\nsteps = 32\nseeds = [1]\nscore = "last100"\n'
        'environments = [{ env = "CartPole-v1" }]\n'
        '[variants.ppo]\nalgorithm = "ppo"\nnum_envs = 2\nnum_steps = 8\nnum_minibatches = 2\n'
    )
    root = tmp_path / "study"
    root.mkdir()
    if name in ("logs", "runs"):
        (root / name).mkdir()
    put(kind, root / name, tmp_path / "outside")
    before = contents(tmp_path / "outside"), (root / name).lstat().st_mtime_ns
    code, said = call(["study", str(tmp_path / "small.toml"), "--dir", str(root), "--quiet", "--jobs", "1"])
    assert code == 2
    assert name in said
    assert (contents(tmp_path / "outside"), (root / name).lstat().st_mtime_ns) == before
    assert call(["watch", str(root), "--once"])[0] == 2
    assert (contents(tmp_path / "outside"), (root / name).lstat().st_mtime_ns) == before


@pytest.mark.parametrize("kind", ["link", "loose link", "pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["logs/cart/ppo/s1.log", "logs/cart", "runs/cart", "runs/cart/ppo/s1"])
def test_a_run_of_a_study_writes_below_it_alone(tmp_path: Path, name: str, kind: str) -> None:
    root = tmp_path / "study"
    run: Any = SimpleNamespace(log=root / "logs/cart/ppo/s1.log", folder=root / "runs/cart/ppo/s1")
    run.folder.mkdir(parents=True)
    run.log.parent.mkdir(parents=True)
    run.log.write_text("$ train\n")
    put(kind, root / name, tmp_path / "outside")
    before = contents(tmp_path / "outside")
    with bounded():
        outcome = execute(run)
        standing = Standing(RunPlace("cart", "ppo", 1, run.folder, run.log, 64), "eval").look()
    assert outcome.status == "failed"
    assert f"{name} is a" in outcome.message
    assert standing.state in ("failed", "waiting", "starting")
    assert contents(tmp_path / "outside") == before


@pytest.mark.parametrize("kind", ["link", "loose link", "pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["trials.log", "best.json", "trials.json", "report.html"])
def test_a_search_is_written_into_its_folder_alone(tmp_path: Path, call: Called, name: str, kind: str) -> None:
    pytest.importorskip("optuna")
    root = tmp_path / "search"
    root.mkdir()
    put(kind, root / name, tmp_path / "outside")
    before = contents(tmp_path / "outside")
    code, said = call(
        ["tune", "ppo", "--env", "CartPole-v1", "--dir", str(root), "--trials", "1", "--total-steps", "64"]
    )
    assert code == 2
    assert name in said
    assert contents(tmp_path / "outside") == before
