"""Runs whose settings follow schedules: the numbers in force, every way of computing, resume to the same bits, changes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import Killed, resumed_to_the_same_bits

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.cli.main import main
from phasegrad.compute import native
from phasegrad.config import live_fields
from phasegrad.errors import ConfigError, PhasegradWarning, RunError
from phasegrad.runs.metrics import read_metrics

SIZES: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (8,), "seed": 3, "policy_gain": 1.0,
    "eval_episodes": 0, "compile": "off",
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"num_minibatches": 2, "epochs": 2},
    "ppg": {"num_minibatches": 2, "n_pi": 2, "aux_minibatches": 2, "e_aux": 1, "e_pi": 2},
    "a2c": {"updates_per_iteration": 1},
    "acer": {"updates_per_iteration": 1, "replay_start": 0, "replay_ratio": 1.0},
    "vpg": {"value_steps": 2},
    "trpo": {"num_minibatches": 2, "value_epochs": 1, "cg_iterations": 2},
}
SCHEDULED: dict[str, dict[str, Any]] = {
    "ppo": {"learning_rate": "warmup:0.2:cosine:1e-2:1e-4", "clip_range": "linear:0.02:0.001", "entropy_coef": "linear:0.2"},
    "ppg": {
        "learning_rate": "linear:1e-2:1e-4", "critic_learning_rate": "cosine:1e-2", "aux_learning_rate": "cosine:1e-2:1e-3",
        "beta_clone": "linear:2:0.5", "clip_range": "cosine:0.02",
    },
    "a2c": {"learning_rate": "cosine:1e-2", "entropy_coef": "linear:0.2:0.01", "value_coef": "linear:1:0.1"},
    "acer": {"learning_rate": "warmup:0.1:1e-2", "entropy_coef": "cosine:0.2", "q_coef": "linear:1:0.1"},
    "vpg": {"learning_rate": "linear:1e-2", "critic_learning_rate": "warmup:0.5:cosine:1e-2", "entropy_coef": "linear:0.2"},
    "trpo": {"critic_learning_rate": "linear:1e-2", "entropy_coef": "cosine:0.2", "max_kl": "linear:0.02:0.001"},
}  # fmt: skip
BUILTIN = list(OWN)
ADAPTIVE = ["ppo", "ppg", "a2c", "vpg"]
WAYS = ["replay", pytest.param("on", marks=pytest.mark.skipif(native.compiler() is None, reason="no C compiler"))]


def made(name: str, run_dir: Path | None = None, **fields: Any) -> Any:
    return ALGORITHMS[name]("CartPole-v1", run_dir=run_dir, **{**SIZES, **OWN[name], **fields})


def rows_of(agent: Any, total: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    agent.learn(total, callback=rows.append)
    return rows


def same_bits(one: Any, other: Any) -> bool:
    return all(torch.equal(tensor, other.tensors()[name]) for name, tensor in one.tensors().items())


def of(text: str, progress: float) -> float:
    """The value of a schedule written out, by another hand than the library's."""
    kind, *numbers = text.split(":")
    if kind == "warmup":
        share, rest = float(numbers[0]), ":".join(numbers[1:])
        return of(rest, 0) * progress / share if progress < share else of(rest, (progress - share) / (1 - share))
    if not numbers:
        return float(kind)
    start, end = ([float(number) for number in numbers] + [0.0])[:2]
    weight = 1 - progress if kind == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return end + (start - end) * weight


@pytest.mark.parametrize("name", BUILTIN)
def test_the_metrics_have_the_numbers_in_force(name: str) -> None:
    total = 64 * 8
    rows = rows_of(made(name, **SCHEDULED[name]), total)
    for before, row in zip([{"step": 0}, *rows[:-1]], rows, strict=True):  # by the start of an iteration
        for setting, text in SCHEDULED[name].items():
            assert row[setting] == pytest.approx(of(text, before["step"] / total), abs=1e-12), setting


@pytest.mark.parametrize("name", BUILTIN)
def test_each_schedule_matters(name: str) -> None:
    """Each of them, against the same setting held at its start."""
    whole = made(name, **SCHEDULED[name])
    whole.learn(64 * 6)
    for setting, text in SCHEDULED[name].items():
        start = [part for part in text.split(":") if part not in ("linear", "cosine", "warmup")]
        held = made(name, **SCHEDULED[name] | {setting: float(start["warmup" in text])})
        held.learn(64 * 6)
        assert not same_bits(whole, held), setting


