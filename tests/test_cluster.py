"""Fleets on Ray: a local cluster of two workers, one of them killed, gives the table of the local pool; so do stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from phasegrad.cli.main import main
from phasegrad.errors import ConfigError, RunError
from phasegrad.runs.directory import RunDirectory, step_of
from phasegrad.runs.lock import LOCK, Lock, is_held
from phasegrad.studies import cluster as clusters
from phasegrad.studies import cluster_runs, command
from phasegrad.studies.cluster import Ended
from phasegrad.studies.cluster_place import Place, parse_place
from phasegrad.studies.definition import load_study
from phasegrad.studies.grid import build_grid
from phasegrad.studies.progress import StudyDisplay, latest
from phasegrad.studies.runner import Outcome, Stop, StudyStopped
from phasegrad.studies.selection import select
from phasegrad.tune import cluster_trials, tuning
from phasegrad.tune.search import INTERRUPTED, Search, ended_trials
from phasegrad.versions import __version__

STUDY = """
title = "Small"
steps = 6_144
seeds = [1, 2]
score = "last100"
environments = [{ env = "CartPole-v1", low = 0, high = 500 }]
[fields]
compile = "off"
num_envs = 4
num_steps = 32
num_minibatches = 1
epochs = 1
checkpoint_every = 1024
[variants.slow]
learning_rate = 3e-4
[variants.fast]
learning_rate = 3e-3
"""
PATIENCE = 300.0  # of a machine with much else to do


def until(true: Callable[[], Any], process: subprocess.Popen[Any] | None = None) -> Any:
    """What `true` gives when it first is so."""
    deadline = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None
        time.sleep(0.01)
    return found


def is_gone(pid: int) -> bool:
    """No such process, or one that only waits to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# What needs no cluster


@pytest.mark.parametrize(
    ("cluster", "address"),
    [("ray", ""), ("ray://head:10001", "ray://head:10001"), ("ray:10.0.0.1:6379", "10.0.0.1:6379")],
)
def test_addresses(cluster: str, address: str) -> None:
    assert parse_place(cluster, None, None) == Place(address, 1, 0)
    assert parse_place(None, None, None) is None


@pytest.mark.parametrize("verb", [["study", "control", "--dry-run"], ["tune", "--env", "CartPole-v1"]])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster", "dask"], "--cluster takes ray, ray://HOST:10001 or ray:HOST:PORT, not 'dask'."),
        (["--cluster", "ray://head"], "not 'ray://head'"),
        (["--cluster", "ray", "--cpus-per-run", "1.5"], "--cpus-per-run must be a whole number, or a share"),
        (["--cluster", "ray", "--cpus-per-run", "0"], "--cpus-per-run must be"),
        (["--cluster", "ray", "--gpus-per-run", "nan"], "--gpus-per-run must be"),
        (["--gpus-per-run", "1"], "--gpus-per-run is what a run takes of a cluster: it needs --cluster."),
    ],
)
def test_mistakes_get_one_sentence(
    verb: list[str], arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb, *arguments, "--dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_an_address_where_nobody_is_gets_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        file = tmp_path / "small.toml"
        file.write_text(STUDY)
        for cluster in (f"ray:{address}", f"ray://{address}"):
            assert main(["study", str(file), "--dir", str(tmp_path / "out"), "--cluster", cluster, "--quiet"]) == 2
            error = capsys.readouterr().err
            assert "No Ray cluster answers at " in error
            assert error.count("\n") == 1


def test_without_ray_the_option_says_what_to_install_and_the_local_pool_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    pooled: list[int] = []

    def run_locally(runs: Any, jobs: int, display: StudyDisplay, keep_open: Any, ended: Any) -> list[Outcome]:
        pooled.extend([len(runs), jobs])
        return [Outcome(run, "failed", "pretended") for run in runs]

    monkeypatch.setattr(command, "run_locally", run_locally)
    file = tmp_path / "small.toml"
    file.write_text(STUDY)
    arguments = ["--cluster", "ray://head:10001", "--quiet"]
    assert main(["study", str(file), "--dir", str(tmp_path / "out"), "--jobs", "3", *arguments]) == 1
    assert pooled == [4, 3]
    assert 'pip install "phasegrad[cluster]"' in capsys.readouterr().err.splitlines()[0]
    search = ["--env", "CartPole-v1", "--trials", "1", "--steps", "512", "--dir", str(tmp_path / "search")]
    assert main(["tune", *search, *arguments]) == 0
    printed = capsys.readouterr()
    assert 'pip install "phasegrad[cluster]"' in printed.err
    assert "1 complete" in printed.out


def test_a_node_that_cannot_take_part_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = clusters._portable()
    monkeypatch.setattr(clusters, "SECONDS_TO_SEE", 0.0)
    monkeypatch.setattr(sys, "path", list(sys.path))
    here = [sys.path, os.getcwd()]
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda reference: reference))
    payload = [(str(tmp_path), "token", "os.path:samefile", ())]
    status, sentence = work(*here, __version__, payload)
    assert (status, f"Node {socket.gethostname()} does not see {tmp_path}" in sentence) == ("unusable", True)
    (tmp_path / clusters.MARKER).write_text("of another study")
    assert work(*here, __version__, payload)[0] == "unusable"
    status, sentence = work(*here, "0.0", payload)
    assert (status, f"has phasegrad {__version__}, not 0.0" in sentence) == ("unusable", True)
    monkeypatch.setitem(sys.modules, "phasegrad.studies.cluster", None)
    status, sentence = work(*here, __version__, payload)
    assert (status, "cannot run phasegrad" in sentence) == ("unusable", True)


