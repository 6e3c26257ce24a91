"""Studies: statistics against brute force, files from strangers, grids, and a real study stopped and continued."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasegrad.algorithms import ALGORITHMS
from phasegrad.cli.main import main
from phasegrad.cli.parsing import parse
from phasegrad.config import documented_fields
from phasegrad.errors import ConfigError, RunError
from phasegrad.presets import PRESETS, resolve_config
from phasegrad.report.statistics import estimate, interquartile_mean, mean, summarise
from phasegrad.runs.contents import LEVELS
from phasegrad.studies import board, calibration, forecast, runner, scores, watching
from phasegrad.studies.board import Board
from phasegrad.studies.checking import folder_name
from phasegrad.studies.definition import builtin_names, load_study, parse_study
from phasegrad.studies.grid import PlannedRun, build_grid
from phasegrad.studies.pages import definition_data, page_data
from phasegrad.studies.progress import StudyDisplay, latest
from phasegrad.studies.runner import Outcome
from phasegrad.studies.selection import parse_overrides, parse_seeds, select
from phasegrad.studies.table import build_table
from phasegrad.studies.table_views import as_csv, as_markdown

TINY = """
title = "Tiny"
steps = 4_001
seeds = [1, 2]
score = "eval"
eval_episodes = 3
environments = [{ env = "CartPole-v1", low = 0, high = 500, aim = 1 }]
[fields]
num_envs = 2
num_steps = 16
num_minibatches = 2
epochs = 2
[variants.clip]
published = 0.5
[variants.broken]
env_options = { max_episode_steps = 1.5 }
"""
MINIMAL = 'environments = ["CartPole-v1"]\n'


# Statistics


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40))
def test_the_interquartile_mean_drops_a_quarter_at_each_end(values: list[float]) -> None:
    cut = len(values) // 4
    middle = sorted(values)[cut : len(values) - cut]
    assert interquartile_mean(np.array(values)) == pytest.approx(sum(middle) / len(middle), abs=1e-9)


def test_the_interval_of_two_small_strata_is_that_of_all_their_resamples() -> None:
    strata = [(0.0, 1.0), (10.0, 12.0)]
    every = [
        np.mean([*first, *second])
        for first in itertools.product(strata[0], repeat=2)
        for second in itertools.product(strata[1], repeat=2)
    ]
    found = estimate(strata, mean)
    assert found.value == 5.75
    # The least and the greatest of the 16 resamples each have probability 1/16, which is more than 2.5 %.
    assert (found.low, found.high) == (min(every), max(every)) == (5.0, 6.5)


def test_the_bootstrap_is_stratified_and_agrees_with_a_loop() -> None:
    rng = np.random.default_rng(3)
    strata = [rng.normal(0, 1, 5), rng.normal(100, 1, 8), rng.normal(-50, 4, 6)]
    for statistic in (mean, interquartile_mean):
        loop = [
            float(statistic(np.concatenate([rng.choice(stratum, len(stratum)) for stratum in strata])))
            for _ in range(3000)
        ]
        found = estimate([list(stratum) for stratum in strata], statistic)
        low, high = np.quantile(loop, [0.025, 0.975])
        spread = high - low
        assert found.low == pytest.approx(low, abs=0.1 * spread)
        assert found.high == pytest.approx(high, abs=0.1 * spread)
    pooled = np.concatenate(strata)
    unstratified = [np.mean(rng.choice(pooled, len(pooled))) for _ in range(2000)]
    assert np.ptp(np.quantile(unstratified, [0.025, 0.975])) > 5 * (
        estimate(strata, mean).high - estimate(strata, mean).low
    )


def test_a_stratum_of_one_seed_is_held_fixed() -> None:
    assert estimate([[3.0]], mean).low is None
    found = estimate([[100.0], [0.0, 1.0]], mean)
    assert (found.low, found.high) == (pytest.approx(100 / 3), pytest.approx(102 / 3))
    assert estimate([[2.0, 2.0], [2.0]], mean).low == 2.0


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(150):
        found = estimate([rng.normal(1, 1, 12), rng.normal(3, 2, 12)], mean, resamples=400)
        hits += found.low <= 2.0 <= found.high
    assert 0.85 <= hits / 150 <= 0.99


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.integers(-50, 50), min_size=2, max_size=6), min_size=1, max_size=3),
    st.sampled_from([0.5, 2.0]),
    st.integers(-8, 8),
)
def test_intervals_move_with_the_scores(strata: list[list[int]], scale: float, shift: int) -> None:
    plain = summarise([[float(x) for x in stratum] for stratum in strata], resamples=200)
    moved = summarise([[scale * x + shift for x in stratum] for stratum in strata], resamples=200)
    for before, after in ((plain.mean, moved.mean), (plain.iqm, moved.iqm)):
        for name in ("value", "low", "high"):
            assert getattr(after, name) == pytest.approx(scale * getattr(before, name) + shift, abs=1e-9)
    everything = [x for stratum in strata for x in stratum]
    assert min(everything) <= plain.mean.low <= plain.mean.high <= max(everything)


# Files


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("environmets = ['CartPole-v1']", "Did you mean environments?"),
        ("steps = 10", "environments is missing"),
        ("environments = 'CartPole-v1'", "environments must be a list"),
        ("environments = [3]", "environments must hold ids or tables"),
        ("environments = [{ name = 'a' }]", "has no env"),
        (MINIMAL + "steps = 'many'", "steps must be a whole number"),
        (MINIMAL + "steps = 1.5", "steps must be a whole number"),
        (MINIMAL + "steps = 0", "steps must be at least 1"),
        (MINIMAL + "steps = true", "steps must be a whole number"),
        (MINIMAL + "seeds = 3", "seeds must be a list"),
        (MINIMAL + "seeds = []", "at least one seed"),
        (MINIMAL + "seeds = [1, 1]", "names 1 twice"),
        (MINIMAL + "seeds = [-1]", "seeds must be at least 0"),
        (MINIMAL + "seeds = [99999999999]", "seeds must be at most"),
        (MINIMAL + "score = 'evals'", "Did you mean eval"),
        (MINIMAL + "algorithm = 'pppo'", "Did you mean ppo"),
        (MINIMAL + "normalise = 'random'", "Did you mean random-best?"),
        (MINIMAL + "title = 3", "title must be text, not 3"),
        (MINIMAL + "[variants]\na = 3", "variant a must be a table"),
        (MINIMAL + "[variants.a]\nclip_rang = 0.1", "Did you mean clip_range"),
        (MINIMAL + "[variants.a]\nseed = 4", "use seeds"),
        (MINIMAL + "[variants.a]\ntorch_threads = 4", "each run has one thread"),
        (MINIMAL + "[variants.a]\npublished = 'much'", "published of variant a must be a finite number"),
        (MINIMAL + "[variants.a]\npublished = { tset = 1 }", "unknown key 'tset'"),
        (MINIMAL + "[variants.a]\nenv_options = 3", "env_options in variant a must be a table"),
        (MINIMAL + "[variants.a]\nenv_options = { x = [[1]] }", "must be a number, true, false, text or a list"),
        (MINIMAL + "[fields]\nn_pi = 3", "unknown setting 'n_pi' in fields"),
        ("environments = [{ env = 'CartPole-v1', low = 1 }]", "low and high"),
        ("environments = [{ env = 'CartPole-v1', low = 1, high = 1 }]", "low and high"),
        ("environments = [{ env = 'CartPole-v1', aim = nan }]", "aim of environment CartPole-v1 must be a finite"),
        ("environments = [{ env = 'CartPole-v1', gama = 1 }]", "Did you mean gamma"),
        ("environments = ['A/b', 'A-b']", "need names that differ"),
        (MINIMAL + "[variants.'a b']\n[variants.'a/b']", "need names that differ"),
        (MINIMAL + "[variants.'...']", "no letter or digit"),
        (MINIMAL + '[variants."\\u001b[2J"]', "printable characters"),
        ("environments = ['os:system-v0']", "would import the module 'os'"),
        (MINIMAL + "[fields]\nenv_options = { xml_file = '/etc/passwd' }", "may be a path"),
        ("x = " + "[" * 5000, "more than 8 levels"),
        ("a = ", "not valid TOML"),
    ],
)
def test_a_wrong_file_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_study(text, "x", where="Study file x.toml")
    message = str(caught.value)
    assert sentence in message
    assert message.startswith("Study file x.toml")
    assert "\n" not in message
    assert message.endswith((".", "?"))


def test_a_trusted_file_may_import_and_a_binary_one_is_refused(tmp_path: Path) -> None:
    text = "environments = ['my_module:Own-v0']"
    assert parse_study(text, "x", allow_import=True).environments[0].env == "my_module:Own-v0"
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    for name, sentence in (("bad.toml", "not text"), ("absent.toml", "cannot be read"), ("ppg-ks", "ppg-kl")):
        with pytest.raises(ConfigError, match=sentence):
            load_study(str(tmp_path / name) if name.endswith("toml") else name)


@settings(deadline=None)
@given(st.text(max_size=100))
def test_a_folder_name_never_climbs(name: str) -> None:
    folder = folder_name(name)
    assert "/" not in folder
    assert "\\" not in folder
    assert not folder.startswith((".", "-"))
    root = Path("/root/study")
    if folder:
        assert Path(os.path.normpath(root / folder)).parent == root


def test_hostile_names_stay_in_the_study_folder(tmp_path: Path) -> None:
    text = MINIMAL + "[variants.'../../../etc/x']\n[variants.'/abs']\n[variants.'--overwrite']"
    runs = build_grid(parse_study(text, "x"), tmp_path, {})
    for run in runs:
        assert Path(os.path.normpath(run.folder)) == run.folder
        assert run.folder.is_relative_to(tmp_path / "runs")
        assert run.log.is_relative_to(tmp_path / "logs")


# Grids


@pytest.mark.parametrize("name", builtin_names())
def test_every_builtin_study_resolves_and_its_commands_say_the_same(name: str, tmp_path: Path) -> None:
    study = load_study(name)
    runs = build_grid(study, tmp_path, {})
    assert len(runs) == len(study.environments) * len(study.variants) * len(study.seeds)
    assert study.about
    assert not any(tmp_path.iterdir())
    resolved = {json.dumps({**run.config.to_json(), "algorithm": run.variant.algorithm}) for run in runs}
    assert len(resolved) == len(runs), "two runs have the same settings"
    for run in runs[: len(study.variants) * len(study.seeds) : len(study.seeds)]:
        options = parse(run.train_command()[4:])
        config_class = ALGORITHMS[options.algorithm].config_class
        fields = {key: value for key, value in vars(options).items() if key in documented_fields(config_class)}
        assert resolve_config(config_class, {**fields, "env_options": options.env_options}) == run.config
        assert Path(options.run_dir) == run.folder
        assert run.config.total_steps % run.config.num_envs == 0


def test_the_objectives_are_those_of_the_table(tmp_path: Path) -> None:
    study = load_study("ppo-objectives")
    kinds = {
        run.variant.name: (run.config.objective, run.config.clip_range, run.config.kl_target, run.config.kl_beta)  # type: ignore[attr-defined]
        for run in build_grid(study, tmp_path, {})
    }
    assert len(kinds) == 11
    assert kinds["none"][0] == "cpi"
    assert kinds["clip-0.3"][:2] == ("clip", 0.3)
    assert kinds["adaptive-0.03"][0::2] == ("kl", 0.03)
    assert kinds["fixed-10"] == ("kl", kinds["none"][1], 0.0, 10.0)
    published = [variant.published["return"] for variant in study.variants]
    assert published == [-0.39, 0.76, 0.82, 0.70, 0.68, 0.74, 0.71, 0.62, 0.71, 0.72, 0.69]


def test_selection_and_overrides(tmp_path: Path) -> None:
    study = select(load_study("ppg-vs-ppo"), environments="coinrun,procgen/maze", seeds="2", steps="1000")
    runs = build_grid(study, tmp_path, parse_overrides(["preset=procgen", "n-pi=4", "env.num_levels=7"]))
    assert {run.environment.env for run in runs} == {"procgen/coinrun", "procgen/maze"}
    assert {run.config.total_steps for run in runs} == {1024}  # rounded up to whole steps of 64 environments
    assert {run.config.env_options["num_levels"] for run in runs} == {7}
    assert {getattr(run.config, "n_pi", None) for run in runs} == {4, None}
    assert scores.environment_constants(runs[0].environment, runs[0].config) == (5, 10)
    other = select(study, environments="CartPole-v1").environments[0]
    assert (other.env, other.low) == ("CartPole-v1", None)
    for wrong, sentence in (
        ({"environments": "coinrum"}, r"Did you mean coinrun\?"),
        ({"variants": "pgg"}, "Did you mean ppg"),
        ({"seeds": "0"}, "at least 1"),
        ({"steps": "x"}, "--total-steps must be"),
        ({"eval_episodes": "3"}, "training episodes"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            select(study, **wrong)
    for pair, sentence in (("n_pie=3", "n_pi"), ("seed=3", "--seeds"), ("junk", "FIELD=VALUE")):
        with pytest.raises(ConfigError, match=sentence):
            build_grid(study, tmp_path, parse_overrides([pair]))
    with pytest.raises(ConfigError, match="variant e_pi-1 sets it"):
        build_grid(load_study("ppg-policy-epochs"), tmp_path, {"e_pi": "3"})


def test_seeds_are_a_count_a_list_or_a_range() -> None:
    assert parse_seeds("3") == (1, 2, 3)
    assert parse_seeds("7,") == (7,)
    assert parse_seeds("1,2,9") == (1, 2, 9)
    assert parse_seeds("4-6,1") == (4, 5, 6, 1)
    for wrong in ("a", "3-1", ",", "1,1", "0-999999999"):
        with pytest.raises(ConfigError):
            parse_seeds(wrong)


def test_bad_settings_are_found_before_anything_runs(tmp_path: Path) -> None:
    for text, sentence in (
        (MINIMAL + "[variants.a]\nclip_range = -1", "Variant a on CartPole-v1: clip_range must be at least 0"),
        ("environments = ['CartPole-v9']", "Unknown environment"),
        (MINIMAL + "score = 'levels'", "needs Procgen"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            build_grid(parse_study(text, "x"), tmp_path, {})


# Scores, from run directories written by hand


def write_run(run: PlannedRun, score: float, training: float | None = None, **more: Any) -> None:
    """A finished run: what its evaluation came to, and its last training episodes where that is something else."""
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").write_text(json.dumps({"algorithm": run.variant.algorithm, **run.config.to_json()}))
    result = {"status": "finished", "step": run.config.total_steps, "seconds": 1.0, "episodes": 340}
    result |= {"return_mean": score if training is None else training}
    result |= {"eval": {"return_mean": score, "episodes": run.eval_episodes, "episodes_cut": 0}, **more}
    (run.folder / "result.json").write_text(json.dumps(result))


def test_random_is_zero_and_the_best_run_is_one(tmp_path: Path) -> None:
    text = """
    normalise = "random-best"
    seeds = [1, 2]
    environments = [{ env = "CartPole-v1", random = 20 }, { env = "Acrobot-v1", random = -500 }]
    variants.a.published = 0.9
    variants.b.published = 0.1
    """
    study = parse_study(text, "x")
    runs = build_grid(study, tmp_path, {})
    for run, score in zip(runs, [120, 220, 20, 0, -100, -200, -500, -300], strict=True):
        write_run(run, score)
    table = build_table(study, scores.score_runs(study, runs, {}, tmp_path))
    by_variant = {row["variant"]: row for row in table["aggregates"]}
    assert by_variant["a"]["mean"] == pytest.approx(np.mean([0.5, 1.0, 1.0, 0.75]))
    assert by_variant["b"]["mean"] == pytest.approx(np.mean([0.0, -0.1, 0.0, 0.5]))
    assert by_variant["a"]["iqm"] == pytest.approx(np.mean([0.75, 1.0]))
    assert by_variant["a"]["published"] == 0.9
    assert [row["mean"] for row in table["cells"]] == [170, 10, -150, -400]
    assert "| a | 0.812 |" in as_markdown(table)


def test_the_random_policy_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = parse_study(MINIMAL + "normalise = 'random-best'\nseeds = [1]", "x")
    (run,) = build_grid(study, tmp_path, {})
    measured = scores.random_score(run, tmp_path)
    assert 15 < measured < 30  # random actions hold CartPole for about 22 steps
    monkeypatch.setattr(scores, "random_return", lambda *_: pytest.fail("measured again"))
    assert scores.random_score(run, tmp_path) == measured


def test_missing_and_foreign_runs(tmp_path: Path) -> None:
    study = parse_study(MINIMAL + "seeds = [1, 2]", "x")
    first, second = build_grid(study, tmp_path, {})
    write_run(first, 50.0)
    assert (first.state(), second.state()) == ("finished", "new")
    there = json.loads((first.folder / "config.json").read_text())
    (first.folder / "config.json").write_text(json.dumps({**there, "arch": "dual", "device": "cuda"}))
    assert first.state() == "finished"  # auto decided, another machine: the same run
    table = build_table(study, scores.score_runs(study, [first, second], {}, tmp_path))
    assert "1 of the study's runs have no score" in as_markdown(table)
    assert [row["status"] for row in table["runs"]] == ["finished", "new"]
    other = build_grid(parse_study(MINIMAL + "seeds = [1]\nfields.gamma = 0.5", "x"), tmp_path, {})[0]
    with pytest.raises(RunError, match=r"holds a run with gamma 0\.98, and this study wants 0\.5"):
        other.state()
    second.folder.mkdir(parents=True)
    (second.folder / ".config.json.tmp").write_text("{")
    assert second.state() == "new"
    (second.folder / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="move it away"):
        second.state()
    result = json.loads((first.folder / "result.json").read_text())
    (first.folder / "result.json").write_text(json.dumps({**result, "step": 5}))
    assert first.state() == "unfinished"


def table_of(text: str, root: Path, evaluations: list[float], training: float = -7.0) -> dict[str, Any]:
    """The table of a study whose runs evaluate to these numbers and trained to another."""
    study = parse_study(text, "x")
    runs = build_grid(study, root, {})
    for run, score in zip(runs, evaluations, strict=True):
        write_run(run, score, training)
    return build_table(study, scores.score_runs(study, runs, {}, root))


def test_the_evaluation_is_the_score_unless_a_study_asks_for_training_episodes(tmp_path: Path) -> None:
    text = MINIMAL + "seeds = [1]\n"
    table = table_of(text, tmp_path / "eval", [50.0])
    assert table["cells"][0]["mean"] == 50
    assert "Score: mean return of the evaluation after training, greedy actions, 20 episodes" in as_markdown(table)
    assert "| 50 | - | 50 | - | 1 | 20 |" in as_markdown(table)  # one seed, 20 episodes
    note = "score = 'last100'\nscore_note = 'the measure of a paper'"
    table = table_of(text + note, tmp_path / "training", [50.0])
    assert table["cells"][0]["mean"] == -7
    assert "**Score: mean of the last 100 training episodes (the measure of a paper)**" in as_markdown(table)
    assert "| -7 | - | -7 | - | 1 | 100 |" in as_markdown(table)


def test_studies_that_take_a_papers_measure_say_so() -> None:
    for name in builtin_names():
        study = load_study(name)
        if study.score == "last100":
            assert study.score_name == "mean of the last 100 training episodes (the paper's measure)"
    assert load_study("control").score == "eval"


@pytest.mark.parametrize(("seeds", "intervals"), [(1, False), (2, False), (3, True)])
def test_there_is_no_interval_below_three_seeds(seeds: int, intervals: bool, tmp_path: Path) -> None:
    text = f"environments = [{{ env = 'CartPole-v1', low = 0, high = 100 }}]\nseeds = {list(range(seeds))}"
    table = table_of(text, tmp_path, [10.0 * seed for seed in range(seeds)])
    for row in (*table["cells"], *table["aggregates"]):
        assert (row["mean_low"] is not None) == (row["iqm_high"] is not None) == intervals
    assert (" to " in as_markdown(table).split("Intervals:")[0]) == intervals


@pytest.mark.parametrize(("seeds", "other", "bold"), [(4, 0.0, False), (5, 0.0, True), (5, 99.0, False)])
def test_a_winner_needs_five_seeds_and_a_clear_lead(seeds: int, other: float, bold: bool, tmp_path: Path) -> None:
    text = f"environments = [{{ env = 'CartPole-v1', low = 0, high = 100 }}]\nseeds = {list(range(seeds))}"
    each = [float(seed) for seed in range(seeds)]
    table = table_of(
        text + "\nvariants.a = {}\nvariants.b = {}", tmp_path, [100 + x for x in each] + [other + x for x in each]
    )
    shown = [line for line in as_markdown(table).splitlines() if line.startswith("| ") and "**" in line]
    assert [line.split(" | ")[0] for line in shown] == (["| a", "| CartPole-v1"] if bold else [])
    assert ("Bold:" in as_markdown(table)) == bold


def test_episodes_that_were_cut_are_counted(tmp_path: Path) -> None:
    study = parse_study(MINIMAL + "seeds = [1, 2]", "x")
    for run in (runs := build_grid(study, tmp_path, {})):
        write_run(run, 50.0, eval={"return_mean": 50.0, "episodes": 20, "episodes_cut": 4})
    table = build_table(study, scores.score_runs(study, runs, {}, tmp_path))
    assert "8 of the episodes were cut" in as_markdown(table)
    assert table["runs"][0]["episodes_cut"] == 4


def test_successes_have_a_column_where_they_are_told(tmp_path: Path) -> None:
    study = parse_study(MINIMAL + "seeds = [1, 2]", "x")
    for folder, rates in (("silent", (None, None)), ("told", (0.25, 0.75))):
        for run, rate in zip(runs := build_grid(study, tmp_path / folder, {}), rates, strict=True):
            told = {} if rate is None else {"success_rate": rate}
            write_run(run, 50.0, eval={"return_mean": 50.0, "episodes": 20, "episodes_cut": 0, **told})
        table = build_table(study, scores.score_runs(study, runs, {}, tmp_path))
        assert ("successes" in as_markdown(table)) == (rates[0] is not None)
    assert "| 50% |" in as_markdown(table)
    assert [row["success_rate"] for row in table["runs"]] == [0.25, 0.75]
    assert ",success_rate," in as_csv(table).splitlines()[0]


def test_a_run_without_the_evaluation_that_scores_it_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = parse_study(MINIMAL + "seeds = [1]\neval_episodes = 5", "x")
    (run,) = build_grid(study, tmp_path, {})
    write_run(run, 50.0, training=7.0, eval=None)
    config = json.loads((run.folder / "config.json").read_text())
    (run.folder / "config.json").write_text(json.dumps({**config, "eval_episodes": 0}))  # as it once was by default
    assert run.state() == "unscored"
    unscored = build_table(study, scores.score_runs(study, [run], {}, tmp_path))
    assert unscored["runs"][0]["score"] is None  # never the training return in its place
    entry = {"step": run.config.total_steps, "deterministic": True, "levels": "train", "episodes": 5}

    def call(command: list[str], *_: Any) -> tuple[int, str]:
        assert command[4] == "eval"
        assert "--episodes=5" in command
        lines = [{**entry, "return_mean": 60.0}, {**entry, "return_mean": 1.0, "deterministic": False}]
        lines += [{**entry, "return_mean": 2.0, "step": 5}, {**entry, "return_mean": 3.0, "episodes": 9}]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (run.folder / "evaluations.jsonl").write_text(text + '{"step": 50_0')
        return 0, ""

    monkeypatch.setattr(runner, "call", call)
    assert runner.execute(run).status == "finished"
    assert scores.raw_score(study, run, "return") == 60.0
    monkeypatch.setattr(runner, "call", lambda *_: (0, ""))
    (run.folder / "evaluations.jsonl").unlink()
    assert runner.execute(run).message == "its evaluation over 5 episodes left no score"


def test_a_run_that_stopped_at_the_score_it_was_to_reach_has_ended(tmp_path: Path) -> None:
    (run,) = build_grid(parse_study(MINIMAL + "seeds = [1]", "x"), tmp_path, {})
    result = {"status": "stopped", "step": 64, "reached": 450.0}
    assert not run.has_ended(result)
    aimed: Any = SimpleNamespace(total_steps=run.config.total_steps, stop_at=450.0)
    assert replace(run, config=aimed).has_ended(result)
    assert not replace(run, config=aimed).has_ended({"status": "stopped", "step": 64})


def test_the_folder_says_what_a_page_needs(tmp_path: Path) -> None:
    study = select(load_study("ppg-vs-ppo"), environments="coinrun", seeds="1")
    runs = build_grid(study, tmp_path, {})
    found = page_data(study, runs, [], tmp_path)
    assert found["title"] == "PPG beside PPO"
    assert found["score"]["name"] == "mean of the last 100 training episodes (the paper's measure)"
    assert found["score"]["from"] == "training"
    assert found["scale"]["environments"] == {"procgen/coinrun": {"low": 5, "high": 10}}
    assert found["runs"][0]["folder"] == "runs/procgen-coinrun/ppo/s1"
    assert found["variants"]["ppg"]["published"] == {"return": 0.756}
    (entry,) = definition_data(study, runs)["environments"]
    assert (entry["low"], entry["high"]) == (5, 10)  # the package's constants, for readers that have none


def test_levels_are_scored_after_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "environments = ['procgen/coinrun']\nscore = 'levels'\neval_episodes = 4\nseeds = [1]"
    study = parse_study(text, "x")
    (run,) = build_grid(study, tmp_path, {})
    calls: list[str] = []

    def call(command: list[str], *_: Any) -> tuple[int, str]:
        calls.append(command[4])
        if command[4] == "train":
            write_run(run, 6.0)
        levels = command[command.index("--levels") + 1] if "--levels" in command else ""
        return 0, json.dumps({"return_mean": {"train": 9.0, "test": 7.0}.get(levels), "episodes": 4})

    monkeypatch.setattr(runner, "call", call)
    assert runner.execute(run).status == "finished"
    assert calls == ["train", "eval", "eval"]
    table = build_table(study, scores.score_runs(study, [run], {}, tmp_path))
    assert {row["measure"]: row["mean"] for row in table["aggregates"]} == {
        "train": pytest.approx(0.8),
        "test": pytest.approx(0.4),
    }
    (run.folder / LEVELS).unlink()
    assert run.state() == "unscored"
    assert runner.execute(run).status == "finished"
    assert calls == ["train", "eval", "eval", "eval", "eval"]


def test_a_run_that_leaves_no_result_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = build_grid(parse_study(MINIMAL + "seeds = [1]", "x"), tmp_path, {})

    def call(command: list[str], *_: Any) -> tuple[int, str]:
        write_run(run, 6.0)
        (run.folder / "result.json").unlink()
        return 0, ""

    monkeypatch.setattr(runner, "call", call)
    assert runner.execute(run).message == "it ended without a result"
    shown = StudyDisplay([run], 2)
    assert latest(run) == (0, None)
    (run.folder / "metrics.jsonl").write_text('{"step": 64, "return_mean": 3.5}\n{"step": 96, "retu')
    assert latest(run) == (64, 3.5)
    shown.started(run)
    (standing,) = shown.snapshot()
    assert (standing.step, standing.score, standing.source) == (64, 3.5, "training")
    assert shown.headline(64).startswith("2 of 3 runs done, 1 running, ETA ")


# How runs stand, from files written by hand


def begin_run(run: PlannedRun, *rows: dict[str, Any], owner: int | None = None) -> None:
    """A run under way; `owner` is the process in its lock."""
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").write_text(json.dumps({"algorithm": run.variant.algorithm, **run.config.to_json()}))
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if owner is not None:
        (run.folder / ".lock").write_text(str(owner))


def standing_of(run: PlannedRun) -> tuple[str, int, float | None, str]:
    found = run.standing().look()
    return found.state, found.step, found.score, found.source


def test_the_score_so_far_is_the_last_evaluation_and_says_where_it_is_from(tmp_path: Path) -> None:
    (run,) = build_grid(parse_study(MINIMAL + "seeds = [1]\nsteps = 100", "x"), tmp_path, {})
    assert standing_of(run) == ("waiting", 0, None, "")
    first = {"step": 10, "seconds": 1.0, "return_mean": 3.0}
    begin_run(run, first, owner=os.getpid())
    watched = run.standing().look()
    assert (watched.state, watched.step, watched.score, watched.source) == ("running", 10, 3.0, "training")
    with open(run.folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({**first, "step": 20, "seconds": 2.0, "eval_return_mean": 99.5}) + "\n")
        file.write(json.dumps({**first, "step": 30, "seconds": 3.0, "return_mean": 4.0}) + '\n{"step": 40, "eval_retu')
    watched.look()
    assert (watched.step, watched.score, watched.source) == (30, 99.5, "eval")
    assert watched.seconds_left() == pytest.approx(run.config.total_steps / 10 - 3)
    # A study scored by its training episodes shows those, whatever was evaluated.
    (trained,) = build_grid(parse_study(MINIMAL + "seeds = [1]\nsteps = 100\nscore = 'last100'", "x"), tmp_path, {})
    assert standing_of(trained)[2:] == (4.0, "training")
    # A resumed run cuts its metrics back to the checkpoint.
    (run.folder / "metrics.jsonl").write_text(json.dumps(first) + "\n")
    assert watched.look().step == 10
    assert (watched.score, watched.source) == (3.0, "training")


def test_states_of_runs(tmp_path: Path) -> None:
    study = parse_study(MINIMAL + "seeds = [1, 2, 3, 4, 5]", "x")
    killed, failed, done, old, starting = build_grid(study, tmp_path, {})
    begin_run(killed, {"step": 8, "return_mean": 1.0}, owner=2**22 + 1)  # no such process: beyond the largest id
    assert standing_of(killed)[0] == "running"  # it wrote a moment ago: it may be on another machine
    for silent, state in ((30, "running"), (120, "stopped")):
        os.utime(killed.folder / "metrics.jsonl", (time.time() - silent,) * 2)
        assert standing_of(killed)[0] == state
    runner.noted(Outcome(failed, "finished"))
    assert runner.failure_of(failed) is None
    failed.log.parent.mkdir(parents=True)
    runner.noted(Outcome(failed, "failed", "it broke"))
    found = failed.standing().look()
    assert (found.state, found.message) == ("failed", "it broke")
    write_run(done, 5.0, training=1.0)
    assert standing_of(done) == ("finished", done.config.total_steps, 5.0, "eval")
    write_run(old, 5.0, training=1.0, eval=None)  # from before runs were evaluated
    assert standing_of(old) == ("finished", old.config.total_steps, 1.0, "training")
    starting.log.write_text("$ phasegrad train")
    assert standing_of(starting)[0] == "starting"


def test_the_table_of_runs_fits_80_columns_and_does_not_move(tmp_path: Path) -> None:
    text = """
    environments = [{ env = "CartPole-v1", name = "a very long name of an environment" }, "Pendulum-v1"]
    variants.short = {}
    variants."a variant of a long name too" = {}
    """
    standings = [run.standing() for run in build_grid(parse_study(text, "x"), tmp_path, {})]
    board = Board([standing.place for standing in standings], 80)
    standings[1].state, standings[1].step, standings[1].score, standings[1].source = "running", 1, -1.5, "training"
    standings[2].state, standings[2].step, standings[2].score, standings[2].source = "finished", 10**9, -2e9, "eval"
    standings[1].seconds = 1e4
    lines = [board.header(), *map(board.line, standings)]
    assert max(map(len, lines)) <= 80
    ends = {line.index("training") + len("training") for line in lines if "training" in line}
    assert ends == {lines[0].index("from") + 4}
    assert "-2.000e+09" in lines[3]
    assert "1.0M" not in lines[3]


def test_only_running_runs_share_what_is_left(tmp_path: Path) -> None:
    study = parse_study(MINIMAL + "seeds = [1, 2, 3, 4]\nsteps = 80", "x")
    first, second, third, fourth = build_grid(study, tmp_path, {})
    total = first.config.total_steps
    row = {"step": total // 2, "seconds": 100.0, "return_mean": 1.0}
    begin_run(first, row, owner=os.getpid())
    begin_run(second, row, owner=os.getpid())
    fourth.log.parent.mkdir(parents=True, exist_ok=True)
    runner.noted(Outcome(fourth, "failed", "it broke"))
    standings = [run.standing().look() for run in (first, second, third, fourth)]
    # 100 s each of the running two and 200 s of the waiting one, two at a time; the failed one takes no time.
    assert board.seconds_left(standings) == pytest.approx(200)
    assert board.headline(standings) == "0 of 4 runs done, 2 running, 1 failed, about 3m20s left"


def test_watch_shows_a_study_from_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = parse_study(MINIMAL + "seeds = [1, 2]\ntitle = 'Two seeds'\nvariants.a = {}\nvariants.b = {}", "x")
    runs = build_grid(study, tmp_path, {})
    write_run(runs[0], 432.1, training=7.0)
    begin_run(runs[1], {"step": 250_000, "seconds": 50.0, "return_mean": 33.0, "eval_return_mean": 44.0}, owner=1)
    runs[2].log.parent.mkdir(parents=True)
    runner.noted(Outcome(runs[2], "failed", "it broke"))
    (tmp_path / "study.json").write_text(json.dumps(definition_data(study, runs)))
    before = sorted(path for path in tmp_path.rglob("*"))
    assert main(["watch", str(tmp_path), "--once"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["CartPole-v1", "a", "1", "finished", "1M", "432.1", "eval"] in rows
    assert ["CartPole-v1", "a", "2", "25%", "250k", "44", "eval", "2m30s"] in rows
    assert ["CartPole-v1", "b", "1", "failed", "-", "-"] in rows
    assert ["CartPole-v1", "b", "2", "waiting", "-", "-"] in rows
    assert "CartPole-v1 b seed 1 failed: it broke" in out
    assert (
        "1 of 4 runs done, 1 running, 1 failed, about 4m10s left" in out
    )  # 2m30s, and the mean for the one that waits
    assert "score: mean return of the evaluation" in out
    assert before == sorted(path for path in tmp_path.rglob("*"))
    # A smaller call later leaves the runs of the first one in the table.
    smaller = definition_data(select(study, variants="a", seeds="1"), runs[:1])
    (tmp_path / "study.json").write_text(json.dumps(smaller))
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "1 of 2 runs done" in capsys.readouterr().out
    short = watching.table_lines(watching.WatchedStudy(tmp_path), 80, lines=6)
    assert any(line.startswith("CartPole-v1 a ") and "25%" in line for line in short)
    assert "and 1 finished" in short
    for text in ("[]", '{"name": 3}', "{"):
        (tmp_path / "study.json").write_text(text)
        assert main(["watch", str(tmp_path), "--once"]) == 2
        assert "describes no study" in capsys.readouterr().err


def test_a_hostile_study_file_neither_climbs_nor_moves_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"name": "../../../\x1b[2J", "steps": "many"}
    data = {"title": "\x1b]0;x\x07", "environments": [entry], "variants": [{"name": "/etc"}], "seeds": [1, "x", True]}
    (tmp_path / "study.json").write_text(json.dumps(data))
    (place,) = watching.planned_places(tmp_path, data)
    assert place.folder.resolve().is_relative_to(tmp_path.resolve() / "runs")
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "\x1b" not in capsys.readouterr().out


# What a study would take


def test_finished_runs_tell_how_long_the_others_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = parse_study(MINIMAL + "seeds = [1, 2, 3, 4, 5]\nsteps = 3600", "x")
    runs = build_grid(study, tmp_path, {})
    write_run(runs[0], 1.0, seconds=100.0)
    write_run(runs[1], 1.0, seconds=300.0)
    monkeypatch.setattr(forecast, "measure", lambda missing, *_: forecast.Measured(startup=10.0, took=len(missing)))
    monkeypatch.setattr(forecast, "usable_processors", lambda: 2)
    plan = forecast.forecast(runs, jobs=2)
    assert plan.measured.took == 0  # of no kind anything had to be measured
    assert plan.seconds == pytest.approx(2 * 210)  # three runs of 200 s and a start each, two at a time
    lines = forecast.sentences(runs, plan)
    total = runs[0].config.total_steps
    assert lines[0] == f"3 of 5 runs to do, {3 * total:,} steps: about 7 minutes on this machine, 2 at a time."
    assert "1 kinds by their 2 finished runs" in lines[1]
    (_, row) = forecast.grid_lines(runs, plan)
    assert row.split()[3:] == ["5", "2", f"{total / 200:,.0f}", "3m30s"]
    for run in runs[2:]:
        write_run(run, 1.0)
    assert forecast.sentences(runs, forecast.forecast(runs, 2)) == ["All 5 runs are done."]


def test_what_was_not_measured_takes_after_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "environments = ['CartPole-v1', 'Acrobot-v1']\nseeds = [1]\nsteps = 1000\nvariants.a = {}\nvariants.b = {}"
    runs = build_grid(parse_study(text, "x"), tmp_path, {})
    found = forecast.Measured({("CartPole-v1", "a"): 0.01, ("Acrobot-v1", "a"): 0.05}, {("Acrobot-v1", "b"): "no"})
    monkeypatch.setattr(forecast, "measure", lambda *_: found)
    plan = forecast.forecast(runs, jobs=1)
    counts = [run.config.total_steps for run in runs]
    assert plan.seconds == pytest.approx(0.01 * (counts[0] + counts[1]) + 0.05 * counts[2])
    lines = forecast.grid_lines(runs, plan)
    assert [line.split()[5] for line in lines[1:]] == ["100", "~100", "20", "fails"]
    assert "Acrobot-v1 b would fail: no" in forecast.sentences(runs, plan)
    assert [run.label for run in forecast.spread(runs)][:2] == ["CartPole-v1 a seed 1", "Acrobot-v1 a seed 1"]


def test_runs_begin_as_soon_as_a_place_is_free() -> None:
    assert forecast.makespan([3.0, 1.0, 1.0, 1.0], 2) == 3
    assert forecast.makespan([1.0, 1.0, 4.0], 2) == 5
    assert [forecast.in_hours(seconds) for seconds in (20, 600, 7200, 1e6)] == [
        "20 seconds", "10 minutes", "2.0 hours", "11.6 days",
    ]  # fmt: skip


def test_a_calibration_keeps_the_work_of_a_step() -> None:
    ppg = {"num_envs": 64, "num_steps": 256, "num_minibatches": 8, "n_pi": 32, "e_aux": 6, "aux_minibatches": 0}
    assert calibration.shortened(ppg, 2048) == {
        "num_envs": 64, "num_steps": 32, "num_minibatches": 1, "n_pi": 1, "aux_minibatches": 2,
    }  # fmt: skip
    reloaded = {**ppg, "num_steps": 128, "aux_interval": 1, "aux_buffer": 16, "aux_steps": 8, "aux_minibatch_size": 512}
    assert calibration.shortened(reloaded, 2048) == {
        "num_envs": 64, "num_steps": 32, "num_minibatches": 2, "n_pi": 1, "aux_interval": 1, "aux_buffer": 1,
        "aux_steps": 2, "aux_minibatch_size": 512,
    }  # fmt: skip
    few = calibration.shortened(reloaded, 128)
    assert (few["aux_steps"], few["aux_minibatch_size"]) == (1, 64), "8 x 512 samples for 8,192 steps, 64 for 128"
    by_size = {**ppg, "aux_minibatch_size": 512}
    assert not {"aux_minibatches", "aux_minibatch_size"} & set(calibration.shortened(by_size, 2048))
    images = calibration.shortened({"num_envs": 256, "num_steps": 256, "num_minibatches": 8}, 128)
    assert images == {"num_envs": 32, "num_steps": 4, "num_minibatches": 1}
    assert calibration.largest_divisor(12, 5) == 4
    assert calibration.shortened({"num_envs": 8, "num_steps": 128, "num_minibatches": 4}, 2048) == {}


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_a_calibration_of_any_preset_has_settings_that_fit_together(preset: str, algorithm: str) -> None:
    config_class, given_fields = ALGORITHMS[algorithm].config_class, {"preset": preset, "env": "CartPole-v1"}
    settings = resolve_config(config_class, given_fields).to_json()
    for most in (128, 2048):
        short = resolve_config(config_class, given_fields | calibration.shortened(settings, most))
        assert short.batch_size <= max(most, settings["num_envs"])


def test_a_calibration_trains_and_its_failures_are_told(tmp_path: Path) -> None:
    runs = build_grid(select(parse_study(TINY, "x"), seeds="1"), tmp_path, {})
    found = forecast.measure(runs, 2, most_seconds=120.0)
    assert set(found.speeds) == {("CartPole-v1", "clip")}
    assert 1e-6 < found.speeds["CartPole-v1", "clip"] < 0.1
    assert "refuses its options" in found.errors["CartPole-v1", "broken"]
    assert found.startup > 0
    assert not any(tmp_path.iterdir())
    late = forecast.measure(runs, 1, most_seconds=0.1)
    assert (late.speeds, late.errors) == ({}, {})


# A real study


class Finished(NamedTuple):
    file: Path
    folder: Path
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The tiny study, run to its end with two jobs: one of its variants cannot make its environment."""
    root = tmp_path_factory.mktemp("study")
    file, folder = root / "tiny.toml", root / "out"
    file.write_text(TINY)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["study", str(file), "--dir", str(folder), "--jobs", "2"])
    return Finished(file, folder, code, out.getvalue(), err.getvalue())


