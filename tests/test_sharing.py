"""Agents to pass on: the card, the .zip and what is refused of one, save and play on the command line, those that ship."""

from __future__ import annotations

import json
import os
import pickle
import stat
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from hybrid_envs import HybridIdentityEnv
from PIL import Image

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import DamagedError, EnvError, PhasegradWarning, RunError
from phasegrad.runs.archive import ROOM
from phasegrad.runs.card_curve import ticks

ROOT = Path(__file__).parents[1]
SMALL: dict[str, Any] = {
    "preset": "none",
    "num_envs": 2,
    "num_steps": 16,
    "num_minibatches": 2,
    "seed": 1,
    "compile": "off",
}
SHIPPED = {"cartpole": 475.0, "lunarlander": 200.0, "pendulum": -300.0, "halfcheetah": 1500.0}  # the least of each


def ppo(run_dir: Path | None = None, **fields: Any) -> Any:
    return pg.PPO("CartPole-v1", run_dir=run_dir, **{**SMALL, **fields})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with two evaluations."""
    path = tmp_path_factory.mktemp("runs") / "run"
    ppo(path, eval_every=64, eval_episodes=2, learning_rate=1e-3).learn(128).close()
    return path


@pytest.fixture(scope="module")
def zipped(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zips") / "agent.zip"
    pg.load(trained).save(path, training=False)
    return path


def sentence(error: BaseException) -> str:
    text = str(error)
    assert text.endswith((".", ")"))
    assert "\n" not in text
    assert "/phasegrad-" not in text  # a folder nobody has heard of
    return text


# The card


def test_the_card_says_what_the_agent_is(trained: Path, tmp_path: Path) -> None:
    agent = pg.load(trained)
    agent.save(tmp_path / "agent", training=False, episodes=3)
    text = (tmp_path / "agent" / "README.md").read_text()
    _, front, card = text.split("---\n", 2)
    about = yaml.safe_load(front)
    found = agent.evaluate(3)
    assert about["library_name"] == "phasegrad"
    assert {"reinforcement-learning", "ppo", "CartPole-v1"} <= set(about["tags"])
    result = about["model-index"][0]["results"][0]
    assert result["metrics"][0]["value"] == f"{found.return_mean:.2f} +/- {found.return_std:.2f}"
    assert "3 whole episodes with greedy actions" in card
    assert "| `learning_rate` | `0.001` | `0.0003` | given |" in card
    assert "num_envs" in card
    assert "gae_lambda" not in card  # it is the default's
    assert "phasegrad train ppo --env CartPole-v1 --total-steps 128 --seed 1 --preset none" in card
    assert "--learning-rate 0.001" in card
    assert f"torch {torch.__version__}" in card
    with Image.open(tmp_path / "agent" / "curve.png") as picture:
        assert picture.size == (640, 300)


def test_the_command_of_the_card_trains_the_same_agent(trained: Path, tmp_path: Path) -> None:
    agent = pg.load(trained)
    agent.save(tmp_path / "agent", training=False)
    command = next(line for line in (tmp_path / "agent" / "README.md").read_text().splitlines() if " train " in line)
    assert main([*command.split()[1:], "--run-dir", str(tmp_path / "again"), "--quiet"]) == 0
    again = pg.load(tmp_path / "again")
    assert torch.equal(again.flat.data, agent.flat.data)


def test_a_card_outlives_the_run_directory(zipped: Path, tmp_path: Path) -> None:
    pg.load(zipped).save(tmp_path / "again", training=False)
    with zipfile.ZipFile(zipped) as archive:
        for name in ("README.md", "curve.png"):
            assert archive.read(name) == (tmp_path / "again" / name).read_bytes()


def test_a_card_of_the_users_own_stays(trained: Path, tmp_path: Path) -> None:
    agent, folder = pg.load(trained), tmp_path / "agent"
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    agent.save(folder)
    assert (folder / "README.md").read_text() == "mine"
    (folder / "README.md").unlink()
    agent.save(folder)
    assert "# PPO on CartPole-v1" in (folder / "README.md").read_text()
    (folder / "README.md").write_text("edited")
    agent.save(folder)
    assert (folder / "README.md").read_text() == "edited"


def test_a_curve_goes_with_the_save_that_it_was_of(trained: Path, tmp_path: Path) -> None:
    pg.load(trained).save(tmp_path / "agent")
    assert (tmp_path / "agent" / "curve.png").exists()
    ppo().learn(32).save(tmp_path / "agent")  # which was never evaluated
    assert not (tmp_path / "agent" / "curve.png").exists()
    assert "Not evaluated" in (tmp_path / "agent" / "README.md").read_text()


def test_words_of_a_run_are_no_markup(tmp_path: Path) -> None:
    agent = ppo()
    agent.config.settle(env="custom:<b>`|\n# x\x1b[31m")
    agent.save(tmp_path / "agent", training=False)
    text = (tmp_path / "agent" / "README.md").read_text()
    assert "<b>" not in text.replace("`<b>", "")
    assert "\n# x" not in text
    assert "\x1b" not in text
    yaml.safe_load(text.split("---\n")[1])


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 500.0), (-1600.0, -120.5), (0.1, 0.1), (0.0, 0.0), (1e-9, 3e-9), (-1e9, 1e9)]
)
def test_ticks_are_few_and_span_all(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 3 <= len(found) <= 7
    assert found == sorted(found)
    assert found[0] <= low <= high <= found[-1] + 1e-9


# The .zip


def test_a_zip_is_loaded_as_its_folder_is(trained: Path, tmp_path: Path) -> None:
    agent = pg.load(trained)
    agent.save(tmp_path / "agent.zip")
    agent.save(tmp_path / "agent")
    with zipfile.ZipFile(tmp_path / "agent.zip") as archive:
        names = set(archive.namelist())
    assert names == {path.name for path in (tmp_path / "agent").iterdir()}
    found = [pg.load(tmp_path / name).learn(256) for name in ("agent.zip", "agent")]
    assert torch.equal(found[0].flat.data, found[1].flat.data)
    for each in found:
        each.close()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_one_agent_makes_one_zip(trained: Path, tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip", "a.zip"):
        pg.load(trained).save(tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


@pytest.mark.parametrize("algorithm", ["ppg", "acer"])
def test_what_an_algorithm_carries_is_in_the_zip(algorithm: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"preset": "none", "num_envs": 2, "num_steps": 16, "seed": 1, "compile": "off"}
    fields |= {"n_pi": 4, "num_minibatches": 2} if algorithm == "ppg" else {"replay_start": 32}
    agent: Any = getattr(pg, algorithm.upper())("CartPole-v1", **fields)
    agent.learn(1024, callback=lambda row: row["step"] < 96)
    agent.save(tmp_path / "whole.zip")
    agent.save(tmp_path / "alone.zip", training=False)
    again: Any = pg.load(tmp_path / "whole.zip")
    assert again.carries.pieces().keys() == agent.carries.pieces().keys() != set()
    agent.learn(1024)
    again.learn(1024)
    assert torch.equal(again.flat.data, agent.flat.data)
    alone = pg.load(tmp_path / "alone.zip")
    alone.learn(1024)  # with fresh optimisers
    assert alone.progress.step == 1024
    for each in (agent, again, alone):
        each.close()


def test_an_agent_alone_is_small_and_plays_the_same(trained: Path, tmp_path: Path) -> None:
    agent = pg.load(trained)
    agent.save(tmp_path / "whole")
    agent.save(tmp_path / "alone", training=False)
    assert not (tmp_path / "alone" / "leg.safetensors").exists()
    sizes = [(tmp_path / name / "state.safetensors").stat().st_size for name in ("whole", "alone")]
    assert sizes[1] < 0.4 * sizes[0]  # Adam has two moments
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    again = pg.load(tmp_path / "alone")
    assert (again.predict(observations)[0] == agent.predict(observations)[0]).all()
    assert np.array_equal(again.value(observations), agent.value(observations))
    again.learn(192).close()
    assert again.progress.step == 192


def test_a_zip_of_the_folder_itself_is_read(trained: Path, tmp_path: Path) -> None:
    pg.load(trained).save(tmp_path / "agent", training=False)
    with zipfile.ZipFile(tmp_path / "mailed.zip", "w") as archive:
        for path in sorted((tmp_path / "agent").iterdir()):
            archive.write(path, f"agent/{path.name}")
        archive.writestr("__MACOSX/agent/._state.json", b"x")
    assert pg.load(tmp_path / "mailed.zip").progress.step == 128


def altered(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with zipfile.ZipFile(source) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, payload in files.items():
            archive.writestr(name, payload)
    return target


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/phasegrad-was-here",)


def test_what_else_a_zip_holds_is_not_read(zipped: Path, tmp_path: Path) -> None:
    def change(files: dict[str, bytes]) -> None:
        files |= {"policy.pkl": pickle.dumps(Evil()), "data/x.pt": b"y", "segments/evil.sh": b"exit"}

    path = altered(zipped, tmp_path / "more.zip", change)
    assert pg.load(path).progress.step == 128
    assert not Path("/tmp/phasegrad-was-here").exists()


def with_state(**changed: Any) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        files["state.json"] = json.dumps(json.loads(files["state.json"]) | changed).encode()

    return change


def newer(files: dict[str, bytes]) -> None:
    state = json.loads(files["state.json"])
    state["versions"]["phasegrad"] = "99.1.0"
    state["config"]["warp_drive"] = True
    files["state.json"] = json.dumps(state).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: files.pop("state.json"), "is not a saved agent: it has no state.json"),
        (lambda files: files.update({"state.json": b"{"}), "state.json is not valid JSON"),
        (lambda files: files.update({"state.json": b"[]"}), "was written by another version"),
        (lambda files: files.pop("state.safetensors"), "state.safetensors cannot be read"),
        (lambda files: files.update({"state.safetensors": pickle.dumps(1)}), "is not a whole safetensors file"),
        (lambda files: files.update({"../evil": b""}), "would lead out of the folder"),
        (lambda files: files.update({"/etc/evil": b""}), "would lead out of the folder"),
        (lambda files: files.update({"a\\..\\evil": b""}), "would lead out of the folder"),
        (lambda files: files.update({"x/state.json": b"{}"}), "holds 2 saved agents"),
        (lambda files: files.update({"segments/" + "0" * 12 + "-" + "0" * 12 + ".safetensors": bytes(2 * ROOM)}), "would unpack to"),
        (with_state(algorithm="sac"), "unknown algorithm 'sac'"),
        (with_state(algorithm="ppg"), "not valid|does not fit|damaged"),
        (with_state(format=3), "format 3"),
        (newer, "was saved by phasegrad 99.1.0, and this is"),
        (lambda files: (files.clear(), files.update({"data": b"", "policy.pth": b""})), "looks like an agent of Stable-Baselines3"),
    ],
)  # fmt: skip
def test_a_bad_zip_gets_a_sentence(
    change: Callable[[dict[str, bytes]], None], said: str, zipped: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of entries that are doubled
        path = altered(zipped, tmp_path / "bad.zip", change)
    with pytest.raises(RunError, match=said) as error:
        pg.load(path)
    assert "bad.zip" in sentence(error.value)


@pytest.mark.parametrize("cut", [0.02, 0.5, 0.97])
def test_a_cut_zip_is_damaged(cut: float, zipped: Path, tmp_path: Path) -> None:
    whole = zipped.read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(DamagedError, match=r"cut\.zip is damaged") as error:
        pg.load(tmp_path / "cut.zip")
    sentence(error.value)


def test_a_flipped_byte_is_found(zipped: Path, tmp_path: Path) -> None:
    payload = bytearray(zipped.read_bytes())
    payload[len(payload) // 2] ^= 0x55
    (tmp_path / "bad.zip").write_bytes(payload)
    with pytest.raises(DamagedError, match="is damaged"):
        pg.load(tmp_path / "bad.zip")


def test_links_doubles_and_encryption_are_refused(zipped: Path, tmp_path: Path) -> None:
    link = zipfile.ZipInfo("state.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        archive.writestr(link, b"/etc/passwd")
    with pytest.raises(RunError, match="is a link, not a file"):
        pg.load(tmp_path / "link.zip")
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "double.zip", "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("state.json", b"{}")
        archive.writestr("state.json", b"{}")
    with pytest.raises(RunError, match=r"two entries 'state\.json'"):
        pg.load(tmp_path / "double.zip")
    payload = bytearray(zipped.read_bytes())
    payload[payload.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "locked.zip").write_bytes(payload)
    with pytest.raises(RunError, match="is encrypted"):
        pg.load(tmp_path / "locked.zip")


def test_a_pipe_or_another_file_is_no_agent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    with pytest.raises(RunError):
        pg.load(tmp_path / "pipe.zip")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(RunError, match="is a file: an agent is a run directory, the folder of a save, or its"):
        pg.load(tmp_path / "notes.txt")
    with pytest.raises(RunError, match="does not exist"):
        pg.load(tmp_path / "none.zip")


@pytest.mark.parametrize("content", [b"a spreadsheet", None])
def test_a_zip_that_is_no_agent_is_not_replaced(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "thesis.zip"
    if content is None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("thesis.tex", b"precious")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(RunError, match="is no saved agent, so it is not replaced"):
        ppo().save(path)
    assert path.read_bytes() == before
    (tmp_path / "folder.zip").mkdir()
    with pytest.raises(RunError, match="is a folder"):
        ppo().save(tmp_path / "folder.zip")


def test_a_write_that_fails_leaves_the_old_zip(zipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.zip"
    path.write_bytes(zipped.read_bytes())

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(RunError, match="could not be written"):
        ppo().save(path)
    assert path.read_bytes() == zipped.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["agent.zip"]


# Kinds of agents


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_memory_is_passed_on(memory: str, tmp_path: Path) -> None:
    agent = ppo(memory=memory, memory_size=8, frame_stack=2).learn(64)
    agent.save(tmp_path / "agent.zip", training=False, episodes=2)
    again = pg.load(tmp_path / "agent.zip")
    assert again.evaluate(2).returns == agent.evaluate(2).returns
    for each in (agent, again):
        each.close()


def test_hybrid_actions_in_an_environment_given_in_python(tmp_path: Path) -> None:
    agent: Any = pg.PPO(HybridIdentityEnv, **SMALL)
    agent.learn(64)
    agent.save(tmp_path / "agent.zip", training=False, episodes=2)
    with zipfile.ZipFile(tmp_path / "agent.zip") as archive:
        card = archive.read("README.md").decode()
    assert "env=make_env" in card
    assert "was given in Python" in card
    assert "phasegrad train" not in card
    alone = pg.load(tmp_path / "agent.zip")
    with pytest.raises(EnvError, match=r"load it with phasegrad.load\(path, env=\.\.\.\)"):
        alone.evaluate(1)
    again = pg.load(tmp_path / "agent.zip", env=HybridIdentityEnv)
    assert again.evaluate(2).returns == agent.evaluate(2).returns
    for each in (agent, again):
        each.close()


def test_a_strangers_agent_imports_nothing(zipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_module.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)

    def change(files: dict[str, bytes]) -> None:
        state = json.loads(files["state.json"])
        state["config"] |= {"env": "evil_module:Evil-v0", "track": "wandb"}
        files["state.json"] = json.dumps(state).encode()

    path = altered(zipped, tmp_path / "evil.zip", change)
    agent = pg.load(path)
    assert agent.config.track == "none"
    with pytest.raises(EnvError, match="asks to import 'evil_module'"):
        agent.evaluate(1)
    assert main(["play", str(path)]) == 2
    assert main(["eval", str(path)]) == 2


# The command line


def test_save_and_the_verbs_that_take_an_agent(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert main(["save", str(trained), "--out", "agent.zip", "--episodes", "2"]) == 0
    assert "agent.zip" in capsys.readouterr().out
    assert main(["eval", "agent.zip", "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
    assert main(["play", "agent.zip", "--episodes", "2"]) == 0
    assert "there is no display: filming it instead\nwrote agent.mp4" in capsys.readouterr().out
    assert main(["video", "agent.zip", "--max-steps", "5"]) == 0
    assert main(["play", "agent.zip", "--out", "x.gif", "--seed", "3"]) == 0
    assert (tmp_path / "x.gif").exists()
    assert main(["save", "agent.zip", "--out", "folder"]) == 0
    assert main(["play", str(trained)]) == 0
    assert list((trained / "videos").glob("*.mp4"))
    capsys.readouterr()
    assert main(["play", "nowhere"]) == 2
    assert main(["save", str(trained)]) == 2
    assert main(["video", "agent.zip", "--checkpoints", "first,last"]) == 2
    for verb in ("report", "plot", "resume"):
        for name in ("folder", "agent.zip"):
            assert main([verb, name]) == 2
            assert "is a saved agent, which has a card and no metrics" in capsys.readouterr().err


def test_play_opens_a_window_where_there_is_a_display(
    zipped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame", reason="gymnasium draws to windows by pygame")
    monkeypatch.setenv("DISPLAY", ":99")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # a display without a screen
    made: list[Any] = []
    make = gym.make

    def noted(*arguments: Any, **options: Any) -> Any:
        made.append(options.get("render_mode"))
        env = make(*arguments, **options)
        env.unwrapped.metadata = {**env.unwrapped.metadata, "render_fps": 1000}
        return env

    monkeypatch.setattr(gym, "make", noted)
    assert main(["play", str(zipped), "--episodes", "1"]) == 0
    said = capsys.readouterr().out
    assert "in a window" in said
    assert "return " in said
    assert "human" in made
    assert "rgb_array" not in made


def test_play_films_where_the_window_does_not_open(
    zipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISPLAY", ":99")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    make = gym.make

    def refusing(*arguments: Any, **options: Any) -> Any:
        if options.get("render_mode") == "human":
            raise RuntimeError("cannot connect to X server")
        return make(*arguments, **options)

    monkeypatch.setattr(gym, "make", refusing)
    assert main(["play", str(zipped)]) == 0
    assert "cannot connect to X server" in capsys.readouterr().out
    assert (tmp_path / "agent.mp4").exists()


# Those that ship


@pytest.mark.parametrize("name", SHIPPED)
def test_an_agent_that_ships_is_small_and_as_good_as_its_card(name: str) -> None:
    folder = ROOT / "agents" / name
    assert {path.name for path in folder.iterdir()} == {"README.md", "curve.png", "state.json", "state.safetensors"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 200_000
    card = (folder / "README.md").read_text()
    assert "20 whole episodes with greedy actions" in card
    assert "phasegrad train pp" in card
    with warnings.catch_warnings():
        warnings.simplefilter("error", PhasegradWarning)
        agent = pg.load(folder)
    assert agent.evaluate(4).return_mean >= SHIPPED[name]
