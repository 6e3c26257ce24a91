"""The report on a study's folder: its scale, its names and its figures are those of the study's own table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_report_scores import evaluation
from written_runs import rows_of, write_run

from phasegrad.report import write_report
from phasegrad.report.collect import read_run, read_runs
from phasegrad.report.curves import time_spent
from phasegrad.report.grouping import RunGroup, group_runs
from phasegrad.report.profile import performance_profile
from phasegrad.report.scales import scaled_scores
from phasegrad.report.statistics import summarise
from phasegrad.report.study import StudyFolder, name_by_study, read_study, study_of
from phasegrad.studies.definition import parse_study
from phasegrad.studies.grid import build_grid
from phasegrad.studies.scores import score_runs
from phasegrad.studies.table import build_table
from phasegrad.studies.table_views import write_table

TEXT = """
title = "Two tasks"
steps = 64
seeds = [1, 2, 3]
score = "{score}"
normalise = "{normalise}"
published_from = "a paper"
environments = [
    {{ env = "CartPole-v1", low = 20, high = 500, random = 22, aim = 450 }},
    {{ env = "Acrobot-v1", low = -500, high = -100, random = -499, name = "swing up" }},
]
[variants.ppo]
algorithm = "ppo"
published = 0.7
[variants.long]
algorithm = "ppg"
"""


def write_study(root: Path, score: str = "eval", normalise: str = "constants") -> dict[str, Any]:
    """A study's folder as `phasegrad study` leaves it, with scores by hand: all runs on CartPole are equal."""
    study = parse_study(TEXT.format(score=score, normalise=normalise), "two")
    runs = build_grid(study, root, {})
    for run in runs:
        equal = run.environment.env == "CartPole-v1"
        value = 500.0 if equal else -300.0 + 40 * run.seed + (60 if run.variant.name == "ppo" else 0)
        result = {"status": "finished", "step": run.config.total_steps, "return_mean": value - 13, "seconds": 3.0}
        run.folder.mkdir(parents=True)
        config = {"algorithm": run.variant.algorithm, **run.config.to_json(), "versions": {"phasegrad": "0.1.0"}}
        (run.folder / "config.json").write_text(json.dumps(config))
        row = {"step": run.config.total_steps, "seconds": 2.0, "return_mean": value - 13}
        (run.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        (run.folder / "result.json").write_text(json.dumps(result | {"eval": evaluation(value)}))
    (root / "study.json").write_text(json.dumps(study.to_json()))
    table = build_table(study, score_runs(study, runs, {}, root))
    write_table(table, root)
    return table


def page_of(root: Path) -> tuple[list[RunGroup], StudyFolder]:
    runs, _ = read_runs([root])
    study = study_of(runs)
    assert study is not None
    groups = group_runs(runs)
    name_by_study(groups, study)
    return groups, study


@pytest.mark.parametrize("score", ["eval", "last100"])
@pytest.mark.parametrize("normalise", ["constants", "random-best"])
def test_scores_are_on_the_studys_scale(tmp_path: Path, score: str, normalise: str) -> None:
    table = write_study(tmp_path, score, normalise)
    groups, study = page_of(tmp_path)
    scaled = scaled_scores(groups, study)
    assert set(scaled.strata) == {"PPO", "long"}
    for row in table["aggregates"]:
        strata = scaled.strata[row["variant"].upper() if row["variant"] == "ppo" else row["variant"]]
        assert summarise(list(strata.values())).iqm.value == row["iqm"]
        assert summarise(list(strata.values())).mean.low == row["mean_low"]
    assert {value for envs in scaled.strata.values() for value in envs["CartPole-v1"]} == {
        1.0 if score == "eval" or normalise == "random-best" else (487 - 20) / 480
    }


def test_the_profile_of_a_study_counts_equal_runs_by_their_score(tmp_path: Path) -> None:
    """All runs solve CartPole: half of them lie above 0.99, where an own scale of equal runs put them at 0."""
    write_study(tmp_path)
    profile = performance_profile(*page_of(tmp_path))
    assert profile is not None
    at = next(i for i, threshold in enumerate(profile["thresholds"]) if threshold > 0.97)
    assert profile["variants"]["long"]["middle"][at] == 0.5
    assert profile["left_out"] == []
    assert "the study's constants" in profile["scale"]


def test_without_a_study_equal_environments_have_no_scale_and_are_left_out(tmp_path: Path) -> None:
    for seed in range(4):
        for algorithm in ("ppo", "ppg"):
            for env, value in (("Own-v0", 5.0), ("Other-v0", float(seed))):
                rows = [{"step": 1, "return_mean": 0.0, "eval_return_mean": value}]
                write_run(tmp_path / f"{algorithm}{env}{seed}", rows, algorithm=algorithm, env=env, seed=seed)
    groups = group_runs(read_runs([tmp_path])[0])
    scaled = scaled_scores(groups, None)
    assert scaled.left_out == ["Own-v0"]
    assert scaled.strata["PPO"] == {"Other-v0": [0.0, 1 / 3, 2 / 3, 1.0]}
    assert not scaled.absolute


def test_known_constants_serve_where_every_environment_has_them(tmp_path: Path) -> None:
    for env, value in (("CartPole-v1", 475.0), ("LunarLander-v3", -182.5), ("procgen/coinrun", 7.5)):
        write_run(tmp_path / env.replace("/", "-"), [{"step": 1, "eval_return_mean": value}], env=env)
    scaled = scaled_scores(group_runs(read_runs([tmp_path])[0]), None)
    assert scaled.strata == {"PPG": {"CartPole-v1": [1.0], "LunarLander-v3": [0.0], "procgen/coinrun": [0.5]}}


def test_a_page_of_a_study_uses_its_names(tmp_path: Path) -> None:
    write_study(tmp_path)
    groups, _ = page_of(tmp_path)
    assert [group.label for group in groups] == [
        "PPO on CartPole-v1", "long on CartPole-v1", "PPO on swing up", "long on swing up",
    ]  # fmt: skip
    assert "Aim met: all 3 seeds score at or above 450" in write_report([tmp_path], tmp_path / "page.html").read_text()


@pytest.mark.parametrize("content", ["[]", "{", '{"environments": 3}', '{"score": "eval", "environments": [3, {"env": 4}], "variants": [7, {"name": 3, "published": 4}]}'])  # fmt: skip
def test_a_strange_study_file_does_no_harm(tmp_path: Path, content: str) -> None:
    write_run(tmp_path / "runs" / "a" / "b" / "s1", rows_of(9))
    (tmp_path / "study.json").write_text(content)
    found = read_study(tmp_path)
    assert found is None or found.environments == ()
    assert "LunarLander-v3" in write_report([tmp_path], tmp_path / "page.html").read_text()


# ---- time and epochs ----


def test_compiling_evaluation_and_checkpoints_are_pieces_of_their_own(tmp_path: Path) -> None:
    rows = [
        {"step": 100, "sps": 100.0, "seconds": 1.5, "time_environment": 0.25, "time_update": 0.25, "time_compile": 0.5, "time_checkpoint": 0.25},
        {"step": 400, "sps": 100.0, "seconds": 6.0, "time_environment": 0.5, "time_update": 0.5, "time_evaluation": 0.5},
    ]  # fmt: skip
    path = write_run(tmp_path / "run", rows, {"seconds": 7.0})
    assert time_spent(read_run(path)) == pytest.approx(
        {"environment": 1.75, "update": 1.75, "compile": 0.5, "evaluation": 1.5, "checkpoints": 0.25, "other": 1.25}
    )
    page = write_report([path], tmp_path / "page.html").read_text()
    bar = page.partition('class="bar"')[2].partition("</div>")[0]
    assert re.findall(r"piece-(\w+)", bar) == ["environment", "update", "compile", "evaluation", "checkpoints", "other"]


def test_epochs_of_the_policy_phase_stand_under_the_update(tmp_path: Path) -> None:
    rows = [row | {"kl_by_epoch": [0.1, 0.2], "value_loss_by_epoch": [0.2, 0.1]} for row in rows_of(9)]
    page = write_report([write_run(tmp_path / "run", rows)], tmp_path / "page.html").read_text()
    sections = json.loads(page.partition('id="report-data">')[2].partition("</script>")[0])["sections"]
    placed = {name: [(chart["metric"], chart["axis"]) for chart in part["epochs"]] for name, part in sections.items()}
    assert placed["Policy update"] == [("kl_by_epoch", "epoch of the policy and value update")]
    assert placed["Value function"] == [("value_loss_by_epoch", "epoch of the policy and value update")]
    assert {metric for metric, _ in placed["Auxiliary phase"]} == {
        "aux_clone_kl_by_epoch", "aux_joint_loss_by_epoch", "aux_value_loss_by_epoch",
    }  # fmt: skip
    assert {axis for _, axis in placed["Auxiliary phase"]} == {"epoch of the auxiliary phase"}
    titles = [chart["title"] for part in sections.values() for chart in (*part["charts"], *part["epochs"])]
    assert len(titles) == len(set(titles))
