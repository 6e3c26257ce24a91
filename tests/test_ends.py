"""Environments that raise what is no error, whose process dies, that will not close or meddle with their process.

Each is named in one sentence, what was good is saved, and no process stays.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import misbehaving_envs as bad
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import phasegrad as pg
from phasegrad.envs import make, watching
from phasegrad.errors import EnvError, PhasegradWarning
from phasegrad.machine.stops import Interrupted
from phasegrad.runs.metrics import read_metrics

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 2, "num_steps": 16, "epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,),
    "compile": "off", "seed": 3, "eval_episodes": 0,
}  # fmt: skip
WAYS = ("sync", "async")
RAISED = {"interrupt": "KeyboardInterrupt", "leave": "SystemExit", "cancel": "CancelledError", "fail": "ValueError"}
DIED = {"vanish": "it exited with code 7", "crash": "it was ended by SIGSEGV", "be_killed": "it was ended by SIGKILL"}


def ppo(run: Path | None, env: Any, **fields: Any) -> pg.PPO:
    return pg.PPO(env, run_dir=run, **{**SMALL, **fields})


def ending(where: str, how: str, folder: Path | str = "") -> Any:
    return partial(bad.Ending, where, how, str(folder))


@pytest.fixture(autouse=True)
def _no_process_stays() -> Iterator[None]:
    before = set(multiprocessing.active_children())  # of other tests, until somebody collects what they dropped
    yield
    assert not set(multiprocessing.active_children()) - before


@pytest.fixture(autouse=True)
def _signals_are_not_pythons() -> Iterator[None]:
    """As in a command; where Python's own handler of Ctrl-C is in place, a KeyboardInterrupt is the user's."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", RAISED)
@pytest.mark.parametrize(("where", "when"), [("step", "step 40"), ("reset", "the reset after step 40")])
def test_whatever_an_environment_raises_is_named(where: str, when: str, how: str, way: str, tmp_path: Path) -> None:
    agent = ppo(tmp_path / "run", ending(where, how), vectorization=way)
    with pytest.raises(EnvError) as raised:
        agent.learn(512)
    said = str(raised.value)
    assert re.match(rf"Environment \d \(seed \d+\) raised {RAISED[how]} on {when}", said), said
    assert said.endswith(f"The last good checkpoint is that of step 64 in {tmp_path / 'run'}.")
    assert "\n" not in said
    assert pg.load(tmp_path / "run").progress.step == 64


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", RAISED)
def test_raised_in_the_constructor_or_the_first_reset(how: str, way: str) -> None:
    with pytest.raises(EnvError, match=rf"^Making environment 0 \(seed \d+\) raised {RAISED[how]}[^\n]*\.$"):
        ppo(None, ending("init", how), vectorization=way)
    with pytest.raises(
        EnvError, match=rf"^Environment \d \(seed \d+\) raised {RAISED[how]} on its first reset[^\n]*\.$"
    ):
        ppo(None, ending("first reset", how), vectorization=way)


@pytest.mark.parametrize("how", [*RAISED, *DIED])
def test_a_constructor_that_fails_in_one_worker_only(how: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError) as raised:
        ppo(None, ending("init", how, tmp_path), vectorization="async", num_envs=3, num_minibatches=1)
    if how in RAISED:
        assert re.match(rf"Making environment \d \(seed \d+\) raised {RAISED[how]}", str(raised.value))
    else:
        died = rf"The process of environment \d \(seed \d+\) died on being made: {DIED[how]}"
        assert re.match(died, str(raised.value)), raised.value


