"""Files from strangers are data: nothing in them runs, no size they claim is believed, no name leads elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import shutil
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import phasegrad as pg
from phasegrad.algorithms.loading import restart
from phasegrad.cli.main import main
from phasegrad.errors import PhasegradError, PhasegradWarning, RunError
from phasegrad.presets import read_preset_file
from phasegrad.runs import files
from phasegrad.runs.directory import RunDirectory
from phasegrad.runs.metrics import MetricsFile, read_metrics

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 2, "num_steps": 8, "num_minibatches": 2, "hidden_sizes": (8,), "seed": 3,
    "compile": "off", "checkpoint_every": 16,
}  # fmt: skip
BOUNDED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of PPG with segments: it stopped inside a phase and inside a leg."""
    run = tmp_path_factory.mktemp("hostile") / "run"
    fields = {**SMALL, "n_pi": 8, "e_aux": 1, "checkpoint_every": 32}
    pg.PPG("CartPole-v1", run_dir=run, **fields).learn(128, callback=lambda row: row["step"] < 48).close()
    assert (run / "segments").is_dir()
    return run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def newest(run: Path) -> Path:
    return sorted((run / "checkpoints").iterdir())[-1]


def edit_state(folder: Path, change: Any) -> None:
    path = folder / "state.json"
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))


def refused(folder: Path) -> str:
    """The one sentence a folder is refused with, and no memory to speak of taken for it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PhasegradError) as error:
        pg.load(folder)
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert taken < 300 * 1024, f"{taken} kB"
    text = str(error.value)
    assert text.endswith((".", "?"))
    assert "\n" not in text
    assert len(text) < 500
    return text


class Bomb:
    """Unpickling one leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "leg.safetensors"])
def test_a_pickle_under_any_name_is_not_opened(run: Path, tmp_path: Path, name: str, protocol: int) -> None:
    folder, mark = newest(run), tmp_path / "mark"
    payload = pickle.dumps(Bomb(mark), protocol)
    (folder / name).write_bytes(payload)
    digest = hashlib.sha256(payload).hexdigest()
    if name == "state.safetensors":
        edit_state(folder, lambda state: state.update(sha256=digest))
    if name == "leg.safetensors":
        edit_state(folder, lambda state: state["leg"].update(sha256=digest))
    refused(folder)
    assert not mark.exists()
    pickle.loads(payload)
    assert mark.exists(), "the bomb works"


