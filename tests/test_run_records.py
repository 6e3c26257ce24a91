"""Runs, agents and evaluations as objects in Python: arrays, tables, figures, cards; and what strangers put in their files."""

from __future__ import annotations

import copy
import json
import math
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phasegrad as pg
from phasegrad.algorithms.presenting import described
from phasegrad.runs.evaluation import Evaluation
from phasegrad.runs.formats import score
from phasegrad.runs.history import History, read_history
from phasegrad.runs.notebook_card import card
from phasegrad.video.inline import MOST_BYTES
from phasegrad.video.recorders import Video

SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 32, "num_minibatches": 4, "epochs": 2, "compile": "off", "seed": 3}
HOSTILE = "<script>alert(1)</script>&\"'"


def written(folder: Path, rows: list[dict[str, Any]], config: Any = None, result: Any = None) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config or {"algorithm": "ppo", "env": "CartPole-v1", "seed": 1}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("records") / "run"
    agent = pg.PPO("CartPole-v1", **SMALL, run_dir=folder, eval_every=512, eval_episodes=2)
    agent.learn(1024)
    return agent, folder


def test_a_run_is_read_as_arrays_and_nothing_is_written(trained: tuple[Any, Path]) -> None:
    _, folder = trained
    before = listing(folder)
    run = pg.read_run(folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert run.metrics["step"].tolist() == [row["step"] for row in rows] == run.metrics.steps.tolist()
    for name in ("kl", "return_mean", "eval_return_mean"):
        expected = [math.nan if row.get(name) is None else row[name] for row in rows]
        np.testing.assert_array_equal(run.metrics[name], expected)
    assert np.isnan(run.metrics["eval_return_mean"]).any()
    assert {name for row in rows for name in row if not isinstance(row[name], list)} == set(run.metrics)
    assert run.config["num_envs"] == 4
    assert run.result["status"] == run.status == "finished"
    assert (run.env, run.algorithm, run.seed, run.step) == ("CartPole-v1", "ppo", "3", 1024)
    assert run.score == run.result["eval"]["return_mean"]
    assert [each["step"] for each in run.evaluations] == [512, 1024]
    assert run.evaluations[-1]["return_mean"] == run.score
    run.plot()
    run._repr_html_()
    assert listing(folder) == before


def test_evaluations_made_later_come_after(trained: tuple[Any, Path]) -> None:
    from phasegrad.runs.noting import note_evaluation

    _, folder = trained
    note_evaluation(folder, {"step": 1024, "return_mean": 7.5, "episodes": 3})
    assert pg.read_run(folder).evaluations[-1] == {"step": 1024, "return_mean": 7.5, "episodes": 3}
    (folder / "evaluations.jsonl").unlink()


def test_a_run_that_is_training_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(row: dict[str, Any]) -> None:
        seen.append(pg.read_run(tmp_path / "run"))

    pg.PPO("CartPole-v1", **SMALL, run_dir=tmp_path / "run", eval_episodes=0).learn(384, callback=look)
    assert [run.step for run in seen] == [128, 256, 384]
    assert {run.status for run in seen} == {"unfinished"}
    assert "128 of 384" in seen[0]._repr_html_()


def test_a_run_without_a_row_yet(tmp_path: Path) -> None:
    run = pg.read_run(written(tmp_path / "run", []))
    assert (run.step, run.score, len(run.metrics), run.evaluations) == (0, None, 0, [])
    assert "0 steps" in repr(run)
    with pytest.raises(pg.RunError, match="no evaluation and no finished episode"):
        run.plot()


def test_what_is_no_run_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(pg.RunError, match=r"missing is not a directory: give the folder of a run"):
        pg.read_run(tmp_path / "missing")
    with pytest.raises(pg.RunError, match=r"is not a run directory: its config.json is missing"):
        pg.read_run(tmp_path)
    (tmp_path / "config.json").symlink_to("/etc/hostname")
    with pytest.raises(pg.RunError, match="is a link, not a file"):
        pg.read_run(tmp_path)


def test_a_strangers_files_are_data(tmp_path: Path) -> None:
    """Names, values and types that no run writes: passed over or shown as text, and no memory for rows x names."""
    folder = written(
        tmp_path / "run",
        [{"step": 1, **{f"m{i}": 1.0 for i in range(400)}}, {"step": 2, "return_mean": True, HOSTILE: 1.5}],
        {"algorithm": HOSTILE, "env": HOSTILE, "seed": {"a": [HOSTILE]}, "total_steps": "many"},
        {"status": HOSTILE, "eval": {"return_mean": 1e400, "step": HOSTILE}, "seconds": HOSTILE, "step": []},
    )
    with open(folder / "metrics.jsonl", "a") as file:
        file.write("no json\n[1]\n" + '{"step": 3, "kl": NaN, "x_by_epoch": [1, null, "a"]}\n{"step": 4, "kl"')
    run = pg.read_run(folder)
    assert run.metrics.num_rows == 3
    assert run.ignored_lines == 2
    assert run.score is None
    assert run.metrics.by_epoch == {"x_by_epoch": [(2, [1.0, None, None])]}
    html = run._repr_html_() + run.metrics._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\x1b" not in repr(run)
    if hasattr(os, "mkfifo"):
        (folder / "metrics.jsonl").unlink()
        os.mkfifo(folder / "metrics.jsonl")
        with pytest.raises(pg.RunError, match="is a named pipe, not a file"):
            pg.read_run(folder)


def test_an_agent_has_its_history_with_and_without_a_run_directory(trained: tuple[Any, Path]) -> None:
    agent, folder = trained
    assert agent.history["kl"].tolist() == pg.read_run(folder).metrics["kl"].tolist()
    loaded = pg.load(folder)
    assert loaded.history.steps.tolist() == agent.history.steps.tolist()
    assert repr(loaded.history) == f"History(8 iterations, 1,024 steps, {len(agent.history)} metrics)"
    alone = pg.PPO("CartPole-v1", **SMALL)
    assert len(alone.history) == alone.history.num_rows == 0
    kept: list[History] = []
    alone.learn(1024, callback=lambda row: kept.append(alone.history))
    np.testing.assert_array_equal(alone.history["kl"], agent.history["kl"])  # the same run
    assert [each.num_rows for each in kept] == list(range(1, 9))  # each as it was then
    assert copy.copy(alone).history.num_rows == 0


def test_an_earlier_checkpoint_has_the_history_up_to_it(trained: tuple[Any, Path]) -> None:
    agent, folder = trained
    assert read_history(folder / "metrics.jsonl", 512).steps.tolist() == [128, 256, 384, 512]
    assert agent.history.steps[-1] == agent.progress.step


def test_a_long_history_is_thinned_and_keeps_its_evaluations() -> None:
    history = History(most_rows=100)
    for step in range(1, 1001):
        history.add({"step": step, "kl": step / 10, **({"eval_return_mean": float(step)} if step % 90 == 7 else {})})
    assert history.num_rows <= 100
    assert history.steps[-1] == 1000
    assert (np.diff(history.steps) > 0).all()
    np.testing.assert_allclose(history["kl"], history.steps / 10)
    rows, values = history.column("eval_return_mean")
    assert values.tolist() == [step for step in range(1, 1001) if step % 90 == 7]
    assert history.steps[rows].tolist() == values.tolist()


def test_what_an_algorithm_from_outside_yields_is_kept_too() -> None:
    history = History()
    history.add({"step": np.int64(1), "kl": np.float32(0.5), "note": "text", "flag": True})
    assert {name: values.tolist() for name, values in history.items() if name in ("step", "kl")} == {
        "step": [1],
        "kl": [0.5],
    }
    assert np.isnan(history["note"]).all()


def test_a_metric_of_a_wrong_name_is_a_key_error_with_the_nearest() -> None:
    history = History()
    history.add({"step": 1, "return_mean": 2.0})
    with pytest.raises(KeyError, match=r"no metric 'return_men' here\. Did you mean return_mean"):
        _ = history["return_men"]
    assert history.get("other") is None


def test_a_table_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    history.add({"step": 1, "kl": None})
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(pg.ConfigError, match="needs the package pandas: pip install pandas"):
        history.to_pandas()
    stand_in: Any = types.ModuleType("pandas")
    stand_in.DataFrame = dict
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    table = history.to_pandas()
    assert list(table) == ["step", "kl"]
    assert math.isnan(table["kl"][0])


def test_figures_open_no_window_and_leave_matplotlib_as_it_was(trained: tuple[Any, Path]) -> None:
    import matplotlib
    import matplotlib.pyplot as plt

    agent, folder = trained
    backend, figures = matplotlib.get_backend(), plt.get_fignums()
    for figure in (agent.plot(title="$x"), pg.read_run(folder).plot(), pg.plot(folder), pg.plot([pg.read_run(folder)])):
        lines = figure.axes[0].get_lines()
        assert lines[0].get_xdata().tolist() == [512, 1024]
        assert figure._repr_png_().startswith(b"\x89PNG")
    assert (matplotlib.get_backend(), plt.get_fignums()) == (backend, figures)
    with pytest.raises(pg.RunError, match="let it learn first"):
        pg.PPO("CartPole-v1", **SMALL).plot()


def test_an_agent_and_an_evaluation_tell_of_themselves(trained: tuple[Any, Path]) -> None:
    agent, folder = trained
    found_score = score(pg.read_run(folder).score)
    assert repr(agent).startswith(f"PPO(CartPole-v1, seed 3, 1,024 steps trained, score {found_score} at step 1,024, ")
    html = agent._repr_html_()
    for words in ("Box 4, float32", "Discrete(2)", "parameters", "1,024", str(folder)):
        assert words in html
    found = Evaluation([1.0, 3.0], [5, 7], cut=1, successes=[True, None])
    assert repr(found) == (
        "Evaluation(return 2.00 ± 1.00 (from 1.00 to 3.00), episodes 2, 1 of them cut, length 6.00 steps on average, "
        "success 50%)"
    )
    assert "2.00 ± 1.00" in found._repr_html_()
    assert "0" in repr(Evaluation([], []))


def test_a_name_of_a_stranger_is_text_in_a_card() -> None:
    import gymnasium as gym

    html = card(HOSTILE, [(HOSTILE, HOSTILE), ("long", "x" * 10_000)])
    assert "<script" not in html
    assert "\"'" not in html
    assert len(html) < 4_000
    space = gym.spaces.Dict({HOSTILE: gym.spaces.Box(0, 1, (2, 3)), "b": gym.spaces.Tuple([gym.spaces.Discrete(3)])})
    assert f"{HOSTILE}: Box 2 x 3, float32" in described(space)
    assert "b: Tuple of Discrete(3)" in described(space)


def test_a_film_is_part_of_the_page_unless_it_is_large(tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    film = agent.video(max_steps=20, size=64)
    assert film.path.exists()
    html = film._repr_html_()
    assert html.count("<video ") == 1
    assert "data:video/mp4;base64,AAAA" in html  # where an mp4 begins
    assert agent.video(max_steps=20, size=64).path != film.path
    large = tmp_path / f"a{HOSTILE.replace('/', '')}.mp4"
    with open(large, "wb") as file:
        file.truncate(MOST_BYTES + 1)
    html = Video(large, [1.0], [1], 1)._repr_html_()
    assert "it is larger than" in html
    assert "<video" not in html
    assert "<script" not in html
    assert "not shown" in Video(tmp_path / "gone.mp4", [1.0], [1], 1)._repr_html_()