@pytest.mark.parametrize("how", DIED)
@pytest.mark.parametrize(
    ("where", "when"), [("step", "step 40"), ("reset", "step 40"), ("first reset", "its first reset")]
)
def test_how_a_worker_died_is_named(where: str, when: str, how: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError) as raised:
        ppo(tmp_path / "run", ending(where, how), vectorization="async").learn(512)
    died = rf"The process of environment \d \(seed \d+\) died on {when}: {DIED[how]}"
    assert re.match(died, str(raised.value)), raised.value
    if where != "first reset":
        assert pg.load(tmp_path / "run").progress.step == 64


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", [*RAISED, "hang"])
def test_a_close_that_fails_loses_nothing(how: str, way: str, tmp_path: Path) -> None:
    """Where a run is over, and where it is stopped by another fault of the environment."""
    where = "close" if way == "sync" else "worker's close"
    agent = ppo(tmp_path / "run", ending(where, how), vectorization=way, env_timeout=0.5)
    agent.learn(64)
    begun = time.monotonic()
    with pytest.warns(PhasegradWarning) as told:
        agent.close()
    assert time.monotonic() - begun < 8
    said = {str(warning.message) for warning in told}
    wanted = "took longer than the 0.5 s of env_timeout" if how == "hang" else f"raised {RAISED[how]}"
    assert all(re.fullmatch(rf"Environment \d \(seed \d+\) {wanted} on close[^\n]*\.", each) for each in said), said
    assert len(said) == 2
    assert pg.load(tmp_path / "run").progress.step == 64


class RaisesThenHangs(bad.Raising):
    def close(self) -> None:
        raise RuntimeError("not me")


def test_what_was_good_is_saved_before_the_environments_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []

    def close(self: Any) -> None:
        saved.append((tmp_path / "run" / "checkpoints" / "step-000000000064").is_dir())
        raise RuntimeError("not me")

    monkeypatch.setattr(RaisesThenHangs, "close", close)
    agent = ppo(tmp_path / "run", RaisesThenHangs)
    with (
        pytest.warns(PhasegradWarning, match=r"raised RuntimeError on close: not me\."),
        pytest.raises(EnvError) as raised,
    ):
        agent.learn(512)
    assert "raised ZeroDivisionError on step 40: by nothing. The last good checkpoint is that of step 64" in str(
        raised.value
    )
    assert saved == [True, True]


def test_a_worker_that_dies_as_it_closes_is_named(tmp_path: Path) -> None:
    agent = ppo(tmp_path / "run", ending("worker's close", "crash"), vectorization="async").learn(32)
    with pytest.warns(
        PhasegradWarning, match=r"The process of environment \d \(seed \d+\) died on close: it was ended by SIGSEGV\."
    ):
        agent.close()


def test_without_a_time_limit_a_close_has_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SECONDS_TO_CLOSE", 0.3)
    for way in WAYS:
        env = make(
            ending("close" if way == "sync" else "worker's close", "hang"), num_envs=2, seeds=[5, 6], vectorization=way
        )
        with pytest.warns(
            PhasegradWarning, match=r"Environment 0 \(seed 5\) took longer than the 0\.3 s of a close on close"
        ):
            env.close()


@pytest.mark.parametrize("way", WAYS)
def test_drawing_that_raises_anything_is_named(way: str) -> None:
    for how in ("interrupt", "leave"):
        env = make(partial(bad.Ending, "render", how), num_envs=2, seeds=[5, 6], vectorization=way, render=True)
        env.reset()
        with pytest.raises(EnvError, match=f"raised {RAISED[how]} on render after step 0"):
            env.render()
        env.close()


class Owned(SyncVectorEnv):
    """A user's own kind of vector environment."""

    how = "fail"

    def close(self, **kwargs: Any) -> None:
        bad.HOW[self.how]()


