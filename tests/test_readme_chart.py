"""The README's charts: bars as long as the measurements say, and nothing drawn that is not in results/."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from PIL import Image
from scripts import loaded

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def chart() -> ModuleType:
    return loaded("tools/readme_chart.py")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_pictures_are_of_the_results_as_they_are(chart: ModuleType, theme: str) -> None:
    drawn = chart.svg(chart.panels(ROOT / "results"), theme)
    assert drawn == (IMAGES / f"measured-{theme}.svg").read_text(), "run python tools/readme_chart.py"


def test_bars_are_as_long_as_the_medians(chart: ModuleType, tmp_path: Path) -> None:
    speed = {"cartpole-8": {"ours": [900, 100, 800], "sb3": [100, 200, 300], "cleanrl": [400]}}
    (tmp_path / "speed-sb3.json").write_text(json.dumps(speed))

    def runs(*seconds: float | None) -> dict[str, dict[str, object]]:
        return {str(seed): {"reached": took is not None, "seconds": took or 600.0} for seed, took in enumerate(seconds)}

    times = {"ours": runs(2.0, 3.0, 4.0), "sb3": runs(30.0), "cleanrl": runs(10.0, None, None)}
    task = {"env": "A <small> one", "score": 475, **times}
    (tmp_path / "time-to-score.json").write_text(json.dumps({"tasks": {"cartpole": task}}))
    fast, soon = chart.panels(tmp_path)
    assert [(bar.library, bar.length) for bar in fast.rows[0][1]] == [("ours", 1.0), ("sb3", 0.25), ("cleanrl", 0.5)]
    assert [bar.label for bar in fast.rows[0][1]] == ["800 steps/s (4.0x)", "200 steps/s", "400 steps/s (2.0x)"]
    assert [bar.length for bar in soon.rows[0][1]] == [0.005, 0.05, 1.0], "600 seconds are waited for the last"
    assert [bar.label for bar in soon.rows[0][1]] == ["3.0 s", "30 s", "over 600 s"]
    text = chart.svg([fast, soon], "light")
    root = ElementTree.fromstring(text)  # well-formed, with what a file says escaped
    widths = [float(bar.get("width", "")) for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[3:6] == [416.0, 104.0, 208.0]  # after the three of the legend
    assert "A &lt;small&gt; one, a score of 475, 1 seed" in text


def test_nothing_is_drawn_of_nothing(chart: ModuleType, tmp_path: Path) -> None:
    assert chart.panels(tmp_path) == []


def test_the_readme_says_what_the_results_say(chart: ModuleType) -> None:
    page = (ROOT / "README.md").read_text()
    found = json.loads((ROOT / "results" / "speed-sb3.json").read_text())
    ratios = [found[task]["ratio"] for task in chart.TASKS]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times as fast as Stable-Baselines3 on five tasks" in page
    assert f"{found['breakout']['ratio']:.1f} times on Breakout" in page
    study = (ROOT / "phasegrad" / "studies" / "builtin" / "ppg-vs-ppo.toml").read_text()
    assert "published = 0.589" in study
    assert "published = 0.756" in study
    assert "0.756 with PPG and 0.589 with PPO" in page


def rows(study: str, kind: str) -> list[dict[str, str]]:
    with (ROOT / "results" / study / "table.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["kind"] == kind]


def test_the_scores_on_procgen_are_those_of_the_record() -> None:
    page = " ".join((ROOT / "README.md").read_text().split())
    means = {row["variant"]: float(row["mean"]) for row in rows("procgen-small", "aggregate")}
    assert f"{means['ppg']:.3f} for PPG and {means['ppo']:.3f} for PPO" in page
    (pair,) = rows("procgen-small", "comparison")
    low, high = float(pair["difference_low"]), float(pair["difference_high"])
    assert f"95 % interval, {low:.3f} to {high:.3f}, includes 0" in page
    assert low < 0 < high


def test_the_scores_on_mujoco_are_those_of_the_record() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    ours = next(number for number, line in enumerate(lines) if line.startswith("| phasegrad, v5 |"))
    tasks, scores, theirs = (
        [cell.strip(" *") for cell in lines[number].split("|")[2:-1]] for number in (ours - 2, ours, ours + 1)
    )
    cells = {row["environment"]: row for row in rows("mujoco", "cell") if row["variant"] == "ppo"}
    assert {f"{task}-v5" for task in tasks} == cells.keys()
    for task, score, other in zip(tasks, scores, theirs, strict=True):
        mean = float(cells[f"{task}-v5"]["mean"])
        assert score == (f"{mean:.1f}" if abs(mean) < 10 else f"{mean:,.0f}"), task
        better = mean > float(other.replace(",", ""))
        assert (f"**{score}**" in lines[ours]) == better, task


def test_the_moving_picture_moves_and_is_small() -> None:
    picture = IMAGES / "lander.webp"
    assert picture.stat().st_size < 600_000
    with Image.open(picture) as film:
        assert getattr(film, "n_frames", 1) > 50
