"""Optimality gap, probability of improvement and differences, against counting it all out."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_report_scores import cartpole_rows, cells_of
from test_report_studies import write_study
from written_runs import write_run

from phasegrad.report import write_report
from phasegrad.report.statistics import (
    difference_of,
    estimate,
    estimate_comparison,
    interquartile_mean,
    mean,
    mean_improvement,
    optimality_gap,
    probability_of_improvement,
)

scores = st.lists(st.integers(-5, 5).map(lambda whole: whole / 4), min_size=1, max_size=6)


@settings(deadline=None)
@given(scores, scores)
def test_the_probability_of_improvement_is_what_counting_pairs_gives(ours: list[float], theirs: list[float]) -> None:
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in ours for b in theirs)
    assert probability_of_improvement(np.array(ours), np.array(theirs)) == pytest.approx(wins / len(ours) / len(theirs))


@settings(deadline=None)
@given(scores)
def test_the_optimality_gap_is_the_mean_distance_below_one(found: list[float]) -> None:
    assert optimality_gap(np.array(found)) == pytest.approx(sum(1 - s if s < 1 else 0.0 for s in found) / len(found))


def every_draw(stratum: list[float]) -> list[np.ndarray]:
    return [np.array(draw) for draw in itertools.product(stratum, repeat=len(stratum))]


@pytest.mark.parametrize("compare", [difference_of(mean), difference_of(interquartile_mean), mean_improvement])
def test_the_interval_of_a_comparison_is_that_of_every_draw(compare) -> None:  # type: ignore[no-untyped-def]
    """Two strata of two and three seeds a side: all 4 x 27 x 4 x 27 resamples, counted out."""
    ours, theirs = [[1.0, 4.0], [2.0, 2.5, 9.0]], [[0.0, 3.0], [2.0, 4.0, 5.0]]
    sides = [list(itertools.product(*map(every_draw, side))) for side in (ours, theirs)]
    # the statistics are of one side each or of pairs of strata, so draws of both sides are joined
    values = [float(compare(a, b)) for a in sides[0] for b in sides[1]]
    found = estimate_comparison(ours, theirs, compare, resamples=20_000)
    assert found.value == float(compare([np.array(s) for s in ours], [np.array(s) for s in theirs]))
    low, high = np.percentile(values, (2.5, 97.5))
    spread = max(values) - min(values)
    assert found.low == pytest.approx(low, abs=0.03 * spread)
    assert found.high == pytest.approx(high, abs=0.03 * spread)


def test_one_run_a_side_has_no_interval_and_none_is_refused() -> None:
    assert estimate_comparison([[1.0]], [[0.0]], mean_improvement).low is None
    with pytest.raises(ValueError, match="no scores"):
        estimate_comparison([[]], [[1.0]], mean_improvement)


def test_the_same_scores_give_the_same_interval() -> None:
    first, second = (estimate_comparison([[1.0, 2.0, 5.0]], [[0.0, 3.0]], mean_improvement) for _ in range(2))
    assert first == second


# ---- on the page ----


def test_pairs_are_compared_with_intervals_from_three_seeds_on(tmp_path: Path) -> None:
    values = {"ppo": (100.0, 110.0, 120.0), "ppg": (130.0, 140.0, 150.0), "a2c": (1.0, 2.0)}
    for algorithm, found in values.items():
        for seed, value in enumerate(found):
            rows = cartpole_rows(9.0, {9: value})
            write_run(tmp_path / f"{algorithm}{seed}", rows, algorithm=algorithm, seed=seed, env="Own-v0")
    page = write_report([tmp_path], tmp_path / "page.html").read_text()
    pairs = {(row[1], row[2]): row[3:] for row in cells_of(page, "Differences in pairs")}
    assert pairs["PPG", "PPO"][0] == "30"
    low, high = map(float, pairs["PPG", "PPO"][1].split(" to "))
    assert 10 < low < 30 < high < 50
    assert pairs["PPG", "PPO"][2] == "1.00"
    assert pairs["A2C", "PPG"][1] == "–"


def test_the_aggregate_of_a_study_is_its_tables_with_aims_and_published_figures(tmp_path: Path) -> None:
    table = write_study(tmp_path)
    page = write_report([tmp_path], tmp_path / "page.html").read_text()
    caption = re.findall(r"<caption>(Normalised scores: .*?)</caption>", page)
    assert len(caption) == 1
    rows = {row[0]: row for row in cells_of(page, caption[0])}
    for row in table["aggregates"]:
        shown = rows["PPO" if row["variant"] == "ppo" else row["variant"]]
        assert float(shown[1]) == pytest.approx(row["iqm"], abs=0.001)
        assert float(shown[3]) == pytest.approx(row["mean"], abs=0.001)
    scaled = [1.0] * 3 + [(-300.0 + 40 * seed + 60 + 500) / 400 for seed in (1, 2, 3)]
    assert float(rows["PPO"][5]) == pytest.approx(optimality_gap(np.array(scaled)), abs=0.001)
    assert rows["PPO"][-1] == "0.7"
    assert "Published: a paper." in page
    aims = {(row[0], row[1]): row[-2] for row in cells_of(page, "Scores")}
    assert aims["CartPole-v1", "PPO"] == "450: 3 of 3"
    assert aims["swing up", "PPO"] == "–"
    everywhere = [row for row in cells_of(page, "Differences in pairs") if row[0].startswith("all environments")]
    assert [row[1:3] for row in everywhere] == [["PPO", "long"]]


def test_an_estimate_of_the_gap_has_an_interval() -> None:
    found = estimate([[0.2, 0.4, 1.5], [0.0, 0.9, 1.0]], optimality_gap)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