def test_a_failed_run_is_named_and_the_others_finish(
    finished: Finished,
) -> None:
    folder = finished.folder
    assert finished.code == 1, finished.err
    assert "CartPole-v1 broken seed 1 failed" in finished.err
    assert "CartPole-v1 broken seed 2 failed" in finished.err
    assert "Traceback" not in finished.err
    assert "refuses its options" in (folder / "logs" / "CartPole-v1" / "broken" / "s1.log").read_text()
    table = json.loads((folder / "table.json").read_text())
    assert [row["status"] for row in table["runs"]] == ["finished"] * 2 + ["failed"] * 2
    for row in table["runs"][:2]:
        result = json.loads(
            (folder / "runs" / "CartPole-v1" / row["variant"] / f"s{row['seed']}" / "result.json").read_text()
        )
        assert row["score"] == result["eval"]["return_mean"]
        assert result["step"] == row["steps"] == 4_002
        assert result["eval"]["episodes"] == 3
    clip = next(row for row in table["cells"] if row["variant"] == "clip")
    assert clip["mean"] == pytest.approx(np.mean([row["score"] for row in table["runs"][:2]]))
    assert (clip["runs"], clip["aim"], clip["met"]) == (2, 1, 2)
    rows = list(csv.DictReader((folder / "table.csv").open()))
    assert [row["kind"] for row in rows] == ["run"] * 4 + ["cell"] * 2 + ["aggregate"] * 2
    assert json.loads((folder / "study.json").read_text())["variants"][0]["published"] == {"return": 0.5}
    assert "| published |" in (folder / "table.md").read_text()
    assert "finished CartPole-v1 clip seed 2, evaluation " in finished.out
    assert "\x1b" not in finished.out


