"""What is kept of a study: comparisons with its first variant, curves, and the table made anew from a record."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_studies import write_run

from phasegrad.cli import main
from phasegrad.errors import RunError
from phasegrad.report.statistics import estimate_paired
from phasegrad.studies import command
from phasegrad.studies.curves import read_curves, read_published
from phasegrad.studies.definition import parse_study
from phasegrad.studies.figure import draw_study
from phasegrad.studies.grid import PlannedRun, build_grid
from phasegrad.studies.pairs import comparisons
from phasegrad.studies.runner import Outcome, StudyStopped
from phasegrad.studies.scores import score_runs
from phasegrad.studies.table import build_table
from phasegrad.studies.table_views import as_csv, as_markdown

STUDY = """
title = "Two on two"
steps = 1024
seeds = [1, 2]
eval_episodes = 20
environments = [{ env = "CartPole-v1", low = 0, high = 100 }, { env = "Acrobot-v1", low = -500, high = 0 }]
variants.a.gamma = 0.9
variants.b.gamma = 0.99
"""


def test_the_paired_interval_is_that_of_drawing_environments_then_seeds_one_by_one() -> None:
    differences = [[0.1, 0.5], [-0.2, 0.0, 0.1], [0.9]]
    found = estimate_paired(differences)
    assert found.value == pytest.approx(np.mean([0.3, -0.1 / 3, 0.9]))
    rng = np.random.default_rng(5)
    means = []
    for _ in range(20_000):
        chosen = [differences[rng.integers(3)] for _ in range(3)]
        means.append(np.mean([np.mean(rng.choice(stratum, len(stratum))) for stratum in chosen]))
    low, high = np.percentile(means, [2.5, 97.5])
    assert found.low == pytest.approx(low, abs=0.02)
    assert found.high == pytest.approx(high, abs=0.02)


def test_a_paired_interval_needs_something_to_draw() -> None:
    assert estimate_paired([[0.2]]).low is None
    assert estimate_paired([[0.2, 0.2]]).low == pytest.approx(0.2)
    with pytest.raises(ValueError, match="no pairs"):
        estimate_paired([[]])


def test_variants_are_compared_with_the_first_by_environment_and_seed(tmp_path: Path) -> None:
    study = parse_study(STUDY, "x")
    runs = build_grid(study, tmp_path, {})
    scores = {("CartPole-v1", "a"): (20, 40), ("CartPole-v1", "b"): (30, 90)}
    scores |= {("Acrobot-v1", "a"): (-250, -100), ("Acrobot-v1", "b"): (-150, -150)}
    for run in runs:
        slow = 2.0 if run.variant.name == "b" else 1.0
        write_run(run, scores[run.environment.name, run.variant.name][run.seed - 1], seconds=slow)
    table = build_table(study, score_runs(study, runs, {}, tmp_path))
    (row,) = table["comparisons"]
    assert (row["variant"], row["against"], row["pairs"], row["environments"]) == ("b", "a", 4, 2)
    assert row["difference"] == pytest.approx(np.mean([np.mean([0.1, 0.5]), np.mean([0.2, -0.1])]))
    assert row["improvement"] == pytest.approx(np.mean([3 / 4, 2 / 4]))  # -150 twice above -250, twice below -100
    assert row["cost"] == pytest.approx(2.0)
    assert "Against a, paired by environment and seed" in as_markdown(table)
    assert "comparison,,b," in as_csv(table)


def test_too_few_pairs_are_not_compared(tmp_path: Path) -> None:
    study = parse_study(STUDY, "x")
    runs = build_grid(study, tmp_path, {})
    for run in runs:
        if run.environment.name == "CartPole-v1" or run.variant.name == "a":
            write_run(run, 50)
    assert comparisons(study, score_runs(study, runs, {}, tmp_path)) == []  # two pairs: Acrobot has no b


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A study's folder with finished runs that have curves, and its file beside it."""
    (tmp_path / "two.toml").write_text(STUDY)
    root = tmp_path / "study"
    for place, run in enumerate(build_grid(parse_study(STUDY, "two"), root, {})):
        write_run(run, 50 + place)
        rows = [
            {"step": 8 * row, "seconds": row, "iteration": row, "return_mean": float(row + place)}
            | ({"eval_return_mean": 2.0 * row} if row in (64, 128) else {})
            for row in range(1, 129)
        ]
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "study.json").write_text(json.dumps({"name": "two"}))
    assert main(["study", str(tmp_path / "two.toml"), "--dir", str(root), "--table-only", "--quiet"]) == 0
    return root


