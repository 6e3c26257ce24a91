"""The campaign of faults (benchmarks/faults.py) still runs: a seeded sample of cases that all hold, and it can tell what does not.

The campaign itself is recorded in results/faults.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SAMPLE = 15

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the campaign looks at /proc")


def campaign(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / "faults.py"), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def test_a_sample_of_the_campaign_holds(tmp_path: Path) -> None:
    out = tmp_path / "faults.json"
    done = campaign("--area", "contents", "--match", "safetensors", "--sample", str(SAMPLE), "--out", str(out))
    assert out.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    assert [entry for entry in found["cases"] if entry["verdict"] == "broke"] == []
    assert found["held"] == SAMPLE
    assert f"| all | {SAMPLE} | {SAMPLE} | 0 | 0 |" in out.with_suffix(".md").read_text()


def test_there_are_hundreds_of_cases_in_every_way_there_is() -> None:
    titles = campaign("--list").stdout.splitlines()
    areas = Counter(title.partition(": ")[0] for title in titles)
    assert len(titles) > 600
    assert len(areas) == 11
    assert min(areas.values()) > 30
