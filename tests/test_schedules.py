"""Schedules as functions: their closed forms, what one may write for them, and how settings take them."""

from __future__ import annotations

import copy
import json
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from phasegrad.algorithms.a2c_settings import A2CConfig
from phasegrad.algorithms.acer_settings import ACERConfig
from phasegrad.algorithms.ppg_settings import PPGConfig
from phasegrad.algorithms.ppo_settings import PPOConfig
from phasegrad.algorithms.trpo_settings import TRPOConfig
from phasegrad.algorithms.vpg_settings import VPGConfig
from phasegrad.config import Config, documented_fields, first_difference, make_config
from phasegrad.errors import ConfigError, PhasegradWarning
from phasegrad.presets import resolve_config
from phasegrad.schedules import Scheduled, adapted_learning_rate, as_given

CONFIGS: list[type[Config]] = [PPOConfig, PPGConfig, A2CConfig, VPGConfig, TRPOConfig, ACERConfig]
NUMBERS = some.floats(0.0, 10.0)
SHARES = some.floats(0.0, 1.0)


def value_at(text: Any, progress: float, name: str = "learning_rate") -> float:
    """What a setting is at a point of the run, by the way that a run takes."""
    config = make_config(PPOConfig, {name: text})
    config.follow(progress)
    value = getattr(config, name)
    assert value == config.schedules()[name]
    return float(value)