def test_curves_are_kept_thinned_with_every_score(done: Path) -> None:
    curves = read_curves(done / "curves.csv")
    assert len(curves) == 8
    first = curves[0]
    assert (first.environment, first.variant, first.seed) == ("CartPole-v1", "a", "1")
    assert len(first.steps) <= 62
    assert (first.steps[0], first.steps[-1]) == (8, 1024)
    assert {float(step) for step in first.steps[np.isfinite(first.score)]} == {512.0, 1024.0}
    assert np.array_equal(first.training, first.steps / 8)
    assert (done / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_a_record_without_runs_gives_the_same_table(done: Path, tmp_path: Path) -> None:
    kept = {
        name: (done / name).read_bytes() for name in ("table.md", "table.json", "table.csv", "curves.csv", "curves.png")
    }
    shutil.rmtree(done / "runs")
    for name in ("table.md", "table.json", "curves.png"):
        (done / name).unlink()
    command = ["study", str(tmp_path / "two.toml"), "--dir", str(done), "--table-only", "--quiet"]
    assert main(command) == 0
    assert {name: (done / name).read_bytes() for name in kept} == kept
    text = (done / "table.csv").read_text()
    (done / "table.csv").write_text(
        text.replace("run,CartPole-v1,a,return,1,finished,50.0", "run,CartPole-v1,a,return,1,finished,70.0")
    )
    assert main(command) == 0
    assert b"60.5" in (done / "table.md").read_bytes()  # the mean of 70 and 51: reckoned from the runs


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "its first line must name"),
        ("step,value\n1,2\n", "its first line must name"),
        ("environment,label,step,value\nA,b,many,2\n", "step 'many' is not a number"),
        ("environment,label,step,value\nA,b,nan,2\n", "step 'nan' is not a number"),
        ("environment,label,step,value\nA,b,1,-inf\n", "value '-inf' is not a number"),
        ("environment,label,step,value\nA,b,\x00,2\n", "is not a"),
    ],
)
def test_a_damaged_table_gets_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "published.csv").write_text(text)
    with pytest.raises(RunError, match=sentence):
        read_published(tmp_path / "published.csv")


def test_published_curves_are_drawn_beside_ours(done: Path) -> None:
    before = (done / "curves.png").read_bytes()
    (done / "published.csv").write_text(
        "environment,label,step,value\nCartPole-v1,a paper's $x$,0,1\nCartPole-v1,a paper's $x$,900,99\n"
    )
    assert draw_study(done, "Two", trained=False)
    assert (done / "curves.png").read_bytes() != before
    assert not draw_study(done.parent, "Nothing", trained=False)


