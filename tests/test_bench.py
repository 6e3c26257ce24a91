"""`phasegrad bench`: that its figures are what they say; nothing here asserts a speed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from machine import needs_procgen

import phasegrad as pg
from phasegrad.bench import TASKS, bench, fallen_behind, flops_a_step, measure
from phasegrad.cli.bench_display import BenchProgress, duration, terminal_table
from phasegrad.cli.main import main
from phasegrad.errors import ConfigError, RunError


def test_a_measurement_in_a_process_of_its_own() -> None:
    (row,) = bench(["cartpole-4"], 0.2, 1, ["num_steps=64", "compile=off"]).values()
    assert row["sps"] == row["sps_each"][0] > 0
    assert row["ratio_to_limit"] == pytest.approx(row["sps"] / row["limit_sps"])
    assert 0 < sum(row[f"share_{part}"] for part in ("environment", "inference", "update")) <= 1
    assert row["peak_rss_mb"] > 50
    # A stored step of CartPole: 4 floats, an action of 8 bytes, 2 logits, reward and flags, 6 further floats.
    assert row["bytes_a_step"] == 16 + 8 + 8 + 8 + 2 + 24


def test_what_is_compiled_for_the_second_iteration_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    original = pg.PPO.learn

    def learn(self: pg.PPO, total: int, callback: Any) -> pg.PPO:
        def watch(row: dict[str, Any]) -> Any:
            now[0] += {1: 20.0, 2: 300.0}.get(row["iteration"], 2.0)
            return callback({**row, "sps": 1.0})

        return original(self, total, callback=watch)

    monkeypatch.setattr(pg.PPO, "learn", learn)
    monkeypatch.setattr("phasegrad.bench.time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr("phasegrad.bench.environments_alone", lambda agent, seconds: 1000.0)
    row = measure(TASKS["cartpole-4"], 5.0, ["num_steps=16", "compile=off"])
    assert row["seconds_to_steady_state"] == 320.0
    assert row["sps"] == 16 * 4 / 2.0


@needs_procgen
def test_the_work_of_an_impala_step_is_what_its_layers_need() -> None:
    """Multiply-adds of each convolution and dense layer by hand, against torch's counter."""
    agent = pg.PPO("procgen/starpilot", **{**TASKS["starpilot-ppo"].fields, "num_envs": 8, "num_steps": 8})
    side, channels, forward, first = 64, 3, 0, 0
    for width in (16, 32, 32):
        opening = side**2 * 9 * channels * width
        first = first or opening
        side //= 2
        forward += opening + 4 * side**2 * 9 * width**2
        channels = width
    heads = 256 * (15 + 1)
    forward += side**2 * channels * 256 + heads
    agent.close()
    # Backwards twice the work, but for the gradient of the frames, which nobody asks for.
    policy_only = forward - 256
    assert flops_a_step(agent) == 2 * (policy_only + agent.config.epochs * (3 * forward - first))


def test_settings_and_tasks_that_do_not_exist_get_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"Unknown task 'cartpole-5'.*cartpole-4"):
        bench(["cartpole-5"], 1.0, 1)
    with pytest.raises(ConfigError, match="takes FIELD=VALUE such as compile=replay, not 'compile'"):
        bench(["cartpole-4"], 1.0, 1, ["compile"])
    with pytest.raises(RunError, match="cartpole-4 failed: Unknown setting 'compil'"):
        bench(["cartpole-4"], 1.0, 1, ["compil=on"])
    assert main(["bench", "cartpole-4", "--check", "nowhere.json"]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_half_of_what_was_recorded_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = {"cartpole-4": {"ratio_to_limit": 0.6}, "cartpole-8": {"ratio_to_limit": 0.4}}
    found = {"cartpole-4": {"ratio_to_limit": 0.29}, "cartpole-8": {"ratio_to_limit": 0.21}, "other": {}}
    (sentence,) = fallen_behind(found, recorded)
    assert sentence.startswith("cartpole-4 reaches 29% of this machine's limit, below half of the recorded 60%")
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(recorded))
    monkeypatch.setattr("phasegrad.bench.bench", lambda *_: found)
    monkeypatch.setattr("phasegrad.cli.bench_display.terminal_table", lambda _: "")
    assert main(["bench", "--check", str(file)]) == 1
    assert "cartpole-4 reaches 29%" in capsys.readouterr().err
    file.write_text("[]")
    assert main(["bench", "--check", str(file)]) == 2