@pytest.mark.parametrize("name", [name for name in BUILTIN if name != "trpo"])
def test_linear_is_annealing(name: str) -> None:
    fields = {"learning_rate": 1e-2, "critic_learning_rate": 5e-3}
    other = {"learning_rate": "linear:1e-2", "critic_learning_rate": "linear:5e-3"}
    annealed = {"anneal_learning_rate": True}
    if name in ("ppo", "ppg"):
        annealed, other = {**annealed, "anneal_clip_range": True}, {**other, "clip_range": "linear"}
    one, two = made(name, **fields, **annealed), made(name, **other)
    one.learn(64 * 5)
    two.learn(64 * 5)
    assert same_bits(one, two)
    plain = made(name, **fields)
    plain.learn(64 * 5)
    assert not same_bits(one, plain)


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("way", WAYS)
def test_all_ways_of_computing_follow_the_schedule(name: str, way: str) -> None:
    """Weights are inputs of a program: one that fixed them would go another way from the second iteration on."""
    plain = made(name, **SCHEDULED[name])
    other = made(name, **SCHEDULED[name] | {"compile": way})
    plain.learn(64 * 4)
    other.learn(64 * 4)
    assert torch.allclose(plain.flat.data, other.flat.data, rtol=1e-3, atol=2e-5)
    weight = next(setting for setting in ("entropy_coef", "beta_clone") if setting in SCHEDULED[name])
    held = made(name, **SCHEDULED[name] | {"compile": way, weight: 0.2 if weight == "entropy_coef" else 2.0})
    held.learn(64 * 4)
    assert not torch.allclose(plain.flat.data, held.flat.data, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", BUILTIN)
def test_a_killed_run_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    agent = made(name, tmp_path / "whole", checkpoint_every=128, **SCHEDULED[name])
    resumed = resumed_to_the_same_bits(agent, 64 * 8, 64 * 5)
    assert resumed.config.to_json() == agent.config.to_json()
    mine, theirs = (read_metrics(tmp_path / folder / "metrics.jsonl") for folder in ("whole", "killed"))
    for setting in SCHEDULED[name]:
        assert [row[setting] for row in mine] == [row[setting] for row in theirs]


# The adaptive learning rate


@pytest.mark.parametrize("name", ADAPTIVE)
def test_the_rate_follows_the_kl_that_is_logged(name: str) -> None:
    target, rate = {"ppo": 1e-4, "ppg": 1e-3, "a2c": 1e-4, "vpg": 2e-5}[name], 2e-3
    rows = rows_of(made(name, learning_rate=rate, kl_learning_rate=target), 64 * 12)
    directions = set()
    for row in rows:
        assert row["learning_rate"] == pytest.approx(rate, rel=1e-12)
        kl = row["kl_by_epoch"][-1] if name == "ppg" else row["kl"]
        if kl > 2 * target:
            rate, direction = max(rate / 1.5, 1e-6), "down"
        elif kl < target / 2:
            rate, direction = min(rate * 1.5, 1e-2), "up"
        else:
            direction = "stays"
        directions.add(direction)
    assert directions >= {"up", "down"}, (directions, [row["kl"] for row in rows])


def test_the_critics_rate_adapts_with_the_policys_unless_it_has_its_own() -> None:
    fields = {"learning_rate": 1e-3, "kl_learning_rate": 1.0}  # which no update reaches: the rate rises
    both = rows_of(made("ppo", **fields), 64 * 4)
    assert [row["critic_learning_rate"] for row in both] == [row["learning_rate"] for row in both]
    assert both[-1]["learning_rate"] == pytest.approx(1e-3 * 1.5**3)
    own = rows_of(made("ppo", **fields, critic_learning_rate="linear:5e-4"), 64 * 4)
    assert [row["critic_learning_rate"] for row in own] == [5e-4, 5e-4 * 0.75, 5e-4 * 0.5, 5e-4 * 0.25]
    assert rows_of(made("ppo", **fields), 64 * 12)[-1]["learning_rate"] == 1e-2


@pytest.mark.parametrize("name", ADAPTIVE)
def test_an_adaptive_rate_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    agent = made(name, tmp_path / "whole", checkpoint_every=128, learning_rate=2e-3, kl_learning_rate=2e-3)
    resumed = resumed_to_the_same_bits(agent, 64 * 8, 64 * 5)
    assert resumed.scalars == agent.scalars
    assert agent.scalars["learning_rate"] != 2e-3


def test_a_change_puts_the_adaptive_rate_where_it_says(tmp_path: Path) -> None:
    agent = made("ppo", tmp_path / "whole", checkpoint_every=128, learning_rate=1e-3, kl_learning_rate=1.0)
    rows = []

    def callback(row: dict[str, Any]) -> None:
        rows.append(row["learning_rate"])
        if row["iteration"] == 3:
            agent.change(learning_rate=1e-3)  # as it began

    agent.learn(64 * 5, callback=callback)
    assert rows == pytest.approx([1e-3, 1.5e-3, 2.25e-3, 1e-3, 1.5e-3])


# A function of progress


def falling(progress: float) -> float:
    return 1e-2 * 0.5 ** (4 * progress)


def rate_of_the_rest(remaining: float) -> float:
    return 1e-2 * remaining


@pytest.mark.parametrize("name", ["ppo", "ppg", "a2c", "vpg", "acer"])
def test_a_function_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    fields = {"learning_rate": falling, "entropy_coef": lambda progress: 0.1 - 0.1 * progress}
    agent = made(name, tmp_path / "whole", checkpoint_every=128, **fields)
    resumed_to_the_same_bits(agent, 64 * 8, 64 * 5, schedules=fields)
    text = made(name, **{**fields, "learning_rate": "constant:1e-2"})
    text.learn(64 * 8)
    assert not same_bits(agent, text)


def test_a_function_is_asked_for_again_to_train_on_and_only_then(tmp_path: Path, capfd: Any) -> None:
    made("ppo", tmp_path / "run", learning_rate=falling, checkpoint_every=64).learn(64 * 2)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["learning_rate"] == "custom:falling"
    loaded = pg.load(tmp_path / "run")
    assert loaded.evaluate(episodes=1).returns
    asked = r"learning_rate follows a function that was given in Python \(custom:falling\), which no file can hold: give it "
    with pytest.raises(ConfigError, match=asked):
        loaded.learn(64 * 4)
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "256", "--quiet"]) == 2
    assert "phasegrad.load(path, schedules={'learning_rate': ...})" in capfd.readouterr().err
    loaded.save(tmp_path / "copy")  # what is known of the function goes with it
    for folder in ("run", "copy"):
        with pytest.raises(RunError, match=r"at progress 0\.1 it gives 0\.009, and that one 0\.00757858"):
            pg.load(tmp_path / folder, schedules={"learning_rate": lambda progress: rate_of_the_rest(1 - progress)})
    again = pg.load(tmp_path / "run", schedules={"learning_rate": lambda progress: falling(progress)})
    again.learn(64 * 3)
    assert pg.load(tmp_path / "run").progress.step == 64 * 3  # whose function has another name
    other = pg.load(tmp_path / "run")
    other.change(learning_rate="linear:1e-2")  # in its place
    other.learn(64 * 4)
    assert (
        pg.load(tmp_path / "run", schedules={"learning_rate": falling}).config.to_json()["learning_rate"]
        == "linear:0.01:0"
    )