def test_the_next_attempt_waits_for_the_lock_of_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.toml"
    file.write_text(STUDY)
    run = build_grid(load_study(str(file)), tmp_path, {})[0]
    run.folder.mkdir(parents=True)
    lock = Lock(run.folder)
    assert is_held(run.folder)
    seen: list[bool] = []

    def execute(*_: Any, bound: bool) -> Outcome:
        seen.extend([is_held(run.folder), bound])
        return Outcome(run, "finished")

    monkeypatch.setattr(cluster_runs, "execute", execute)
    timer = threading.Timer(0.5, lock.release)
    timer.start()
    began = time.monotonic()
    assert cluster_runs.run_in_worker(Stop(), run) == ("finished", "")
    assert time.monotonic() - began >= 0.4
    assert seen == [False, True]
    timer.join()


def test_a_bound_process_dies_with_its_parent() -> None:
    bound = [sys.executable, "-m", "phasegrad.cli.bound_process"]
    assert subprocess.run([*bound, str(os.getpid()), "--version"], timeout=60).returncode == 0
    orphan = subprocess.run([*bound, str(2**22 + 1), "--version"], timeout=60, capture_output=True)  # no such parent
    assert (orphan.returncode, orphan.stdout) == (-signal.SIGKILL, b"")


def test_a_worker_dies_with_its_node_while_it_has_a_task() -> None:
    child = (
        "from phasegrad.machine.orphans import dying_with_parent as d\nwith d(): print(flush=True); input()\ninput()"
    )
    start = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); print(p.pid, flush=True)"
    node = subprocess.Popen(
        [sys.executable, "-c", f"{start}; p.wait()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with node:
        assert node.stdout
        worker = int("".join(node.stdout.readline() for _ in range(2)))  # its number, and its sign that it is at work
        node.kill()
        until(lambda: is_gone(worker))


class Pretended:
    """A cluster in this process: what is submitted runs when it is waited for; `endings` replace what comes of it."""

    def __init__(self, room: int, endings: dict[int, Ended]) -> None:
        self.places, self.endings, self.submitted, self.most = room, endings, 0, 0
        self.tasks: dict[int, Any] = {}

    def capacity(self) -> int:
        return self.places

    def shared(self, folder: Path) -> Any:
        return tempfile.TemporaryDirectory()

    def submit(self, function: str, *arguments: Any) -> int:
        self.submitted += 1
        self.tasks[self.submitted] = arguments
        self.most = max(self.most, len(self.tasks))
        return self.submitted

    def wait(self, references: Any, seconds: float) -> list[int]:
        return [next(iter(references))]

    def result(self, reference: int) -> Ended:
        arguments = self.tasks.pop(reference)
        return self.endings.get(reference) or Ended("done", cluster_trials.try_in_worker(Stop(), *arguments))

    def stop(self, references: Any, stop: Stop) -> dict[int, Ended]:
        return {reference: Ended("cancelled") for reference in references}


def test_lost_trials_count_as_failed_and_stopped_ones_are_tried_again(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    lines: list[str] = []
    search = Search(optuna, "CartPole-v1", "ppo", 512, tmp_path, 1, {}, lines.append)
    pretended: Any = Pretended(2, {2: Ended("lost", message="its worker was lost")})
    study = search.open_study(4)
    cluster_trials.run_trials(search, study, 4, pretended, None)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert "trial 2: failed: its worker was lost" in lines[1]
    assert (pretended.submitted, pretended.most) == (4, 2)
    # A node that cannot take part ends the search; what was under way is open for the next one.
    broken: Any = Pretended(2, {})

    def result(reference: int) -> Ended:
        raise RunError("Node x does not see the folder.")

    broken.result = result
    with pytest.raises(RunError, match="Node x"):
        cluster_trials.run_trials(search, study, 6, broken, None)
    interrupted = [trial.params for trial in study.trials if INTERRUPTED in trial.user_attrs]
    assert len(interrupted) == 2
    study = search.open_study(6)
    cluster_trials.run_trials(search, study, 6, Pretended(2, {}), 1)  # type: ignore[arg-type]
    assert len(ended_trials(study)) == 6
    assert [trial.params for trial in study.trials[-2:]] == interrupted
    # A trial is a function of its settings and number, wherever it runs.
    alone = tuning.tune("CartPole-v1", trials=1, steps=512, folder=tmp_path / "alone")
    assert alone.best_return == study.trials[0].value


def test_a_stop_ends_what_is_under_way(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(STUDY)
    runs = build_grid(load_study(str(file)), tmp_path, {})
    stopped: list[int] = []
    pretended: Any = Pretended(2, {})
    pretended.wait = lambda references, seconds: os.kill(os.getpid(), signal.SIGTERM) or []
    pretended.stop = lambda references, stop: stopped.append(len(references))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StudyStopped) as caught:
        cluster_runs.run_on_cluster(pretended, runs, 3, StudyDisplay(runs, 0), tmp_path)
    assert (caught.value.number, stopped) == (signal.SIGTERM, [3])
    assert signal.getsignal(signal.SIGTERM) == before


def test_too_large_a_share_is_refused() -> None:
    class Small:
        def nodes(self) -> list[dict[str, Any]]:
            return [
                {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
                {"Alive": False, "Resources": {"CPU": 64.0}},
            ]

        def remote(self, function: Any) -> Any:
            return type("Remote", (), {"options": lambda self, **_: self})()

    for cpus, gpus, room in ((1, 0, 4), (3, 0, 1), (0.5, 0.25, 4), (1, 1, 1), (8, 0, 0)):
        cluster = clusters.Cluster(Small(), Place("", cpus, gpus), origin="started")
        assert cluster.capacity() == room
    with pytest.raises(ConfigError, match="no room for a run with 8 CPUs and 0 GPUs"):
        cluster.describe()


@pytest.mark.parametrize("asked", [1, 2])
def test_tasks_are_stopped_in_order_first(asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "SECONDS_TO_KILL", 0.3)
    monkeypatch.setattr(clusters, "SECONDS_TO_STOP", 30.0)

    class Ray:
        """Two tasks that end when they are cancelled; the second only by force."""

        exceptions = type("Exceptions", (), dict.fromkeys(("TaskCancelledError", "RayTaskError", "RayError"), OSError))
        ended: list[str] = []  # noqa: RUF012 - of this class alone
        cancelled: list[tuple[str, bool]] = []  # noqa: RUF012

        def remote(self, function: Any) -> Any:
            return type("Remote", (), {"options": lambda self, **_: self})()

        def cancel(self, reference: str, force: bool = False) -> None:
            self.cancelled.append((reference, force))
            if force or reference == "first":
                self.ended.append(reference)

        def wait(self, references: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
            found = [reference for reference in references if reference in self.ended]
            if not found:
                time.sleep(timeout)
                if asked == 2:
                    stop.ask(signal.SIGTERM)
                elif len(self.ended) == 1:  # it takes its time, but ends by itself
                    self.ended.append("second")
            return found[:1], []

        def get(self, reference: str) -> tuple[str, str]:
            return "done", reference

    ray, stop = Ray(), Stop()
    stop.ask(signal.SIGTERM)
    began = time.monotonic()
    ended = clusters.Cluster(ray, Place("", 1, 0), "joined").stop(["first", "second"], stop)
    assert {reference: result.value for reference, result in ended.items()} == {"first": "first", "second": "second"}
    assert sorted(ray.cancelled) == sorted([("first", False), ("second", False)] + [("second", True)] * (asked == 2))
    assert time.monotonic() - began < 10  # not the half minute of a stop in order


@pytest.mark.parametrize(
    ("address", "answers", "origin"),
    [
        ("head:1", [None], "joined"),
        ("", [None], "started"),
        ("", [ValueError("there is one"), None], "joined"),
        ("", [ValueError("there is one"), ConnectionError("that has died"), None], "started"),
    ],
)
def test_a_cluster_is_joined_where_there_is_one(
    address: str, answers: list[Any], origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ray:
        calls: list[dict[str, Any]] = []  # noqa: RUF012 - of this class alone

        def is_initialized(self) -> bool:
            return not answers

        def init(self, **options: Any) -> None:
            self.calls.append(options)
            if (answer := answers.pop(0)) is not None:
                raise answer

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = Ray()
    assert clusters._initialise(ray, address) == origin
    assert ("num_cpus" in ray.calls[-1]) == (origin == "started")  # Ray refuses it for one that is there
    assert ray.calls[-1].get("address") == (address or ("local" if len(ray.calls) == 3 else None))
    assert clusters._initialise(ray, address) == "found"  # the caller's own: neither opened nor closed


# A real cluster


class Local(NamedTuple):
    plain: str
    client: str
    environment: dict[str, str]


def environment_of(folder: str) -> dict[str, str]:
    """For a cluster and those who join it: its folder, and a token that nobody else has."""
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "RAY_TMPDIR": folder}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    environment.pop("RAY_ADDRESS", None)
    return environment


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    """A cluster of two workers on ports and in a folder of its own, asking for a token of its own."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="pg-", dir="/tmp")  # short: a socket's path has 107 characters
    ports: list[int] = []
    with socket.socket() as one, socket.socket() as two:
        for free in (one, two):
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    environment = environment_of(folder)
    options = {"port": ports[0], "ray-client-server-port": ports[1], "num-cpus": 2}
    options |= {"include-dashboard": "false", "object-store-memory": 80 * 2**20, "node-ip-address": "127.0.0.1"}
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    with open(Path(folder, "start.log"), "wb") as log:
        head = subprocess.Popen(
            [*start, *(f"--{name}={value}" for name, value in options.items())],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        until(lambda: b"block forever" in Path(folder, "start.log").read_bytes(), head)
        yield Local(f"ray:127.0.0.1:{ports[0]}", f"ray://127.0.0.1:{ports[1]}", environment)
    finally:
        head.terminate()
        head.wait(timeout=60)
        until(lambda: not processes_of(folder))
        shutil.rmtree(folder)


def processes_of(folder: str) -> list[int]:
    """Those that were started for the cluster: its folder is in their arguments or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if folder.encode() in told and not is_gone(int(entry.name)):
                found.append(int(entry.name))
    return found


def phasegrad(local: Local, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "phasegrad", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=local.environment,
    )


class Pooled(NamedTuple):
    file: Path
    folder: Path


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Pooled:
    """The study in the local pool: what the cluster must give too."""
    root = tmp_path_factory.mktemp("pooled")
    (root / "small.toml").write_text(STUDY)
    assert main(["study", str(root / "small.toml"), "--dir", str(root / "out"), "--jobs", "2", "--quiet"]) == 0
    return Pooled(root / "small.toml", root / "out")


def scores(folder: Path) -> list[dict[str, Any]]:
    rows = json.loads((folder / "table.json").read_text())["runs"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def writer(run: Path) -> int:
    """The process that trains a run which has a checkpoint and a good part before it, or 0."""
    try:
        steps = 128 * (run / "metrics.jsonl").read_text().count("\n")
        return int((run / LOCK).read_text().split()[0]) if 1024 < steps < 6144 else 0
    except (OSError, ValueError, IndexError):
        return 0


def test_a_study_that_loses_a_worker_gives_the_table_of_the_local_pool(
    local: Local, pooled: Pooled, tmp_path: Path
) -> None:
    lose_a_worker(local, pooled, tmp_path / "out")
    search(local, tmp_path / "search")  # here, for each test may be in a process of its own and start a cluster


def lose_a_worker(local: Local, pooled: Pooled, folder: Path) -> None:
    process = phasegrad(local, "study", str(pooled.file), "--dir", str(folder), "--cluster", local.plain)
    run = folder / "runs" / "CartPole-v1" / "slow" / "s1"
    training = until(lambda: writer(run), process)
    worker = parent(training)
    assert b"ray::" in Path(f"/proc/{worker}/cmdline").read_bytes()
    os.kill(worker, signal.SIGKILL)
    until(lambda: is_gone(training))  # the run does not train on behind the next attempt's back
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err
    assert (folder / "table.md").read_bytes() == (pooled.folder / "table.md").read_bytes()
    assert scores(folder) == scores(pooled.folder)
    assert all(row["status"] == "finished" and row["score"] for row in scores(folder))
    log = (folder / "logs" / "CartPole-v1" / "slow" / "s1.log").read_text()
    assert log.count(f"$ # on {socket.gethostname()}\n") == 2
    assert log.count("phasegrad train") == log.count("phasegrad resume") == 1
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(128, 6_144 + 1, 128))
    # The console is that of the local pool, and Ray does not clutter it.
    lines = out.splitlines()
    assert lines[0] == "Ray cluster joined: 1 node, room for 2 at a time"
    assert sorted(line.split(",")[0] for line in lines if line.startswith(("started", "finished"))) == sorted(
        f"{word} CartPole-v1 {variant} seed {seed}"
        for word in ("started ", "finished")
        for variant in ("slow", "fast")
        for seed in (1, 2)
    )
    assert "raylet" not in out
    assert err == ""
    assert not (folder / clusters.MARKER).exists()


def search(local: Local, folder: Path) -> None:
    pytest.importorskip("optuna")
    arguments = ["--env", "CartPole-v1", "--trials", "3", "--steps", "512", "--dir", str(folder)]
    for _ in range(3):
        process = phasegrad(local, "tune", *arguments, "--cluster", local.client)
        out, err = process.communicate(timeout=PATIENCE)
        if "The Ray cluster" not in err:  # its proxy gives a client 30 seconds to start, which a busy machine exceeds
            break
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[0] == "Ray cluster joined: 1 node, room for 2 at a time"
    assert "best return" in out
    rows = json.loads((folder / "trials.json").read_text())
    assert [row["state"] in ("complete", "pruned") for row in rows] == [True] * 3
    alone = tuning.tune("CartPole-v1", trials=1, steps=512, folder=folder / "alone")
    assert rows[0]["return"] == alone.best_return


def test_a_stopped_study_on_a_cluster_leaves_runs_that_can_go_on_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    file, folder = tmp_path / "small.toml", tmp_path / "out"
    file.write_text(STUDY)
    temporary = tempfile.mkdtemp(prefix="pg-", dir="/tmp")
    own = Local("ray", "", environment_of(temporary))  # there is none, so one is started
    steps = 400_000  # more than it takes until the signal arrives
    one = ["--seeds", "1", "--variants", "fast", "--steps", str(steps)]
    process = phasegrad(own, "study", str(file), "--dir", str(folder), *one, "--cluster", own.plain)
    (run,) = build_grid(select(load_study(str(file)), seeds="1", variants="fast", steps=str(steps)), folder, {})
    training = until(lambda: writer(run.folder), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "phasegrad: stopped with 0 of 1 runs done; the same command continues.\n")
    assert out.startswith("Ray cluster started: 1 node, room for ")
    assert is_gone(training)
    assert "stopping after this iteration with a checkpoint" in run.log.read_text()
    assert run.state() == "unfinished"
    reached = latest(run)[0]
    assert 0 < reached < steps
    assert step_of(RunDirectory(run.folder).checkpoints()[-1]) == reached  # nothing of what was trained is lost
    until(lambda: not processes_of(temporary))
    shutil.rmtree(temporary)
