"""Seconds to a score: medians, bounds where a side did not arrive, and a cap that evaluations do not count against."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts import loaded

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def timing() -> ModuleType:
    return loaded("benchmarks/time_to_score.py")


def runs(*seconds: float) -> dict[str, dict[str, Any]]:
    """Of seeds from 1 on; a negative number is of a run that ended without the score."""
    return {str(seed): {"reached": took > 0, "seconds": abs(took)} for seed, took in enumerate(seconds, 1)}


def test_the_ratio_is_of_medians_over_the_seeds_of_both(timing: ModuleType) -> None:
    found = timing.summary({"ours": runs(2, 9, 4, 1), "sb3": runs(80, 20, 30)})
    assert found == {"seeds": [1, 2, 3], "ours": 4, "sb3": 30, "ratio": 7.5, "ratio_is": "measured"}


def test_a_peer_that_does_not_arrive_gives_a_bound_that_its_own_seconds_warrant(timing: ModuleType) -> None:
    found = timing.summary({"ours": runs(4, 4, 4), "sb3": runs(20, -600, -100)})
    assert (found["sb3"], found["ratio"]) == (None, 25), (
        "one spent its steps after 100 seconds, so the median may be 100"
    )
    assert found["ratio_is"].startswith("at least")
    lost = timing.summary({"ours": runs(4, -600, -600), "sb3": runs(20, 20, 20)})
    assert (lost["ours"], lost["ratio"]) == (None, None)


def test_the_mean_over_tasks_is_geometric(timing: ModuleType) -> None:
    tasks = {name: {"summary": {"ratio": ratio}} for name, ratio in (("a", 4.0), ("b", 9.0), ("c", None))}
    assert timing.overall(tasks) == {"tasks": 2, "ratio": pytest.approx(6.0), "least": 4.0}
    assert timing.overall({}) == {}


def test_evaluations_do_not_count_and_what_comes_after_the_cap_does_not_either(
    timing: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"reached": True, "steps": 10, "score": 500.0, "seconds_evaluation": 70.0}
    clock = iter([0.0, 100.0, 0.0, 120.0])
    monkeypatch.setattr(timing.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(timing, "_bounded", lambda command, patience: json.dumps(told) if patience >= 40 else None)
    in_time = timing.run_peer("cartpole", 1, 40.0, "python")
    assert (in_time["reached"], in_time["seconds"], in_time["seconds_with_evaluations"]) == (True, 30.0, 100.0)
    late = timing.run_peer("cartpole", 1, 40.0, "python")
    assert (late["reached"], late["seconds"]) == (False, 50.0)
    assert math.isinf(timing.median_time([late]))


def test_what_is_recorded_is_what_its_runs_say(timing: ModuleType) -> None:
    found = json.loads((ROOT / "results" / "time-to-score.json").read_text())
    for name, task in found["tasks"].items():
        assert task["summary"] == timing.summary(task), name
        assert (task["env"], task["score"]) == (timing.TASKS[name].env, timing.TASKS[name].score)
    assert found["overall"] == timing.overall(found["tasks"])