def test_schedules_that_a_run_does_not_ask_for_are_refused(tmp_path: Path) -> None:
    made("ppo", tmp_path / "run").learn(64)
    for given, sentence in (
        ({"learning_rate": falling}, "has learning_rate 0.0003 and no function: leave it out"),
        ({"lerning_rate": falling}, "names 'lerning_rate', which is no setting of .* Did you mean learning_rate"),
        ({"learning_rate": "linear"}, "schedules must have a function for learning_rate, not 'linear'"),
    ):
        with pytest.raises(RunError, match=sentence):
            pg.load(tmp_path / "run", schedules=given)  # type: ignore[arg-type]


def test_a_run_killed_before_its_first_checkpoint_asks_for_its_function(tmp_path: Path, capfd: Any) -> None:
    agent = made("ppo", tmp_path / "run", learning_rate=falling)
    with pytest.raises(Killed):
        agent.learn(64 * 4, callback=killed)
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 2
    assert "learning_rate custom:falling names a function that was given in Python" in capfd.readouterr().err


def killed(row: dict[str, Any]) -> None:
    raise Killed


# Changes while training


CHANGES: dict[int, dict[str, Any]] = {
    3: {"learning_rate": "cosine:2e-2:1e-3", "entropy_coef": "linear:0.3"},
    4: {"learning_rate": "linear"},
    5: {"learning_rate": 1e-3, "clip_range": "warmup:0.1:constant:0.1"},
}