def test_a_second_time_nothing_runs_and_the_table_is_the_same(
    finished: Finished, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, folder = finished.file, tmp_path / "out"
    shutil.copytree(finished.folder, folder)
    select_done = ["--variants", "clip"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    tables = []
    for extra in ([], ["--table-only"], []):
        assert main(["study", str(file), "--dir", str(folder), *select_done, *extra]) == 0
        tables.append({name: (folder / f"table.{name}").read_bytes() for name in ("md", "json", "csv")})
    assert tables[0] == tables[1] == tables[2]
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    capsys.readouterr()
    assert main(["study", str(file), "--dir", str(folder), *select_done, "--steps", "64"]) == 2
    assert "holds a run with total_steps 4002, and this study wants 64" in capsys.readouterr().err
    assert main(["study", "control", "--dir", str(folder)]) == 2
    assert "holds the study 'tiny'" in capsys.readouterr().err
    with runner.exclusive(folder):
        assert main(["study", str(file), "--dir", str(folder), *select_done]) == 2
    assert "in use by another study" in capsys.readouterr().err


def test_a_run_killed_before_its_result_gets_one(finished: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "s1"
    shutil.copytree(finished.folder / "runs" / "CartPole-v1" / "clip" / "s1", folder)
    before = json.loads((folder / "result.json").read_text())
    (folder / "result.json").unlink()
    assert main(["resume", str(folder), "--quiet"]) == 0
    after = json.loads((folder / "result.json").read_text())
    for name in ("status", "step", "return_mean", "eval", "episodes"):
        assert after[name] == before[name]


def test_a_stopped_study_goes_on_to_the_same_table(finished: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    command = ["study", str(finished.file), "--dir", str(folder), "--variants", "clip", "--jobs", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "phasegrad", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size for path in folder.rglob("metrics.jsonl")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 143, stderr
    assert "the same command continues" in stderr
    with runner.exclusive(folder):  # the runs hold the folder too, so none of them is left
        pass
    results = list(folder.rglob("result.json"))
    assert len(results) < 2, "the study was over before it could be stopped"
    assert main(command) == 0
    wanted = json.loads((finished.folder / "table.json").read_text())["runs"][:2]
    found = json.loads((folder / "table.json").read_text())["runs"]
    for row in (*wanted, *found):
        row.pop("seconds")
    assert found == wanted


def test_the_command_lists_checks_and_only_looks_when_dry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in builtin_names())
    found = forecast.Measured({("Reacher-v5", "ppg"): 0.36}, startup=0.0)
    monkeypatch.setattr(forecast, "measure", lambda *_: found)
    assert main(["study", "control", "--dry-run", "--steps", "5e3", "--seeds", "7,", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "Reacher-v5 ppg seed 7, 5,000 steps: phasegrad train ppg" in printed
    assert "6 runs, 30,000 steps" in printed
    assert "6 of 6 runs to do, 30,000 steps: about 3.0 hours on this machine, 1 at a time." in printed
    grid = printed[printed.index("environment ") :].split("\n\n")[0].splitlines()
    assert [line.split()[:5] for line in grid[1:3]] == [
        ["InvertedPendulum-v5", "ppo", "5,000", "1", "0"],
        ["InvertedPendulum-v5", "ppg", "5,000", "1", "0"],
    ]
    assert max(map(len, grid)) <= 80
    monkeypatch.setattr(forecast, "measure", lambda *_: pytest.fail("measured"))
    assert main(["study", "control", "--dry-run", "--quiet"]) == 0
    capsys.readouterr()
    assert not any(tmp_path.iterdir())
    for arguments, sentence in (
        (["contrl"], "Did you mean control?"),
        (["control", "--jobs", "0"], "--jobs must be at least 1"),
        (["control", "--table-only"], "does not exist"),
        (["control", "--step", "3"], "did you mean --set or --total-steps?"),
    ):
        assert main(["study", *arguments]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1


def test_what_the_page_on_studies_says_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "studies.md").read_text()
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    Path("my-study.toml").write_text(example)
    commands = re.findall(r"^phasegrad study \S.*$", page, re.MULTILINE)
    assert len(commands) == 7
    for command in commands:
        assert main([*shlex.split(command.split("   ")[0])[1:], "--dry-run", "--quiet"]) == 0, command
        capsys.readouterr()
    assert all(f"| `{name}` |" in page for name in builtin_names())
    runs = build_grid(load_study("my-study.toml"), tmp_path, {})
    assert {run.config.total_steps for run in runs if run.environment.env == "Acrobot-v1"} == {300_000}
    assert {run.config.gae_lambda for run in runs} == {0.9}
