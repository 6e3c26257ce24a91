"""Runs that do not fit into memory: told before they start, in one sentence where it runs out, resumed after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from machine import ROOT

import phasegrad as pg
from phasegrad.errors import ConfigError, RunError
from phasegrad.machine import memory
from phasegrad.studies import runner

GIB = 1 << 30
SMALL = {"num_envs": 4, "num_steps": 8, "eval_episodes": 0, "compile": "off"}


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 64 GiB whose files the test writes."""
    for name, place in (("GROUPS", "groups"), ("PROCESS", "process")):
        (tmp_path / place).mkdir()
        monkeypatch.setattr(memory, name, tmp_path / place)
    monkeypatch.setattr(memory, "MACHINE", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {64 * GIB // 1024} kB\n")
    return tmp_path


def group(folder: Path, **files: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_machine_and_no_limit(system: Path) -> None:
    assert memory.available_bytes() == 64 * GIB
    (system / "meminfo").unlink()  # as on systems that have none
    assert memory.available_bytes() == pytest.approx(psutil.virtual_memory().available, rel=0.5)


def test_a_control_group_of_the_second_version_and_those_above_it(system: Path) -> None:
    (system / "process" / "cgroup").write_text("0::/slice/mine\n")
    group(system / "groups" / "slice" / "mine", memory__max="max", memory__current=GIB)
    assert memory.available_bytes() == 64 * GIB
    group(system / "groups" / "slice", memory__max=8 * GIB, memory__current=6 * GIB)
    assert memory.available_bytes() == 2 * GIB
    group(system / "groups" / "slice", memory__stat=f"anon 5\ninactive_file {GIB}\nactive_file 7")
    assert memory.available_bytes() == 3 * GIB
    group(system / "groups" / "slice" / "mine", memory__max=GIB, memory__current=2 * GIB)
    assert memory.available_bytes() == 0


def test_a_control_group_of_the_first_version(system: Path) -> None:
    (system / "process" / "cgroup").write_text("12:cpu,cpuacct:/a\n4:memory:/docker/b\n1:name=systemd:/c\n")
    place = system / "groups" / "memory" / "docker" / "b"
    group(place, memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=GIB)
    assert memory.available_bytes() == 64 * GIB
    group(place, memory__limit_in_bytes=4 * GIB, memory__usage_in_bytes=GIB, memory__stat="total_inactive_file 4096")
    assert memory.available_bytes() == 3 * GIB + 4096


def test_inside_a_container_the_group_is_the_root(system: Path) -> None:
    """Its path is that of the outside, which is not there."""
    (system / "process" / "cgroup").write_text("0::/../../elsewhere\n")
    group(system / "groups", memory__max=2 * GIB, memory__current=GIB)
    assert memory.available_bytes() == GIB


def limited(program: str, limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with `ulimit -v`."""
    whole = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n{program}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", whole, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_limit_of_the_process() -> None:
    program = "from phasegrad.machine.memory import available_bytes; print(available_bytes())"
    assert 0 < int(limited(program, 4 * GIB).stdout) < 4 * GIB


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("ppo", {"num_steps": 1 << 20, "num_envs": 64, "num_minibatches": 1}, "lower num_envs or num_steps"),
        ("ppg", {"num_steps": 1 << 14, "num_envs": 64, "n_pi": 512}, "lower n_pi, num_envs or num_steps"),
        ("acer", {"replay_capacity": 1 << 34}, "lower replay_capacity"),
        ("ppo", {"num_steps": 1 << 20, "num_envs": 64, "frame_stack": 4, "num_minibatches": 1}, "lower num_envs"),
    ],
)
def test_a_run_that_does_not_fit_says_so_before(
    name: str, settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: GIB)
    agent = getattr(pg, name.upper())("CartPole-v1", **{**SMALL, **settings})
    with pytest.raises(ConfigError, match=r"The run needs [0-9.]+ GiB of memory, and only 1\.00 GiB are free") as error:
        agent.learn(1 << 30)
    assert said in str(error.value)
    assert "stored rollouts need" in str(error.value)
    assert agent.progress.step == 0
    agent.close()


def test_pi_old_and_workers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, int]] = []
    monkeypatch.setattr("phasegrad.runs.needs.require_room", lambda needed, remedy: told.append(needed))
    for vectorization in ("sync", "async"):
        agent = pg.PPG("CartPole-v1", n_pi=2, backend="gymnasium", vectorization=vectorization, **SMALL)
        agent.learn(32)
        agent.close()
        assert told[-1]["stored rollouts"] == agent.storage_bytes() + 2 * 8 * 4 * 2 * 4
        assert told[-1]["gradients"] >= agent.flat.data.nbytes
    assert [each["environments"] for each in told] == [0, 4 * (10 << 20)]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 9 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
        torch.OutOfMemoryError("CUDA out of memory."),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_memory_that_runs_out_is_one_sentence_and_the_checkpoint_stays(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = pg.PPO("CartPole-v1", run_dir=tmp_path / "run", checkpoint_every=32, seed=2, **SMALL)
    collect = agent.experience.collect

    def fail(*arguments: Any) -> Any:
        if agent.progress.step >= 64:
            raise error
        return collect(*arguments)

    monkeypatch.setattr(agent.experience, "collect", fail)
    with pytest.raises(RunError) as told:
        agent.learn(128)
    agent.close()
    assert str(told.value).startswith("There was not enough memory at step 64: lower num_envs or num_steps (")
    assert str(told.value).endswith(f"The last good checkpoint is that of step 64 in {tmp_path / 'run'}.")
    resumed = pg.load(tmp_path / "run")
    resumed.learn(128)
    whole = pg.PPO("CartPole-v1", seed=2, **SMALL)
    whole.learn(128)
    assert torch.equal(resumed.flat.data, whole.flat.data)
    resumed.close()
    whole.close()


def test_another_error_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)

    def fail(*arguments: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(agent.experience, "collect", fail)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        agent.learn(32)
    agent.close()


def test_the_command_line_says_it_in_one_line() -> None:
    """A network that does not fit, within a real limit."""
    program = "import sys; from phasegrad.cli.main import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["train", "ppo", "--env", "CartPole-v1", "--hidden-sizes", "60000,60000", "--quiet"]
    done = limited(program, 6 * GIB, *arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "make hidden_sizes smaller" in done.stderr.strip().splitlines()[-1]


def test_a_study_names_the_signal_and_what_it_probably_means(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("$ phasegrad train\n")
    told = runner._reason(tmp_path / "log", -signal.SIGKILL)
    assert told.startswith("it was ended by SIGKILL (signal 9, by the system for lack of memory unless somebody did)")
    assert "memory" not in runner._reason(tmp_path / "log", -signal.SIGSEGV)
