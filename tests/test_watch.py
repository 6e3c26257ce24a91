"""Runs shown in the terminal: `phasegrad watch` from the files, and the display of a training."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from terminal import Terminal, require_one_whole_panel
from written_runs import rows_of, write_run

from phasegrad.cli import watch as watching
from phasegrad.cli.main import main
from phasegrad.cli.watch import Watched, auxiliary_interval
from phasegrad.runs.formats import duration, number, sparkline
from phasegrad.runs.lock import Lock
from phasegrad.runs.panel import RunPanel
from phasegrad.runs.reading import MetricsReader
from phasegrad.runs.view import RunView, plain_line

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
DONE = {"status": "finished", "step": 1280, "seconds": 12.5, "sps": 102.4, "return_mean": 150.0}
NO_PROCESS = 2**22 + 1  # beyond the kernel's largest process id


def drawn(view: RunView, now: str = "auxiliary phase") -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(RunPanel(view, now, underway=True))
    return console.export_text()


def test_a_reader_takes_whole_lines_and_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    assert list(reader.new_rows()) == []
    path.write_text('{"step": 1, "kl": 0.5}\n{"step": 2, "k')
    assert list(reader.new_rows()) == [{"step": 1.0, "kl": 0.5}]
    assert list(reader.new_rows()) == []
    with open(path, "a") as file:
        file.write('l": 0.25}\n{"step": 3}\n')
    assert list(reader.new_rows()) == [{"step": 2.0, "kl": 0.25}, {"step": 3.0}]
    path.write_text('{"step": 1, "kl": 0.5}\n{"step": 2, "kl": 7}\n')  # resumed from a checkpoint
    path.write_text(path.read_text()[:23])
    assert list(reader.new_rows()) == [{"step": 1.0, "kl": 0.5}]
    assert reader.ignored == 0


def test_a_finished_run_is_shown_once_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", rows_of(10), DONE, total_steps=1280)
    (run / "checkpoints" / "step-000000001280").mkdir(parents=True)
    assert main(["watch", str(run)]) == 0
    title, line, summary = capsys.readouterr().out.splitlines()
    assert title == f"PPG on LunarLander-v3, seed 1, in {run}: finished"
    assert "1,280 / 1,280 steps" in line
    assert "phase 3, 2/4" in line
    assert "environment 50%" in line
    assert "checkpoint step-000000001280" in line
    assert summary == "training return, last 100 episodes: 150.0; finished at 1,280 steps in 12 s (102 steps/s)"
    assert not CONTROL.search(title + line + summary)


def test_a_killed_run_is_said_to_have_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", rows_of(5))
    (run / ".lock").write_text(str(NO_PROCESS))
    os.utime(run / "metrics.jsonl", (1.0, 1.0))
    assert main(["watch", str(run)]) == 0
    out = capsys.readouterr().out
    assert "not running, last written" in out
    assert "finished" not in out


def test_a_running_run_is_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(10)
    run = write_run(tmp_path / "run", rows[:4], total_steps=1280)
    lock = Lock(run)
    left = iter(rows[4:])

    def nap(_: float) -> None:
        row = next(left, None)
        if row is None:
            lock.release()
            (run / "result.json").write_text(json.dumps(DONE))
        else:
            with open(run / "metrics.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")

    monkeypatch.setattr(watching, "_looks", lambda watched, looks=watching._looks: looks(watched, nap))
    assert main(["watch", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": running")
    assert [int(line.split("/")[0].replace(",", "")) for line in lines[1:-1]] == [128 * i for i in range(4, 11)]
    assert "1,000 steps/s" in lines[1]
    assert "; finished at 1,280 steps" in lines[-1]


def test_once_does_not_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [])
    lock = Lock(run)
    assert main(["watch", str(run), "--once"]) == 0
    lock.release()
    assert "no iteration yet" in capsys.readouterr().out


def test_what_is_no_run_gets_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("[1, 2")
    for path in ("nowhere", "broken"):
        assert main(["watch", str(tmp_path / path)]) == 2
        assert "is not a run directory" in capsys.readouterr().err


def test_text_from_files_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", rows_of(3), env="\x1b[2J\x1b]0;title\x07evil[bold]", algorithm="\u202eppg")
    main(["watch", str(run), "--once"])
    assert not CONTROL.search(capsys.readouterr().out.replace("\n", ""))
    shown = drawn(Watched(run).view)
    assert "\x1b" not in shown
    assert "evil[bold]" in shown  # as text, not as markup


def test_the_score_of_a_run_is_its_last_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(10)
    rows[4] |= {"eval_return_mean": 300.5, "eval_episodes": 20}
    rows[9] |= {"eval_return_mean": 250.25, "eval_episodes": 20}
    last = {"return_mean": 250.25, "episodes": 20, "step": 1280}
    done = DONE | {"eval": last, "best_eval": {"step": 640, "return_mean": 300.5, "episodes": 20}}
    run = write_run(tmp_path / "run", rows, done, total_steps=1280)
    shown = drawn(Watched(run).view)
    assert re.search(r"score +250.2 at step 1,280", shown)
    assert re.search(r"best score +300.5 at step   640", shown)
    assert re.search(r"directory +\S*run ", shown)
    assert main(["watch", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "score 250.2 at step 1,280" in lines[1]
    assert lines[-1].startswith("score 250.2 (20 greedy episodes), best 300.5 at step 640; finished at 1,280 steps")


def test_a_run_without_evaluation_is_scored_by_those_made_of_it_later(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows_of(10), DONE, total_steps=1280)
    assert Watched(run).view.scores == []
    entry = {"step": 1280, "deterministic": True, "levels": "train", "return_mean": 7.0}
    lines = [entry, entry | {"return_mean": 8.0}, entry | {"deterministic": False}, entry | {"levels": "test"}]
    lines += [entry | {"step": 640, "return_mean": 5.0}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "evaluations.jsonl").write_text(text + '[1]\n{"step": 1280, "deter')
    assert Watched(run).view.scores == [(1280, 8.0)]


def test_the_panel_has_everything() -> None:
    view = RunView("PPG on CartPole-v1, seed 1", total=5120, interval=4, checkpoint="step-2")
    for row in rows_of(10):
        view.take(row)
    shown = drawn(view)
    assert re.search(r"directory +- ", shown)  # there is none
    view.run_dir = "runs/x"
    shown = drawn(view)
    for part in (
        "─ PPG on CartPole-v1, seed 1 ─",
        r"now +auxiliary phase",
        r"━─+  25% ",
        r"steps +1,280 of 5,120 ",
        r"iteration +phase 3, policy iteration 3 of 4 ",
        r"time +0m05s elapsed +0m03s left ",  # 3,840 steps at 1,000 a second
        r"speed +1,000 steps/s, last 10 s",
        r"score +- no evaluation yet",
        r"training return, last 100 episodes +177.. +▁[▁▂▃▄▅▆▇]*█",
        r"episodes +27 of mean length +20\d.\d",
        r"spent +environment +50%  inference +12%  update +25%  auxiliary +2%",
        r"update +kl 0.0\d+  entropy +0.4  clip +0.1  explained +0.9  value loss +0.05",
        r"checkpoint step-2 ",
        r"directory +runs/x ",
    ):
        assert re.search(part, shown), (part, shown)
    assert not CONTROL.search(plain_line(view))
    assert view.phase() == "phase 3, policy iteration 2 of 4"  # of the last one that is complete


def test_numbers_that_are_none_do_not_stop_a_display() -> None:
    view = RunView("title", total=0)
    view.take({"step": 5, "return_mean": float("nan"), "kl": float("inf"), "sps": None, "episodes": None})
    assert "nan" in plain_line(view)
    assert "inf" in drawn(view)
    assert view.returns == []
    assert [number(x) for x in (None, 0, 5.0, 1234567.0, 0.00012345)] == ["-", "0", "5", "1.235e+06", "0.0001234"]
    assert [duration(x) for x in (None, 59.9, 61, 3661, 1e6)] == ["?", "0m59s", "1m01s", "1h01m", "11d13h"]
    assert sparkline([0.0, 1.0, 2.0, 3.0], 4) == "▁▃▆█"  # eighths of the span, rounded down
    assert sparkline([5.0, 5.0], 4) == "▅▅"


@pytest.mark.parametrize(
    ("config", "interval"),
    [({"n_pi": 8, "e_aux": 6}, 8), ({"n_pi": 8, "aux_interval": 2, "aux_steps": 5}, 2), ({"n_pi": 8, "e_aux": 0}, 0), ({}, 0), ({"n_pi": "x", "e_aux": 1}, 0)],
)  # fmt: skip
def test_the_interval_of_auxiliary_phases_is_read_from_settings(config: dict[str, object], interval: int) -> None:
    assert auxiliary_interval(config) == interval


def test_a_terminal_gets_a_panel_that_is_redrawn(tmp_path: Path) -> None:
    """A real terminal: what a training shows there, and what a watch of the finished run does."""
    run = tmp_path / "run"
    train = ["train", "ppg", "--env", "CartPole-v1", "--total-steps", "256", "--num-envs", "2", "--num-steps", "16"]
    train += ["--num-minibatches", "2", "--n-pi", "2", "--e-aux", "1", "--aux-minibatches", "2", "--run-dir", str(run)]
    for arguments, parts in (
        (
            train,
            (
                "loading PyTorch",
                "phase 4, policy iteration 2 of 2",
                "256 of 256 ",
                "step-000000000256",
                "finished at 256 steps",
                "directory",
                f"; the run is in {run}",
                f"phasegrad resume {run} --total-steps 512",
            ),
        ),
        (["watch", str(run)], ("finished", "256 of 256 ", "step-000000000256")),
    ):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "phasegrad", *arguments]
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as process:
            os.close(theirs)
            shown = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
                if not part:
                    break
                shown += part
            assert process.wait(timeout=60) == 0, shown.decode()
        os.close(ours)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
        plain = " ".join(plain.split())  # long lines are wrapped at words
        for part_ in parts:
            assert part_ in plain, (part_, plain)
        assert b"\x1b[?25h" in shown or b"\x1b[?25l" not in shown  # the cursor is back


def test_leaving_a_watch_leaves_one_panel_and_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [*rows_of(9), rows_of(10)[9] | {"eval_return_mean": 480.0}], total_steps=4096)
    lock = Lock(run)
    terminal = Terminal([sys.executable, "-m", "phasegrad", "watch", str(run)], 60)
    assert terminal.read(60.0, until="╯".encode())
    terminal.read(1.0)
    terminal.press(b"\r\x03")
    assert terminal.end() == 0
    lock.release()
    lines = terminal.lines()
    after = require_one_whole_panel(lines, 60)
    assert not any(lines[after:])
    assert re.search(r"now +running", lines[1])
    assert any(re.search(r"score +480.0 at step 1,280", line) for line in lines)
    assert re.search(r"memory +[\d,]+ MiB", "".join(lines))  # of the process that trains
