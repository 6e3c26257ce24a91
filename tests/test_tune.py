"""The search for settings: its first trial is the preset, it prunes and goes on as it should, its result is a preset."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.ppo import PPOConfig
from phasegrad.cli.main import main
from phasegrad.errors import ConfigError, RunError
from phasegrad.presets import resolve_config
from phasegrad.runs.reading import is_report
from phasegrad.tune import tuning
from phasegrad.tune.page import SearchData, render
from phasegrad.tune.search_spaces import SPACES, VECTORS

optuna = pytest.importorskip("optuna")
STEPS = 512


class Pretender:
    """An agent whose return is a formula of its settings, so that a search over it takes no time."""

    made: list[Any] = []  # noqa: RUF012 - shared on purpose: the test looks at it
    observation_space: Any = None

    def __init__(self, **fields: Any) -> None:
        self.config = resolve_config(PPOConfig, fields)
        self.quality = 1 - abs(self.config.gae_lambda - 0.95)
        self.stages = 0
        Pretender.made.append(self)

    def learn(self, steps: int, callback: Any) -> None:
        for tenth in range(1, 11):
            self.stages = tenth
            if callback({"step": -(-steps * tenth // 10), "return_mean": self.quality * tenth}) is False:
                return

    def evaluate(self, episodes: int, seed: int) -> Any:
        return type("Result", (), {"return_mean": 10 * self.quality})()

    @property
    def agent(self) -> Pretender:
        return self

    def close(self) -> None: ...


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> type[Pretender]:
    monkeypatch.setattr(Pretender, "made", [])
    monkeypatch.setattr(Pretender, "observation_space", gym.spaces.Box(-1, 1, (4,)))
    monkeypatch.setitem(ALGORITHMS, "ppo", Pretender)
    return Pretender


def test_a_real_search_ends_in_a_preset_that_train_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "search"
    search = ["tune", "--env", "CartPole-v1", "--trials", "2", "--steps", str(STEPS), "--dir", str(folder)]
    assert main(search) == 0
    printed = capsys.readouterr().out
    assert "trial 1: return" in printed
    assert f"phasegrad train ppo --env CartPole-v1 --preset {folder / 'best.json'}" in printed
    rows = json.loads((folder / "trials.json").read_text())
    assert [row["number"] for row in rows] == [1, 2]
    # The first trial is the preset of the environment.
    plain = resolve_config(PPOConfig, {"env": "CartPole-v1"})
    assert rows[0]["settings"]["gamma"] == pytest.approx(plain.gamma)
    assert {k: rows[0]["settings"][k] for k in ("num_envs", "num_steps", "epochs", "learning_rate")} == {
        k: getattr(plain, k) for k in ("num_envs", "num_steps", "epochs", "learning_rate")
    }
    # The file gives `train` the very config of the best trial.
    best = max((row for row in rows if row["state"] == "complete"), key=lambda row: row["return"])
    again = resolve_config(PPOConfig, {"env": "CartPole-v1", "preset": str(folder / "best.json")})
    for name, value in best["settings"].items():
        found = getattr(again, name)
        assert (",".join(map(str, found)) if name == "hidden_sizes" else found) == value, name
    run = ["train", "ppo", "--env", "CartPole-v1", "--preset", str(folder / "best.json"), "--quiet"]
    assert main([*run, "--total-steps", "1024", "--run-dir", str(tmp_path / "run")]) == 0


def test_a_search_for_ppg_tries_its_own_settings(tmp_path: Path) -> None:
    result = tuning.tune("CartPole-v1", algorithm="ppg", trials=1, steps=STEPS, folder=tmp_path)
    preset = json.loads(result.preset.read_text())
    assert preset["algorithm"] == "ppg"
    pg.PPG("CartPole-v1", preset=str(result.preset)).close()


def test_a_search_goes_on_where_it_was_left_and_finds_the_optimum(tmp_path: Path, pretended: type[Pretender]) -> None:
    first = tuning.tune("CartPole-v1", trials=4, steps=STEPS, folder=tmp_path)
    drawn = [agent.config.gae_lambda for agent in pretended.made]
    again = tuning.tune("CartPole-v1", trials=4, steps=STEPS, folder=tmp_path)
    assert again == first  # nothing left to do
    assert len(pretended.made) == len(drawn) + 1  # the check of the settings, before any trial
    more = tuning.tune("CartPole-v1", trials=30, steps=STEPS, folder=tmp_path)
    assert sum(more.counts.values()) == 30
    assert more.best_return >= first.best_return
    assert more.best_return > 9.95  # 10 less 10 x the distance of gae_lambda from .95
    later = [agent.config.gae_lambda for agent in pretended.made[len(drawn) + 2 :]]
    assert not set(later) & set(drawn)  # a continued search does not repeat its first draws


def test_poor_trials_are_stopped_and_good_ones_are_not(tmp_path: Path, pretended: type[Pretender]) -> None:
    result = tuning.tune("CartPole-v1", trials=25, steps=STEPS, folder=tmp_path)
    trials = pretended.made[1:]
    assert len(trials) == 25
    for index, agent in enumerate(trials):
        # The rule by hand: below the median of the trials completed before it, from the second tenth on, once there are 5.
        completed = [other.quality for other in trials[:index] if other.stages == 10]
        poor = len(completed) >= 5 and agent.quality < np.median(completed)
        assert agent.stages == (2 if poor else 10), index
    assert result.counts["pruned"] == sum(agent.stages == 2 for agent in trials) > 0
    assert result.best_return == pytest.approx(10 * max(agent.quality for agent in trials))


def test_failed_trials_are_recorded_and_the_search_goes_on(
    tmp_path: Path, pretended: type[Pretender], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Pretender.learn

    def learn(self: Pretender, steps: int, callback: Any) -> None:
        if len(pretended.made) == 3:
            raise pg.NonFiniteError("The loss is NaN.")
        if len(pretended.made) == 4:
            raise ZeroDivisionError("by zero")
        right(self, steps, callback)

    monkeypatch.setattr(Pretender, "learn", learn)
    lines: list[str] = []
    result = tuning.tune("CartPole-v1", trials=5, steps=STEPS, folder=tmp_path, report=lines.append)
    assert result.counts == {"complete": 3, "pruned": 0, "failed": 2}
    rows = json.loads((tmp_path / "trials.json").read_text())
    assert [row["error"] for row in rows] == [None, "The loss is NaN.", "ZeroDivisionError: by zero", None, None]
    assert lines[0] == "5 trials of 512 steps; return: mean of 10 evaluation episodes at a trial's end"
    assert lines[2].startswith("trial 2: failed: The loss is NaN.")
    assert "best 9.5 (#1)" in lines[2]


def test_where_every_trial_fails_the_last_reason_is_told(
    tmp_path: Path, pretended: type[Pretender], monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(self: Pretender, steps: int, callback: Any) -> None:
        raise pg.NonFiniteError("The loss is NaN.")

    monkeypatch.setattr(Pretender, "learn", learn)
    with pytest.raises(RunError, match=r"No trial was completed in .*The loss is NaN"):
        tuning.tune("CartPole-v1", trials=2, steps=STEPS, folder=tmp_path)


def test_a_trial_that_was_killed_is_tried_again(
    tmp_path: Path, pretended: type[Pretender], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Pretender.learn

    def killed(self: Pretender, steps: int, callback: Any) -> None:
        if len(pretended.made) == 3:
            raise KeyboardInterrupt
        right(self, steps, callback)

    monkeypatch.setattr(Pretender, "learn", killed)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune("CartPole-v1", trials=3, steps=STEPS, folder=tmp_path)
    interrupted = pretended.made[-1].config
    monkeypatch.setattr(Pretender, "learn", right)
    result = tuning.tune("CartPole-v1", trials=3, steps=STEPS, folder=tmp_path)
    assert sum(result.counts.values()) == 3
    assert result.counts["failed"] == 0
    retried = pretended.made[4].config  # after the check that a call begins with
    same = {name: value for name, value in interrupted.to_json().items() if name != "seed"}
    assert same == {name: value for name, value in retried.to_json().items() if name != "seed"}


def test_a_trial_whose_process_was_killed_is_tried_again(tmp_path: Path, pretended: type[Pretender]) -> None:
    tuning.tune("CartPole-v1", trials=1, steps=STEPS, folder=tmp_path)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "trials.log")))
    study = optuna.load_study(study_name="phasegrad", storage=storage)
    left = study.ask()
    left.set_user_attr("process", f"{socket.gethostname()}:{2**22 + 1}")  # no such process: beyond the largest id
    settings = {name: values.suggest(left, name) for name, values in (SPACES["ppo"] | VECTORS).items()}
    result = tuning.tune("CartPole-v1", trials=2, steps=STEPS, folder=tmp_path)
    assert result.counts == {"complete": 2, "pruned": 0, "failed": 0}
    assert pretended.made[-1].config.learning_rate == settings["learning_rate"]
    assert tuning.tune("CartPole-v1", trials=2, steps=STEPS, folder=tmp_path) == result


def test_trials_are_told_as_they_come(tmp_path: Path, pretended: type[Pretender]) -> None:
    lines: list[str] = []
    tuning.tune("CartPole-v1", trials=12, steps=STEPS, folder=tmp_path, report=lines.append)
    rows = json.loads((tmp_path / "trials.json").read_text())
    assert [line.split(":")[0] for line in lines[1:]] == [f"trial {number}" for number in range(1, 13)]
    best = None
    for line, row in zip(lines[1:], rows, strict=True):
        if row["state"] == "complete":
            assert f": return {row['return']:,.4g} " in line
            best = max(filter(None, [best, row]), key=lambda entry: entry["return"])
        else:
            assert row["state"] == "pruned"
            assert row["return"] is None  # it was never evaluated: what it trained to is no return
            assert f"pruned at {row['reached']:.0%} (training {row['training_return']:.4g})" in line
        assert best is not None
        assert f"best {best['return']:.4g} (#{best['number']})" in line
        assert " 0 s" in line
        assert len(line) <= 80
    assert {row["state"] for row in rows} == {"complete", "pruned"}
    assert "left" in lines[1]
    assert "left" not in lines[-1]
    tuning.tune("CartPole-v1", trials=13, steps=STEPS, folder=tmp_path, report=lines.append)
    assert lines[13].startswith("1 of 13 trials of 512 steps to go")


def test_the_search_says_what_mattered_and_draws_it(tmp_path: Path, pretended: type[Pretender]) -> None:
    few = tuning.tune("CartPole-v1", trials=1, steps=STEPS, folder=tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert few.importances == {}
    assert "That takes 10 complete trials; there are 1 so far." in page
    found = tuning.tune("CartPole-v1", trials=40, steps=STEPS, folder=tmp_path)
    assert next(iter(found.importances)) == "gae_lambda"  # the one setting that the pretended return depends on
    assert sum(found.importances.values()) == pytest.approx(1)
    assert set(found.importances) <= set(vars(PPOConfig()))  # by the names that train has
    described = found.describe()
    assert f"what mattered: gae_lambda {found.importances['gae_lambda']:.0%}" in described
    assert f"page: {tmp_path / 'report.html'}" in described
    page = (tmp_path / "report.html").read_text()
    rows = json.loads((tmp_path / "trials.json").read_text())
    charts = len(SPACES["ppo"] | VECTORS) + 2  # the trials in their order for wide and for narrow screens
    for state, kind in (
        ("complete", r'<circle class="(?:dot|best)"[^>]*><title>'),
        ("pruned", 'class="pruned"[^>]*><t'),
    ):
        count = sum(row["state"] == state for row in rows)
        assert count > 0
        assert len(re.findall(kind, page)) == count * charts
    assert f"phasegrad train ppo --env CartPole-v1 --preset {tmp_path / 'best.json'}" in page
    assert is_report(tmp_path / "report.html")
    for outside in ("http://", "https://", "<script", "src=", "@import", "url("):
        assert outside not in page.replace('http-equiv="', "")


def test_text_on_the_page_is_text(tmp_path: Path) -> None:
    settings = {"activation": "<b>x</b>", "gamma": 0.99}
    rows = [
        {"number": 1, "state": "complete", "return": 3.0, "settings": settings, "seconds": 1.0, "error": None,
         "reached": 1.0, "training_return": None, "episodes": 10, "episodes_cut": 4},
        {"number": 2, "state": "fail", "return": None, "settings": {}, "seconds": None, "error": "<i>bad</i>",
         "reached": None, "training_return": None, "episodes": None, "episodes_cut": 0},
    ]  # fmt: skip
    spaces = {"gamma": SPACES["ppo"]["discount_left"], "activation": VECTORS["activation"]}
    text = render(SearchData("<u>env</u>", "ppo", 10, 10, rows, {}, spaces, tmp_path / "<s>.json", "x <em>"))
    for tag in ("<b>", "<i>", "<u>", "<s>", "<em>"):
        assert tag not in text
    assert "4 of 10 episodes cut" in text
    assert "trial 2: failed: &lt;i&gt;bad" in text


def test_a_search_that_is_stopped_leaves_its_page(
    tmp_path: Path, pretended: type[Pretender], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Pretender.learn

    def killed(self: Pretender, steps: int, callback: Any) -> None:
        if len(pretended.made) == 4:
            raise KeyboardInterrupt
        right(self, steps, callback)

    monkeypatch.setattr(Pretender, "learn", killed)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune("CartPole-v1", trials=5, steps=STEPS, folder=tmp_path)
    assert "2 trials of 512 steps" in (tmp_path / "report.html").read_text()


def test_a_page_of_somebody_else_is_kept(tmp_path: Path, pretended: type[Pretender]) -> None:
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(RunError, match=r"holds a report\.html that is no search's"):
        tuning.tune("CartPole-v1", trials=1, steps=STEPS, folder=tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"


class Endless(gym.Env[np.ndarray, int]):
    """Episodes that never end."""

    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(3, np.float32), 0.001, False, False, {}


def test_episodes_that_never_end_are_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phasegrad.runs.evaluation.MOST_STEPS", 50)
    monkeypatch.setitem(gym.registry, "Endless-v0", gym.spec("CartPole-v1").__class__("Endless-v0", Endless))
    lines: list[str] = []
    found = tuning.tune("Endless-v0", trials=3, steps=STEPS, folder=tmp_path, report=lines.append)
    assert found.best_return == pytest.approx(0.05)
    assert found.counts == {"complete": 3, "pruned": 0, "failed": 0}
    assert "return 0.05 (10 of 10 episodes cut)" in lines[1]
    assert "10 of 10 episodes cut" in (tmp_path / "report.html").read_text()


def test_every_name_of_the_search_space_is_a_setting() -> None:
    for algorithm, space in SPACES.items():
        known = vars(ALGORITHMS[algorithm].config_class())
        for name, values in (space | VECTORS).items():
            assert name in known or name == "discount_left"
            assert values.choices or values.low < values.high


def test_another_search_in_the_same_folder_is_refused(tmp_path: Path, pretended: type[Pretender]) -> None:
    tuning.tune("CartPole-v1", trials=1, steps=STEPS, folder=tmp_path)
    with pytest.raises(ConfigError, match="holds a search with steps 512, not 1024"):
        tuning.tune("CartPole-v1", trials=1, steps=1024, folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--env", "CartPol-v1"], "Did you mean CartPole-v1"),
        (["--env", "CartPole-v1", "--algorithm", "pgp"], "a search space for ppo and ppg, not 'pgp'"),
        (["--env", "CartPole-v1", "--trials", "0"], "trials must be at least 1"),
        ([], "--env is missing"),
    ],
)
def test_mistakes_get_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *arguments, "--dir", str(tmp_path / "search")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_missing_optuna_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", "--env", "CartPole-v1"]) == 2
    assert 'pip install "phasegrad[tune]"' in capsys.readouterr().err


def test_settings_can_be_fixed_for_all_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--set", "memory=gru", "--set", "memory_size=8", "--set", "gamma=0.9", "--set", "num_envs=4"]
    search = [
        "tune",
        "ppo",
        "--env",
        "CartPole-v1",
        "--total-steps",
        "256",
        "--dir",
        str(tmp_path),
        "--quiet",
        "--trials",
    ]
    assert main([*search, "2", *given]) == 0
    best = json.loads((tmp_path / "best.json").read_text())
    assert {name: best[name] for name in ("memory", "memory_size", "gamma")} == {
        "memory": "gru", "memory_size": 8, "gamma": 0.9,
    }  # fmt: skip
    tried = json.loads((tmp_path / "trials.json").read_text())
    assert not {"num_envs", "gamma", "memory"} & {name for row in tried for name in row["settings"]}
    capsys.readouterr()
    assert main([*search, "3", "--set", "memory=lstm"]) == 2
    assert "holds a search with settings" in capsys.readouterr().err
    for wrong, sentence in (
        ("memory", "--set takes FIELD=VALUE"),
        ("memroy=gru", "memory"),
        ("seed=3", "no setting that"),
    ):
        assert main([*search[:-3], str(tmp_path / "other"), "--trials", "2", "--set", wrong]) == 2
        assert sentence in capsys.readouterr().err
