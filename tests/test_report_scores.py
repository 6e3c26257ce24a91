"""The score on the page: the evaluation everywhere, training returns only by their own name."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from written_runs import rows_of, write_run

from phasegrad.report import write_report
from phasegrad.report.collect import MOST_EVALUATIONS, read_run, read_runs
from phasegrad.report.curves import band
from phasegrad.report.grouping import group_runs
from phasegrad.report.scoring import EVALUATION, TRAINING, evaluated_score, group_score, run_score, winner
from phasegrad.runs.reading import EVALUATIONS


def evaluation(value: float, **more: Any) -> dict[str, Any]:
    return {"return_mean": value, "return_std": 0.0, "episodes": 20, "episodes_cut": 0, **more}


def cells_of(page: str, caption: str) -> list[list[str]]:
    """The body of the table with this caption, as text."""
    body = page.partition(f"<caption>{caption}</caption>")[2].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [
        [unescape(re.sub(r"<.*?>", "", cell)) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)] for row in rows
    ]


def tiles_of(page: str) -> list[str]:
    return [unescape(value) for value in re.findall(r'class="card-value">(.*?)</div>', page)]


def cartpole_rows(training: float, evaluations: dict[int, float], count: int = 10) -> list[dict[str, Any]]:
    rows = []
    for i in range(count):
        row: dict[str, Any] = {"step": (i + 1) * 100, "seconds": i + 1.0, "return_mean": training * (i + 1) / count}
        if i in evaluations:
            row |= {"eval_return_mean": evaluations[i], "eval_episodes": 20}
        rows.append(row)
    return rows


def test_the_tile_and_the_table_are_the_evaluation(tmp_path: Path) -> None:
    """Six runs whose agents score 500 in evaluation and got less while they trained; PPO's have no result yet."""
    for algorithm, returns in (("ppo", (316.8, 290.1, 350.2)), ("ppg", (391.8, 383.9, 407.3))):
        for seed, training in enumerate(returns):
            rows = cartpole_rows(training, {4: 200.0 + seed, 9: 500.0})
            result = {"status": "finished", "return_mean": training, "eval": evaluation(500.0, step=1000)}
            ended = result if algorithm == "ppg" else None
            write_run(tmp_path / f"{algorithm}{seed}", rows, ended, algorithm=algorithm, seed=seed, env="CartPole-v1")
    page = write_report([tmp_path], tmp_path / "page.html").read_text()
    assert tiles_of(page) == ["500", "500"]
    scores = cells_of(page, "Scores")
    assert [row[3] for row in scores] == ["500", "500"]
    assert "383.9" not in " ".join(map(str, scores))
    assert "evaluation, 20 episodes" in scores[0][-1]
    top = page.partition('id="learning"')[0]
    assert not re.search(r"391\.8|316\.8|383\.9", top)


def test_a_run_with_one_evaluation_at_its_end_has_it_in_its_curve(tmp_path: Path) -> None:
    """A score of 1,000 must not stand above a curve that ends at 47."""
    run = read_run(write_run(tmp_path / "run", cartpole_rows(47.0, {}), {"eval": evaluation(1000.0)}))
    rows, values = run.column("eval_return_mean")
    assert (run.steps[rows].tolist(), values.tolist()) == ([1000.0], [1000.0])


def test_where_the_score_comes_from(tmp_path: Path) -> None:
    rows = cartpole_rows(50.0, {2: 100.0, 5: 200.0})
    running = read_run(write_run(tmp_path / "running", rows))
    assert run_score(running) == run_score(running).__class__(200.0, EVALUATION, 600.0, 20)
    finished = read_run(write_run(tmp_path / "finished", rows, {"eval": evaluation(300.0, step=1000)}))
    assert run_score(finished).value == 300.0  # type: ignore[union-attr]
    again = read_run(write_run(tmp_path / "again", rows, {"eval": evaluation(300.0, step=400)}))  # and trained on
    assert run_score(again).value == 200.0  # type: ignore[union-attr]
    old = read_run(write_run(tmp_path / "old", cartpole_rows(50.0, {}), {"return_mean": 50.0}))
    assert (run_score(old).value, run_score(old).kind) == (50.0, TRAINING)  # type: ignore[union-attr]
    young = read_run(write_run(tmp_path / "young", [{"step": 1, "return_mean": None}]))
    assert run_score(young) is None


