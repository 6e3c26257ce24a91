"""The display of a training: a panel that never moves, its numbers, its first line and its last, Ctrl-C, notebooks."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.cells import cell_len
from rich.console import Console
from terminal import Terminal, panels, require_one_whole_panel
from written_runs import rows_of

import phasegrad as pg
from phasegrad.cli.main import VERBS, main
from phasegrad.cli.starting import announce
from phasegrad.machine.memory import resident_bytes
from phasegrad.runs.console import take_up
from phasegrad.runs.ending import next_lines, summary_line, told_in_commands
from phasegrad.runs.formats import cells, field, score, shorten
from phasegrad.runs.panel import ROWS, RunPanel
from phasegrad.runs.view import Pace, RunView, activity, plain_line, playback

SMALL = ["--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2"]
LONG = "some_module.with_a_long_name:AnEnvironmentWhoseIdHardlyEndsAtAll-v17"
NAN, HUGE = float("nan"), 1.7976931348623157e308
WRONG = {
    "return_mean": NAN,
    "length_mean": HUGE,
    "kl": -HUGE,
    "entropy": float("inf"),
    "sps": 1e-300,
    "episodes": 10**15,
}
RESULT = {"status": "finished", "step": 1280, "seconds": 12.5, "sps": 102.4, "return_mean": 150.0, "episodes": 9}


def pictures(view: RunView, now: str, width: int, **more: Any) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(RunPanel(view, now, **more))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def states_of_a_run() -> Iterator[tuple[str, RunView, str]]:
    """A run from its first moment to its last, each state with what goes on."""
    view = RunView(f"PPG on {LONG}, seed 1", 10**12, 4, "dual network on cpu, " * 9, run_dir=f"runs/{LONG}/{'x' * 200}")
    yield "start", view, activity("", begun=False)
    yield "compiling", view, activity("compile", begun=False)
    yield "playing back", view, playback(12, 10**11)
    for i, row in enumerate(rows_of(9)):
        view.take(row | ({"eval_return_mean": 10.0**i, "eval_test_return_mean": -(10.0**i)} if i % 2 else {}))
        view.memory = 10 ** (i + 5)
        yield f"row {i}", view, activity("update" if i % 3 else "something an outside algorithm does", begun=True)
    yield "evaluating", view, activity("evaluation", begun=True)
    view.take({"step": 10**11, "iteration": 10**10, "seconds": 1e9, "time_other": NAN, **WRONG})
    yield "wrong numbers", view, "auxiliary phase " * 20
    view.take({"step": 10**12, "iteration": 10**10, "seconds": 1e9, "eval_return_mean": HUGE, "time_other": 0.5})
    view.checkpoint = "step-" + "9" * 90
    yield "a name that is wide", view, "環境" * 60
    view.ended(RESULT | {"step": 10**12, "eval": {"return_mean": 500.0, "episodes": 20, "step": 10**12}})
    yield "finished", view, view.status


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_panel_has_the_same_shape_in_every_state_of_a_run(width: int) -> None:
    seen = []
    for state, view, now in states_of_a_run():
        lines = pictures(view, now, width, since=3.0, underway=state != "finished")
        assert len(lines) == ROWS, (state, lines)
        assert {cell_len(line) for line in lines} == {width}, (state, lines)
        assert lines[0].startswith("╭")
        assert lines[-1].endswith("╯")
        assert all(line.startswith("│ ") and line.endswith(" │") for line in lines[1:-1]), (state, lines)
        seen.append([line[2:13] for line in lines[1:-1]])
    assert all(labels == seen[0] for labels in seen)  # every row stays where it is


def test_a_wide_terminal_gets_the_panel_of_120_columns_and_a_narrow_one_what_fits() -> None:
    view = RunView("PPO on CartPole-v1, seed 1", 1000)
    assert {len(line) for line in pictures(view, "starting", 300)} == {120}
    for width in (40, 20):
        lines = pictures(view, "starting", width)
        assert len(lines) == ROWS
        assert {len(line) for line in lines} == {width}


def test_numbers_keep_to_their_fields_and_long_names_lose_their_middle() -> None:
    for value in (None, 0, 1, -1.5, 123456.789, -0.000123456, 1e9, -1e300, NAN, -float("inf"), 10**15):
        for width in (7, 10):
            assert len(field(value, width)) == width, value
    assert [score(value) for value in (500.0, -12.345, 0.9312, None, 2e7)] == [
        "500.0",
        "-12.35",
        "0.931",
        "-",
        "2.000e+07",
    ]
    assert shorten("runs/a/long/path/seed1", 12) == "runs/a…seed1"
    assert shorten("short", 12) == "short"
    assert cells(shorten("環境" * 20, 11)) <= 11
    path = f"runs/{LONG}/seed1"
    view = RunView("t", 10, run_dir=path)
    shown = pictures(view, "", 60)[-2]
    assert "runs/some_mod" in shown
    assert shown.rstrip(" │").endswith("/seed1")


def test_without_colour_or_unicode_the_panel_says_the_same() -> None:
    view = RunView("PPO on CartPole-v1, seed 1", 2560)
    for row in rows_of(10):
        view.take(row)
    plain = Console(width=80, file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=True, no_color=True)
    plain.print(RunPanel(view, "training"))
    plain.file.flush()
    shown = plain.file.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "####" in shown
    assert re.search(r"[#]\.+  50%", shown)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown)


def row_of(step: int, sps: float, seconds: float, **more: Any) -> dict[str, Any]:
    return {"step": step, "iteration": step // 100, "sps": sps, "seconds": seconds, **more}


def test_the_speed_is_that_of_the_last_seconds_and_what_is_left_excludes_the_start() -> None:
    """200 steps take 0.1 s (2,000 a second), but for the first iteration, a compilation, an evaluation, a checkpoint."""
    view = RunView("t", 100_000, pace=Pace(0))
    assert view.pace.rate() is None
    assert view.seconds_left() is None
    view.take(row_of(200, 100.0, 30.0))  # 28 s of imports and playing back, 2 s of an iteration that is not compiled
    assert view.pace.rate() == pytest.approx(100.0)
    view.take(row_of(400, 20.0, 40.0, time_compile=0.99))  # 10 s, of which 9.9 are compiling
    assert view.pace.rate() == pytest.approx(2000.0)
    assert view.seconds_left() == pytest.approx((100_000 - 400) / 2000.0)
    seconds, step = 40.0, 400
    for _ in range(98):
        step, seconds = step + 200, seconds + 0.1
        view.take(row_of(step, 2000.0, seconds))
    assert view.pace.rate() == pytest.approx(2000.0)
    left = view.seconds_left()
    assert left == pytest.approx(40.0)  # 80,000 steps
    assert view.seconds_left(since=1.5) == pytest.approx(38.5)
    assert view.elapsed(since=1.5) == pytest.approx(seconds + 1.5)
    view.take(row_of(20_200, 2000.0, seconds + 10.1, time_evaluation=90.0, time_checkpoint=10.0))
    assert view.pace.rate() == pytest.approx(2000.0)  # evaluations are no training, but they take their time again
    assert view.seconds_left() == pytest.approx(79_800 * (9.8 + 0.1 + 0.1 + 10.0) / 20_000, rel=0.01)
    # half as fast from now on: within ten seconds the speed says so
    for _ in range(30):
        view.take(row_of(view.step + 200, 1000.0, 0.0))
    assert 1000.0 < (view.pace.rate() or 0) < 2000.0
    for _ in range(30):
        view.take(row_of(view.step + 200, 1000.0, 0.0))
    assert view.pace.rate() == pytest.approx(1000.0)


def test_what_lies_between_rows_of_one_session_counts_for_what_is_left() -> None:
    """Playing back lies between rows of two sessions, which only the files of a run have."""
    for one_session, seconds in ((True, 1.5), (False, 1.0)):
        view = RunView("t", 1000, pace=Pace(0, one_session))
        for i in range(5):
            view.take(row_of((i + 1) * 100, 100.0, 20.0 + 1.5 * i))
        assert view.pace.rate() == pytest.approx(100.0)
        assert view.seconds_left() == pytest.approx(5 * seconds)


def test_one_odd_iteration_does_not_make_the_speed_jump() -> None:
    view = RunView("t", 100_000)
    rates = []
    for i in range(400):
        view.take(row_of((i + 1) * 200, 1274.0 if i % 40 == 39 else 28_022.0, float(i)))
        rates.append(view.pace.rate() or 0.0)
    assert max(rates[100:]) < 1.5 * min(rates[100:])


def test_shares_are_of_the_same_seconds() -> None:
    view = RunView("t", 100_000, interval=4)
    for i in range(8):
        view.take(row_of((i + 1) * 100, 100.0, float(i), time_update=0.5, time_mine=0.25, **({"time_auxiliary": 0.4} if i % 4 == 3 else {})))  # fmt: skip
    assert view.pace.shares() == pytest.approx({"update": 0.5, "auxiliary": 0.8 / 7, "mine": 0.25})


def test_the_score_is_the_evaluation_and_training_returns_are_called_so() -> None:
    view = RunView("t", 1280)
    for row in rows_of(10):
        view.take(row)
    assert "score" not in plain_line(view)
    assert "training return, last 100 episodes 177" in plain_line(view)
    view.take({"step": 1280, "eval_return_mean": 480.25, "eval_test_return_mean": 7.5, "return_mean": 3.0})
    view.evaluated(1280, 480.25)  # said again by the result
    assert view.scores == [(1280, 480.25)]
    assert "score 480.2 at step 1,280" in plain_line(view)
    scored = view.scored(RESULT)  # a result without an evaluation of its own
    assert scored["eval"]["return_mean"] == 480.25
    assert view.scored(RESULT | {"eval": {"return_mean": 1.0}})["eval"] == {"return_mean": 1.0}
    assert "test levels 7.50" in "".join(pictures(view, "", 60))


def test_the_last_line_begins_with_the_score() -> None:
    evaluation = {"return_mean": 500.0, "episodes": 20, "step": 1280}
    done = "finished at 1,280 steps in 12 s (102 steps/s)"
    assert summary_line(RESULT) == f"training return, last 100 episodes: 150.0; {done}"
    assert (
        summary_line(RESULT | {"eval": evaluation}, "runs/x")
        == f"score 500.0 (20 greedy episodes); {done}; the run is in runs/x"
    )
    both = RESULT | {"eval": evaluation, "eval_test": {"return_mean": 6.5, "episodes": 20}}
    assert summary_line(both).startswith("score 500.0, on levels not trained on 6.50 (20 greedy episodes); ")
    reached = RESULT | {"status": "stopped", "eval": evaluation, "reached": 475.0}
    assert "; stopped with the 475.0 that was asked for, at 1,280 steps in 12 s" in summary_line(reached)
    assert summary_line(RESULT | {"return_mean": None}).startswith("training return, last 100 episodes: -; ")


def test_a_run_ends_with_what_comes_next() -> None:
    calls = next_lines(RESULT, "runs/my run", 1280)
    assert calls[0] == "next:"
    assert [line.split("#")[0].strip() for line in calls[1:]] == [
        "agent.evaluate(episodes=100)",
        'agent.record("agent.mp4")',
        "phasegrad.report.write_report(['runs/my run'], \"report.html\")",
        "agent.learn(2_560)",
    ]
    with told_in_commands():
        commands = next_lines(RESULT, "runs/my run", 1280)
        stopped = next_lines(RESULT | {"status": "stopped"}, "runs/x", 2560)
    assert [line.split("#")[0].strip() for line in commands[1:]] == [
        "phasegrad eval 'runs/my run' --episodes 100 --deterministic",
        "phasegrad video 'runs/my run'",
        "phasegrad report 'runs/my run'",
        "phasegrad resume 'runs/my run' --total-steps 2560",
    ]
    assert stopped[1].split("#")[0].strip() == "phasegrad resume runs/x"
    assert max(map(len, next_lines(RESULT, "runs/x", 1280, 60))) <= 60  # without remarks where there is no room


def test_the_commands_that_a_run_names_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", "ppo", "--env", "CartPole-v1", "--total-steps", "128", "--run-dir", str(run), *SMALL]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "loading PyTorch and the environments"
    start = printed.index("next:")
    for line in printed[start + 1 :]:
        command = line.split("#")[0].split()
        if command[1] != "video":  # which needs an encoder of films
            assert main(command[1:]) == 0, command
    assert pg.load(run).progress.step == 256


def test_memory_is_read_where_the_system_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (resident_bytes() or 0) > 10 * 2**20 or not Path("/proc/self/statm").exists()
    assert resident_bytes(2**22 + 1) is None
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: (_ for _ in ()).throw(psutil.AccessDenied()))
    assert resident_bytes() is None


def test_a_resumed_run_goes_on_with_what_is_known_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "eval_checkpoints": 2}
    agent = pg.PPO("CartPole-v1", run_dir=run, checkpoint_every=64, **options)
    agent.learn(128)
    again: Any = pg.load(run)
    for trainer in (again, agent):
        view = RunView("t", 256)
        take_up(view, trainer)
        shown = "\n".join(pictures(view, activity("", begun=False), 80, underway=True))
        assert re.search(r"steps +128 of 256 ", shown)
        assert re.search(r"iteration +5 ", shown)
        assert re.search(r"score +[\d.]+ at step 128 ", shown)
        assert re.search(r"last 100 episodes +\d", shown)
        assert "checkpoint step-000000000128" in shown
        assert re.search(r"speed +- steps/s", shown)  # of sessions before
        assert view.elapsed() > 0
    again.close()


def test_quiet_and_help_are_not_announced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["resume", str(tmp_path), "--quiet"])
    assert capsys.readouterr().out == ""
    main(["resume", str(tmp_path)])
    assert capsys.readouterr().out == "loading PyTorch and the run\n"
    with contextlib.suppress(SystemExit):
        main(["train", "--help"])
    assert "loading" not in capsys.readouterr().out
    monkeypatch.setenv("RANK", "1")  # the second of torchrun's processes
    announce(["train", "ppo"])
    assert capsys.readouterr().out == ""


def train_in(width: int, run: Path, *more: str, **environment: str) -> Terminal:
    command = [sys.executable, "-m", "phasegrad", "train", "ppo", "--env", "CartPole-v1", "--run-dir", str(run), *SMALL]
    return Terminal([*command, "--total-steps", "20_000_000", "--compile", "off", *more], width, **environment)


def test_something_is_said_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    """0.3 s after the start on an idle machine; the bound is for a busy one, and far below what torch takes."""
    before = (
        "import sys, phasegrad.cli.main; print([m for m in ('torch', 'numpy', 'rich', 'envpool') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", before], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", ""], check=True)
    bare = time.monotonic() - begun  # tens of milliseconds on an idle machine
    for verb in (["train", "ppo", "--env", "CartPole-v1"], ["resume", str(tmp_path)]):
        terminal = Terminal([sys.executable, "-m", "phasegrad", *verb], 80)
        terminal.read(30.0, until=b"\n")
        terminal.process.kill()
        terminal.end()
        assert terminal.output.startswith(b"loading PyTorch"), terminal.output
        assert terminal.first is not None
        assert terminal.first < max(1.0, 8 * bare)


def test_ctrl_c_leaves_a_clean_screen(tmp_path: Path) -> None:
    terminal = train_in(80, tmp_path / "run")
    terminal.read(90.0, until=b"choosing actions")
    terminal.read(2.0)
    terminal.press(b"x\r\r\r")
    terminal.read(1.5)
    echoes = terminal.echoes()
    terminal.press(b"\x03")
    terminal.read(60.0, until=b"as if it had")
    assert (echoes, terminal.echoes()) == (False, True)  # keys are not seen while the panel is there
    code = terminal.end()
    lines = terminal.lines()
    after = require_one_whole_panel(lines, 80)
    assert code == 130
    assert lines[0] == "loading PyTorch and the environments"
    assert "".join(lines[after:]).startswith("phasegrad: stopped at step ")
    assert "`phasegrad resume" in "".join(lines[after:])
    assert "stopped" in lines[panels(lines)[0] + 1]
    assert terminal.output.rindex(b"\x1b[?25h") > terminal.output.rindex(b"\x1b[?25l")  # the cursor is seen again


def test_ctrl_c_while_loading_says_so_on_a_line_of_its_own(tmp_path: Path) -> None:
    terminal = train_in(80, tmp_path / "run")
    terminal.read(30.0, until=b"\n")
    terminal.press(b"\x03")
    assert terminal.end() == 130
    assert terminal.lines()[1] == "phasegrad: stopped before there was anything to save."


def test_ctrl_c_that_an_import_turns_into_its_own_error_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def importing(_: Any) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise ImportError("numpy could not be imported") from None

    monkeypatch.setitem(VERBS, "doctor", importing)
    assert main(["doctor"]) == 130
    monkeypatch.setitem(VERBS, "doctor", lambda _: int("x"))
    with pytest.raises(ValueError, match="invalid literal"):
        main(["doctor"])


def test_a_terminal_that_changes_its_size_gets_the_panel_anew(tmp_path: Path) -> None:
    terminal = train_in(100, tmp_path / "run")
    terminal.read(90.0, until=b"choosing actions")
    terminal.resize(60, 24)
    terminal.read(2.0)
    assert b"\x1b[2J" in terminal.output
    terminal.output = terminal.output[terminal.output.rindex(b"\x1b[2J") :]
    terminal.resize(80, 24)
    terminal.read(2.0)
    terminal.press(b"\x03")
    assert terminal.end() == 130
    require_one_whole_panel(terminal.lines(), 80)


PRINTING = """
import logging, os, sys, warnings
import phasegrad as pg

