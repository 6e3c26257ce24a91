"""What goes wrong around a run (disks, signals, environments, numbers) ends in one sentence and loses nothing saved."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import misbehaving_envs as bad
import numpy as np
import pytest
import safetensors.torch
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import phasegrad as pg
from phasegrad.algorithms.base import Algorithm
from phasegrad.cli.main import main
from phasegrad.compute.plain import PlainSteps
from phasegrad.envs import make
from phasegrad.errors import EnvError, NonFiniteError, PhasegradWarning, RunError
from phasegrad.runs import checkpoint, files, session, stopping
from phasegrad.runs.directory import RunDirectory
from phasegrad.runs.lock import Lock
from phasegrad.runs.metrics import read_metrics

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,),
    "compile": "off", "seed": 3, "checkpoint_every": 128, "normalize_reward": True,
}  # fmt: skip
PHASES: dict[str, Any] = {k: v for k, v in SMALL.items() if k != "epochs"} | {
    "n_pi": 4,
    "e_aux": 1,
    "aux_minibatches": 4,
}


def ppo(run: Path | None = None, **fields: Any) -> pg.PPO:
    return pg.PPO(fields.pop("env", "CartPole-v1"), run_dir=run, **{**SMALL, **fields})


def same(first: Algorithm, second: Algorithm) -> None:
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name
    assert first.progress == second.progress


def sentence(error: BaseException) -> str:
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    return text


# The disk


AGAIN = ("fsync", "replace", "open", "write")  # what writing a checkpoint over one of the same step uses
ANEW = ("fsync", "rename", "open", "mkdir", "write")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell starts background jobs with Ctrl-C ignored; these tests are about what happens where it is not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Makes the `count`-th use of a system call fail with a full disk; 0 never."""

    def arrange(place: str, count: int) -> None:
        left = [count]

        def fails(*_: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        if place == "write":
            whole = files.write_synced

            def half(path: Path, payload: bytes) -> None:
                if left[0] == 1:
                    path.write_bytes(payload[: len(payload) // 2])
                fails()
                whole(path, payload)

            monkeypatch.setattr(files, "write_synced", half)
            monkeypatch.setattr(checkpoint, "write_synced", half)
            return
        owner: Any = Path if place == "mkdir" else os
        real = getattr(owner, place)

        def call(*args: Any, **kwargs: Any) -> Any:
            fails()
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, place, call)

    return arrange


@pytest.mark.parametrize("place", AGAIN)
def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    place: str, failing: Callable[[str, int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each system call of the writer fails in turn; after each, what was saved before can be read, and nothing strays."""
    agent = ppo().learn(64)
    path = tmp_path / "checkpoints" / "step-000000000064"
    checkpoint.write_checkpoint(path, agent, checkpoint.saved_legs(agent))
    failed = 0
    for count in range(1, 30):
        before = {name: tensor.clone() for name, tensor in pg.load(path).tensors().items()}
        agent.flat.data += 1
        failing(place, count)
        try:
            checkpoint.write_checkpoint(path, agent, checkpoint.saved_legs(agent))
        except RunError as error:
            failed += "could not be written: No space left on device; make room" in sentence(error)
            allowed = [before, agent.tensors()]  # the last calls come after the rename: then the new one stands
        else:
            allowed = [agent.tensors()]
        monkeypatch.undo()
        visible = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
        assert visible == [path.name]
        found = pg.load(path).tensors()
        assert any(all(torch.equal(tensor, wanted[name]) for name, tensor in found.items()) for wanted in allowed)
        if len(allowed) == 1:
            break
    checkpoint.write_checkpoint(path, agent, checkpoint.saved_legs(agent))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "the next write takes strays away"
    assert failed >= 1, "the writer does not use this call: the test is void"
    assert failed < 29


@pytest.mark.parametrize("place", ANEW)
def test_a_new_checkpoint_that_cannot_be_written_leaves_nothing(
    place: str, failing: Callable[[str, int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ppo().learn(64)
    failed = 0
    for count in range(1, 30):
        path = tmp_path / str(count) / "step-000000000064"
        failing(place, count)
        try:
            checkpoint.write_checkpoint(path, agent, checkpoint.saved_legs(agent))
        except RunError as error:
            failed += "could not be written: No space left on device; make room" in sentence(error)
        else:
            break
        finally:
            monkeypatch.undo()
        if path.exists():  # the last call comes after the rename
            same(agent, pg.load(path))
        assert not list(tmp_path.rglob("*.tmp"))
    same(agent, pg.load(path))
    assert 1 <= failed < 29


def test_a_full_disk_stops_the_run_and_the_last_checkpoint_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ppo(tmp_path / "whole").learn(512)
    count = [0]

    def full(path: Path, payload: bytes) -> None:
        count[0] += path.name == "state.safetensors"
        if count[0] == 3:
            path.write_bytes(payload[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        files.write_synced(path, payload)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write_synced", full)
        with pytest.raises(RunError, match="step-000000000384 could not be written: No space left on device"):
            ppo(tmp_path / "run").learn(512)
    assert [p.name for p in sorted((tmp_path / "run" / "checkpoints").iterdir())] == [
        "step-000000000128", "step-000000000256",
    ]  # fmt: skip
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    same(whole, pg.load(tmp_path / "run"))


def test_metrics_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ppo(tmp_path / "run")

    def fill(row: dict[str, Any]) -> None:
        if row["step"] == 192:
            os.dup2(os.open("/dev/full", os.O_WRONLY), handle[0])

    handle = [0]

    class Watched(session.MetricsFile):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            handle[0] = self.file.fileno()

    monkeypatch.setattr(session, "MetricsFile", Watched)
    with pytest.raises(RunError, match=r"metrics\.jsonl could not be written: No space left on device"):
        agent.learn(512, callback=fill)
    assert pg.load(tmp_path / "run").progress.step == 128


def test_strays_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    ppo(tmp_path / "run").learn(128)
    stray = tmp_path / "run" / "checkpoints" / ".step-000000000256.999.tmp"
    stray.mkdir()
    (stray / "state.safetensors").write_bytes(b"half")
    (tmp_path / "run" / ".config.json.999.tmp").write_text("{")
    assert pg.load(tmp_path / "run").progress.step == 128
    pg.load(tmp_path / "run").learn(256)
    assert not list((tmp_path / "run").rglob("*.tmp"))


# TensorBoard


def test_tensorboard_shows_each_step_once_after_kills(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def copy(row: dict[str, Any]) -> None:
        if row["step"] == 320:
            shutil.copytree(whole, killed)

    ppo(whole).learn(512, callback=copy)
    pg.load(killed).learn(384, callback=lambda row: row["step"] < 320)
    pg.load(killed).learn(512)
    for run in (whole, killed):
        events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
        events.Reload()
        rows = read_metrics(run / "metrics.jsonl")
        for tag, name in (("train/policy_loss", "policy_loss"), ("rollout/episodes", "episodes")):
            shown = [(event.step, event.value) for event in events.Scalars(tag)]
            assert shown == [(row["step"], pytest.approx(row[name])) for row in rows]
        assert [row["step"] for row in rows] == [*range(64, 513, 64)]


# Signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_with_a_checkpoint_inside_the_leg(
    number: int, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = ppo(tmp_path / "whole").learn(512)
    agent = ppo(tmp_path / "run")
    error_type = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(error_type) as stopped:
        agent.learn(512, callback=lambda row: signal.raise_signal(number) if row["step"] == 192 else None)
    error: Any = stopped.value
    assert error.exit_code == code
    assert sentence_of(error) == (
        f"stopped at step 192 with a checkpoint; `phasegrad resume {tmp_path / 'run'}` continues as if it had never stopped."
    )
    assert "stopping after this iteration with a checkpoint; a second Ctrl-C stops at once." in capfd.readouterr().err
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler), "the handlers are given back"
    assert not (tmp_path / "run" / "result.json").exists()
    loaded = pg.load(tmp_path / "run")
    assert loaded.progress.step == 192
    assert loaded.evaluate(2).lengths
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    same(whole, pg.load(tmp_path / "run"))
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [*range(64, 513, 64)]


def sentence_of(error: Any) -> str:
    assert error.sentence.endswith(".")
    return error.sentence


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    agent = ppo(tmp_path / "run")
    collect = agent.collect

    def twice(*args: Any, **kwargs: Any) -> Any:
        if agent.progress.step == 192:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return collect(*args, **kwargs)

    agent.collect = twice  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt) as stopped:
        agent.learn(512)
    assert "stopped at once. The last good checkpoint is that of step 128" in sentence_of(stopped.value)
    assert pg.load(tmp_path / "run").progress.step == 128


def test_an_iteration_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "GRACE_SECONDS", 0.2)
    agent = ppo(tmp_path / "run")

    def slow() -> Iterator[dict[str, float]]:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(30)
        yield {}

    agent.iterations = slow  # type: ignore[method-assign]
    begun = time.monotonic()
    with pytest.raises(SystemExit) as stopped:
        agent.learn(512)
    assert time.monotonic() - begun < 10
    assert "There is no checkpoint yet." in sentence_of(stopped.value)


def test_signals_are_left_alone_without_a_run_directory_or_outside_the_main_thread(tmp_path: Path) -> None:
    seen = []
    ppo().learn(64, callback=lambda row: seen.append(signal.getsignal(signal.SIGINT)))
    thread = threading.Thread(target=lambda: ppo(tmp_path / "run").learn(64, callback=lambda row: seen.append(None)))
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler, None]
    assert pg.load(tmp_path / "run").progress.step == 64


@pytest.mark.parametrize("fields", [PHASES, PHASES | {"checkpoint_every": 0}], ids=["inside-phase", "phases"])
@pytest.mark.parametrize("stop_at", [192, 320, 448])
def test_ppg_stopped_inside_a_phase_goes_on_with_its_buffer(
    fields: dict[str, Any], stop_at: int, tmp_path: Path
) -> None:
    whole = pg.PPG("CartPole-v1", run_dir=tmp_path / "whole", **fields).learn(640)
    agent = pg.PPG("CartPole-v1", run_dir=tmp_path / "run", **fields)
    agent.learn(640, callback=lambda row: row["step"] < stop_at)
    again = pg.load(shutil.copytree(tmp_path / "run", tmp_path / "copy"))
    same(agent, again)
    assert again.progress.step == stop_at
    for each in (agent, again):
        each.learn()
        same(whole, each)
    assert not (tmp_path / "run" / "segments").exists(), "the run is over"


# Segments


def test_segments_are_written_once_and_removed(tmp_path: Path) -> None:
    """With checkpoints inside a phase, each rollout of the buffer is written in one file, which stays as it is until it goes."""
    run = tmp_path / "run"
    seen: dict[str, tuple[int, int]] = {}
    most = [0]

    def look(row: dict[str, Any]) -> None:
        folder = run / "segments"
        found = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.iterdir()} if folder.exists() else {}
        for name, stamp in found.items():
            assert seen.setdefault(name, stamp) == stamp, "written again"
        most[0] = max(most[0], len(found))

    agent = pg.PPG("CartPole-v1", run_dir=run, **PHASES | {"n_pi": 8, "keep_checkpoints": 2}).learn(1536, callback=look)
    assert len(seen) >= 6
    assert most[0] <= 6, "those of an earlier phase go"
    assert not (run / "segments").exists()
    without = pg.PPG("CartPole-v1", **PHASES | {"n_pi": 8, "keep_checkpoints": 2}).learn(1536)
    same(agent, without)


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_a_damaged_segment_sends_the_run_back_a_checkpoint(damage: str, tmp_path: Path) -> None:
    fields = PHASES | {"n_pi": 8, "keep_checkpoints": 9}
    whole = pg.PPG("CartPole-v1", run_dir=tmp_path / "whole", **fields).learn(1024)
    run = tmp_path / "run"
    pg.PPG("CartPole-v1", run_dir=run, **fields).learn(1024, callback=lambda row: row["step"] < 384)
    newest = sorted((run / "segments").iterdir())[-1]
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    {
        "missing": newest.unlink,
        "cut": lambda: newest.write_bytes(content[:-9]),
        "flipped": lambda: newest.write_bytes(content),
    }[damage]()
    with pytest.warns(PhasegradWarning, match="The checkpoint before it is used"):
        resumed = pg.load(run)
    assert resumed.progress.step < 384
    same(whole, resumed.learn())


# Locks


def test_two_processes_cannot_write_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    ppo(run).learn(128)
    code = "import sys, time; from pathlib import Path; from phasegrad.runs.lock import Lock; Lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    owner = subprocess.Popen([sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        assert main(["resume", str(run), "--total-steps", "256", "--quiet"]) == 2
        said = capsys.readouterr().err
        assert f"is being written by the process {owner.pid}: wait for it, stop it, or use another --run-dir." in said
        assert main(["train", "ppo", "--env", "CartPole-v1", "--run-dir", str(run), "--overwrite", "--quiet"]) == 2
        assert (run / "config.json").exists(), "another's run is not deleted"
    finally:
        owner.kill()
        owner.wait()
    assert (run / ".lock").exists()
    pg.load(run).learn(256)  # the dead owner's lock does not hold
    assert not (run / ".lock").exists()


def test_a_lock_is_not_kept_alive_by_a_forked_child(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    with pytest.raises(RunError, match=f"being written by the process {os.getpid()}"):
        Lock(tmp_path)
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        lock.release()
        Lock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# The best by evaluation


def test_the_best_checkpoint_is_kept_and_evaluation_disturbs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ppo(tmp_path / "plain").learn(1024)
    agent = ppo(tmp_path / "run", eval_checkpoints=2, keep_checkpoints=1)
    agent.learn(1024)
    same(plain, agent)
    rows = {
        row["step"]: row["eval_return_mean"]
        for row in read_metrics(tmp_path / "run" / "metrics.jsonl")
        if "eval_return_mean" in row
    }
    assert list(rows) == [*range(128, 1025, 128)]
    best = max(rows, key=lambda step: rows[step])
    directory = RunDirectory(tmp_path / "run")
    assert directory.checkpoint("best") == directory.checkpoint(best)
    assert {int(p.name[5:]) for p in directory.checkpoints()} == {best, 1024}
    assert (
        main(["eval", str(tmp_path / "run"), "--checkpoint", "best", "--episodes", "2", "--deterministic", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["return_mean"] == rows[best]
    ppo(tmp_path / "without", eval_episodes=0).learn(1024)
    with pytest.raises(RunError, match="has no best checkpoint: train with eval_checkpoints set to keep one"):
        pg.load(tmp_path / "without", checkpoint="best")


# Mismatches


def test_a_changed_config_is_refused(tmp_path: Path) -> None:
    ppo(tmp_path / "run").learn(128)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"gamma": 0.5}))
    with pytest.raises(RunError, match=r"has gamma 0\.5, but the run was started with 0\.99: put it back"):
        pg.load(tmp_path / "run")
    path.write_text(json.dumps(config | {"total_steps": 256}))
    assert pg.load(tmp_path / "run").learn().progress.step == 256


def test_a_raised_total_survives_a_kill_before_the_next_checkpoint(tmp_path: Path) -> None:
    whole = ppo(tmp_path / "whole").learn(256).learn(512)
    ppo(tmp_path / "run").learn(256)
    agent = pg.load(tmp_path / "run")

    class Killed(BaseException): ...

    def die(row: dict[str, Any]) -> None:
        raise Killed

    with pytest.raises(Killed):
        agent.learn(512, callback=die)
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    same(whole, pg.load(tmp_path / "run"))


def test_a_longer_total_equals_one_run_where_the_checkpoints_fall_alike() -> None:
    same(ppo().learn(256).learn(512), ppo().learn(512))


def test_another_environment_is_refused(tmp_path: Path) -> None:
    ppo().learn(64).save(tmp_path / "agent")
    with pytest.raises(
        EnvError, match=r"The observation space of MountainCar-v0 is .* but this agent was trained with"
    ):
        pg.load(tmp_path / "agent", env="MountainCar-v0")


def test_another_version_is_told(tmp_path: Path) -> None:
    ppo().learn(64).save(tmp_path / "agent")
    path = tmp_path / "agent" / "state.json"
    state = json.loads(path.read_text())
    state["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(state))
    with pytest.warns(
        PhasegradWarning, match=r"was written with torch 1\.0 and is read with .* perhaps not bit for bit"
    ):
        pg.load(tmp_path / "agent")


# Environments


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (bad.Raising, r"Environment 0 \(seed \d+\) raised ZeroDivisionError on step 40: by nothing\."),
        (bad.Hanging, r"Environment 0 \(seed \d+\) took longer than the 0\.5 s of env_timeout on step 40\."),
        (bad.WrongShape, r"Environment 0 returned an observation of shape \(3,\)"),
        (bad.WrongDtype, "Environment 0 returned an observation of dtype"),
        (bad.WrongReward, r"Environment 0 gave the reward 'much' on step 40: it must be one number\."),
        (bad.ChangedSpaces, r"Environment 0 \(seed \d+\) changed its spaces"),
    ],
)
def test_a_misbehaving_environment_is_named_and_what_was_good_is_saved(
    kind: type[gym.Env], said: str, tmp_path: Path
) -> None:
    agent = ppo(tmp_path / "run", env=kind, env_timeout=0.5, checkpoint_every=10_000)
    with pytest.raises(EnvError, match=said) as error:
        agent.learn(512)
    assert f"The last good checkpoint is that of step 128 in {tmp_path / 'run'}." in sentence(error.value)
    assert pg.load(tmp_path / "run").progress.step == 128


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (bad.Raising, r"Environment \d \(seed \d+\) raised ZeroDivisionError on step 40: by nothing\."),
        (bad.Hanging, r"Environment 0 \(seed \d+\) took longer than the 1 s of env_timeout on step 40\."),
        (
            bad.Dying,
            r"The process of environment \d \(seed \d+\) died on step 40: it was ended by SIGKILL, as the kernel does where memory runs out\.",
        ),
    ],
)
def test_a_misbehaving_worker_is_named_and_none_stays(kind: type[gym.Env], said: str, tmp_path: Path) -> None:
    agent = ppo(tmp_path / "run", env=kind, vectorization="async", num_envs=2, env_timeout=1, checkpoint_every=10_000)
    workers = list(agent.experience.env._source.processes)  # type: ignore[union-attr]
    with pytest.raises(EnvError, match=said) as error:
        agent.learn(512)
    assert "The last good checkpoint is that of step 64" in sentence(error.value)
    assert not any(worker.is_alive() for worker in workers)


def test_a_worker_leaves_alone_what_its_parent_dropped() -> None:
    gc.collect()
    gc.disable()  # the native environment below is to be garbage when the workers are forked
    try:
        dropped = SimpleNamespace(env=make("HalfCheetah-v5", num_envs=2, seeds=[0, 1]))
        dropped.itself = dropped
        dropped.env.reset()
        del dropped
        env = make(bad.Collecting, num_envs=2, seeds=[0, 1], vectorization="async")
        for _ in range(5):
            step = env.step(np.zeros(2, np.int64))
        assert step.reward.tolist() == [1.0, 1.0]
        env.close()
        assert not gc.isenabled()  # as it was
    finally:
        gc.enable()


def test_workers_do_not_outlive_a_killed_run(tmp_path: Path) -> None:
    code = (
        "import phasegrad as pg, misbehaving_envs as bad, time\n"
        "agent = pg.PPO(bad.Raising, vectorization='async', num_envs=2, preset='none')\n"
        "print(*[p.pid for p in agent.experience.env._source.processes], flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert run.stdout is not None
    workers = [int(pid) for pid in run.stdout.readline().split()]
    assert len(workers) == 2
    run.kill()
    run.wait()
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Numbers


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (bad.NanReward, "The reward of environment 0 is NaN or infinite at step 156: check the environment."),
        (
            bad.InfiniteObservation,
            "The observation of environment 0 is NaN or infinite at step 160: check the environment.",
        ),
    ],
)
def test_bad_numbers_of_an_environment_are_found_in_their_iteration(
    kind: type[gym.Env], said: str, tmp_path: Path
) -> None:
    with pytest.raises(NonFiniteError) as error:
        ppo(tmp_path / "run", env=kind, checkpoint_every=512).learn(512)
    batch = tmp_path / "run" / "bad-batch.safetensors"
    assert sentence(error.value) == (f"{said} The rollout is in {batch}. There is no checkpoint yet.")
    saved = safetensors.torch.load_file(batch)
    assert saved["observations"].shape == (16, 4, 2)
    assert not all(torch.isfinite(saved[name]).all() for name in ("raw_rewards", "observations"))


def test_bad_numbers_of_an_update_are_found_in_their_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ppo(tmp_path / "run")
    gradient, steps = PlainSteps.gradient, []

    def poisoned(self: PlainSteps, *args: Any) -> Any:
        steps.append(agent.progress.step)
        flat, metrics = gradient(self, *args)
        if agent.progress.step == 256:
            flat = flat.clone()
            flat[0] = float("nan")
        return flat, metrics

    monkeypatch.setattr(PlainSteps, "gradient", poisoned)
    with pytest.raises(NonFiniteError, match="policy_grad_norm became NaN or infinite") as error:
        agent.learn(512)
    assert max(steps) == 256, "not an iteration later"
    assert "The last good checkpoint is that of step 128" in sentence(error.value)


def test_a_bad_parameter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ppo(tmp_path / "run")
    update = agent.model.normalizer.update

    def poison(observations: Any) -> None:  # the last thing an iteration does
        update(observations)
        if agent.progress.step == 192:
            agent.model.value_head.bias.data[0] = float("inf")

    monkeypatch.setattr(agent.model.normalizer, "update", poison)
    with pytest.raises(
        NonFiniteError,
        match=r"The parameter value_head\.\S*bias became NaN or infinite in iteration 2, before step 192",
    ):
        agent.learn(512)
    assert pg.load(tmp_path / "run").progress.step == 128
