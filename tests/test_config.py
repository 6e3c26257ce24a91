"""Settings: what is refused and in which words, how text is read, and which of default, preset and user wins."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from phasegrad.algorithms.ppg import PPGConfig
from phasegrad.algorithms.ppo import PPOConfig
from phasegrad.config import Config, documented_fields, make_config
from phasegrad.errors import ConfigError
from phasegrad.presets import PRESETS, preset_for, resolve_config


def made(**values: Any) -> PPOConfig:
    config = make_config(PPOConfig, values)
    assert isinstance(config, PPOConfig)
    return config


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as error:
        make_config(PPOConfig, values)
    message = str(error.value)
    assert message.endswith((".", "?"))
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("learning_rat", "learning_rate"),
        ("num_env", "num_envs"),
        ("clip-range", "clip_range"),
        ("Gamma", "gamma"),
        ("minibatches", "num_minibatches"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(wrong: str, meant: str) -> None:
    message = refusal(**{wrong: 1})
    assert repr(wrong) in message
    assert "Did you mean" in message
    assert meant in message


def test_a_field_like_no_other_is_refused_without_a_guess() -> None:
    assert refusal(zzzzqqqq=1) == "Unknown setting 'zzzzqqqq' for ppo."


@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("gamma", [0, 0.5, 1, "0.99"], [-0.01, 1.01, "2", "nan", "inf"]),
        ("gae_lambda", [0, 1], [-1e-9, 1.0001]),
        ("num_envs", [1, 4096], [0, -1]),
        ("total_steps", [1, "1e9"], [0, -5]),
        ("seed", [0, 2**31 - 1], [-1, 2**31]),
        ("epochs", [1], [0]),
        ("clip_range", [0, 0.3], [-0.1]),
        ("learning_rate", [0, 1e-3], [-1e-3]),
        ("reward_gamma", [None, 0, 1, "none"], [1.5]),
        ("hidden_sizes", [(1,), "8,8"], [(64, 0), "-1"]),
        ("initial_std", [1e-6, 2], [0]),
    ],
)
def test_ranges(field: str, inside: list[Any], outside: list[Any]) -> None:
    for value in inside:
        made(**{field: value})
    for value in outside:
        assert refusal(**{field: value}).startswith(f"{field} must be ")


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(PPOConfig) if f.metadata.get("choices")])
def test_choices(field: str) -> None:
    choices = documented_fields(PPOConfig)[field].metadata["choices"]
    for choice in choices:
        assert getattr(made(**{field: choice}), field) == choice
    message = refusal(**{field: choices[-1] + "x"})
    assert message.startswith(f"{field} must be one of {', '.join(choices)}, not '{choices[-1]}x'.")
    assert f"Did you mean {choices[-1]}" in message or len(choices[-1]) < 3


def test_an_unknown_encoder_or_device_is_refused() -> None:
    assert "Did you mean impala" in refusal(encoder="impalla")
    assert "callable" in refusal(encoder=3)
    assert refusal(device="tpu") == "device must be auto, cpu or cuda[:N], not 'tpu'."


@pytest.mark.parametrize("text", ["1e6", "1_000_000", "1000000", "1000000.0", 1e6, 1_000_000, "+1e6"])
def test_whole_numbers_are_read_in_every_usual_way(text: Any) -> None:
    total = made(total_steps=text).total_steps
    assert total == 1_000_000
    assert type(total) is int


@pytest.mark.parametrize("text", ["1.5", 1.5, "many", "", None, True, "1e400", "nan", "1__0", [3]])
def test_what_is_no_whole_number_is_refused(text: Any) -> None:
    assert refusal(total_steps=text).startswith("total_steps must be a whole number")


@pytest.mark.parametrize("text", ["fast", "", None, "inf", "nan", float("inf"), [1.0]])
def test_what_is_no_finite_number_is_refused(text: Any) -> None:
    assert refusal(learning_rate=text).startswith("learning_rate must be a finite number")


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64,64", (64, 64)),
        ("32", (32,)),
        (32, (32,)),
        ([8, 16], (8, 16)),
        ("8, 16,", (8, 16)),
        ((5,), (5,)),
        ("1e2,2", (100, 2)),
    ],
)
def test_tuples(text: Any, sizes: tuple[int, ...]) -> None:
    assert made(hidden_sizes=text).hidden_sizes == sizes


@pytest.mark.parametrize("text", ["64,wide", ["wide"], 2.5, None, True, [[64]]])
def test_what_is_no_tuple_of_whole_numbers_is_refused(text: Any) -> None:
    assert refusal(hidden_sizes=text).startswith("hidden_sizes must be ")


def test_bools() -> None:
    for text in ("true", "True", "yes", "on", "1", True, 1):
        assert made(value_clip=0, normalize_reward=text).normalize_reward is True
    for text in ("false", "FALSE", "no", "off", "0", False, 0):
        assert made(bootstrap_truncated=text).bootstrap_truncated is False
    for text in ("maybe", "", 2, None):
        assert refusal(normalize_reward=text).startswith("normalize_reward must be true or false")


def test_contradictions_are_refused() -> None:
    message = refusal(num_envs=2, num_steps=4, num_minibatches=9)
    assert message == "num_minibatches 9 is more than the 8 samples (num_envs x num_steps) of a rollout: lower it."
    assert "2 environments (whole_segments)" in refusal(
        num_envs=2, num_steps=64, num_minibatches=3, whole_segments=True
    )
    assert made(num_envs=2, num_steps=4, num_minibatches=8).batch_size == 8
    assert "critic_learning_rate" in refusal(arch="shared", critic_learning_rate=1e-3)
    assert "kl_target belongs to objective kl" in refusal(kl_target=0.01)
    assert made(objective="kl", kl_target=0.01).kl_target == 0.01


def test_default_then_preset_then_user() -> None:
    default = PPOConfig()
    fields = PRESETS["cartpole"].fields("ppo")
    assert fields["num_steps"] != default.num_steps, "the test needs a preset that differs"
    plain = resolve_config(PPOConfig, {"env": "CartPole-v1", "preset": "none"})
    assert plain.num_steps == default.num_steps
    preset = resolve_config(PPOConfig, {"env": "CartPole-v1"})
    assert {name: getattr(preset, name) for name in fields} == fields
    assert preset.preset == "cartpole"
    mine = resolve_config(PPOConfig, {"env": "CartPole-v1", "num_steps": "17", "gamma": 0.5})
    assert (mine.num_steps, mine.gamma, mine.learning_rate) == (17, 0.5, fields["learning_rate"])
    other = resolve_config(PPOConfig, {"env": "CartPole-v1", "preset": "atari"})
    assert other.encoder == "nature"


def test_preset_sizes_give_way_to_the_user_but_the_user_is_held_to_theirs() -> None:
    small = resolve_config(PPOConfig, {"env": "HalfCheetah-v4", "num_envs": 1, "num_steps": 8})
    assert small.num_minibatches == 8
    segments = resolve_config(PPOConfig, {"env": "HalfCheetah-v4", "whole_segments": True, "num_envs": 8})
    assert segments.num_minibatches == segments.num_envs == 8
    with pytest.raises(ConfigError, match="num_minibatches 9"):
        resolve_config(PPOConfig, {"env": "HalfCheetah-v4", "num_envs": 1, "num_steps": 8, "num_minibatches": 9})


@pytest.mark.parametrize(("num_envs", "num_steps"), [(1, 2048), (8, 256), (64, 32), (128, 32)])
def test_fewer_environments_than_the_presets_many_have_longer_rollouts(num_envs: int, num_steps: int) -> None:
    for config_class in (PPOConfig, PPGConfig):
        config = resolve_config(config_class, {"env": "HalfCheetah-v5", "num_envs": num_envs})
        assert (config.num_steps, config.num_minibatches) == (num_steps, 32)
    mine = resolve_config(PPOConfig, {"env": "HalfCheetah-v5", "num_envs": num_envs, "num_steps": 16})
    assert mine.num_steps == 16, "what a user sets stays"
    other = resolve_config(PPOConfig, {"env": "CartPole-v1", "num_envs": 1})
    assert other.num_steps == PRESETS["cartpole"].fields("ppo")["num_steps"]


@pytest.mark.parametrize(
    ("env", "preset"),
    [
        ("CartPole-v1", "cartpole"),
        ("Acrobot-v1", "acrobot"),
        ("MountainCar-v0", "classic"),
        ("Pendulum-v1", "pendulum"),
        ("LunarLander-v3", "box2d"),
        ("BipedalWalker-v3", "bipedal-walker"),
        ("gymnasium:BipedalWalker-v3", "bipedal-walker"),
        ("Ant-v5", "ant"),
        ("gymnasium:Ant-v5", "ant"),
        ("Humanoid-v5", "ant"),
        ("Walker2d-v4", "walker2d"),
        ("gymnasium:Walker2d-v5", "walker2d"),
        ("Humanoid-v4", "mujoco"),
        ("HumanoidStandup-v5", "mujoco"),
        ("Ant-v4", "mujoco"),
        ("gymnasium:Ant-v4", "mujoco"),
        ("BipedalWalkerHardcore-v3", "box2d"),
        ("InvertedPendulum-v5", "inverted-pendulum"),
        ("HalfCheetah-v4", "mujoco"),
        ("Pong-v5", "atari"),
        ("procgen/coinrun", "procgen"),
        ("custom:MyEnv", "none"),
        ("", "none"),
        ("NoSuchEnv-v0", "none"),
    ],
)
def test_auto_finds_the_preset_of_known_families(env: str, preset: str) -> None:
    assert preset_for(env) == preset
    assert resolve_config(PPOConfig, {"env": env}).preset == preset


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name: str) -> None:
    config = resolve_config(PPOConfig, {"env": "custom:Env", "preset": name})
    known = documented_fields(PPOConfig)
    assert set(PRESETS[name].fields("ppo")) <= set(known), "a misspelt field of a preset would be dropped in silence"
    assert config.preset == name


def test_presets_by_name_and_by_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Unknown preset .cartpol.: did you mean cartpole\?"):
        resolve_config(PPOConfig, {"preset": "cartpol"})
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"algorithm": "ppo", "num_steps": 33, "gamma": 0.5}))
    config = resolve_config(PPOConfig, {"preset": str(file), "gamma": 0.6})
    assert (config.num_steps, config.gamma) == (33, 0.6)
    for content, words in (("{", "not valid JSON"), ("[1]", "one JSON object")):
        file.write_text(content)
        with pytest.raises(ConfigError, match=words):
            resolve_config(PPOConfig, {"preset": str(file)})
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve_config(PPOConfig, {"preset": str(tmp_path / "none.json")})


def test_a_misspelt_field_of_a_preset_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"num_stepps": 33}))
    with pytest.raises(ConfigError, match="num_steps"):
        resolve_config(PPOConfig, {"preset": str(file)})


def test_json_round_trip() -> None:
    config = made(
        env="CartPole-v1", env_options={"a": [1, {"b": None}]}, hidden_sizes=(3, 4), reward_gamma=None, gamma=0.1 + 0.2,
        normalize_reward=True, critic_learning_rate=1e-7, total_steps=10**12,
    )  # fmt: skip
    again = make_config(PPOConfig, json.loads(json.dumps(config.to_json())))
    assert again == config
    assert set(config.to_json()) == set(documented_fields(PPOConfig))


def test_a_custom_encoder_goes_into_json_by_name() -> None:
    def my_encoder(space: Any) -> Any:
        return None

    assert json.loads(json.dumps(made(encoder=my_encoder).to_json()))["encoder"] == "custom:my_encoder"


def test_every_field_is_documented() -> None:
    for config_class in (Config, PPOConfig):
        for name, field in documented_fields(config_class).items():
            assert len(field.metadata.get("help", "")) > 5, name


def test_defaults_are_valid() -> None:
    assert make_config(PPOConfig, PPOConfig().to_json()) == PPOConfig()
