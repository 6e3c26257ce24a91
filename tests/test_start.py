"""What a run imports before it trains, and that what it leaves out is still whole for whoever asks for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machine import needs_compiler

from phasegrad.envs import envpool_ids

HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "matplotlib", "tensorboard", "fsspec", "envpool.jumanji")
TRAINED = """
import json, sys
import phasegrad as pg

settings = json.loads(sys.argv[1])
agent = pg.PPO(**settings, num_envs=4, num_steps=16, preset="none", eval_episodes=4, seed=1, run_dir=sys.argv[2])
agent.learn(256)
way = agent.stepper.way
registered = [name for name in sys.modules if name.startswith("envpool.") and ".registration" in name[8:]]
print(json.dumps([way, [name for name in json.loads(sys.argv[3]) if name in sys.modules], sorted(registered)]))
"""


def told(code: str, *arguments: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        pytest.param({"env": "CartPole-v1", "compile": "on", "value_clip": 0.2}, "compiled", marks=needs_compiler),
        ({"env": "Pendulum-v1", "compile": "replay"}, "traced"),
    ],
)
def test_a_run_imports_no_compilers_of_torch_and_one_package_of_envpool(
    settings: dict[str, Any], way: str, tmp_path: Any
) -> None:
    found = told(TRAINED, json.dumps(settings), str(tmp_path / "run"), json.dumps(HEAVY))
    assert found == [way, [], ["envpool.classic_control.registration"]]


WHOLE = "import json, envpool; print(json.dumps(envpool.list_all_envs()))"
AFTERWARDS = """
import json, sys
from phasegrad.envs import resolve
from phasegrad.envs.envpool_ids import package_of

resolve("CartPole-v1")
{imported}
import envpool
from envpool.registration import registry

assert "envpool.jumanji" not in sys.modules
{asked}
assert envpool.entry.__name__ == "envpool.entry"
assert envpool.make_spec("Catch-v0").config
assert package_of("Snake-v1") == "envpool.jumanji" and package_of("Nobody-v0") is None
print(json.dumps(list(registry.envpools)))
"""


@pytest.fixture(scope="module")
def whole() -> list[str]:
    """Every id, in the order of an envpool that nobody else has imported."""
    found = told(WHOLE)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("imported", "asked"),
    [
        ("", "assert len(envpool.list_all_envs()) > 1000"),
        ("resolve('procgen/coinrun')", "assert 'Snake-v1' in registry.specs"),
        ("resolve('Pong-v5')", "assert registry.specs['Snake-v1'][0] == 'envpool.jumanji'"),
        ("resolve('Hopper-v5')", "assert registry.envpools.get('Snake-v1') and registry.specs.get('Nobody-v0', 3) == 3"),
        ("", "assert dict(registry.specs) == {**registry.specs} and len(registry.envpools) > 1000"),
        ("", "envpool.register('Mine-v0', 'mine', 'Spec', 'DM', 'Gymnasium')\ndel registry.specs['Mine-v0'], registry.envpools['Mine-v0']"),
        ("", "import envpool.entry"),
    ],
)  # fmt: skip
def test_whoever_uses_envpool_in_the_same_process_finds_it_whole(imported: str, asked: str, whole: list[str]) -> None:
    assert told(AFTERWARDS.format(imported=imported, asked=asked)) == whole


def test_an_envpool_that_was_imported_before_is_used_as_it_is(whole: list[str]) -> None:
    code = AFTERWARDS.format(imported="", asked="assert registry.specs is kept and type(kept) is dict")
    code = code.replace('assert "envpool.jumanji" not in sys.modules', "")
    assert told(f"import envpool; kept = envpool.registration.registry.specs\n{code}") == whole


@pytest.mark.parametrize("line", ["print()", "import numpy", "from envpool.registration import make"])
def test_where_envpool_registers_in_another_way_it_is_imported_as_a_whole(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, envpool_ids.ENTRY, raising=False)
    assert "envpool.classic_control" in envpool_ids._all_packages()
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: f"{real(path)}\n{line}\n")
    assert envpool_ids._all_packages() == []
