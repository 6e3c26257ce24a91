"""What depends on the machine, in the state that this one is not in: no C compiler, no Qt or no libraries for it.

The tests that need these run here without them, and must skip with the reason or pass by the fallback.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machine import ROOT, without

from phasegrad.compute import native
from phasegrad.envs import qt

LIBRARIES = ("libGL.so.1", "libglib-2.0.so.0")
SYSTEM = "`apt install libgl1 libglib2.0-0`"
EXTRA = '`pip install "phasegrad[procgen]"`'
SECONDS = 600
HAS_WHEEL = qt._wheel_folder() is not None
STATES = {
    "no wheel": (("PyQt5",), "which is not installed: " + EXTRA),
    "no libraries": (LIBRARIES, f"which is installed but needs libGL.so.1 and libglib-2.0.so.0: {SYSTEM}."),
    "neither": (("PyQt5", *LIBRARIES), f"which is not installed: {EXTRA} and {SYSTEM}."),
}


def run(environment: dict[str, str], *command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    options = {"env": environment, "capture_output": True, "text": True, "timeout": SECONDS}
    return subprocess.run([sys.executable, *command], cwd=folder or ROOT, **options)


def run_tests(environment: dict[str, str], folder: Path, *arguments: str) -> str:
    """The report of tests that run in another environment, none of which may fail."""
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", str(folder / "tests")]
    found = run(environment, "-m", "pytest", *options, *arguments)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]
    return found.stdout


def files_with(*words: str) -> list[str]:
    """The test files that speak of something."""
    files = sorted((ROOT / "tests").glob("test_*.py"))
    return [
        str(file) for file in files if file.name != Path(__file__).name and any(w in file.read_text() for w in words)
    ]


@pytest.mark.parametrize("state", ["no wheel", "no libraries"])
def test_what_procgen_lacks_is_said_by_train_and_doctor_in_the_same_words(state: str, tmp_path: Path) -> None:
    hidden, words = STATES[state]
    if state == "no libraries" and not HAS_WHEEL:
        pytest.skip("the extra procgen is not installed")
    environment = without(tmp_path, hide=hidden)
    trained = run(environment, "-m", "phasegrad", "train", "ppo", "--env", "procgen/coinrun", folder=tmp_path)
    assert trained.returncode == 2
    (sentence,) = trained.stderr.splitlines()
    assert sentence.startswith(f"phasegrad: Procgen draws with Qt 5, {words}")
    told = run(environment, "-m", "phasegrad", "doctor")
    (line,) = [line for line in told.stdout.splitlines() if "procgen:" in line]
    assert line == f"MISS  procgen: {sentence.removeprefix('phasegrad: ')}"


def test_tests_skip_with_the_sentence_where_procgen_lacks_something(tmp_path: Path) -> None:
    environment = without(tmp_path, hide=("PyQt5", *LIBRARIES))
    report = run_tests(
        environment,
        tmp_path,
        *files_with("needs_procgen", "environments("),
        "-k",
        "procgen or impala_step or scaling.md",
    )
    assert "SKIPPED" in report
    assert f"Procgen draws with Qt 5, {STATES['neither'][1]}" in report


def test_without_a_compiler_tests_of_compiled_code_skip_and_the_others_pass(tmp_path: Path) -> None:
    several = ("test_compiled_gradients_are_averaged_too", "test_every_algorithm_keeps_its_processes_alike[ppg-dual]")
    chosen = [
        "tests/test_native.py",
        "tests/test_convolutions.py",
        *(f"tests/test_parallel.py::{name}" for name in several),
    ]
    report = run_tests(without(tmp_path, compiler=True), tmp_path, *chosen)
    assert re.search(r"tests/test_parallel.py:\d+: there is no C compiler on this machine", report)


def test_without_a_compiler_a_run_says_so_and_trains(tmp_path: Path) -> None:
    environment = without(tmp_path, compiler=True)
    settings = ["--num-envs", "4", "--num-steps", "32", "--total-steps", "256", "--compile", "on", "--run-dir", "run"]
    found = run(environment, "-m", "phasegrad", "train", "ppo", "--env", "CartPole-v1", *settings, folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "phasegrad: There is no C compiler here, so the run goes without compiled code" in found.stderr
    assert "traced kernels: no C compiler" in found.stdout
    assert json.loads((tmp_path / "run" / "result.json").read_text())["step"] == 256
    told = run(environment, "-m", "phasegrad", "doctor", "--json")
    (check,) = [check for check in json.loads(told.stdout) if check["name"] == "c compiler"]
    assert not check["ok"]


def test_what_hides_a_part_of_the_machine_hides_no_other(tmp_path: Path) -> None:
    """Else the tests above would pass for reasons of their own."""
    program = "import shutil, sys; from phasegrad.compute import native; from phasegrad.envs import qt; " + (
        "print(native.compiler() is None, qt.missing() is None, shutil.which('sh') is None)"
    )
    here = (native.compiler() is None, qt.missing() is None, False)
    for hidden, wanted in (
        ({"compiler": True}, (True, *here[1:])),
        ({"hide": ("PyQt5",)}, (here[0], False, False)),
        ({"hide": ("libnothing.so.1",)}, here),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        found = run(without(folder, **hidden), "-c", program)
        assert found.stdout.split() == [str(flag) for flag in wanted], found.stderr
        folder.mkdir(exist_ok=True)
