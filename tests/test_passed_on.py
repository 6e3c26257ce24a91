"""Agents that are passed on, where something is amiss: files that are no agent's, damaged or made up ones, odd scores."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import phasegrad as pg
from phasegrad.errors import DamagedError, RunError
from phasegrad.runs.archive import unpack
from phasegrad.runs.card import GREEDY, card_of, card_record, known_curve
from phasegrad.runs.history import History

AGENT = Path(__file__).parents[1] / "agents" / "cartpole"
STATE = "state.json"


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    path = tmp_path / "agent.zip"
    pg.load(AGENT).save(path, training=False)
    return path


@pytest.mark.parametrize("state", [b"{}", b'{"window": [800, 600]}', b"[]", b"no JSON"])
def test_a_zip_with_another_programs_state_is_not_replaced(state: bytes, tmp_path: Path) -> None:
    path = tmp_path / "backup.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(STATE, state)
        archive.writestr("thesis.txt", "years of work")
    before = path.read_bytes()
    with pytest.raises(RunError, match="is no saved agent, so it is not replaced"):
        pg.load(AGENT).save(path, training=False)
    assert path.read_bytes() == before


def test_a_zip_with_an_agent_and_other_files_is_read_and_not_replaced(zipped: Path) -> None:
    with zipfile.ZipFile(zipped, "a") as archive:
        archive.writestr("\x1b[31mthesis.txt", "years of work")
    before, agent = zipped.read_bytes(), pg.load(zipped)
    with pytest.raises(RunError, match="holds other files beside a saved agent") as caught:
        agent.save(zipped, training=False)
    assert zipped.read_bytes() == before
    assert "\x1b" not in str(caught.value)


def test_a_zip_of_the_folder_of_an_agent_is_replaced(tmp_path: Path) -> None:
    path = Path(shutil.make_archive(str(tmp_path / "agent"), "zip", AGENT.parent, AGENT.name))
    pg.load(AGENT).save(path, training=False)
    assert pg.load(path).progress.step == pg.load(AGENT).progress.step


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_damage_is_told_whatever_the_compression(method: int, tmp_path: Path) -> None:
    whole, cut, rng = tmp_path / "whole.zip", tmp_path / "cut.zip", random.Random(1)
    with zipfile.ZipFile(whole, "w", method) as archive:
        for name in (STATE, "state.safetensors"):
            archive.write(AGENT / name, name)
    unpack(whole, _empty(tmp_path / "whole"))
    for index in range(40):
        payload = bytearray(whole.read_bytes())
        place = rng.randrange(len(payload) - 200) if index % 2 else len(payload) - 1 - index * 4
        payload[place] ^= 0xFF
        cut.write_bytes(payload)
        with contextlib.suppress(RunError):  # anything else is a traceback
            unpack(cut, _empty(tmp_path / f"cut-{index}"))


def test_a_name_that_is_no_text_is_damage(zipped: Path) -> None:
    payload = zipped.read_bytes().replace(b"README.md", b"READM\xff.md")
    with zipfile.ZipFile(zipped) as archive:
        entry = archive.getinfo("README.md")
    place = payload.rindex(b"PK\x01\x02", 0, payload.rindex(b"READM\xff.md"))
    flags = (entry.flag_bits | 0x800).to_bytes(2, "little")
    zipped.write_bytes(payload[: place + 8] + flags + payload[place + 10 :])
    with pytest.raises(DamagedError, match=r"is not a whole \.zip file"):
        pg.load(zipped)


@pytest.mark.parametrize(
    "evaluation",
    [
        {"step": None, "return_mean": None, "episodes": None},
        {"step": 100_000, "return_mean": "train", "episodes": 3},
        {"step": 100_000, "return_mean": 3.0, "episodes": 5, "return_std": "test", "deterministic": True},
        {
            "step": 100_000,
            "return_mean": 3.0,
            "episodes": 5,
            "return_min": "test",
            "return_max": 1,
            "success_rate": "train",
        },
    ],
)
@pytest.mark.parametrize("kept", ["in the save", "beside a run"])
def test_a_made_up_score_is_no_traceback(evaluation: dict[str, Any], kept: str, tmp_path: Path) -> None:
    agent = pg.load(AGENT)
    agent.run.evaluations.last = None
    if kept == "in the save":
        agent.run.card = card_record({"evaluation": evaluation})
    else:
        (tmp_path / "evaluations.jsonl").write_text(json.dumps({"deterministic": True, **evaluation}) + "\n")
        agent.run.card, agent.run.run_dir, agent.run.takes_over = {}, tmp_path, True
    files = card_of(agent).files
    is_a_score = isinstance(evaluation["return_mean"], float)
    assert (b"**3.0" in files["README.md"]) == is_a_score
    assert (b"Not evaluated" in files["README.md"]) != is_a_score


def test_a_score_of_nought_is_a_point_of_the_curve() -> None:
    agent = pg.load(AGENT)
    agent.run.card = {}
    agent.run.history = [{"step": step, "return_mean": value} for step, value in ((10, 0.0), (20, 0.0), (30, 1.0))]
    assert known_curve(agent) == ([(10.0, 0.0), (20.0, 0.0), (30.0, 1.0)], GREEDY)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_history_with_an_evaluation_in_nearly_every_row_is_bounded_too(every: int) -> None:
    history = History(most_rows=100)
    for step in range(1, 3001):
        history.add({"step": step, **({"eval_return_mean": float(step)} if step % every == 0 else {})})
        assert history.num_rows <= 100
    assert history.steps[-1] == 3000
    rows, values = history.column("eval_return_mean")
    assert len(rows) >= 10
    assert history.steps[rows].tolist() == values.tolist()


@pytest.mark.parametrize("step", [5, "best"])
def test_a_step_is_not_picked_of_a_saved_agent(step: int | str, zipped: Path) -> None:
    for path in (zipped, AGENT):
        with pytest.raises(RunError, match=f"leave out checkpoint {step}"):
            pg.load(path, checkpoint=step)


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder
