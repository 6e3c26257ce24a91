"""The report's last section: the policy in a browser, from its ONNX file, does what `predict` does; nothing is fetched.

The real runtime is the npm package onnxruntime-web: in node_modules here, or where ONNXRUNTIME_WEB says (`npm pack`).
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from chromium import Browser, browsing
from gymnasium import spaces
from identity_envs import FACTORIES
from test_export import Picture, wide_box
from test_export_c import Evil, made
from test_report import EVIL, Elements, needs_browser
from written_runs import rows_of, write_run

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import RunError
from phasegrad.export import browser as browser_export
from phasegrad.export.browser import playable
from phasegrad.report import write_report
from phasegrad.report.trying import BINARY, GLUE, read_runtime

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package)

ROOT = Path(__file__).parents[1]
FOUND = Path(os.environ.get("ONNXRUNTIME_WEB") or ROOT / "node_modules" / "onnxruntime-web")
needs_runtime = pytest.mark.skipif(
    not FOUND.exists(),
    reason="NOTICE: no npm package onnxruntime-web in node_modules or ONNXRUNTIME_WEB: its policies are not tried in a browser",
)
# A runtime that only moves numbers: the probability of a choice is a function of the first number of the observation.
STAND_IN = """/* stand-in */class S{static async create(b){if(!(b instanceof Uint8Array))throw Error("no model");return new S}
async run(f){globalThis.fed=Object.keys(f);const x=f.observation.data[0];
return{action:{data:[x>0?1n:0n]},params:{data:[0,x]},value:{data:[2*x]}}}}
class T{constructor(t,d,s){Object.assign(this,{type:t,data:d,dims:s})}}var E={wasm:{}};export{S as InferenceSession,T as Tensor,E as env,S as default};
//# sourceMappingURL=none.map
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    (folder / "dist").mkdir()
    (folder / GLUE).write_text(STAND_IN)
    (folder / BINARY).write_bytes(b"\0asm" + bytes(100))
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that takes no time, for tests that run no policy: a byte for every parameter."""

    def write(trainer: Any, path: Path, **_: Any) -> None:
        path.write_bytes(bytes(sum(parameter.numel() for parameter in trainer.model.parameters())))

    monkeypatch.setattr(browser_export, "export_onnx", write)


def page_of(agent: Any, folder: Path, runtime: Path) -> Path:
    run = write_run(folder / "run", rows_of(6), env="CartPole-v1")
    return write_report([run], folder / "page.html", policy=playable(agent), runtime=runtime)


def started(browser: Browser, page: Path) -> str:
    browser.open(page.as_uri())
    return str(browser.ask("phasegradTry.start().then(() => document.getElementById('try-status').textContent)"))


@needs_runtime
@needs_browser
@pytest.mark.parametrize(
    ("kind", "memory"), [("clipped", "none"), ("masked", "gru"), ("counted", "none"), ("hybrid", "lstm")]
)
def test_the_browser_does_what_predict_does(browser: Browser, kind: str, memory: str, tmp_path: Path) -> None:
    agent = made(kind, memory)
    page = page_of(agent, tmp_path, FOUND)
    assert page.stat().st_size < 7_000_000
    assert started(browser, page).startswith("Agrees with predict on 8 observations")
    adapter, random = agent.agent.observing, np.random.default_rng(1)
    space, state = agent.agent.spaces.observation, None
    space.seed(4)
    browser.ask("globalThis.carried = new Float32Array(phasegradTry.data.state); 1")
    for step in range(6):
        observation = space.sample()
        flat = adapter.observation(batch_of(observation))
        named = flat if isinstance(flat, dict) else {"": flat}
        values = {
            leaf.name or "observation": np.ravel(leaf.restore(named[leaf.name])).tolist() for leaf in adapter.leaves
        }
        mask = None
        if agent.agent.spaces.has_mask:
            mask = random.random(6) < 0.5
            mask[step % 6] = True
        given = json.dumps(values), json.dumps([] if mask is None else mask.astype(int).tolist())
        found = browser.ask(
            f"phasegradTry.run({given[0]}, {given[1]}, carried).then(f => {{ carried = f.state; return f; }})"
        )
        wanted, state = agent.predict(observation, state, step == 0, mask)
        for name, numbers in browser_export.by_part(agent.agent, wanted).items():
            np.testing.assert_allclose(found["action"][name], np.ravel(numbers), rtol=1e-5, atol=1e-5)
    assert browser.problems() == []
    assert browser.requests() == [page.as_uri()]


def batch_of(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: batch_of(entry) for key, entry in observation.items()}
    if isinstance(observation, tuple):
        return tuple(batch_of(entry) for entry in observation)
    return np.asarray(observation)[None]


@needs_runtime
def test_the_package_is_read_from_a_folder_or_an_archive_alike(tmp_path: Path) -> None:
    runtime = read_runtime(FOUND)
    assert "phasegradRuntime={InferenceSession:" in runtime.script
    assert "Copyright (c) Microsoft" in runtime.script
    assert "export{" not in runtime.script
    assert 1_000_000 < len(runtime.binary) < 6_000_000


@needs_browser
@pytest.mark.usefixtures("quick")
def test_the_section_moves_with_the_sliders_and_says_where_it_disagrees(
    browser: Browser, stand_in: Path, tmp_path: Path
) -> None:
    policy = playable(pg.PPO("CartPole-v1", seed=1, hidden_sizes=(4,)))
    for example in policy["examples"]:
        example["action"]["action"] = [1 if example["inputs"]["observation"][0] <= 0 else 0]
    run = write_run(tmp_path / "run", rows_of(6), env="CartPole-v1")
    page = write_report([run], tmp_path / "page.html", policy=policy, runtime=stand_in)
    browser.open(page.as_uri())
    assert browser.ask("document.getElementById('try-status').textContent") == "It starts when it comes into view."
    browser.ask("document.getElementById('try').scrollIntoView(); 1")
    text = browser.ask("new Promise(done => { const look = () => { const text = document.getElementById('try-status').textContent; /predict/.test(text) ? done(text) : setTimeout(look, 20); }; look(); })")  # fmt: skip
    assert text.startswith("Disagrees with predict by 1.0e+0")
    assert "warning" in browser.ask("document.getElementById('try-status').className")
    assert browser.ask("document.querySelector('main').lastElementChild.id") == "try"
    assert browser.ask("document.querySelector('nav').lastElementChild.textContent") == "Try the policy"
    slide = "(x) => { const range = document.querySelector('#try input'); range.value = x; range.dispatchEvent(new Event('input')); return phasegradTry.run({observation: [0, 0, 0, 0]}).then(() => [...document.querySelectorAll('.try-action .try-row')].map(row => [row.innerText.replace(/\\s+/g, ' '), row.classList.contains('try-chosen'), Math.round(row.querySelector('.try-fill').getBoundingClientRect().width / row.querySelector('.try-bar').getBoundingClientRect().width * 100)])); }"
    likely = round(100 / (1 + np.exp(-2.0)))
    up, down = browser.ask(f"({slide})(2)"), browser.ask(f"({slide})(-2)")
    assert [row[1:] for row in up[:2]] == [[False, 100 - likely], [True, likely]]
    assert [row[1:] for row in down[:2]] == [[True, likely], [False, 100 - likely]]
    assert up[2][0] == "value of this state 4"
    assert browser.ask("globalThis.fed") == ["observation"]
    browser.ask("document.querySelectorAll('.try-buttons button')[3].click(); 1")
    example = playable_examples(page)[3]["inputs"]["observation"]
    assert browser.ask("phasegradTry.shown.values.observation") == example
    assert browser.problems() == []
    assert browser.requests() == [page.as_uri()]


def playable_examples(page: Path) -> list[dict[str, Any]]:
    text = page.read_text().partition('id="try-data">')[2].partition("</script>")[0]
    found: list[dict[str, Any]] = json.loads(text)["examples"]
    return found


@pytest.mark.usefixtures("quick")
def test_only_such_a_page_lets_webassembly_run(stand_in: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows_of(6), env="CartPole-v1")
    plain = write_report([run], tmp_path / "plain.html").read_text()
    assert "wasm" not in plain
    assert 'id="try"' not in plain
    policy = playable(pg.PPO(Evil, seed=1, hidden_sizes=(4,)))
    policy["entries"][0]["name"] = EVIL
    page = write_report([run], tmp_path / "page.html", policy=policy, runtime=stand_in).read_text()
    assert page.count("'wasm-unsafe-eval'") == 1
    assert "unsafe-eval'" not in page.replace("'wasm-unsafe-eval'", "")
    assert EVIL not in page
    assert len(Elements(page).scripts) == len(Elements(plain).scripts) + 4
    assert write_report([run], tmp_path / "page.html").read_text().count("<section") == plain.count("<section")


@pytest.mark.usefixtures("quick")
def test_the_ranges_of_sliders_hold_what_was_seen(tmp_path: Path) -> None:
    for kind in ("counted", "clipped", "hybrid", "multi_binary"):
        data = playable(made(kind))
        for entry in data["entries"]:
            for example in data["examples"]:
                numbers = np.ravel(example["inputs"][entry["name"]])
                assert (np.array(entry["low"]) <= numbers + 1e-5).all(), entry
                assert (numbers <= np.array(entry["high"]) + 1e-5).all(), entry
            assert (np.array(entry["low"]) < np.array(entry["high"])).all()
    keys = next(entry for entry in playable(made("counted"))["entries"] if entry["name"] == "keys")
    assert (keys["low"], keys["high"]) == ([1, 0, -3, 100], [2, 2, 0, 104])
    labels = playable(made("masked"))["mask"]
    assert labels == ["0", "1", "2", "3", "4", "5"]


def many() -> gym.Env:
    env = FACTORIES["discrete"]()
    env.observation_space = spaces.Box(-1.0, 1.0, (65,))
    return env


@pytest.mark.usefixtures("quick")
def test_what_cannot_be_tried_is_one_sentence(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError, match=r"^A policy that sees images cannot be tried in the report: leave --try out\.$"):
        playable(pg.PPO(Picture, seed=1))
    with pytest.raises(RunError, match=r"^An observation of 65 numbers is too large"):
        playable(pg.PPO(many, seed=1))
    with pytest.raises(RunError, match=r"^The policy has [\d,]+ bytes, too many to be tried"):
        playable(pg.PPO(wide_box, seed=1, hidden_sizes=(400, 400)))
    monkeypatch.chdir(tmp_path)
    for name in ("run", "other"):
        write_run(tmp_path / name, rows_of(6), env="CartPole-v1")
    assert main(["report", "run", "--runtime", "x"]) == 2
    assert "--runtime is for a report with --try" in capsys.readouterr().err
    assert main(["report", "run", "--try"]) == 2
    said = capsys.readouterr().err
    assert "needs the npm package onnxruntime-web" in said
    assert said.count("\n") == 1
    assert main(["report", "run", "other", "--try", "--runtime", str(stand_in)]) == 2
    assert "--try shows the agent of one run" in capsys.readouterr().err


def archive(path: Path, **files: bytes) -> Path:
    with tarfile.open(path, "w:gz") as made_archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"package/{ {'glue': GLUE, 'binary': BINARY}[name] }")
            entry.size = len(content)
            made_archive.addfile(entry, io.BytesIO(content))
    return path


def test_packages_of_other_kinds_are_refused(stand_in: Path, tmp_path: Path) -> None:
    good = archive(tmp_path / "good.tgz", glue=STAND_IN.encode(), binary=(stand_in / BINARY).read_bytes())
    assert read_runtime(good) == read_runtime(stand_in)
    with pytest.raises(RunError, match="is not there or has no dist"):
        read_runtime(archive(tmp_path / "half.tgz", glue=STAND_IN.encode()))
    other = archive(tmp_path / "other.tgz", glue=b"export{a as Tensor}", binary=b"x")
    with pytest.raises(RunError, match="is not a version of onnxruntime-web that phasegrad knows"):
        read_runtime(other)
    hostile = STAND_IN.replace("/* stand-in */", "/* </SCRIPT> */").encode()
    with pytest.raises(RunError, match="is not a version of onnxruntime-web"):
        read_runtime(archive(tmp_path / "hostile.tgz", glue=hostile, binary=b"x"))
    (tmp_path / "text.tgz").write_text("no archive")
    with pytest.raises(RunError, match=r"cannot be read as the npm package onnxruntime-web: it is no sound archive\.$"):
        read_runtime(tmp_path / "text.tgz")
    whole = bytearray(good.read_bytes())
    whole[len(whole) // 2 :] = bytes(255 - byte for byte in whole[len(whole) // 2 :])
    (tmp_path / "damaged.tgz").write_bytes(whole)
    with pytest.raises(RunError, match="the npm package onnxruntime-web"):
        read_runtime(tmp_path / "damaged.tgz")
    os.mkfifo(tmp_path / "pipe.tgz")
    with pytest.raises(RunError, match="it is a named pipe, not a file"):
        read_runtime(tmp_path / "pipe.tgz")
