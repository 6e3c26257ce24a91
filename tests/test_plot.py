"""Pictures of learning curves: what is drawn, in which formats, and as a table."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasegrad.cli.main import main
from phasegrad.errors import RunError
from phasegrad.report.lines import SCORE, TEST_SCORE, TRAINING, smoothed
from phasegrad.report.plot import plot_runs
from phasegrad.runs.drawing import STAND_IN, TRAINING_LABEL

Curves = dict[str, list[tuple[float, float]]]


def record(folder: Path, seed: int, curves: Curves, result: dict[str, Any] | None = None, **config: Any) -> str:
    """A run directory with these curves, (step, value) by metric."""
    folder.mkdir(parents=True)
    settings = {"algorithm": "ppo", "env": "CartPole-v1", "total_steps": 1000, **config, "seed": seed}
    (folder / "config.json").write_text(json.dumps(settings | {"versions": {"phasegrad": "0"}}))
    rows: dict[float, dict[str, float]] = {}
    for name, points in curves.items():
        for step, value in points:
            rows.setdefault(step, {"step": step})[name] = value
    (folder / "metrics.jsonl").write_text("".join(json.dumps(rows[step]) + "\n" for step in sorted(rows)))
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return str(folder)


def evaluated(seed: int, *, test: bool = False) -> Curves:
    """Training returns of ten iterations with an evaluation after the fifth and the last."""
    curves = {"return_mean": [(100.0 * i, float(i + seed)) for i in range(1, 11)]}
    curves["eval_return_mean"] = [(500.0, 50.0 + seed), (1000.0, 100.0 + 2 * seed)]
    if test:
        curves["eval_test_return_mean"] = [(500.0, 20.0 + seed), (1000.0, 40.0 + seed)]
    return curves


def drawn(runs: list[str], out: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows of the table of what was drawn."""
    plot_runs(runs, out, **options)
    with open(out, newline="") as file:
        return [
            {key: value if key in ("group", "curve", "line") else float(value or "nan") for key, value in row.items()}
            for row in csv.DictReader(file)
        ]


