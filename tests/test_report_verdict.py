"""The verdict on top of the page: what a score means, how long it took, and whether the training is healthy."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from test_report_scores import cartpole_rows, evaluation
from written_runs import rows_of, write_run

from phasegrad.envs import figures
from phasegrad.report import write_report
from phasegrad.report.catalogue import HEALTHY, NOT_SHADED, SECTIONS
from phasegrad.report.collect import read_runs
from phasegrad.report.grouping import group_runs
from phasegrad.report.health import JUDGED, findings
from phasegrad.report.study import study_of
from phasegrad.report.verdict import judge
from phasegrad.studies.random_policy import random_return

ROOT = Path(__file__).parents[1]


def only_verdict(folder: Path) -> Any:
    runs, _ = read_runs([folder])
    [group] = group_runs(runs)
    return judge(group, study_of(runs))


def test_solved_is_said_with_steps_and_seconds(tmp_path: Path) -> None:
    for seed, at in ((1, 3), (2, 5), (3, 7)):
        rows = cartpole_rows(50.0, {1: 20.0, at: 480.0, 9: 500.0})
        write_run(tmp_path / f"s{seed}", rows, {"eval": evaluation(500.0)}, env="CartPole-v1", seed=seed)
    verdict = only_verdict(tmp_path)
    assert verdict.state == "green"
    assert verdict.sentences == [
        "Solved: all 3 seeds score at or above 475, gymnasium's reward_threshold.",
        "First reached after 600 steps and 6.0 s, median of the 3 seeds that did.",
        "Random actions score 22.1.",
    ]


def test_not_solved_says_how_to_go_on(tmp_path: Path) -> None:
    for name, curve in (
        ("rising", {2: 100.0, 9: 300.0}), ("level", {2: 300.0, 9: 100.0}), ("recovering", {1: 460.0, 3: 255.0, 5: 400.0, 7: 420.0, 9: 455.0}),
    ):  # fmt: skip
        write_run(tmp_path / name, cartpole_rows(50.0, curve), env="CartPole-v1")
        verdict = only_verdict(tmp_path / name)
        assert verdict.state == "red"
        assert verdict.sentences[0] == "Not solved: the seed does not reach 475, gymnasium's reward_threshold."
        assert ("train longer" in " ".join(verdict.advice)) == (name != "level")
    write_run(
        tmp_path / "once", cartpole_rows(50.0, {9: 9.0}), {"status": "stopped", "reached": 8.0}, env="CartPole-v1"
    )
    once = only_verdict(tmp_path / "once")
    assert "One evaluation does not show" in once.advice[0]
    assert "Stopped when an evaluation reached 8, as asked (stop_at)." in once.sentences
    write_run(tmp_path / "other", cartpole_rows(50.0, {9: 500.0}), env="CartPole-v1", env_options={"sutton_barto_reward": True})  # fmt: skip
    assert only_verdict(tmp_path / "other").target is None  # with other rewards the threshold means nothing


def test_training_returns_are_no_verdict(tmp_path: Path) -> None:
    write_run(tmp_path / "run", cartpole_rows(500.0, {}), env="CartPole-v1")
    verdict = only_verdict(tmp_path)
    assert verdict.state is None
    assert verdict.sentences[0].startswith("Not evaluated")
    assert "Evaluate it: phasegrad eval DIR." in verdict.advice


def test_the_aim_of_a_study_is_the_target(tmp_path: Path) -> None:
    for seed, score in ((1, 460.0), (2, 440.0)):
        folder = tmp_path / "runs" / "CartPole-v1" / "ppo" / f"s{seed}"
        result = {"status": "finished", "eval": evaluation(score)}
        write_run(folder, cartpole_rows(50.0, {9: score}), result, env="CartPole-v1", algorithm="ppo", seed=seed)
    study = {"name": "x", "score": "eval", "normalise": "none", "environments": [{"env": "CartPole-v1", "aim": 450}]}
    (tmp_path / "study.json").write_text(json.dumps(study | {"variants": [{"name": "ppo"}]}))
    verdict = only_verdict(tmp_path)
    assert verdict.sentences[0] == "Aim not met: 1 of 2 seeds reach 450, the study's aim."
    assert verdict.state == "amber"


def test_procgen_scores_are_put_on_the_published_scale(tmp_path: Path) -> None:
    rows = cartpole_rows(5.0, {9: 7.5})
    write_run(tmp_path / "run", rows, env="procgen/coinrun", env_options={"distribution": "hard"})
    assert "0.50 on the scale where 5 is 0 and 10 is 1 (the Procgen authors' released code)." in only_verdict(tmp_path).sentences  # fmt: skip


def test_no_module_of_an_environment_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stranger_env.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    write_run(tmp_path / "runs" / "run", cartpole_rows(5.0, {9: 7.5}), env="stranger_env:Own-v0")
    write_report([tmp_path / "runs"], tmp_path / "page.html")
    assert "stranger_env" not in sys.modules
    assert figures.solved_at("stranger_env:Own-v0", {}) is None


def test_the_random_figures_are_what_random_actions_get() -> None:
    measured = random_return("CartPole-v1", {}, episodes=1000)
    assert measured == pytest.approx(figures.RANDOM_RETURNS["CartPole-v1"], abs=0.05)


@pytest.mark.parametrize(
    ("metric", "values", "state"),
    [
        ("kl", [0.01] * 40, "green"), ("kl", [0.07] * 40, "amber"), ("kl", [0.2] * 40, "red"), ("kl", [1e-5] * 40, "amber"),
        ("kl", [9.0] * 4 + [0.01] * 36, "green"),  # the first tenth is not judged
        ("clip_fraction", [0.1] * 40, "green"), ("clip_fraction", [0.35] * 40, "amber"), ("clip_fraction", [0.6] * 40, "red"),
        ("entropy", [1.0 - i / 50 for i in range(40)], "green"),
        ("entropy", [1.0, 0.5, 0.2, 0.2] + [0.1] * 36, "amber"),
        ("entropy", [1.0, 0.1, 0.01, 0.01] + [0.01] * 36, "red"),
        ("explained_variance", [0.0] * 20 + [0.9] * 20, "green"), ("explained_variance", [0.3] * 40, "amber"),
        ("explained_variance", [-1.0] * 40, "red"),
        ("policy_grad_norm", [0.3] * 40, "green"), ("policy_grad_norm", [0.1, 5.0] * 20, "amber"),
        ("policy_grad_norm", [0.01, 50.0] * 20, "red"),
    ],
)  # fmt: skip
def test_health_goes_by_the_ranges(tmp_path: Path, metric: str, values: list[float], state: str) -> None:
    rows = [{"step": i + 1, metric: value} for i, value in enumerate(values)]
    write_run(tmp_path / "bad", rows, seed=1)
    [group] = group_runs(read_runs([tmp_path])[0])
    [found] = findings(group)
    assert (found.metric, found.state) == (metric, state)
    assert bool(found.advice) == (state != "green")


def test_the_worst_seed_counts_and_is_counted(tmp_path: Path) -> None:
    for seed, kl in ((1, 0.01), (2, 0.3), (3, 0.2)):
        write_run(tmp_path / f"s{seed}", [{"step": i + 1, "kl": kl} for i in range(20)], seed=seed)
    [found] = findings(group_runs(read_runs([tmp_path])[0])[0])
    assert (found.state, found.value, found.seeds, found.of) == ("red", 0.3, 2, 3)
    page = write_report([tmp_path], tmp_path / "page.html").read_text()
    assert "KL 0.3 in 2 of 3 seeds: updates go too far: lower learning_rate or epochs, or set kl_stop." in page


def test_entropy_below_zero_is_not_judged(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [{"step": i + 1, "entropy": 1.0 - i / 4} for i in range(20)])
    assert findings(group_runs(read_runs([tmp_path])[0])[0]) == []


def test_one_set_of_ranges_serves_notes_charts_and_documentation(tmp_path: Path) -> None:
    charts = {chart.metrics[0][0]: chart for charts in SECTIONS.values() for chart in charts}
    documented = (ROOT / "docs/metrics.md").read_text()
    for metric, healthy in HEALTHY.items():
        if metric in NOT_SHADED:
            assert charts[metric].healthy is None
        else:
            assert str(healthy) in charts[metric].note
            assert charts[metric].healthy == (healthy.low, healthy.high)
    for metric in ("kl", "clip_fraction", "explained_variance"):
        [line] = re.findall(rf"^\| `{metric}` .*$", documented, re.MULTILINE)
        assert str(HEALTHY[metric]) in line
    assert set(JUDGED) <= set(HEALTHY)
    page = write_report([write_run(tmp_path / "run", rows_of(40))], tmp_path / "page.html").read_text()
    data = json.loads(page.partition('id="report-data">')[2].partition("</script>")[0])
    drawn = {chart["title"]: chart["healthy"] for part in data["sections"].values() for chart in part["charts"]}
    assert drawn["KL divergence"] == [HEALTHY["kl"].low, HEALTHY["kl"].high]