@pytest.mark.parametrize("how", [*RAISED, "hang"])
def test_a_users_vector_environment_that_will_not_close(how: str) -> None:
    source = Owned([bad.Quiet] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    source.how = how
    env = make(source, num_envs=2, seeds=[1, 2], timeout=0.5)
    late, raised = "took longer than the 0.5 s of env_timeout", f"raised {RAISED.get(how)}"
    with pytest.warns(PhasegradWarning, match=f"The vector environment {late if how == 'hang' else raised} on close"):
        env.close()


def test_a_users_ctrl_c_goes_through_to_them() -> None:
    """Without a run directory nobody watches for signals: a KeyboardInterrupt is the user's, not the environment's."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        ppo(None, ending("step", "interrupt")).learn(512)

    def handler(number: int, frame: Any) -> None:
        raise SystemExit(5)

    class Signalled(bad.Quiet):
        def misbehave(self, observation: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(SystemExit):
            ppo(None, Signalled).learn(512)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("way", WAYS)
def test_agents_that_were_broken_off_learn_on(way: str, tmp_path: Path) -> None:
    """A stop in the middle of a rollout: workers that owe answers are replaced, and the bits are as if nothing had been."""
    how = {"vectorization": way, "backend": "gymnasium"}
    whole = ppo(None, "CartPole-v1", **how).learn(192)
    agent = ppo(None, "CartPole-v1", **how)
    env: Any = agent.experience.env
    step, count = env.step, [0]

    def stopped(actions: Any) -> Any:
        count[0] += 1
        if count[0] == 40:
            if way == "async":
                env._source.step_async(actions)
                env._call("a stop", _interrupt)
            raise KeyboardInterrupt
        return step(actions)

    def _interrupt() -> None:
        raise Interrupted("now.")

    env.step = stopped
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(192)
    env.step = step
    agent.learn(192)
    for name, tensor in whole.tensors().items():
        assert (tensor == agent.tensors()[name]).all(), name
    agent.close()
    whole.close()


def test_workers_outlive_the_thread_that_made_them(tmp_path: Path) -> None:
    made: list[pg.PPO] = []
    thread = threading.Thread(target=lambda: made.append(ppo(tmp_path / "run", bad.Quiet, vectorization="async")))
    thread.start()
    thread.join()
    time.sleep(0.3)
    made[0].learn(64)
    made[0].close()


# The process that they live in

MEDDLING = ["Forking", "Moving", "Handling", "Masking", "Localising", "Seeding", "Closing", "Printing", "Threading"]
TRAIN_EACH = """
import os, sys
import phasegrad as pg, misbehaving_envs as bad
from test_ends import MEDDLING, SMALL
pg.PPO(bad.Quiet, run_dir="warm", **SMALL).learn(32)  # what it imports
for kind in MEDDLING:  # each in a fork of its own, with its own stderr: what one does to its process is its own affair
    child = os.fork()
    if child == 0:
        os.dup2(os.open(f"{kind}.stderr", os.O_CREAT | os.O_WRONLY), 2)
        agent = pg.PPO(getattr(bad, kind), run_dir=kind, vectorization=sys.argv[1], checkpoint_every=64, **SMALL)
        agent.learn(160)
        agent.close()
        os._exit(0)
    with open("ended", "a") as file:
        print(kind, os.waitpid(child, 0)[1], file=file)
"""


@pytest.mark.parametrize("way", WAYS)
def test_what_an_environment_does_to_its_process_leaves_the_run_right(way: str, tmp_path: Path) -> None:
    """Paths stay right, one process writes, and the bits are those of an environment that does nothing of the kind."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-c", TRAIN_EACH, way]
    subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, timeout=120)
    ended = (tmp_path / "ended").read_text().splitlines()
    said = {kind: (tmp_path / f"{kind}.stderr").read_text() for kind in MEDDLING}
    assert ended == [f"{kind} 0" for kind in MEDDLING], said
    quiet = ppo(None, bad.Quiet).learn(160)
    for kind in MEDDLING:
        run = tmp_path / kind
        assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [*range(32, 161, 32)]
        found = pg.load(run, env=getattr(bad, kind))
        assert found.progress.step == 160
        for name, tensor in quiet.tensors().items():
            assert (tensor == found.tensors()[name]).all(), (kind, name)
        assert not list(run.glob(".lock"))
    assert said["Forking"].count("an environment forked the process") >= 2


def test_workers_leave_stopping_to_their_parent_and_python_ends_without_waiting_for_them(tmp_path: Path) -> None:
    """torchrun and schedulers send SIGTERM to a whole group; and an agent that nobody closes must not keep its process."""
    code = (
        "import os, signal, numpy as np, misbehaving_envs as bad\nfrom phasegrad.envs import make\n"
        "env = make(bad.Quiet, num_envs=2, seeds=[0, 1], vectorization='async')\nenv.reset()\n"
        "for worker in env._source.processes:\n"
        "    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n        os.kill(worker.pid, number)\n"
        "assert env.step(np.zeros(2, np.int64)).reward.tolist() == [1.0, 1.0]\nprint('well')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")