def points(rows: list[dict[str, Any]], curve: str, line: str) -> list[tuple[float, float]]:
    return [(row["step"], row["return"]) for row in rows if (row["curve"], row["line"]) == (curve, line)]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, kept to be looked at."""
    from phasegrad.runs import drawing

    kept: list[Any] = []
    draw = drawing.drawn
    monkeypatch.setattr(drawing, "drawn", lambda *given, **how: kept.append(draw(*given, **how)) or kept[-1])
    return kept


def labels(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_score_is_drawn_over_a_fainter_training_return(tmp_path: Path, figures: list[Any]) -> None:
    run = record(tmp_path / "a", 1, evaluated(1))
    plot_runs([run], tmp_path / "curve.png")
    [figure] = figures
    score, training = figure.axes[0].lines
    assert list(zip(score.get_xdata(), score.get_ydata(), strict=True)) == [(500, 51), (1000, 102)]
    assert list(training.get_ydata()) == [i + 1.0 for i in range(1, 11)]
    assert training.get_alpha() < 0.5
    assert training.get_linewidth() < score.get_linewidth()
    assert score.get_alpha() is None
    assert labels(figure) == ["PPO on CartPole-v1: greedy evaluation", TRAINING_LABEL]
    assert TRAINING_LABEL == "training episodes, sampled actions, last 100"


def test_training_returns_stand_in_only_where_nothing_was_evaluated(tmp_path: Path, figures: list[Any]) -> None:
    old = {"return_mean": [(100.0, 1.0), (200.0, 2.0)]}
    plot_runs([record(tmp_path / "a", 1, old)], tmp_path / "curve.png")
    [figure] = figures
    assert labels(figure) == [f"PPO on CartPole-v1: {STAND_IN}"]
    assert figure.axes[0].get_ylabel() == "training return, last 100 episodes"
    [line] = figure.axes[0].lines
    assert line.get_alpha() is None


def test_a_score_that_only_the_result_has_is_a_point(tmp_path: Path) -> None:
    curves = {"return_mean": [(100.0, 1.0), (200.0, 2.0)]}
    result = {"status": "finished", "step": 200, "eval": {"return_mean": 9.5, "episodes": 20}}
    rows = drawn([record(tmp_path / "a", 1, curves, result)], tmp_path / "t.csv")
    assert points(rows, SCORE, "seed 1") == [(200, 9.5)]
    again = {"step": 1000, "eval": {"return_mean": 102.0, "step": 1000}}  # as in the last row
    rows = drawn([record(tmp_path / "b", 1, evaluated(1), again)], tmp_path / "t.csv")
    assert points(rows, SCORE, "seed 1") == [(500, 51), (1000, 102)]


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_a_band_needs_three_seeds(seeds: int, tmp_path: Path, figures: list[Any]) -> None:
    runs = [record(tmp_path / str(seed), seed, evaluated(seed)) for seed in range(1, seeds + 1)]
    plot_runs(runs, tmp_path / "curve.png")
    rows = drawn(runs, tmp_path / "t.csv")
    bands = figures[0].axes[0].collections
    if seeds == 2:
        assert not bands
        assert points(rows, SCORE, "seed 2") == [(500, 52), (1000, 104)]
        assert all(np.isnan(row["lowest"]) for row in rows)
        assert labels(figures[0]) == ["PPO on CartPole-v1: greedy evaluation, 2 seeds, a line each", TRAINING_LABEL]
        return
    assert len(bands) == 1  # the training return beneath has none
    name = f"mean of {seeds} seeds"
    mean = np.mean(range(1, seeds + 1))
    assert points(rows, SCORE, name) == [(500, 50 + mean), (1000, 100 + 2 * mean)]
    last = [row for row in rows if row["curve"] == SCORE][-1]
    assert (last["lowest"], last["highest"]) == (102, 100 + 2 * seeds)
    assert labels(figures[0])[0] == f"PPO on CartPole-v1: greedy evaluation, {name}, lowest to highest shaded"


def test_runs_of_other_settings_are_no_seeds(tmp_path: Path) -> None:
    runs = [record(tmp_path / f"{gamma}", 1, evaluated(1), gamma=gamma) for gamma in (0.9, 0.99, 0.999)]
    rows = drawn(runs, tmp_path / "t.csv")
    assert {row["group"] for row in rows} == {f"PPO gamma={gamma} on CartPole-v1" for gamma in (0.9, 0.99, 0.999)}
    assert {row["line"] for row in rows} == {"seed 1"}


def test_training_and_test_levels_have_a_curve_each(tmp_path: Path, figures: list[Any]) -> None:
    runs = [record(tmp_path / str(s), s, evaluated(s, test=True), env="procgen/coinrun") for s in (1, 2, 3)]
    plot_runs(runs, tmp_path / "curve.svg")
    rows = drawn(runs, tmp_path / "t.csv")
    assert points(rows, SCORE, "mean of 3 seeds") == [(500, 52), (1000, 104)]
    assert points(rows, TEST_SCORE, "mean of 3 seeds") == [(500, 22), (1000, 42)]
    assert [label.split(": ")[-1].split(",")[0] for label in labels(figures[0])] == [
        "greedy evaluation on training levels",
        "greedy evaluation on test levels",
        "training episodes",
    ]
    styles = [line.get_linestyle() for line in figures[0].axes[0].lines]
    assert styles == ["-", "--", "-"]


def test_seeds_are_averaged_where_all_of_them_have_values(tmp_path: Path) -> None:
    curves = [[(100.0, 0.0), (300.0, 2.0)], [(200.0, 10.0), (400.0, 20.0)], [(100.0, 5.0), (250.0, 5.0)]]
    runs = [record(tmp_path / str(i), i, {"return_mean": curve}) for i, curve in enumerate(curves)]
    rows = drawn(runs, tmp_path / "t.csv")
    assert points(rows, TRAINING, "mean of 3 seeds") == [(200, (1 + 10 + 5) / 3), (250, (1.5 + 12.5 + 5) / 3)]


def test_smoothing_averages_over_steps() -> None:
    steps, values = np.array([0.0, 10, 20, 30, 100]), np.array([0.0, 10, 2, 6, 7])
    assert smoothed(steps, values, 0) is values
    assert smoothed(steps, values, 20).tolist() == [5, 4, 6, 4, 7]  # 10 before and 10 after
    assert smoothed(steps, values, 1e6).tolist() == [5] * 5


def test_the_command_line_smooths_and_writes_a_table(
    tmp_path: Path, figures: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = record(tmp_path / "a", 1, evaluated(1))
    table = tmp_path / "new" / "t.csv"
    arguments = ["plot", run, "--smooth", "2_000", "--csv", str(table), "--out", str(tmp_path / "c.png")]
    assert main(arguments) == 0
    assert f"wrote {tmp_path / 'c.png'} and {table}" in capsys.readouterr().out
    assert "smoothed over 2,000 steps" in figures[0].axes[0].get_ylabel()
    with open(table, newline="") as file:
        assert {row["return"] for row in csv.DictReader(file) if row["curve"] == SCORE} == {"76.5"}
    assert main(arguments) == 0  # its own files it writes again
    assert main(["plot", run, "--smooth", "-1"]) == 2


@pytest.mark.parametrize(
    ("name", "beginning"), [("c.png", b"\x89PNG"), ("c.svg", b"<?xml"), ("c.pdf", b"%PDF"), ("c.csv", b"group,curve")]
)
def test_the_ending_chooses_the_format(name: str, beginning: bytes, tmp_path: Path) -> None:
    run = record(tmp_path / "a", 1, evaluated(1))
    assert main(["plot", run, "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(beginning)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "mine.csv"], "mine.csv exists and is no table of curves: name another file"),
        (["--csv", "mine.csv"], "mine.csv exists and is no table of curves: name another file"),
        (["--csv", "table.txt"], "--csv table.txt is no .csv file: name one such as table.csv"),
        (["--csv", "folder.csv"], "folder.csv is a directory: name a .csv file"),
    ],
)
def test_files_of_others_are_left_alone(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = record(tmp_path / "a", 1, evaluated(1))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    (tmp_path / "folder.csv").mkdir()
    assert main(["plot", run, *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert (tmp_path / "mine.csv").read_text() == "a,b\n1,2\n"
    assert not (tmp_path / "curve.png").exists()


def test_runs_without_a_number_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = record(tmp_path / "a", 1, {"sps": [(100.0, 5.0)]})
    with pytest.raises(RunError, match="no evaluation and no finished episode in its metrics yet"):
        plot_runs([empty], tmp_path / "c.png")
    with pytest.raises(RunError, match="is not a directory"):
        plot_runs([tmp_path / "nowhere"], tmp_path / "c.png")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    good = record(tmp_path / "b", 2, evaluated(2))
    assert main(["plot", good, str(tmp_path / "broken"), "--out", str(tmp_path / "c.png")]) == 0
    assert "broken is not a run directory" in capsys.readouterr().err