def refused(config_class: type[Config] = PPOConfig, **fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_config(config_class, {"preset": "none", **fields})
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


# Closed forms


@given(NUMBERS, NUMBERS, SHARES)
def test_linear_is_the_line_between_its_ends(start: float, end: float, progress: float) -> None:
    found = value_at(f"linear:{start!r}:{end!r}", progress)
    assert found == pytest.approx(np.interp(progress, [0.0, 1.0], [start, end]), abs=1e-12)
    assert min(start, end) - 1e-12 <= found <= max(start, end) + 1e-12


@given(NUMBERS, SHARES)
def test_linear_to_zero_has_the_bits_of_annealing(start: float, progress: float) -> None:
    assert value_at(f"linear:{start!r}", progress) == start * (1.0 - progress)


@settings(deadline=None)
@given(NUMBERS, NUMBERS, SHARES)
def test_cosine_is_torchs(start: float, end: float, progress: float) -> None:
    """CosineAnnealingLR by its closed form at step `progress` of 1."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=start)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1, eta_min=end)
    theirs.last_epoch = progress  # type: ignore[assignment]
    found = value_at(f"cosine:{start!r}:{end!r}", progress)
    assert found == pytest.approx(theirs._get_closed_form_lr()[0], abs=1e-12)  # type: ignore[attr-defined]
    assert min(start, end) - 1e-12 <= found <= max(start, end) + 1e-12


@given(some.floats(1e-6, 10.0), SHARES)
def test_constant_is_constant(number: float, progress: float) -> None:
    assert value_at(f"constant:{number!r}", progress) == number


@given(some.floats(0.01, 0.99), some.floats(1e-6, 10.0), NUMBERS, SHARES, some.sampled_from(["linear", "cosine"]))
def test_a_warm_up_rises_from_zero_and_hands_over(
    share: float, start: float, end: float, progress: float, kind: str
) -> None:
    text = f"warmup:{share!r}:{kind}:{start!r}:{end!r}"
    found = value_at(text, progress)
    if progress < share:
        assert found == pytest.approx(start * progress / share)
    else:
        assert found == pytest.approx(value_at(f"{kind}:{start!r}:{end!r}", (progress - share) / (1 - share)))
    assert value_at(text, 0.0) == 0.0
    assert value_at(text, share) == pytest.approx(start)
    assert value_at(text, share * (1 - 1e-9)) == pytest.approx(start, rel=1e-6)
    assert value_at(text, 1.0) == pytest.approx(end, abs=1e-9)


@given(some.floats(1e-9, 1.0), some.floats(0.0, 1.0), some.floats(1e-4, 0.1))
def test_the_adaptive_rule(rate: float, kl: float, target: float) -> None:
    found = adapted_learning_rate(rate, kl, target)
    if kl > 2 * target:
        assert found == max(rate / 1.5, 1e-6)
    elif kl < target / 2:
        assert found == min(rate * 1.5, 1e-2)
    else:
        assert found == rate


# What one may write


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("linear", "linear:0.0003:0"),
        ("LINEAR:1e-3", "linear:0.001:0"),
        ("linear:1e-3:1e-5", "linear:0.001:1e-05"),
        ("cosine", "cosine:0.0003:0"),
        ("cosine: 1e-3 : 1e-5", "cosine:0.001:1e-05"),
        ("constant:3e-4", "constant:0.0003"),
        ("constant", "constant:0.0003"),
        ("warmup:0.05:cosine:1e-3:1e-5", "warmup:0.05:cosine:0.001:1e-05"),
        ("warmup:.1:linear", "warmup:0.1:linear:0.0003:0"),
        ("warmup:0.1:3e-4", "warmup:0.1:constant:0.0003"),
        ("0.001", 0.001),
        (1e-3, 1e-3),
    ],
)
def test_what_is_written_is_kept_whole(written: Any, kept: Any) -> None:
    """So that files say all of it, and read the same whatever the defaults are then."""
    config = make_config(PPOConfig, {"learning_rate": written})
    assert config.to_json()["learning_rate"] == kept
    again = make_config(PPOConfig, json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.to_json() == config.to_json()
    assert pickle.loads(pickle.dumps(config)).to_json() == copy.deepcopy(config).to_json() == config.to_json()


@pytest.mark.parametrize(
    "text",
    ["linar:1e-3", "linear:", "linear:x", "linear:1:2:3", "cosine:nan", "constant:1:2", "nan", "", ":", "1e-3:1e-5"],
)
def test_a_bad_text_is_told_by_an_example(text: str) -> None:
    found = refused(learning_rate=text)
    assert found.startswith(
        "learning_rate must be a finite number or a schedule such as linear:1e-3:1e-5, cosine:1e-3, constant:3e-4 or "
        f"warmup:0.05:linear:1e-3, not {text!r}."
    )
    assert ("Did you mean linear?" in found) == (text == "linar:1e-3")


@pytest.mark.parametrize("text", ["warmup", "warmup:0.1", "warmup:0:linear", "warmup:1:linear", "warmup:x:linear"])
def test_a_bad_warm_up_is_told_by_an_example(text: str) -> None:
    assert "a warm-up is warmup:FRACTION:SCHEDULE" in refused(learning_rate=text)
    assert "such as warmup:0.05:linear:1e-3" in refused(entropy_coef=f"{text}:warmup:0.1:linear")


def test_numbers_of_a_schedule_are_in_the_settings_range() -> None:
    assert refused(learning_rate="linear:-1") == "learning_rate must be at least 0, not -1.0."
    assert refused(clip_range="cosine:0.2:-0.1") == "clip_range must be at least 0, not -0.1."
    assert refused(learning_rate=lambda progress: 0.5 if progress < 0.9 else -1.0) == (
        "learning_rate must be at least 0, not -1.0."
    )


def test_nothing_to_start_from() -> None:
    assert refused(entropy_coef="linear") == (
        "entropy_coef linear has nothing to start from, since entropy_coef would be 0: give the start too, such as "
        "linear:0.01."
    )
    assert resolve_config(A2CConfig, {"entropy_coef": "linear"}).to_json()["entropy_coef"] == "linear:0.01:0"


def test_settings_without_schedules_take_none() -> None:
    assert refused(gamma="linear").startswith("gamma must be a finite number, not 'linear'.")
    assert refused(value_clip="linear:1:0").startswith("value_clip must be a finite number")


@pytest.mark.parametrize("config_class", CONFIGS)
def test_which_settings_have_schedules(config_class: type[Config]) -> None:
    fields = documented_fields(config_class)
    scheduled = {name for name, field in fields.items() if field.metadata.get("scheduled")}
    rates = {name for name in fields if name.endswith("learning_rate") and fields[name].type != "bool"}
    wanted = rates | {"clip_range", "entropy_coef", "value_coef", "beta_clone", "q_coef", "max_kl"} - {
        "kl_learning_rate"
    }
    assert scheduled == (wanted - {"kl_learning_rate"}) & fields.keys()
    for name in scheduled:
        assert fields[name].metadata["live"]
        assert "schedule" in fields[name].metadata["help"].lower()


# A function of progress


def halving(progress: float) -> float:
    return 1e-3 * 0.5 ** (4 * progress)


def test_a_function_gives_the_number_of_each_point() -> None:
    config = make_config(PPOConfig, {"learning_rate": halving, "clip_range": np.cos})
    for progress in (0.0, 0.3, 0.99):
        config.follow(progress)
        assert config.learning_rate == halving(progress)  # type: ignore[attr-defined]
        assert config.clip_range == math.cos(progress)  # type: ignore[attr-defined]
    assert config.to_json()["learning_rate"] == "custom:halving"


def test_a_function_of_the_remaining_progress_is_told() -> None:
    """As Stable-Baselines3's users bring it: by its parameter's name, or by its rise."""

    def linear_schedule(progress_remaining: float) -> float:
        return progress_remaining * 3e-4

    class LinearSchedule:
        def __call__(self, progress_remaining: float) -> float:
            return progress_remaining * 3e-4

    for function in (linear_schedule, LinearSchedule()):
        found = refused(learning_rate=function)
        assert "a function of the remaining progress, as Stable-Baselines3 has them" in found
        assert "learning_rate=lambda progress:" in found
    with pytest.warns(PhasegradWarning, match="learning_rate rises from 0 to 0.0003 over the run"):
        make_config(PPOConfig, {"learning_rate": lambda x: x * 3e-4})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_config(PPOConfig, {"learning_rate": lambda progress: linear_schedule(1 - progress)})


def test_a_function_that_is_none_of_progress_is_told() -> None:
    assert "must be a function from the progress (0 to 1) to a number" in refused(learning_rate=lambda: 1e-3)
    assert "it failed: ZeroDivisionError" in refused(learning_rate=lambda progress: 1 / progress)
    assert "must give finite numbers" in refused(learning_rate=lambda progress: math.inf)
    assert "the same number for the same progress" in refused(learning_rate=lambda _: np.random.rand())
    assert "learning_rate custom:halving names a function" in refused(learning_rate="custom:halving")

    def seldom_wrong(progress: float) -> float:
        if progress == 0.123:
            raise OverflowError("too far")
        return -1.0 if progress == 0.124 else 1e-3

    config = make_config(PPOConfig, {"learning_rate": seldom_wrong})
    with pytest.raises(
        ConfigError, match=r"The schedule of learning_rate failed at progress 0\.123: OverflowError too far"
    ):
        config.follow(0.123)
    with pytest.raises(ConfigError, match="learning_rate must be at least 0"):
        config.follow(0.124)


# Beside presets, annealing and the adaptive rate


def test_a_schedule_starts_at_the_presets_value() -> None:
    config = resolve_config(PPOConfig, {"env": "CartPole-v1", "learning_rate": "linear", "clip_range": "cosine"})
    assert config.to_json()["learning_rate"] == "linear:0.001:0"
    assert config.to_json()["clip_range"] == "cosine:0.2:0"
    assert not config.anneal_learning_rate  # the preset anneals, but the user asks for a schedule
    assert not config.anneal_clip_range
    fields = {"preset": "none", "critic_learning_rate": "linear"}
    assert resolve_config(PPOConfig, fields).to_json()["critic_learning_rate"] == "linear:0.0003:0"
    found = resolve_config(PPOConfig, fields | {"learning_rate": "cosine:2e-3"}).to_json()
    assert found["critic_learning_rate"] == "linear:0.002:0"


def test_a_preset_file_may_have_schedules(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"learning_rate": "warmup:0.1:cosine:2e-3", "entropy_coef": "linear:0.02"}))
    config = resolve_config(PPOConfig, {"preset": str(file)})
    assert config.to_json()["learning_rate"] == "warmup:0.1:cosine:0.002:0"
    assert resolve_config(PPOConfig, {"preset": str(file), "learning_rate": "linear"}).learning_rate == 2e-3
    assert resolve_config(PPOConfig, {"preset": str(file), "learning_rate": 1e-4}).to_json()["learning_rate"] == 1e-4


def test_the_other_rate_goes_on_falling_where_a_preset_anneals() -> None:
    found = resolve_config(VPGConfig, {"env": "CartPole-v1", "learning_rate": "constant:1e-3"}).to_json()
    assert (found["learning_rate"], found["critic_learning_rate"]) == ("constant:0.001", "linear:0.003:0")
    found = resolve_config(VPGConfig, {"env": "CartPole-v1", "critic_learning_rate": "cosine"}).to_json()
    assert (found["learning_rate"], found["critic_learning_rate"]) == ("linear:0.01:0", "cosine:0.003:0")
    found = resolve_config(VPGConfig, {"env": "CartPole-v1", "kl_learning_rate": 0.01}).to_json()
    assert (found["learning_rate"], found["critic_learning_rate"]) == (0.01, "linear:0.003:0")
    assert not found["anneal_learning_rate"]


def test_two_schedules_of_one_setting_are_refused() -> None:
    text = "learning_rate linear:0.001:0 and anneal_learning_rate are two schedules of one setting: turn"
    assert text in refused(learning_rate="linear:1e-3", anneal_learning_rate=True)
    assert "critic_learning_rate cosine:0.0003:0 and" in refused(
        critic_learning_rate="cosine", anneal_learning_rate=True
    )
    assert "clip_range linear:0.2:0 and anneal_clip_range" in refused(clip_range="linear", anneal_clip_range=True)
    assert "kl_learning_rate and learning_rate cosine:0.0003:0 both decide" in refused(
        learning_rate="cosine", kl_learning_rate=0.01
    )
    assert "kl_learning_rate and anneal_learning_rate both" in refused(anneal_learning_rate=True, kl_learning_rate=0.01)


def test_where_the_rate_cannot_adapt() -> None:
    assert refused(learning_rate=0.05, kl_learning_rate=0.01) == (
        "learning_rate must be from 1e-06 to 0.01 to begin with where kl_learning_rate adapts it, not 0.05."
    )
    assert "e_pi 1 or more" in refused(PPGConfig, e_pi=0, kl_learning_rate=0.01)
    for config_class, name in ((TRPOConfig, "trpo"), (ACERConfig, "acer")):
        assert refused(config_class, kl_learning_rate=0.01).startswith(
            f"Unknown setting 'kl_learning_rate' for {name}."
        )


def test_a_config_is_another_one_with_another_schedule() -> None:
    linear, cosine, number = (make_config(PPOConfig, {"learning_rate": x}) for x in ("linear", "cosine", 3e-4))
    assert linear.learning_rate == cosine.learning_rate * 1.0  # type: ignore[attr-defined]
    assert linear != cosine
    assert first_difference(linear.to_json(), number.to_json()) == ("learning_rate", 3e-4, "linear:0.0003:0")
    wanted = {"learning_rate": Scheduled(linear.learning_rate.schedule)}  # type: ignore[attr-defined]
    assert first_difference(wanted, linear.to_json()) is None
    assert first_difference(wanted, cosine.to_json()) == ("learning_rate", "cosine:0.0003:0", "linear:0.0003:0")
    assert as_given(linear.learning_rate) == "linear:0.0003:0"  # type: ignore[attr-defined]