def test_a_torch_archive_and_a_zip_bomb_are_not_opened(run: Path) -> None:
    folder = newest(run)
    torch.save({"model": torch.zeros(3)}, folder / "state.safetensors")
    edit_state(
        folder, lambda s: s.update(sha256=hashlib.sha256((folder / "state.safetensors").read_bytes()).hexdigest())
    )
    assert "not a whole safetensors file" in refused(folder)
    with zipfile.ZipFile(folder / "state.safetensors", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", b"\0" * (1 << 26))
    edit_state(
        folder, lambda s: s.update(sha256=hashlib.sha256((folder / "state.safetensors").read_bytes()).hexdigest())
    )
    assert "not a whole safetensors file" in refused(folder)


@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b"{}", 1 << 62),
        (b"{}", (1 << 64) - 1),
        (b"{}", 0),
        (b"[" * 100_000, None),
        (b'{"model.x": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}}', None),
        (b'{"model.x": {"dtype": "F32", "shape": [-4], "data_offsets": [0, -16]}}', None),
        (b'{"model.x": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 16]}}', None),
        (b'{"model.x": 3}', None),
        (b'{"model.x": {"dtype": "PICKLE", "shape": [], "data_offsets": [0, 0]}}', None),
    ],
)
def test_headers_that_claim_too_much(run: Path, header: bytes, length: int | None) -> None:
    folder = newest(run)
    payload = struct.pack("<Q", len(header) if length is None else length) + header
    (folder / "state.safetensors").write_bytes(payload)
    edit_state(folder, lambda state: state.update(sha256=hashlib.sha256(payload).hexdigest()))
    assert "is damaged" in refused(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_envs": 10**12},
        {"num_steps": 10**12},
        {"n_pi": 10**10},
        {"aux_buffer": 10**10},
        {"hidden_sizes": [10**9, 10**9]},
        {"hidden_sizes": [60_000, 60_000]},
        {"hidden_sizes": [1] * 10**6},
        {"torch_threads": 10**9},
        {"num_envs": 10**400},
        {"num_envs": "1" * 10_000},
        {"encoder": "impala", "impala_channels": [10**6, 10**6]},
        {"encoder": "os.system"},
        {"device": "cuda:99999999999"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_sizes_that_a_config_claims_are_not_believed(run: Path, fields: dict[str, Any]) -> None:
    edit_state(newest(run), lambda state: state["config"].update(fields))
    refused(newest(run))


@pytest.mark.parametrize(
    "space",
    [
        {"kind": "Box", "shape": [1 << 26], "dtype": "float64", "low": 0, "high": 1},
        {"kind": "Box", "shape": [4], "dtype": "object", "low": 0, "high": 1},
        {"kind": "Box", "shape": [4], "dtype": "os.system('x')", "low": 0, "high": 1},
        {"kind": "Discrete", "n": 1 << 27, "start": 0},
        {"kind": "MultiBinary", "shape": [1 << 40]},
        {"kind": "MultiDiscrete", "nvec": [1 << 40], "start": [0]},
        {"kind": "Dict", "spaces": 3},
    ],
    ids=lambda space: f"{space['kind']}-{space.get('dtype', '')}",
)
def test_spaces_that_claim_too_much(run: Path, space: dict[str, Any]) -> None:
    for key in ("observation_space", "action_space"):
        edit_state(newest(run), lambda state, key=key: state.update({key: space}))
        refused(newest(run))


def test_a_deep_space_and_an_enormous_file(run: Path, tmp_path: Path) -> None:
    folder = newest(run)
    deep = '{"kind": "Dict", "spaces": {"a": ' * 5000 + "3" + "}}" * 5000
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(
        text.replace('"observation_space": {', f'"observation_space": {deep}, "x": {{', 1)
    )
    assert "damaged" in refused(folder)
    with open(folder / "state.json", "wb") as file:
        file.truncate(1 << 34)  # sparse: nothing is on the disk
    assert "bytes, more than" in refused(folder)
    with open(run / "config.json", "wb") as file:
        file.truncate(1 << 34)
    assert "bytes, more than" in refused(run)


def test_segments_that_lead_elsewhere_or_claim_too_much(run: Path, tmp_path: Path) -> None:
    folder = newest(run)
    secret = tmp_path / "000000000000-000000000000.safetensors"
    secret.write_bytes(safetensors.torch.save({"0.observations": torch.zeros(2)}))
    saved = json.loads((folder / "state.json").read_text())
    entry = dict(saved["extra"]["carried"]["files"][0])
    for change in (
        {"file": f"../../{secret.name}"},
        {"file": str(secret)},
        {"file": "../config.json"},
        {"file": 3},
        {"bytes": 1 << 60},
        {"bytes": -1},
        {"sha256": None},
        {"numbers": "all"},
        {"numbers": [[0]]},
    ):
        for each in (run / "checkpoints").iterdir():
            edit_state(each, lambda s, c=change: s["extra"].update(carried={"files": [entry | c], "state": {}}))
        with pytest.raises(PhasegradError), pytest.warns(PhasegradWarning):
            pg.load(run).learn()
    for state in ({}, {"filled": [10**9] * 8, "numbers": [0] * 8, "next_slot": 0, "since_phase": 0}, {"filled": "all"}):
        shutil.copy(run / "checkpoints" / folder.name / "state.json", tmp_path / "keep.json")
        edit_state(folder, lambda s, v=state: s["extra"].update(carried={**saved["extra"]["carried"], "state": v}))
        with pytest.raises(RunError, match="buffer is damaged"):
            pg.load(run).learn()
    link = run / "segments" / entry["file"]
    content = link.read_bytes()
    link.unlink()
    (tmp_path / "elsewhere").write_bytes(content)
    link.symlink_to(tmp_path / "elsewhere")
    edit_state(folder, lambda s: s["extra"].update(carried=saved["extra"]["carried"]))
    with pytest.raises(RunError, match="is a link, not a file"), pytest.warns(PhasegradWarning):
        pg.load(run).learn()


def test_links_are_not_taken_for_checkpoints_and_nothing_outside_is_removed(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(newest(run), outside)
    (run / "checkpoints" / "step-000000000099").symlink_to(outside)
    (run / "checkpoints" / "step-..").mkdir()
    (run / "checkpoints" / "step-000000000098").write_text("a file")
    assert pg.load(run).progress.step == 48
    pg.load(run).learn(128)
    assert sorted(path.name for path in outside.iterdir()) == ["leg.safetensors", "state.json", "state.safetensors"]


def test_a_leg_that_does_not_fit(run: Path) -> None:
    folder = newest(run)
    for tensors in (
        {"actions": torch.zeros(3, 7, dtype=torch.uint8)},
        {"actions": torch.zeros(0)},
        {"other": torch.zeros(1)},
        {"actions": torch.zeros(24, 2, dtype=torch.uint8), "running_return": torch.zeros(5)},
        {"actions": torch.full((24, 2), 2, dtype=torch.uint8)},
        {"actions": torch.full((24, 2), -1)},
        {"actions": torch.zeros(24, 2)},
        {"actions": torch.zeros(24, 2, dtype=torch.uint8), "starts": torch.tensor([0, 1 << 50])},
        {"actions": torch.zeros(24, 2, dtype=torch.uint8), "numbers": torch.tensor([3, 3])},
        {"actions": torch.zeros(24, 2, dtype=torch.uint8), "targets": torch.tensor([-1, 0])},
    ):
        payload = safetensors.torch.save(tensors)
        (folder / "leg.safetensors").write_bytes(payload)
        edit_state(folder, lambda s, p=payload: s["leg"].update(sha256=hashlib.sha256(p).hexdigest()))
        assert "leg.safetensors is damaged" in refused(folder)
    with open(folder / "leg.safetensors", "wb") as file:
        file.truncate(1 << 34)
    assert "bytes, more than" in refused(folder)


# Imports


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that can be imported and leaves a mark when it is; it registers an environment like CartPole."""
    mark = tmp_path / "imported"
    (tmp_path / "spy_module.py").write_text(
        f"import os, gymnasium\nos.makedirs({str(mark)!r}, exist_ok=True)\n"
        "gymnasium.register('Spy-v0', entry_point='gymnasium.envs.classic_control.cartpole:CartPoleEnv', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("spy_module", None)
    return mark


def test_a_file_cannot_have_a_module_imported(run: Path, spy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (run / "checkpoints").iterdir():
        edit_state(folder, lambda s: s["config"].update(env="spy_module:Spy-v0", backend="gymnasium"))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"env": "spy_module:Spy-v0", "backend": "gymnasium"}))
    told = "asks to import 'spy_module' for its environment spy_module:Spy-v0: where you trust it, allow that with --allow-import"
    for command in (["eval", str(run)], ["resume", str(run)], ["eval", str(run), "--levels", "test"]):
        assert main(command) == 2
        assert told in capsys.readouterr().err
    empty = run.parent / "empty"
    empty.mkdir()
    shutil.copy(run / "config.json", empty)
    assert main(["resume", str(empty)]) == 2
    assert told in capsys.readouterr().err
    agent = pg.load(run)
    with pytest.raises(PhasegradError, match="asks to import"):
        agent.evaluate(1)
    assert not spy.exists()
    assert main(["eval", str(run), "--episodes", "2", "--allow-import"]) == 0
    assert spy.exists()
    assert (
        pg.load(run, env="spy_module:Spy-v0").evaluate(2).lengths == pg.load(run, allow_import=True).evaluate(2).lengths
    )


def test_a_config_names_no_preset_file_to_read(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"gamma": 0.123}')
    shutil.rmtree(run / "checkpoints")
    config = json.loads((run / "config.json").read_text())
    del config["gamma"]
    (run / "config.json").write_text(json.dumps(config | {"preset": str(secret)}))
    agent = restart(run)
    assert agent.config.gamma == 0.99
    agent.close()


# Fuzzing the loaders: any bytes, and any JSON in any place, end in a loaded agent or in one sentence


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just(10**30))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:3]) if isinstance(tree, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = replaced(tree[path[0]], path[1:], value)
    return copy


def survives(function: Any) -> None:
    said = ""
    try:
        function()
    except PhasegradError as error:
        said = str(error)
    assert "\n" not in said


@BOUNDED
@given(data=st.data(), value=VALUES)
def test_fuzzed_state(
    original: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, value: Any
) -> None:
    folder = tmp_path_factory.mktemp("fuzz") / "checkpoint"
    shutil.copytree(newest(original), folder)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(replaced(state, data.draw(st.sampled_from(places(state))), value)))
    survives(lambda: pg.load(folder))
    shutil.rmtree(folder)


@BOUNDED
@given(data=st.data(), value=VALUES)
def test_fuzzed_config(
    original: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, value: Any
) -> None:
    run = tmp_path_factory.mktemp("fuzz")
    config = json.loads((original / "config.json").read_text())
    place = data.draw(st.sampled_from([p for p in places(config) if p[0] not in ("env", "num_envs", "vectorization")]))
    (run / "config.json").write_text(json.dumps(replaced(config, place, value)))
    survives(lambda: restart(run).close())


@BOUNDED
@given(
    content=st.binary(max_size=64),
    where=st.integers(0, 2000),
    name=st.sampled_from(["state.safetensors", "leg.safetensors"]),
)
def test_fuzzed_tensors(
    original: Path, tmp_path_factory: pytest.TempPathFactory, content: bytes, where: int, name: str
) -> None:
    folder = tmp_path_factory.mktemp("fuzz") / "checkpoint"
    shutil.copytree(newest(original), folder)
    payload = bytearray((folder / name).read_bytes())
    payload[where : where + len(content)] = content
    (folder / name).write_bytes(payload)
    survives(lambda: pg.load(folder))  # by the checksum
    digest = hashlib.sha256(payload).hexdigest()
    edit_state(folder, lambda s: (s if name == "state.safetensors" else s["leg"]).update(sha256=digest))
    survives(lambda: pg.load(folder))  # and without its help
    survives(lambda: files.checked_header(folder / name))
    shutil.rmtree(folder)


@BOUNDED
@given(content=st.binary(max_size=300) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_fuzzed_metrics_and_presets(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "metrics.jsonl"
    path.write_bytes(content)
    assert all(isinstance(row, dict) for row in read_metrics(path))
    MetricsFile(path, keep_bytes=10**9).close()
    (folder / "preset.json").write_bytes(content)
    survives(lambda: read_preset_file(folder / "preset.json"))
    survives(lambda: pg.PPO("CartPole-v1", **{**SMALL, "preset": str(folder / "preset.json")}).close())
    (folder / "config.json").write_bytes(content)
    survives(lambda: RunDirectory(folder).read_config())
    survives(lambda: pg.load(folder))