def changing(agent: Any, die_after: int = 0) -> Any:
    def callback(row: dict[str, Any]) -> None:
        if row["iteration"] in CHANGES:
            agent.change(**CHANGES[row["iteration"]])
        if row["iteration"] == die_after:
            raise Killed

    return callback


@pytest.mark.parametrize("killed_after", [3, 4, 6])
def test_changes_to_schedules_are_remembered(tmp_path: Path, killed_after: int) -> None:
    whole = made("ppo", tmp_path / "whole", checkpoint_every=128, learning_rate=falling)
    whole.learn(64 * 8, callback=changing(whole))
    agent = made("ppo", tmp_path / "run", checkpoint_every=128, learning_rate=falling)
    with pytest.raises(Killed):
        agent.learn(64 * 8, callback=changing(agent, killed_after))
    resumed: Any = pg.load(tmp_path / "run", schedules={"learning_rate": falling})
    assert resumed.progress.iteration == {3: 2, 4: 2, 6: 4}[killed_after]
    resumed.learn(callback=changing(resumed))
    assert same_bits(whole, resumed)
    lines = [json.loads(line) for line in (tmp_path / "run" / "changes.jsonl").read_text().splitlines()]
    assert [line["before"]["learning_rate"] for line in lines] == [
        "custom:falling", "cosine:0.02:0.001", "linear:0.02:0",
    ]  # fmt: skip
    assert [line["after"]["learning_rate"] for line in lines] == ["cosine:0.02:0.001", "linear:0.02:0", 1e-3]
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["learning_rate"] for row in rows] == pytest.approx(
        [*(falling(i / 8) for i in (0, 1, 2)), of("cosine:2e-2:1e-3", 3 / 8), of("linear:2e-2", 4 / 8)] + [1e-3] * 3
    )


def test_what_a_change_cannot_be() -> None:
    agent = made("ppo", anneal_learning_rate=True)
    agent.learn(64)
    for settings, sentence in (
        (
            {"clip_range": falling},
            "clip_range can become a number or a schedule such as linear:1e-3:1e-5 while an agent",
        ),
        ({"clip_range": "custom:falling"}, "clip_range can become a number or a schedule"),
        ({"learning_rate": "linear:1e-3"}, "are two schedules of one setting: turn anneal_learning_rate off"),
        ({"kl_learning_rate": 0.1}, "kl_learning_rate cannot change while an agent trains"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            agent.change(**settings)
    agent.change(learning_rate="linear:1e-3", anneal_learning_rate=False)
    assert rows_of(agent, 128)[0]["learning_rate"] == 5e-4
    assert {"anneal_learning_rate", "anneal_clip_range"} <= set(live_fields(type(agent.config)))


def test_a_setting_is_assigned_before_training() -> None:
    agent = made("ppo")
    agent.config.learning_rate = "linear"
    agent.config.clip_range = falling
    assert agent.config.to_json()["learning_rate"] == "linear:0.0003:0"
    rows = rows_of(agent, 128)
    assert [row["learning_rate"] for row in rows] == [3e-4, 1.5e-4]
    assert [row["clip_range"] for row in rows] == [falling(0), falling(0.5)]


def test_a_longer_total_stretches_the_schedule(tmp_path: Path) -> None:
    """As annealing does: progress is the share of the total."""
    agent = made("ppo", tmp_path / "run", learning_rate="linear:1e-3")
    rows = rows_of(agent, 128) + rows_of(pg.load(tmp_path / "run"), 256)
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3, 5e-4, 5e-4, 2.5e-4])


# Where else a setting is read


