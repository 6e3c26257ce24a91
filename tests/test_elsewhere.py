"""A first hour on macOS and Windows, as far as this machine can tell: what phasegrad asks of the system is what they have.

Neither system is here. A Python that looks like theirs (elsewhere.py) must train to the same bits, resume, hold its run directory
against a second writer and go through every verb.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent


@cache
def first_hour(system: str, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    program = [str(TESTS / "elsewhere_work.py"), str(folder)]
    command = [sys.executable, *([] if system == "here" else [str(TESTS / "elsewhere.py"), system]), *program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]
    assert not [step for step in steps if "error" in step], "\n".join(step.get("error", "") for step in steps)
    return {step["step"]: step["found"] for step in steps}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("systems")


@pytest.mark.parametrize("system", ["macos", "windows"])
def test_a_first_hour_elsewhere(system: str, folder: Path) -> None:
    here, there = first_hour("here", folder / "here"), first_hour(system, folder / system)
    assert [name for name in here if name in there] == list(there)
    assert set(here) - set(there) <= {"processes"}
    for name, found in there.items():
        if name.startswith(("bits", "resumed")):
            assert found == here[name], name  # the same processor and torch: the same bits
    assert there["resumed"] == there["bits ppo"]
    verbs = {
        name: found[0]
        for name, found in there.items()
        if isinstance(found, list) and name not in ("processes", "threads")
    }
    assert verbs == {**dict.fromkeys(verbs, 0), "train again": 2}, {name: there[name] for name in verbs}
    assert there["second writer"].startswith(
        f"Run directory {folder / system / 'two'} is being written by the process PID"
    )
    assert there.get("processes", [1.0, 1.0]) == [1.0, 1.0]
    assert there["interrupted"] == "step 128"
    assert there["threads"] == ["MainThread"]
