"""Images of every kind: which encoder sees them, how their numbers are scaled, and that agents train on them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import safetensors.torch
import torch
from gymnasium import spaces
from interrupted import resumed_to_the_same_bits
from machine import needs_compiler

import phasegrad as pg
from phasegrad.compute.native.convolutions import compile_convolutions
from phasegrad.envs.spaces import flatten
from phasegrad.errors import ConfigError, PhasegradWarning
from phasegrad.models.encoders import GridCNN, ImageEncoder, ImpalaCNN, NatureCNN, VectorEncoder, build_encoder
from phasegrad.models.images import ImageSpace, with_images

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 2, "num_steps": 8, "epochs": 1, "num_minibatches": 2, "seed": 3, "compile": "off",
    "hidden_sizes": (8,), "impala_channels": (4,),
}  # fmt: skip
KINDS: dict[str, tuple[float, float, Any]] = {
    "uint8": (0, 255, np.uint8), "unit": (0, 1, np.float32), "double": (0, 1, np.float64), "signed": (-1, 1, np.float32),
    "bright": (0, 255, np.float32), "bool": (0, 1, np.bool_), "codes": (0, 10, np.int64), "depth": (0, 65535, np.uint16),
}  # fmt: skip


def image(kind: str, size: int, channels: int, first: bool) -> spaces.Box:
    low, high, dtype = KINDS[kind]
    return spaces.Box(low, high, (channels, size, size) if first else (size, size, channels), dtype)


def encoder_of(space: gym.Space, name: Any = "auto", images: str = "all", **how: Any) -> Any:
    settings = {"hidden_sizes": (8,), "activation": "tanh", "impala_channels": (4,), "impala_pooling": "flatten"}
    return build_encoder(flatten(space), name, images=images, **{**settings, **how})


def batch_of(space: gym.Space, count: int = 3, seed: int = 0) -> torch.Tensor:
    space.seed(seed)
    flat = flatten(space)
    return torch.from_numpy(np.stack([space.sample() for _ in range(count)]).astype(flat.dtype))


class Brightness(gym.Env):
    """The action says whether the picture is bright; of any space."""

    def __init__(self, space: spaces.Box) -> None:
        self.observation_space, self.action_space, self.box = space, spaces.Discrete(2), space
        self.steps = 0

    def _picture(self) -> np.ndarray:
        self.bright = bool(self.np_random.random() < 0.5)
        bound = self.box.high if self.bright else self.box.low
        return np.where(np.isfinite(bound), bound, 1.0 if self.bright else 0.0).astype(self.box.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, self.steps = float(int(action) == self.bright), self.steps + 1
        return self._picture(), reward, self.steps >= 10, False, {}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_size_and_layout_gets_the_encoder_that_fits(kind: str) -> None:
    for size in (3, 4, 7, 16, 35, 36, 84):
        for channels in (1, 3, 4, 12, 16):
            both = [encoder_of(image(kind, size, channels, first)) for first in (True, False)]
            if channels != size:
                wanted = VectorEncoder if size < 4 else GridCNN if size < 36 else NatureCNN
                assert [type(each) for each in both] == [wanted, wanted], (size, channels)
            for each, first in zip(both, (True, False), strict=True):
                if isinstance(each, ImageEncoder) and channels != size:
                    assert (each.image_shape, each.channels_first) == ((channels, size, size), first)
                with torch.no_grad():
                    features = each(batch_of(image(kind, size, channels, first)))
                assert features.shape == (3, each.features)
                assert features.isfinite().all()


@pytest.mark.parametrize(
    ("kind", "encoder", "scale"),
    [
        ("uint8", "nature", 1 / 255), ("unit", "nature", 1), ("double", "nature", 1), ("signed", "nature", 1), ("bool", "nature", 1),
        ("bright", "nature", 1 / 255), ("codes", "nature", 1 / 10), ("depth", "nature", 1 / 65535),
        ("uint8", "grid", 1 / 10), ("unit", "grid", 1), ("bool", "grid", 1), ("codes", "grid", 1 / 10),
    ],
)  # fmt: skip
def test_numbers_are_scaled_by_their_bounds_and_bytes_as_ever(kind: str, encoder: str, scale: float) -> None:
    space = image(kind, 40, 3, False)
    made, batch = encoder_of(space, encoder), batch_of(space)
    before = batch.clone()
    pixels = made.pixels(batch)
    torch.testing.assert_close(pixels, before.permute(0, 3, 1, 2).float() * scale)
    made(batch)
    assert torch.equal(batch, before)  # floats may be what the rollout stores


def test_a_float_image_has_the_features_of_its_bytes() -> None:
    torch.manual_seed(0)
    bytes_of = encoder_of(image("uint8", 40, 3, False))
    floats = encoder_of(image("unit", 40, 3, False))
    floats.load_state_dict(bytes_of.state_dict())
    batch = batch_of(image("uint8", 40, 3, False))
    torch.testing.assert_close(floats(batch / 255), bytes_of(batch))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", ["uint8", "unit"])
def test_a_stack_of_frames_is_one_image_of_their_channels(kind: str, first: bool) -> None:
    single = image(kind, 40, 3, first)
    low, high, dtype = KINDS[kind]
    stack = spaces.Box(low, high, (4, *single.shape), dtype)
    made = encoder_of(stack)
    assert isinstance(made, NatureCNN)
    assert made.image_shape == (12, 40, 40)
    frames = batch_of(stack)  # [B, F, ...]
    joined = encoder_of(spaces.Box(low, high, (12, 40, 40), dtype))
    joined.load_state_dict(made.state_dict())
    each = frames if first else frames.permute(0, 1, 4, 2, 3)  # [B, F, C, H, W]
    torch.testing.assert_close(made(frames), joined(torch.cat(each.unbind(1), 1)))


def test_what_is_no_image_to_auto() -> None:
    for space in (
        spaces.Box(-np.inf, np.inf, (40, 40, 3), np.float32),
        spaces.Box(-1e9, 1e9, (40, 40, 3), np.float32),
        spaces.Box(0, 1, (40, 40), np.float32),
        spaces.Box(0, 1, (2, 40, 40, 3, 1), np.float32),
        spaces.Box(0, 255, (3, 3, 3), np.uint8),
    ):
        assert isinstance(encoder_of(space), VectorEncoder), space
    boundless = spaces.Box(-np.inf, np.inf, (40, 40, 3), np.float32)
    assert isinstance(encoder_of(boundless, "impala"), ImpalaCNN)  # who names one means it
    assert encoder_of(boundless, "impala").scale == 1
    for name in ("nature", "impala", "grid"):
        with pytest.raises(
            ConfigError, match=rf"encoder {name} needs an image observation \(three dimensions, or four"
        ):
            encoder_of(spaces.Box(0, 1, (40, 40), np.float32), name)
    with pytest.raises(
        ConfigError, match=r"encoder nature needs images of at least 36 pixels a side.*use grid or impala"
    ):
        encoder_of(image("bool", 10, 4, False), "nature")


@needs_compiler
@pytest.mark.parametrize(("kind", "shape"), [("unit", (12, 13, 3)), ("bright", (3, 12, 13)), ("unit", (2, 12, 13, 3))])
def test_convolutions_of_floats_are_compiled_too(kind: str, shape: tuple[int, ...]) -> None:
    low, high, dtype = KINDS[kind]
    made = encoder_of(spaces.Box(low, high, shape, dtype), "impala", impala_channels=(8,))
    frames = batch_of(spaces.Box(low, high, shape, dtype), 9)
    plain = made(frames)
    made.compiled_layers = compile_convolutions(made)
    assert made.compiled_layers is not None
    torch.testing.assert_close(made(frames), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("unit", (8, 8, 2)), ("bool", (3, 10, 10)), ("codes", (7, 7, 3)), ("bright", (36, 36, 1)), ("double", (5, 6, 3))],
)
def test_agents_learn_to_see(kind: str, shape: tuple[int, ...]) -> None:
    low, high, dtype = KINDS[kind]
    agent = pg.PPO(lambda: Brightness(spaces.Box(low, high, shape, dtype)), **SMALL)
    assert agent.config.arch == "shared"
    agent.learn(64)
    bright = np.full(shape, high).astype(dtype)
    assert agent.predict(bright)[0] in (0, 1)


@pytest.mark.parametrize("name", ["a2c", "trpo", "ppg", "acer", "vpg"])
def test_every_algorithm_trains_on_floats(name: str) -> None:
    space = spaces.Box(0.0, 1.0, (6, 6, 2), np.float32)
    fields = {key: value for key, value in SMALL.items() if key not in ("epochs", "num_minibatches")}
    agent = pg.algorithms.ALGORITHMS[name](lambda: Brightness(space), **fields).learn(32)
    assert isinstance(agent.model.policy_encoder, GridCNN)


def test_a_stack_of_frames_is_noted_once_and_trains_with_more_of_them() -> None:
    space = spaces.Box(0, 255, (2, 8, 8, 3), np.uint8)
    with pytest.warns(PhasegradWarning, match=r"\(2, 8, 8, 3\) is seen as 2 frames .* 6 channels of 8 x 8") as found:
        agent = pg.PPO(lambda: Brightness(space), **SMALL).learn(32)
    assert len([each for each in found if issubclass(each.category, PhasegradWarning)]) == 1
    assert agent.model.policy_encoder.image_shape == (6, 8, 8)
    with pytest.warns(PhasegradWarning):
        agent = pg.PPO(lambda: Brightness(space), frame_stack=3, **SMALL).learn(32)
    assert agent.model.policy_encoder.image_shape == (18, 8, 8)
    picture = np.zeros(space.shape, np.uint8)
    _, state = agent.predict(picture)
    agent.predict(picture, state)


def test_images_with_bounds_are_not_normalised_and_others_are() -> None:
    entries = {
        "bounded": spaces.Box(0, 1, (6, 6, 2), np.float32), "vector": spaces.Box(-1, 1, (3,), np.float32),
        "wild": spaces.Box(-np.inf, np.inf, (6, 6, 2), np.float32), "bytes": spaces.Box(0, 255, (6, 6, 2), np.uint8),
    }  # fmt: skip

    def names(encoder: Any, images: str = "all") -> list[str]:
        space = with_images(spaces.Dict(entries), encoder, images)
        return pg.models.scaling.ObservationNormalizer(space, True, 10.0).names

    assert names("auto") == ["vector", "wild"]
    assert names("auto", "uint8") == names("mlp") == names(object()) == ["bounded", "vector", "wild"]


@pytest.mark.parametrize("shape", [(6, 6, 2), (2, 6, 6, 2)])
def test_an_agent_from_before_is_loaded_as_it_was(shape: tuple[int, ...], tmp_path: Path) -> None:
    space = spaces.Box(0.0, 1.0, shape, np.float32)
    agent = pg.PPO(lambda: Brightness(space), images="uint8", normalize_observation=True, **SMALL).learn(32)
    agent.save(tmp_path / "agent")
    state = tmp_path / "agent" / "state.json"
    saved = json.loads(state.read_text())
    for name in ("images", "layer_norm", "value_hidden_sizes", "critic_only"):
        del saved["config"][name]
    state.write_text(json.dumps(saved))
    with warnings.catch_warnings():
        warnings.simplefilter("error", PhasegradWarning)
        loaded = pg.load(tmp_path / "agent", env=lambda: Brightness(space))
    assert isinstance(loaded.model.policy_encoder, VectorEncoder)
    assert loaded.config.images == "uint8"
    picture = np.full(shape, 0.3, np.float32)
    assert loaded.value(picture) == agent.value(picture)
    assert loaded.learn(64).progress.step == 64


def test_bytes_have_the_weights_they_always_had() -> None:
    for shape in ((84, 84, 4), (4, 84, 84), (7, 7, 3), (64, 64, 3)):
        for name in ("auto", "impala"):
            made = []
            for images in ("all", "uint8"):
                torch.manual_seed(0)
                made.append(encoder_of(spaces.Box(0, 255, shape, np.uint8), name, images))
            batch = batch_of(spaces.Box(0, 255, shape, np.uint8), 1)
            assert torch.equal(made[0](batch), made[1](batch))
            assert safetensors.torch.save(made[0].state_dict()) == safetensors.torch.save(made[1].state_dict())


def test_a_run_on_floats_resumes_to_the_same_bits(tmp_path: Path) -> None:
    space = spaces.Box(0.0, 1.0, (6, 6, 2), np.float32)
    agent = pg.PPO(lambda: Brightness(space), run_dir=tmp_path / "whole", checkpoint_every=16, eval_episodes=0, **SMALL)
    resumed_to_the_same_bits(agent, 96, 48, lambda: Brightness(space))


def test_an_image_space_is_the_box_it_was() -> None:
    space = spaces.Box(0.0, 1.0, (6, 6, 2), np.float32)
    marked = with_images(space, "auto", "all")
    assert isinstance(marked, ImageSpace)
    assert marked == space
    assert with_images(marked, "auto", "all") is marked