def test_progress_says_which_task_which_repeat_and_how_long_all_will_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two tasks of 10 and 30 seconds, twice each, by a clock of our own."""
    now = [0.0]

    def measured(name: str, *_: object) -> dict[str, Any]:
        now[0] += {"cartpole-4": 10.0, "breakout": 30.0}[name]
        return {"sps": 1234.5}

    monkeypatch.setattr("phasegrad.bench._in_a_process", measured)
    written: list[str] = []
    names = ["cartpole-4", "breakout"]
    bench(names, 15.0, 2, report=BenchProgress(names, 2, 15.0, written.append, now=lambda: now[0]))
    assert "".join(written).splitlines() == [
        "Measuring 2 tasks, 2 times each: about 2 min in all, at a guess.",
        "[1/4] cartpole-4, repeat 1 of 2 ... 1,234 steps/s, 10 s; about 30 s left",
        "[2/4] breakout, repeat 1 of 2 ... 1,234 steps/s, 30 s; about 40 s left",
        "[3/4] cartpole-4, repeat 2 of 2 ... 1,234 steps/s, 10 s; about 30 s left",
        "[4/4] breakout, repeat 2 of 2 ... 1,234 steps/s, 30 s",
    ]
    assert [duration(seconds) for seconds in (0.2, 89, 600, 7200)] == [
        "about 1 s",
        "about 89 s",
        "about 10 min",
        "about 2.0 h",
    ]


def rows_of_every_task() -> dict[str, Any]:
    shares = {"share_environment": 0.012, "share_inference": 0.088, "share_update": 0.5, "share_auxiliary": 0.4}
    row = {"sps": 123456.7, "ratio_to_limit": 1.0, "peak_rss_mb": 12345.6, "bytes_a_step": 66.0, **shares}
    return {
        name: row | ({"limit_gflops": 1234.5} if task.convolutional else {"limit_sps": 1234567.8})
        for name, task in TASKS.items()
    }


def test_the_table_is_aligned_fits_80_columns_and_says_how_to_read_it() -> None:
    lines = terminal_table(rows_of_every_task()).splitlines()
    assert [line for line in lines if len(line) > 80] == []
    table, reading = lines[: len(TASKS) + 1], lines[len(TASKS) + 2 :]
    assert {len(line) for line in table} == {len(table[0])}
    assert table[0].split() == ["task", "steps/s", "limit", "share", "env/act/learn", "memory"]
    first = table[1].split()
    assert first == ["halfcheetah-8", "123,457", "1,234,568", "/s", "100%", "1/", "9/90", "%", "12,346", "MB"]
    assert lines[len(TASKS) + 1] == ""
    assert reading[0].startswith("share: of the limit, which is what this machine could do at most")


def test_progress_leaves_stdout_to_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = rows_of_every_task()["cartpole-4"]
    monkeypatch.setattr("phasegrad.bench._in_a_process", lambda *_: row)
    assert main(["bench", "cartpole-4", "--repeats", "2", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["cartpole-4"]["sps"] == row["sps"]
    assert "[2/2] cartpole-4, repeat 2 of 2 ... 123,457 steps/s" in printed.err
    assert main(["bench", "cartpole-4", "--repeats", "1", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| task | steps/s |")
    assert main(["bench", "cartpole-5"]) == 2
    assert capsys.readouterr().err == "phasegrad: Unknown task 'cartpole-5': did you mean cartpole-4 or cartpole-8?\n"
