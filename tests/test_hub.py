"""Agents on the Hugging Face Hub, against a stand-in of its HTTP interface: nothing here reaches the service itself."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_stand_in import TOKEN, Hub, running

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import EnvError, RunError
from phasegrad.runs.hub import parse_address, parse_repository

SMALL: dict[str, Any] = {"preset": "none", "num_envs": 2, "num_steps": 16, "num_minibatches": 2, "seed": 1, "compile": "off"}  # fmt: skip
OWN = {"state.json", "state.safetensors", "README.md"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "agent"
    agent = pg.PPO("CartPole-v1", **SMALL)
    agent.learn(64)
    agent.save(folder, training=False)
    agent.close()
    (folder / "secret.txt").write_text("of the user")
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    with running() as stand_in:
        monkeypatch.setenv("HF_ENDPOINT", stand_in.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        from huggingface_hub import constants
        from huggingface_hub.utils import disable_progress_bars

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        disable_progress_bars()
        yield stand_in
        assert [request for request in stand_in.unknown if not request.startswith("GET")] == []  # it asks for news


def test_an_agent_that_was_pushed_is_loaded(hub: Hub, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(saved), "ada/ppo-cartpole"]) == 0
    said = capsys.readouterr().out
    assert said.index("state.safetensors: ") < said.index("uploaded to")  # shown first
    assert "a new private repository" in said
    repo = hub.repos["ada/ppo-cartpole"]
    assert repo["private"]
    tree = repo["commits"][-1][1]
    assert tree.keys() - {".gitattributes"} == OWN  # and no secret
    assert all((saved / name).read_bytes() == tree[name] for name in OWN)
    agent = pg.load("hf://ada/ppo-cartpole")
    assert torch.equal(agent.flat.data, pg.load(saved).flat.data)
    assert main(["eval", "hf://ada/ppo-cartpole@main", "--episodes", "1", "--json"]) == 0


def test_a_run_and_a_zip_are_pushed_too(hub: Hub, saved: Path, tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", run_dir=tmp_path / "run", **SMALL)
    agent.learn(64)
    agent.save(tmp_path / "agent.zip", training=False)
    agent.close()
    for name in ("run", "agent.zip"):
        assert main(["push", str(tmp_path / name), "ada/one", "--public"]) == 0
    assert not hub.repos["ada/one"]["private"]
    tree = hub.repos["ada/one"]["commits"][-1][1]
    assert tree.keys() - {".gitattributes", "curve.png"} == OWN
    assert b"# PPO on CartPole-v1" in tree["README.md"]


def test_a_revision_is_that_revision(hub: Hub, saved: Path) -> None:
    assert main(["push", str(saved), "ada/one"]) == 0
    first = hub.repos["ada/one"]["commits"][-1][0]
    hub.commit("ada/one", {"state.json": b"broken"})
    with pytest.raises(RunError, match=r"hf://ada/one is damaged: its state\.json is not valid JSON"):
        pg.load("hf://ada/one")
    assert pg.load(f"hf://ada/one@{first}").progress.step == 64
    with pytest.raises(RunError, match="has no revision 'v9'"):
        pg.load("hf://ada/one@v9")


def test_only_the_files_of_a_save_are_fetched(hub: Hub, saved: Path) -> None:
    files = {name: (saved / name).read_bytes() for name in OWN}
    hub.create("eve/more", False, {**files, "policy.pkl": b"evil", "huge.bin": b"x"})
    pg.load("hf://eve/more")
    fetched = {request.rpartition("/")[2] for request in hub.requests if "/resolve/" in request}
    assert fetched == {"state.json", "state.safetensors"}


def test_without_a_network_the_cache_serves(hub: Hub, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.create("ada/one", False, {name: (saved / name).read_bytes() for name in OWN})
    assert pg.load("hf://ada/one").progress.step == 64
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RunError, match=r"does not answer .*check the network"):
        pg.load("hf://ada/never-seen")
    assert pg.load("hf://ada/one").progress.step == 64


def test_what_the_service_refuses_is_a_sentence(
    hub: Hub, saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError, match="was not found: it does not exist, or it is private"):
        pg.load("hf://ada/none")
    hub.create("ada/data", False, {"data.csv": b"1"})
    with pytest.raises(RunError, match=r"is not a saved agent: it has no state\.json"):
        pg.load("hf://ada/data")
    assert main(["push", str(saved), "ada/data"]) == 2
    assert "holds something else than a saved agent" in capsys.readouterr().err
    hub.create("ada/huge", False, {name: (saved / name).read_bytes() for name in OWN})
    hub.claimed_sizes["state.safetensors"] = 1 << 40
    with pytest.raises(RunError, match=r"is refused: its state\.safetensors has 1,099,511,627,776 bytes"):
        pg.load("hf://ada/huge")
    monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
    assert main(["push", str(saved), "ada/new"]) == 2
    assert "refuses this token (HTTP 401)" in capsys.readouterr().err
    monkeypatch.delenv("HF_TOKEN")
    assert main(["push", str(saved), "ada/new"]) == 2
    assert "needs a token of the Hugging Face Hub" in capsys.readouterr().err
    assert "ada/new" not in hub.repos


def test_a_private_agent_needs_the_token(hub: Hub, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["push", str(saved), "ada/mine"]) == 0
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(RunError, match="it is private"):
        pg.load("hf://ada/mine")


def test_a_dry_run_uploads_nothing(hub: Hub, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(saved), "ada/one", "--dry-run"]) == 0
    assert "nothing was uploaded" in capsys.readouterr().out
    assert hub.requests == []


def test_a_downloaded_agent_is_a_strangers(hub: Hub, saved: Path) -> None:
    state = (saved / "state.json").read_bytes().replace(b'"env": "CartPole-v1"', b'"env": "evil:Evil-v0"')
    hub.create("eve/evil", False, {**{name: (saved / name).read_bytes() for name in OWN}, "state.json": state})
    agent = pg.load("hf://eve/evil")
    with pytest.raises(EnvError, match="asks to import 'evil'"):
        agent.evaluate(1)


def test_without_the_package_the_extra_is_named(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        RunError, match=r'hf://ada/one needs the package huggingface_hub: pip install "phasegrad\[hub\]"'
    ):
        pg.load("hf://ada/one")
    with warnings.catch_warnings():
        assert main(["push", str(saved), "ada/one"]) == 2


@pytest.mark.parametrize(
    "text", ["hf://ada", "hf://ada/one/two", "hf://../x", "hf://ada/..", "hf://a/b@", "hf:///b", "hf://a/b@../c"]
)
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(RunError, match="is no address on the Hub"):
        parse_address(text)
    assert main(["eval", text]) == 2


def test_repositories() -> None:
    assert parse_repository("ada/ppo-cartpole") == "ada/ppo-cartpole"
    for text in ("ada", "/x", "ada/", "a/b/c", "a b/c"):
        with pytest.raises(RunError, match="is no repository on the Hub"):
            parse_repository(text)