def test_a_record_with_impossible_numbers_is_no_traceback(done: Path, tmp_path: Path) -> None:
    shutil.rmtree(done / "runs")
    command = ["study", str(tmp_path / "two.toml"), "--dir", str(done), "--table-only", "--quiet"]
    with open(done / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for name, value, code in (("seconds", "-3", 0), ("episodes", "nan", 2)):
        with open(done / "table.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({**row, name: value} if index == 0 else row for index, row in enumerate(rows))
        assert main(command) == code


def test_the_figure_of_a_study_leaves_matplotlib_as_it_was(done: Path) -> None:
    import matplotlib

    before = matplotlib.get_backend()
    matplotlib.use("svg")
    try:
        assert draw_study(done, "Two", trained=False)
        assert matplotlib.get_backend() == "svg"
    finally:
        matplotlib.use(before)


def _scores(folder: Path) -> dict[tuple[str, str, str], str]:
    with open(folder / "table.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "run" and row["score"]]
    return {(row["environment"], row["variant"], row["seed"]): row["score"] for row in rows}


def _recorded(tmp_path: Path, study: str = STUDY, keep: int = 8) -> Path:
    """A study file, its first `keep` runs finished in a folder that is gone since, and their record."""
    (tmp_path / "two.toml").write_text(study)
    before, record = tmp_path / "before", tmp_path / "record"
    for place, run in enumerate(build_grid(parse_study(study, "two"), before, {})[:keep]):
        write_run(run, 50 + place)
        row = {"step": 1024, "seconds": 1.0, "iteration": 1, "return_mean": 40.0 + place}
        (run.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (before / "study.json").write_text(json.dumps({"name": "two"}))
    assert main([*_command(tmp_path, before), "--table-only"]) == 0
    shutil.rmtree(before)
    return record


def _command(tmp_path: Path, folder: Path) -> list[str]:
    return ["study", str(tmp_path / "two.toml"), "--dir", str(folder), "--record", str(tmp_path / "record"), "--quiet"]


def test_a_study_goes_on_from_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = _recorded(tmp_path, keep=7)
    kept, curves = _scores(record), (record / "curves.csv").read_text()
    assert len(kept) == 7
    after = tmp_path / "after"
    assert main([*_command(tmp_path, after), "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert listed.count("recorded ") == 7
    assert "new        Acrobot-v1 b seed 2" in listed
    assert main(_command(tmp_path, after)) == 0  # trains the one that is missing
    assert [path.name for path in (after / "runs").glob("*/*/*")] == ["s2"]
    now = _scores(record)
    assert {key: now[key] for key in kept} == kept
    assert set(now) - set(kept) == {("Acrobot-v1", "b", "2")}
    assert (record / "curves.csv").read_text().startswith(curves)
    assert len(read_curves(record / "curves.csv")) == 8
    assert (record / "curves.png").exists()
    # What --table-only makes of the record alone is what the study wrote.
    table = (record / "table.csv").read_bytes()
    assert main(["study", str(tmp_path / "two.toml"), "--dir", str(record), "--table-only", "--quiet"]) == 0
    assert (record / "table.csv").read_bytes() == table


def test_a_part_of_a_study_keeps_the_rest_of_its_record(tmp_path: Path) -> None:
    record = _recorded(tmp_path)
    kept = _scores(record)
    more = [*_command(tmp_path, tmp_path / "after"), "--envs", "CartPole-v1", "--variants", "b", "--seeds", "3,"]
    assert main(more) == 0
    now = _scores(record)
    assert set(now) - set(kept) == {("CartPole-v1", "b", "3")}
    assert {key: now[key] for key in kept} == kept
    # A seed beyond the study's own stays, too, where the next command does not name it.
    assert main([*_command(tmp_path, tmp_path / "third"), "--variants", "a"]) == 0
    assert _scores(record) == now


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("variants.b.gamma = 0.99", "variants.b.gamma = 0.98", "with gamma 0.99, and this study wants 0.98"),
        ("steps = 1024", "steps = 2048", "with total_steps 1024, and this study wants 2048"),
        ("variants.b", "variants.c", "a score of CartPole-v1 b seed 1, which this study does not have"),
        ("gamma = 0.99", "algorithm = 'ppg'", "with algorithm 'ppo', and this study wants 'ppg'"),
    ],
)
def test_scores_of_other_settings_are_refused(
    before: str, after: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = _recorded(tmp_path)
    kept = {path.name: path.read_bytes() for path in record.iterdir()}
    (tmp_path / "two.toml").write_text(STUDY.replace(before, after))
    assert main(_command(tmp_path, tmp_path / "after")) == 2
    assert sentence in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in record.iterdir()} == kept
    assert not (tmp_path / "after").exists()


def test_a_record_without_settings_or_of_another_study_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = _recorded(tmp_path)
    (record / "settings.json").write_text('{"all": 3, "own": {"CartPole-v1": [], "Acrobot-v1": {"a": 1}}}')
    assert main(_command(tmp_path, tmp_path / "after")) == 2
    assert "no settings for it in settings.json" in capsys.readouterr().err
    (record / "study.json").write_text(json.dumps({"name": "another"}))
    assert main(_command(tmp_path, tmp_path / "after")) == 2
    assert "holds the study 'another', not 'two': choose another --record" in capsys.readouterr().err
    same = ["study", str(tmp_path / "two.toml"), "--dir", str(tmp_path / "x"), "--record", str(tmp_path / "x")]
    assert main(same) == 2
    assert "is the study's own folder" in capsys.readouterr().err


def test_a_scale_from_the_best_run_counts_recorded_runs_and_new_ones(tmp_path: Path) -> None:
    text = STUDY.replace("low = 0, high = 100", "random = 0").replace("low = -500, high = 0", "random = -500")
    text = 'normalise = "random-best"\n' + text
    record = _recorded(tmp_path, text, keep=3)  # CartPole-v1: 50, 51, 52
    after = tmp_path / "after"
    write_run(build_grid(parse_study(text, "two"), after, {})[3], 104)
    assert main([*_command(tmp_path, after), "--table-only"]) == 0
    with open(record / "table.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "run" and row["score"]]
    assert [float(row["normalised"]) for row in rows] == pytest.approx([50 / 104, 51 / 104, 0.5, 1.0])


def test_a_record_has_what_finished_before_a_stop_and_hears_of_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = _recorded(tmp_path, keep=6)
    heard = []

    def stopped(runs: list[PlannedRun], jobs: int, display: Any, keep_open: Any, ended: Any) -> list[Outcome]:
        write_run(runs[0], 77)
        ended(Outcome(runs[0], "failed", "pretended"))
        heard.append(len(_scores(record)))
        ended(Outcome(runs[0], "finished"))
        heard.append(len(_scores(record)))
        write_run(runs[1], 78)
        raise StudyStopped(signal.SIGTERM)

    monkeypatch.setattr(command, "run_locally", stopped)
    assert main(_command(tmp_path, tmp_path / "after")) == 143
    assert heard == [6, 7]
    assert [_scores(record)["Acrobot-v1", "b", seed] for seed in ("1", "2")] == ["77.0", "78.0"]


def test_another_length_holds_for_the_whole_of_a_recorded_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.toml").write_text(STUDY.replace("high = 0 }", "high = 0, steps = 4096 }"))
    command = [*_command(tmp_path, tmp_path / "after"), "--total-steps", "256", "--variants", "a", "--seeds", "1"]
    assert main([*command, "--envs", "Acrobot-v1,MountainCar-v0"]) == 0
    assert set(_scores(tmp_path / "record")) == {("Acrobot-v1", "a", "1"), ("MountainCar-v0", "a", "1")}
    assert main([*command, "--envs", "Acrobot-v1"]) == 2  # what the study itself does not have must be named again
    assert "name MountainCar-v0 in --envs too, or choose another --record" in capsys.readouterr().err


def test_what_has_no_run_yet_is_not_in_the_table_that_is_shown(tmp_path: Path) -> None:
    record = _recorded(tmp_path, keep=2)
    page = (record / "table.md").read_text()
    assert "| CartPole-v1 | a | 50.5 |" in page
    assert "| CartPole-v1 | b |" not in page
    assert "Acrobot" not in page
    assert "6 of the study's runs have no score yet and are not in the table." in page
    with open(record / "table.csv", newline="") as file:
        assert sum(row["kind"] == "cell" for row in csv.DictReader(file)) == 4


@pytest.mark.parametrize("place", ["record", "record/below"])
def test_a_record_that_cannot_be_written_is_refused_before_anything_is_trained(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.toml").write_text(STUDY)
    (tmp_path / "record").write_text("a file of the user's")
    command = ["study", str(tmp_path / "two.toml"), "--dir", str(tmp_path / "after"), "--quiet"]
    assert main([*command, "--record", str(tmp_path / place)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(tmp_path / place) in error
    assert not (tmp_path / "after" / "runs").exists()
    assert (tmp_path / "record").read_text() == "a file of the user's"
