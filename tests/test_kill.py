"""Runs killed at random moments, resumed until done, equal to runs never stopped: every algorithm, both backends.

The work is benchmarks/kill.py's, in a process that forks the runs; the long version of it is recorded in results/.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phasegrad.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[1]
KILLS = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("kill") / "kill.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "kill.py"), "--kills", str(KILLS), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert out.exists(), finished.stdout + finished.stderr
    return json.loads(out.read_text())["cases"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_killed_runs_end_with_the_bits_of_whole_ones(results: dict[str, Any], algorithm: str, backend: str) -> None:
    mine = {name: found for name, found in results.items() if name.startswith(algorithm) and name.endswith(backend)}
    assert mine
    if algorithm == "ppg" and backend == "envpool":
        assert {f"ppg-{arch}-envpool" for arch in ("dual", "detach", "shared", "inside-phase")} <= mine.keys()
    for name, found in mine.items():
        assert found["differences"] == [], name
        assert found["kills"] >= KILLS, name
