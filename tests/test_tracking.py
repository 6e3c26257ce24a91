"""The trackers, each the real package without a network, and what they kept read back; loggers of one's own."""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import PhasegradWarning
from phasegrad.runs.metrics import read_metrics
from phasegrad.runs.sending import state_folder
from phasegrad.runs.tracking import is_installed, known_id, remember_id

FIELDS: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "epochs": 1, "eval_episodes": 2}
SMALL = ["--env", "CartPole-v1"] + [
    part for name, value in FIELDS.items() for part in (f"--{name.replace('_', '-')}", str(value))
]
needs_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
needs_mlflow = pytest.mark.skipif(
    not all(map(is_installed, ("mlflow", "sqlalchemy", "alembic"))),
    reason="mlflow with its local store is not installed",
)


def make(run: Path | None = None, **fields: Any) -> Any:
    return pg.PPO("CartPole-v1", run_dir=run, **FIELDS | fields)


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which runs were begun here is noted in the user's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


# Weights & Biases


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import wandb

    for name in ("WANDB_PROJECT", "WANDB_DIR", "WANDB_RUN_ID", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb.teardown()  # a process of W&B's reads them once
    yield
    wandb.teardown()


BLOCK = 1 << 15


def log_records(path: Path) -> Iterator[bytes]:
    """The records of W&B's own file: 7 bytes of its own, then LevelDB's log in blocks, a record in one or more parts."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole = (whole if kind in (3, 4) else b"") + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole


def wandb_kept(run: Path) -> list[dict[str, Any]]:
    """What each session of a run left with W&B, oldest first."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    sessions = []
    for path in sorted(run.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime):
        kept: dict[str, Any] = {"rows": [], "summary": {}, "exit": None}
        for data in log_records(path):
            record = Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                kept |= {"id": record.run.run_id, "project": record.run.project, "name": record.run.display_name}
                kept["tags"] = list(record.run.tags)
                kept["config"] = {each.key: json.loads(each.value_json) for each in record.run.config.update}
            elif kind == "history":
                items = record.history.item
                kept["rows"].append(
                    {each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in items}
                )
            elif kind == "summary":
                kept["summary"] |= {
                    each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in record.summary.update
                }
            elif kind == "exit":
                kept["exit"] = record.exit.exit_code
        sessions.append(kept)
    return sessions


@needs_wandb
def test_wandb_gets_every_iteration_the_result_and_the_same_run_again(tmp_path: Path, offline: None) -> None:
    import wandb

    run = tmp_path / "mine"
    train = ["train", "ppo", *SMALL, "--total-steps", "64", "--run-dir", str(run), "--track", "wandb", "--quiet"]
    assert main(train) == 0
    result = json.loads((run / "result.json").read_text())
    assert main(["resume", str(run), "--total-steps", "128", "--quiet"]) == 0
    rows = read_metrics(run / "metrics.jsonl")
    first, second = wandb_kept(run)
    assert [row["step"] for row in first["rows"]] == [32, 64]
    assert [row["step"] for row in second["rows"]] == [96, 128]
    for sent, row in zip([*first["rows"], *second["rows"]], rows, strict=True):
        assert sent["train/kl"] == row["kl"]
        assert sent["time/sps"] == row["sps"]
        assert sent.get("train/eval_return_mean") == row.get("eval_return_mean")
    assert first["id"] == second["id"] == known_id(run, "wandb")
    kept_there = json.loads((run / "tracking.json").read_text())
    assert kept_there.pop("token") in [noted.name for noted in state_folder().iterdir()]
    assert kept_there == {"wandb": first["id"]}
    assert (first["name"], first["project"], first["tags"]) == ("mine", "phasegrad", ["ppo", "CartPole-v1"])
    assert (first["config"]["num_envs"], first["config"]["algorithm"]) == (2, "ppo")
    assert first["summary"]["result/status"] == "finished"
    assert first["summary"]["result/eval/return_mean"] == result["eval"]["return_mean"]
    assert (first["exit"], second["exit"]) == (0, 0)
    assert wandb.run is None


@needs_wandb
def test_a_run_that_the_user_has_begun_with_wandb_is_left_alone(tmp_path: Path, offline: None) -> None:
    import wandb

    mine = wandb.init(project="mine", dir=str(tmp_path))
    try:
        with pytest.raises(ZeroDivisionError):
            make(tmp_path / "run", track="wandb").learn(64, callback=lambda row: 1 / 0)
        assert wandb.run is mine
        mine.log({"still": 1})
    finally:
        mine.finish()
    (kept,) = wandb_kept(tmp_path / "run")
    assert (kept["exit"], len(kept["rows"])) == (1, 1)


@needs_wandb
def test_without_an_account_or_a_network_the_run_is_kept_here(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr("phasegrad.runs.tracking_wandb.SECONDS_TO_START", 1)
    wandb.teardown()
    with pytest.warns(PhasegradWarning, match=r"W&B cannot be reached .* `wandb sync` sends it") as told:
        agent = make(tmp_path / "run", track="wandb").learn(64)
    assert sum(issubclass(each.category, PhasegradWarning) for each in told) == 1
    assert agent.progress.step == 64
    (kept,) = wandb_kept(tmp_path / "run")
    assert [row["step"] for row in kept["rows"]] == [32, 64]
    assert kept["id"] == known_id(tmp_path / "run", "wandb")
    with pytest.warns(PhasegradWarning, match=f"`wandb sync --id {kept['id']}` sends it"):
        pg.load(tmp_path / "run").learn(128)
    assert [row["step"] for row in wandb_kept(tmp_path / "run")[1]["rows"]] == [96, 128]
    assert known_id(tmp_path / "run", "wandb") == kept["id"]


# MLflow


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, which takes MLflow some seconds to make."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(made_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from mlflow import MlflowClient

    uri = f"sqlite:///{shutil.copy(made_store, tmp_path / 'store.db')}"
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return MlflowClient(tracking_uri=uri)


@needs_mlflow
def test_mlflow_gets_every_iteration_the_result_and_the_same_run_again(tmp_path: Path, store: Any) -> None:
    run = tmp_path / "mine"
    train = ["train", "ppo", *SMALL, "--total-steps", "64", "--run-dir", str(run), "--track", "mlflow", "--quiet"]
    assert main(train) == 0
    assert main(["resume", str(run), "--total-steps", "128", "--quiet"]) == 0
    rows, result = read_metrics(run / "metrics.jsonl"), json.loads((run / "result.json").read_text())
    experiment = store.get_experiment_by_name("phasegrad")
    (kept,) = store.search_runs([experiment.experiment_id])
    assert kept.info.run_id == known_id(run, "mlflow")
    assert (kept.info.run_name, kept.info.status) == ("mine", "FINISHED")
    assert kept.data.params["num_envs"] == "2"
    assert kept.data.params["total_steps"] == "64", "MLflow lets no parameter change"
    assert (kept.data.tags["algorithm"], kept.data.tags["env"]) == ("ppo", "CartPole-v1")
    assert kept.data.tags["result/status"] == "finished"
    assert kept.data.metrics["result/eval/return_mean"] == result["eval"]["return_mean"]
    for name, sent in (("kl", "train/kl"), ("eval_return_mean", "train/eval_return_mean"), ("sps", "time/sps")):
        history = sorted(store.get_metric_history(kept.info.run_id, sent), key=lambda each: each.step)
        assert [(each.step, each.value) for each in history] == [
            (row["step"], row[name]) for row in rows if name in row
        ]


@needs_mlflow
def test_a_failed_run_is_marked_and_a_store_without_it_gets_a_new_one(tmp_path: Path, store: Any) -> None:
    import mlflow

    run = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        make(run, track="mlflow").learn(64, callback=lambda row: 1 / 0)
    known = known_id(run, "mlflow")
    assert store.get_run(known).info.status == "KILLED"
    assert mlflow.active_run() is None
    remember_id(run, "mlflow", "0" * 32)
    pg.load(run).learn(64)
    renewed = known_id(run, "mlflow")
    assert renewed not in (known, "0" * 32)
    assert store.get_run(renewed).info.status == "FINISHED"


@needs_mlflow
def test_a_store_that_cannot_be_reached_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.warns(PhasegradWarning, match=r"track mlflow has failed .* the run goes on without it") as told:
        agent = make(tmp_path / "run", track="mlflow").learn(320)
    assert sum(issubclass(each.category, PhasegradWarning) for each in told) == 1
    assert agent.progress.step == 320
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # which takes seconds: nobody waits for them
    monkeypatch.setattr("phasegrad.runs.tracking_mlflow.SECONDS_TO_END", 0.2)
    with pytest.warns(PhasegradWarning, match=r"its store has not taken all of the run within 0\.2 s"):
        make(tmp_path / "slow", track="mlflow").learn(64)
    assert json.loads((tmp_path / "slow" / "result.json").read_text())["status"] == "finished"


@needs_wandb
@needs_mlflow
def test_two_at_once_and_the_same_bits(tmp_path: Path, store: Any, offline: None) -> None:
    agent, plain = make(tmp_path / "run", track=["wandb", "mlflow", "tensorboard"]).learn(96), make().learn(96)
    assert agent.config.track == "wandb,mlflow,tensorboard"
    assert set(json.loads((tmp_path / "run" / "tracking.json").read_text())) == {"wandb", "mlflow", "token"}
    assert all((mine == theirs).all() for mine, theirs in zip(agent.tensors().values(), plain.tensors().values()))


# What can be known at once


def test_the_setting_names_trackers_with_commas() -> None:
    for given, wanted in (
        ("wandb,mlflow", "wandb,mlflow"),
        (" mlflow , wandb,mlflow", "mlflow,wandb"),
        (("tensorboard",), "tensorboard"),
        ([], "none"),
        ("none", "none"),
    ):
        assert make(track=given).config.track == wanted
    for wrong, sentence in (
        ("wandbb", "track must be one of none, tensorboard, wandb, mlflow, not 'wandbb'. Did you mean wandb?"),
        ("wandb,", "track must be one of"),
        ("none,wandb", "track none cannot be combined"),
        (5, "track must be"),
        (["wandb", 3], "track must be"),
    ):
        with pytest.raises(pg.ConfigError, match=sentence.replace("?", r"\?")):
            make(track=wrong)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_without_the_package_or_a_directory_it_is_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if not installed
    train = ["train", "ppo", *SMALL, "--total-steps", "64", "--run-dir", str(tmp_path / "run"), "--track", name]
    assert main(train) == 2
    told = capsys.readouterr().err
    assert f'track {name} needs the package {name}: pip install "phasegrad[track]"' in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()
    with pytest.raises(pg.ConfigError, match=f"track {name} needs the package"):
        make(tmp_path / "run", track=name).learn(64)
    with pytest.raises(pg.ConfigError, match="needs a run directory"):
        make(track=name).learn(64)


def test_tensorboard_is_there_in_any_case(tmp_path: Path) -> None:
    for track in ("none", "tensorboard"):
        make(tmp_path / track, track=track).learn(64)
        assert list((tmp_path / track / "tensorboard").iterdir())
        assert not (tmp_path / track / "tracking.json").exists()


def test_a_foreign_id_is_not_trusted_and_that_of_an_earlier_version_is(tmp_path: Path) -> None:
    for content in ('{"wandb": "../../evil"}', '{"wandb": 5}', "[]", "{", '{"wandb": ""}'):
        (tmp_path / "tracking.json").write_text(content)
        assert known_id(tmp_path, "wandb") is None
    (tmp_path / "tracking.json").unlink()
    (tmp_path / "wandb-id.txt").write_text("0123456789abcdef\n")
    assert known_id(tmp_path, "wandb") == "0123456789abcdef"
    assert known_id(tmp_path, "mlflow") is None
    (tmp_path / "wandb-id.txt").write_text("../../evil\n")
    assert known_id(tmp_path, "wandb") is None
    remember_id(tmp_path, "mlflow", "abcd1234")
    remember_id(tmp_path, "wandb", "efgh5678")
    assert (known_id(tmp_path, "mlflow"), known_id(tmp_path, "wandb")) == ("abcd1234", "efgh5678")


# Loggers of one's own


class Rows:
    """A logger that keeps all."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.closed = 0

    def write(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.closed += 1


class Writes:
    """One that has no close."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def write(self, row: dict[str, Any]) -> None:
        self.steps.append(row.pop("step"))


def test_loggers_get_the_rows_of_the_file_and_those_made_again_after_a_kill(tmp_path: Path) -> None:
    rows, writes = Rows(), Writes()
    run, killed = tmp_path / "run", tmp_path / "killed"

    def copy(row: dict[str, Any]) -> None:
        if row["step"] == 224:  # beyond the checkpoint of 128
            shutil.copytree(run, killed)

    make(run, checkpoint_every=128).learn(256, callback=copy, loggers=[writes, rows])
    assert rows.rows == [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert writes.steps == [row["step"] for row in rows.rows] == [*range(32, 257, 32)]
    assert rows.closed == 1
    again = Rows()
    pg.load(killed).learn(256, loggers=again)
    assert [row["step"] for row in again.rows] == [160, 192, 224, 256]
    with pytest.raises(ZeroDivisionError):
        make().learn(64, loggers=(again,), callback=lambda row: 1 / 0)
    assert again.closed == 2
    assert json.dumps(again.rows)  # null, not NaN, where there is no number


def test_a_logger_that_fails_is_told_of_once_and_the_run_goes_on(tmp_path: Path) -> None:
    class Breaks(Rows):
        def write(self, row: dict[str, Any]) -> None:
            super().write(row)
            raise OSError("no\nroom")

    class BreaksLate(Rows):
        def close(self) -> None:
            raise OSError("late")

    broken, whole = Breaks(), Rows()
    with pytest.warns(
        PhasegradWarning, match=r"The logger Breaks has failed \(OSError: no room\): the run goes on"
    ) as told:
        make().learn(96, loggers=[broken, whole])
    assert (len(told), len(broken.rows), len(whole.rows)) == (1, 1, 3)
    with pytest.warns(PhasegradWarning, match=r"The logger BreaksLate has failed \(OSError: late\)"):
        make().learn(64, loggers=BreaksLate())


def test_what_is_no_logger_is_a_sentence() -> None:
    for wrong in (5, "log.csv", [Rows(), 5], lambda row: None):
        with pytest.raises(
            pg.ConfigError, match=r"loggers must be an object with write\(row\), or a list of these, not"
        ):
            make().learn(64, loggers=wrong)
    with pytest.raises(pg.ConfigError, match=r"The logger Rows is a class: give an object of it"):
        make().learn(64, loggers=Rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(total_steps=64).learn(loggers=[])
