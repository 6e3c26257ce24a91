"""What a killed run leaves of ViZDoom goes with the next start; what a living one uses stays."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phasegrad.envs import vizdoom_leftovers as leftovers

pytest.importorskip("envpool.vizdoom")
if not Path("/dev/shm").is_dir() or sys.platform != "linux":
    pytest.skip("needs Linux's /dev/shm", allow_module_level=True)

PLAY = """
import sys, time
from phasegrad.envs import make, vizdoom_leftovers
vizdoom_leftovers.remove_leftovers = lambda: 0
env = make("HealthGathering-v1", num_envs=2, seeds=[0, 1])
env.reset()
print("playing", flush=True)
time.sleep(120)
"""


def names() -> set[str]:
    return {match[1] for name in os.listdir("/dev/shm") if (match := leftovers.NAME.fullmatch(name)) is not None}


def games(of: set[str]) -> list[int]:
    """Living game processes of those names."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and leftovers._runs(int(entry.name)):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(name.encode() in words for name in of):
                found.append(int(entry.name))
    return found


def test_games_and_memory_of_a_killed_run_go_and_those_of_a_living_one_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = names()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PLAY]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    mine: set[str] = set()
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "playing\n"
        started = [pid for pid in games(names() - before) if parent(pid) == run.pid]
        mine = {name for name in names() - before if any(pid in started for pid in games({name}))}
        assert len(mine) == 2
        look = leftovers._instances  # what others on this machine have left is none of this test's
        monkeypatch.setattr(leftovers, "_instances", lambda: {k: v for k, v in look().items() if k in mine})
        assert leftovers.remove_leftovers() == 0, "a living run's"
        assert len(games(mine)) == 2
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert mine <= names()
        assert leftovers.remove_leftovers() == 2 + 6
        assert not mine & names()
        assert not games(mine)
    finally:
        run.kill()
        run.wait()
        for pid in games(mine) if mine else []:
            os.kill(pid, signal.SIGKILL)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_files_that_only_look_like_them_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not leftovers._look_at_processes({}):
        pytest.skip("a process of this user's cannot be looked at, so nothing is removed")
    monkeypatch.setattr(leftovers, "SHARED", tmp_path)
    (tmp_path / "ViZDoomSMabcdefgh").write_bytes(b"too short")
    (tmp_path / "target").write_bytes(b"kept")
    (tmp_path / "ViZDoomSMabcdefghij").symlink_to(tmp_path / "target")
    (tmp_path / "ViZDoomMQCtrabcdefghik").mkdir()
    held = open(tmp_path / "ViZDoomSMabcdefghil", "w")  # noqa: SIM115
    (tmp_path / "ViZDoomSMabcdefghim").write_bytes(b"nobody's")
    long_ago = time.time() - leftovers.SECONDS_TO_START - 1
    for entry in list(tmp_path.iterdir()):
        os.utime(entry, (long_ago, long_ago))
    (tmp_path / "ViZDoomSMabcdefghin").write_bytes(b"of a game that starts where nobody sees it")
    (tmp_path / "ViZDoomMQCtrabcdefghin").write_bytes(b"its queue")
    os.utime(tmp_path / "ViZDoomSMabcdefghin", (long_ago, long_ago))
    with held:
        assert leftovers.remove_leftovers() == 1
    left = sorted(entry.name for entry in tmp_path.iterdir())
    assert left == [
        "ViZDoomMQCtrabcdefghik", "ViZDoomMQCtrabcdefghin", "ViZDoomSMabcdefgh", "ViZDoomSMabcdefghij",
        "ViZDoomSMabcdefghil", "ViZDoomSMabcdefghin", "target",
    ]  # fmt: skip


def test_memory_that_is_mapped_and_closed_while_it_is_looked_for_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the master of a starting game may do it: its file is open at the first look and only mapped at the second."""
    if not leftovers._look_at_processes({}):
        pytest.skip("a process of this user's cannot be looked at, so nothing is removed")
    monkeypatch.setattr(leftovers, "SHARED", tmp_path)
    monkeypatch.setattr(leftovers, "SECONDS_TO_START", 0.0)
    path = tmp_path / "ViZDoomSMabcdefghij"
    path.write_bytes(b"memory")
    mapped: list[mmap.mmap] = []
    look = leftovers._links

    def map_and_close(folder: Path) -> list[str]:
        if folder.parent.name != str(os.getpid()):
            return look(folder)
        with open(path, "r+b") as file:
            mapped.append(mmap.mmap(file.fileno(), 0))
        return []  # without the descriptor that Python's mmap keeps, and ViZDoom does not

    monkeypatch.setattr(leftovers, "_links", map_and_close)
    assert leftovers.remove_leftovers() == 0
    assert path.exists()
    mapped[0].close()
    monkeypatch.setattr(leftovers, "_links", look)
    assert leftovers.remove_leftovers() == 1


FORKS = """
import numpy as np
from scipy.linalg.blas import dgemm
from phasegrad.envs import make
table = np.ones((400, 400))
for _ in range(3):
    dgemm(1.0, table, table)  # wakes OpenBLAS's threads, which every fork waits for
    make("HealthGathering-v1", num_envs=4, seeds=[0, 1, 2, 3]).close()
print("made")
"""


def test_games_started_by_several_threads_do_not_wait_for_each_other(tmp_path: Path) -> None:
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    with open(tmp_path / "output", "w+") as output:  # not a pipe, which a game left behind would keep open
        process = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            cwd=tmp_path,
            env=variables,
            start_new_session=True,
        )
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            pytest.fail("the environments were not made within two minutes")
        output.seek(0)
        assert output.read().endswith("made\n")