logging.basicConfig(level="INFO", format="logged %(message)s")  # holds the stderr of before
seen = 0

def callback(row):
    global seen
    seen += 1
    print("printed", row["iteration"])
    warnings.warn(f"warned {seen}")
    logging.info("%d", seen)
    if seen == 3:
        THEN

agent = pg.PPO("CartPole-v1", num_envs=2, num_steps=16, num_minibatches=2, compile="off")
agent.learn(96, callback=callback, progress=True)
"""


def test_what_a_callback_prints_warns_and_logs_stands_above_the_panel(tmp_path: Path) -> None:
    terminal = Terminal([sys.executable, "-c", PRINTING.replace("THEN", "pass")], 80, 60)
    assert terminal.end() == 0, terminal.output.decode()
    lines = terminal.lines()
    after = require_one_whole_panel(lines, 80)
    above = lines[: after - ROWS]
    for text in ("printed 1", "printed 3", "logged 1", "logged 3"):
        assert text in above, lines
    for number in (1, 2, 3):
        assert any(f"UserWarning: warned {number}" in line for line in above), lines
    assert lines[after].startswith("score ")
    assert lines[after + 1] == "" or lines[after + 1].startswith(("next:", "s"))
    assert any(line.strip().startswith("agent.learn(192)") for line in lines)


def test_an_error_leaves_the_panel_whole(tmp_path: Path) -> None:
    terminal = Terminal([sys.executable, "-c", PRINTING.replace("THEN", "raise ValueError('mine')")], 80, 60)
    assert terminal.end() == 1
    lines = terminal.lines()
    after = require_one_whole_panel(lines, 80)
    assert lines[after].startswith("Traceback")
    assert lines[after - ROWS + 1].split()[2] == "failed"
    assert terminal.output.rindex(b"\x1b[?25h") > terminal.output.rindex(b"\x1b[?25l")


def test_colour_is_left_out_where_it_is_not_wanted(tmp_path: Path) -> None:
    for environment, panel in (({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, False)):
        program = PRINTING.replace("THEN", "pass")
        terminal = Terminal([sys.executable, "-c", program], 80, 60, **environment)
        assert terminal.end() == 0
        assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m", terminal.output)
        assert bool(panels(terminal.lines())) is panel
        assert panel or b"\x1b" not in terminal.output


class FakeHandle:
    def __init__(self, shown: list[tuple[str, dict[str, str]]]) -> None:
        self.shown = shown

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(("update", data))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    """A kernel's IPython, as far as the display uses it: what was put out, and what then took its place."""
    shown: list[tuple[str, dict[str, str]]] = []

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> FakeHandle:
        assert raw
        assert display_id
        shown.append(("display", data))
        return FakeHandle(shown)

    library, displays = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    library.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    displays.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", library)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return shown


def test_a_notebook_shows_one_panel_that_is_replaced(
    notebook: list[tuple[str, dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = pg.PPO("CartPole-v1", num_envs=2, num_steps=16, num_minibatches=2)
    agent.learn(96, progress=True)
    kinds = [kind for kind, _ in notebook]
    assert kinds[0] == "display"
    assert set(kinds[1:]) == {"update"}
    last = notebook[-1][1]
    assert re.search(r"now +finished", last["text/plain"])
    assert "96 of 96" in last["text/plain"]
    assert last["text/html"].startswith("<pre")
    assert "<script" not in last["text/html"]
    heights = {len(data["text/plain"].splitlines()) for _, data in notebook}
    assert heights == {ROWS}
    printed = capsys.readouterr().out
    assert "score " in printed
    assert "agent.learn(192)" in printed
    assert "╭" not in printed


def test_outside_a_kernel_ipython_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = types.ModuleType("IPython")
    library.get_ipython = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", library)
    pg.PPO("CartPole-v1", num_envs=2, num_steps=16, num_minibatches=2).learn(64, progress=True)
    assert "64 / 64 steps" in capsys.readouterr().out