def test_the_command_line_takes_schedules(tmp_path: Path, capfd: Any) -> None:
    common = ["train", "ppo", "--env", "CartPole-v1", "--total-steps", "256", "--num-envs", "4", "--num-steps", "16"]
    common += ["--quiet", "--eval-episodes", "0", "--run-dir", str(tmp_path / "run")]
    schedules = ["--learning-rate", "linear", "--entropy-coef", "cosine:0.01:1e-3", "--clip-range=warmup:0.1:linear"]
    assert main([*common, *schedules]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["learning_rate"], config["clip_range"]) == ("linear:0.001:0", "warmup:0.1:linear:0.2:0")
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "512", "--quiet"]) == 0
    assert main([*common[:5], "512", *common[6:], *schedules, "--resume"]) == 0
    assert main([*common[:5], "1024", *common[6:], "--learning-rate=linear:2e-3", "--resume"]) == 2
    assert "a run with learning_rate 'linear:0.001:0', not 'linear:0.002:0'" in capfd.readouterr().err
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all({"learning_rate", "entropy_coef", "clip_range"} <= row.keys() for row in rows)
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Entropy coefficient" in page
    assert "More metrics" not in page


def test_a_bad_schedule_is_told_before_torch_is_imported() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from phasegrad.cli.main import main; "
        "code = main(['train', 'ppo', '--env', 'CartPole-v1', '--learning-rate', 'liner']); "
        "sys.exit(code if 'torch' not in sys.modules else 99)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 2, found.stderr
    assert "not 'liner'. Did you mean linear?" in found.stderr


def test_a_study_takes_schedules(tmp_path: Path) -> None:
    from phasegrad.studies.definition import load_study
    from phasegrad.studies.grid import build_grid

    file = tmp_path / "mine.toml"
    file.write_text(
        "title = 'mine'\nenvironments = ['CartPole-v1']\nseeds = [1]\nsteps = 128\n[variants.a]\nalgorithm = 'ppo'\n"
        "learning_rate = 'cosine:1e-3'\n"
    )
    (run,) = build_grid(load_study(str(file)), tmp_path / "out", {"entropy_coef": "linear:0.01"})
    assert run.config.to_json()["learning_rate"] == "cosine:0.001:0"
    assert run.config.to_json()["entropy_coef"] == "linear:0.01:0"
    command = run.train_command()
    assert "--learning-rate=cosine:1e-3" in command
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").write_text(json.dumps({"algorithm": "ppo", **run.config.to_json()}))
    assert run.state() == "unfinished"


def test_tune_searches_beside_a_fixed_schedule(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    from phasegrad.tune.search import Search

    def search(**settings: Any) -> Any:
        return Search(optuna, "CartPole-v1", "ppo", 1024, tmp_path / "search", 1, {}, print, settings)

    assert {"learning_rate", "anneal_learning_rate"} <= search().space.keys()
    fixed = search(learning_rate="cosine")
    assert not {"learning_rate", "anneal_learning_rate"} & fixed.space.keys()
    assert fixed.preset_of(fixed.baseline)["learning_rate"] == "cosine:0.001:0"
    assert "clip_range" in fixed.baseline_parameters()
    assert "anneal_learning_rate" not in search(critic_learning_rate="linear").space
    assert "anneal_learning_rate" not in search(kl_learning_rate=0.01).space
    with pytest.raises(ConfigError, match="learning_rate cannot be a function in a search"):
        search(learning_rate=falling)


def test_an_algorithm_of_ones_own_reads_the_number_in_force() -> None:
    """`config.learning_rate` is a number at every time, so a loop that knows nothing of schedules follows one."""
    seen = []

    class Watching(pg.PPO):
        def iterations(self) -> Any:
            for row in super().iterations():
                seen.append(self.config.learning_rate * 1.0)
                yield row

    Watching("CartPole-v1", **SIZES, **OWN["ppo"], learning_rate="linear:1e-3").learn(256)
    assert seen == [1e-3, 7.5e-4, 5e-4, 2.5e-4]


def test_a_function_brought_from_elsewhere_is_told_of() -> None:
    with pytest.raises(ConfigError, match="a function of the remaining progress"):
        made("ppo", learning_rate=rate_of_the_rest)
    with pytest.warns(PhasegradWarning, match="rises from 0 to 0.01"):
        made("ppo", learning_rate=lambda x: 1e-2 * x)
