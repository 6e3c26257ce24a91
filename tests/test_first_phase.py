"""PPG on images where there is no GPU: the preset for CPUs, and how long the first auxiliary phase is in coming."""

from __future__ import annotations

from typing import Any

import pytest

import phasegrad as pg
from phasegrad import presets
from phasegrad.algorithms.ppg_settings import PPGConfig
from phasegrad.algorithms.ppo_settings import PPOConfig
from phasegrad.errors import PhasegradWarning
from phasegrad.machine import gpus
from phasegrad.presets import PRESETS, resolve_config
from phasegrad.runs.first_phase import first_phase_notice

PUBLISHED: dict[str, Any] = {
    "n_pi": 32, "e_aux": 6, "num_envs": 64, "num_steps": 256, "total_steps": 25_000_000, "preset": "procgen",
}  # fmt: skip
FIRST = {"iteration": 1, "step": 16_384, "sps": 200.0}


def preset_of(config: Any, **fields: Any) -> str:
    return str(resolve_config(config, {"env": "procgen/coinrun", **fields}).preset)


def test_ppg_on_procgen_takes_the_preset_for_cpus_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "has_gpu", lambda: False)
    assert preset_of(PPGConfig) == "procgen-fast"
    assert preset_of(PPGConfig, num_envs=8, learning_rate=1e-3, env_options={"distribution": "hard"}) == "procgen-fast"
    assert preset_of(PPGConfig, device="cuda") == "procgen"
    monkeypatch.setattr(presets, "has_gpu", lambda: True)
    assert preset_of(PPGConfig) == "procgen"
    assert preset_of(PPGConfig, device="cpu") == "procgen-fast"


@pytest.mark.parametrize(
    "field", [{"n_pi": 4}, {"arch": "dual"}, {"e_aux": 2}, {"encoder": "nature"}, {"num_steps": 64}]
)
def test_who_sets_what_the_presets_differ_in_keeps_the_published_one(field: dict[str, Any]) -> None:
    assert preset_of(PPGConfig, device="cpu", **field) == "procgen"


def test_other_algorithms_and_named_presets_stay_as_they_are() -> None:
    assert preset_of(PPOConfig, device="cpu") == "procgen"
    for name in (name for name in PRESETS if name.startswith("procgen")):
        assert preset_of(PPGConfig, device="cpu", preset=name) == name
    assert resolve_config(PPGConfig, {"env": "CartPole-v1", "device": "cpu"}).preset == "cartpole"


def test_a_torch_for_cpus_is_known_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "version", lambda package: "2.13.0+cpu")
    monkeypatch.delitem(gpus.sys.modules, "torch")
    assert not gpus.has_gpu()
    assert "torch" not in gpus.sys.modules


def test_a_long_way_to_the_first_phase_is_told() -> None:
    # 32 rollouts of 64 x 256 steps are 524,288; (524,288 - 16,384) / 200 a second = 2539.5 s
    assert first_phase_notice(PUBLISHED, FIRST, on_cpu=True) == (
        "PPG's first auxiliary phase comes after 524,288 steps, in about 42 minutes at this speed; preset procgen-fast is "
        "made for CPUs."
    )
    assert first_phase_notice(PUBLISHED, FIRST, on_cpu=False).endswith("; a lower n_pi brings it sooner.")
    atari = first_phase_notice({**PUBLISHED, "preset": "atari"}, FIRST, on_cpu=True)
    assert atari.endswith("; a lower n_pi brings it sooner.")


def test_compiling_is_no_part_of_the_speed() -> None:
    slow = {**FIRST, "sps": 100.0, "time_compile": 0.5}
    assert first_phase_notice(PUBLISHED, slow, on_cpu=True) == first_phase_notice(PUBLISHED, FIRST, on_cpu=True)


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ({}, {"iteration": 2}),  # told already
        ({"e_aux": 0}, {}),  # no such phase
        ({}, {"sps": 20_000.0}),  # 25 s
        ({"total_steps": 32_768}, {}),  # a short run has its phase at its end
    ],
)
def test_what_needs_no_notice(settings: dict[str, Any], row: dict[str, Any]) -> None:
    assert first_phase_notice({**PUBLISHED, **settings}, {**FIRST, **row}, on_cpu=True) == ""


def test_a_run_says_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from phasegrad.runs import first_phase

    monkeypatch.setattr(first_phase, "WORTH_SAYING", 0.0)
    agent = pg.PPG("CartPole-v1", preset="none", n_pi=3, num_envs=2, num_steps=8, num_minibatches=2, eval_episodes=0)
    with pytest.warns(PhasegradWarning, match="first auxiliary phase comes after 48 steps, in about 0 minutes") as told:
        agent.learn(96)
    assert len([each for each in told if "auxiliary phase" in str(each.message)]) == 1