def test_an_old_run_takes_its_score_from_a_later_greedy_evaluation(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", cartpole_rows(50.0, {}), {"return_mean": 50.0})
    lines = [
        {"step": 500, "deterministic": True, "levels": "train", **evaluation(111.0)},  # not at the end
        {"step": 1000, "deterministic": True, "levels": "train", **evaluation(222.0)},
        {"step": 1000, "deterministic": True, "levels": "test", **evaluation(99.0)},
        {"step": 1000, "deterministic": False, "levels": "train", **evaluation(333.0)},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + 'no json\n[1]\n{"return_mean": "x"}\n'
    (path / EVALUATIONS).write_text(text + json.dumps({"step": 1000, "deterministic": True, **evaluation(7.0)})[:-3])
    run = read_run(path)
    assert [line["return_mean"] for line in run.evaluations] == [111.0, 222.0, 99.0, 333.0]
    assert run_score(run).value == 222.0  # type: ignore[union-attr]
    assert evaluated_score(run, "eval_test").value == 99.0  # type: ignore[union-attr]
    page = write_report([path], tmp_path / "page.html").read_text()
    table = cells_of(page, "Evaluations made later, by phasegrad eval")
    assert [row[1:4] for row in table] == [
        ["500", "greedy", "train"], ["1,000", "greedy", "train"], ["1,000", "greedy", "test"], ["1,000", "sampled", "train"],
    ]  # fmt: skip
    (path / "result.json").write_text(json.dumps({"eval": evaluation(444.0)}))
    assert run_score(read_run(path)).value == 444.0  # type: ignore[union-attr]


def test_hostile_evaluations_do_no_harm(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", rows_of(5))
    evil = "<img src=x onerror=alert(1)>"
    line = {"step": 3, "levels": evil, "seed": evil, "deterministic": evil, "return_mean": 1.0, "episodes": 10**400}
    (path / EVALUATIONS).write_text((json.dumps(line) + "\n") * (MOST_EVALUATIONS + 50) + "[" * 100_000 + "\n")
    assert len(read_run(path).evaluations) == MOST_EVALUATIONS
    page = write_report([path], tmp_path / "page.html").read_text()
    assert "<img" not in page
    (path / EVALUATIONS).unlink()
    (path / EVALUATIONS).symlink_to("/etc/hostname")
    assert read_run(path).evaluations == []


def test_training_returns_are_called_so_and_not_mixed_in(tmp_path: Path) -> None:
    write_run(tmp_path / "a1", cartpole_rows(40.0, {9: 500.0}), seed=1)
    write_run(tmp_path / "a2", cartpole_rows(41.0, {}), seed=2)
    write_run(tmp_path / "b1", cartpole_rows(42.0, {}), seed=1, algorithm="ppo")
    mixed, plain = (group_score(group) for group in group_runs(read_runs([tmp_path])[0]))
    assert (mixed.values, mixed.kind, mixed.left_out) == ([500.0], EVALUATION, 1)
    assert (plain.values, plain.kind) == ([42.0], TRAINING)
    page = write_report([tmp_path], tmp_path / "page.html").read_text()
    first, second = cells_of(page, "Scores")
    assert first[-1] == "evaluation, 20 episodes; 1 of 2 seeds without"
    assert second[-1] == TRAINING
    assert "<strong>" not in page


@pytest.mark.parametrize(("seeds", "interval", "bold"), [(1, False, 0), (2, False, 0), (3, True, 0), (4, True, 0), (5, True, 1)])  # fmt: skip
def test_no_interval_below_three_seeds_and_no_winner_below_five(
    tmp_path: Path, seeds: int, interval: bool, bold: int
) -> None:
    for seed in range(seeds):
        for algorithm, better in (("ppo", 0.0), ("ppg", 100.0)):
            rows = cartpole_rows(30.0, {5: 10.0 * seed, 9: 300.0 + better + 7 * seed})
            write_run(tmp_path / f"{algorithm}{seed}", rows, algorithm=algorithm, seed=seed)
    page = write_report([tmp_path], tmp_path / "page.html").read_text()
    assert page.count("<strong>") == bold
    scores = cells_of(page, "Scores")
    assert all((" to " in row[4]) == interval for row in scores)
    assert ("95&nbsp;%" in page.partition('id="learning"')[0]) == interval
    groups = group_runs(read_runs([tmp_path])[0])
    assert (winner(groups) is groups[0]) == bool(bold)
    found = band(groups[0], "steps", "eval_return_mean")
    assert (found is not None and "low" in found) == interval


def test_equal_variants_have_no_winner(tmp_path: Path) -> None:
    for seed in range(5):
        for algorithm in ("ppo", "ppg"):
            write_run(tmp_path / f"{algorithm}{seed}", cartpole_rows(30.0, {9: 500.0}), algorithm=algorithm, seed=seed)
    assert winner(group_runs(read_runs([tmp_path])[0])) is None


def test_training_and_test_levels_have_a_curve_and_a_row_each(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        rows = cartpole_rows(5.0, {4: 6.0, 9: 9.0 + seed})
        for row in rows:
            if "eval_return_mean" in row:
                row |= {"eval_test_return_mean": row["eval_return_mean"] - 4, "eval_test_episodes": 20}
        result = {"eval": evaluation(9.0 + seed), "eval_test": evaluation(5.0 + seed)}
        write_run(tmp_path / f"s{seed}", rows, result, seed=seed, env="procgen/coinrun")
    page = write_report([tmp_path], tmp_path / "page.html").read_text()
    assert [row[2:6:3] for row in cells_of(page, "Scores")] == [
        ["training levels", "10 to 12"],
        ["test levels", "6 to 8"],
    ]
    assert tiles_of(page) == ["11"]
    assert "test levels: 7" in page
    [group] = group_runs(read_runs([tmp_path])[0])
    for metric, end in (("eval_return_mean", 11.0), ("eval_test_return_mean", 7.0)):
        found = band(group, "steps", metric)
        assert found is not None
        assert found["grid"] == [500, 1000]  # at the evaluations themselves
        assert found["middle"][-1] == end
