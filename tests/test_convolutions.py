"""Compiled convolutions against torch: features and gradients over shapes, whole runs, and what is not known."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from interrupted import resumed_to_the_same_bits
from machine import needs_compiler
from torch import Tensor, nn

import phasegrad as pg
from phasegrad.compute import native
from phasegrad.compute.native.convolutions import SHARES, CompiledConvolutions, Tape, compile_convolutions
from phasegrad.errors import PhasegradWarning
from phasegrad.models.encoders import GridCNN, ImageEncoder, ImpalaCNN, NatureCNN


def box(*shape: int) -> gym.spaces.Box:
    return gym.spaces.Box(0, 255, shape, np.uint8)


ENCODERS = {
    "impala": lambda: ImpalaCNN(box(64, 64, 3), (16, 32, 32), "flatten"),
    "impala, odd sizes, other channels": lambda: ImpalaCNN(box(19, 27, 5), (8, 24), "flatten"),
    "impala, twelve channels in": lambda: ImpalaCNN(box(14, 13, 12), (16,), "flatten"),
    "impala, mean": lambda: ImpalaCNN(box(16, 16, 3), (16, 32), "mean"),
    "impala, stem": lambda: ImpalaCNN(box(64, 64, 3), (16, 32), "flatten", (16, 4)),
    "impala, channels first": lambda: ImpalaCNN(box(3, 24, 18), (16,), "flatten", (8, 2)),
    "nature": lambda: NatureCNN(box(4, 84, 84)),
    "nature, channels last": lambda: NatureCNN(box(36, 50, 3)),
    "grid": lambda: GridCNN(box(7, 7, 3)),
    "grid, narrow": lambda: GridCNN(box(9, 5, 2)),
}


def made(name: str) -> ImageEncoder:
    """An encoder of whole numbers, few and small, so that its features are exact.

    Otherwise rounding decides between nearly equal pixels, and a gradient goes another way than in torch. Ties are common
    here, and both must break them alike.
    """
    torch.manual_seed(1)
    encoder: ImageEncoder = ENCODERS[name]()
    encoder.scale = 1.0
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape))
            if parameter.dim() == 4:  # a few taps of each channel
                parameter *= torch.rand(parameter.shape) < 2.5 / parameter[0].numel()
    return encoder


def compiled_of(encoder: ImageEncoder) -> CompiledConvolutions:
    shape: Any = encoder.image_shape
    return CompiledConvolutions(list(encoder.layers), shape, encoder.channels_first, encoder.scale)


def frames_for(encoder: ImageEncoder, count: int) -> Tensor:
    channels, height, width = encoder.image_shape
    shape = (channels, height, width) if encoder.channels_first else (height, width, channels)
    return torch.from_numpy(np.random.default_rng(count).integers(0, 4, (count, *shape), dtype=np.uint8))


def plain(encoder: ImageEncoder, frames: Tensor) -> Tensor:
    return encoder.layers(encoder.pixels(frames))


def gradients(encoder: ImageEncoder, features: Tensor) -> list[Tensor]:
    down = torch.randn(features.shape, generator=torch.Generator().manual_seed(2))
    return list(torch.autograd.grad(features, list(encoder.layers.parameters()), down))


def assert_alike(mine: Tensor, wanted: Tensor, tolerance: float = 2e-5) -> None:
    assert mine.shape == wanted.shape
    assert float((mine - wanted).detach().norm()) <= tolerance * float(wanted.detach().norm())


@needs_compiler
@pytest.mark.parametrize("name", ENCODERS)
def test_features_and_gradients_are_those_of_torch(name: str) -> None:
    encoder = made(name)
    compiled = compiled_of(encoder)
    for count in (1, SHARES - 1, 2 * SHARES + 3):
        frames = frames_for(encoder, count)
        with torch.no_grad():
            assert torch.equal(compiled(frames), plain(encoder, frames))
        mine, wanted = compiled(frames), plain(encoder, frames)
        assert torch.equal(mine, wanted)
        assert float(wanted.detach().std()) > 0.1
        for one, other in zip(gradients(encoder, mine), gradients(encoder, wanted), strict=True):
            assert_alike(one, other)


@needs_compiler
@pytest.mark.parametrize("name", ENCODERS)
def test_features_with_weights_as_they_start(name: str) -> None:
    torch.manual_seed(1)
    encoder: ImageEncoder = ENCODERS[name]()
    frames = frames_for(encoder, 5) * 60
    with torch.no_grad():
        assert_alike(compile_convolutions(encoder)(frames), plain(encoder, frames), 2e-6)


@needs_compiler
def test_gradients_against_double_precision_are_no_worse_than_torchs() -> None:
    """An independent measure of what a tolerance above cannot tell: rounding, or a small mistake."""
    encoder = made("impala")
    frames = frames_for(encoder, 6)
    mine, theirs = (
        gradients(encoder, features(frames)) for features in (compiled_of(encoder), lambda x: plain(encoder, x))
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        exact_encoder = copy.deepcopy(encoder).double()
        features = plain(exact_encoder, frames)
        down = torch.randn(features.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float32).double()
        exact = torch.autograd.grad(features, list(exact_encoder.layers.parameters()), down)
    finally:
        torch.set_default_dtype(before)
    for one, other, truth in zip(mine, theirs, exact, strict=True):
        assert float((one - truth).norm()) <= 3 * float((other - truth).norm()) + 1e-6 * float(truth.norm())


@needs_compiler
def test_the_number_of_threads_changes_no_bit() -> None:
    encoder = made("impala, stem")
    compiled, frames = compiled_of(encoder), frames_for(encoder, 21)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            features = compiled(frames)
            found.append([features.detach(), *gradients(encoder, features)])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@needs_compiler
def test_several_passes_may_wait_for_their_gradients() -> None:
    """As with a policy's and a value function's losses over the same encoder, or a pass without gradient in between."""
    encoder = made("impala, mean")
    compiled = compiled_of(encoder)
    one, two, three = (frames_for(encoder, count) for count in (5, 9, 5))
    first, second = compiled(one), compiled(two)
    with torch.no_grad():
        compiled(three)
    for features, frames in ((first, one), (second, two), (compiled(three), three)):
        for mine, wanted in zip(gradients(encoder, features), gradients(encoder, plain(encoder, frames)), strict=True):
            assert_alike(mine, wanted)


@needs_compiler
def test_held_weights_are_let_go() -> None:
    encoder = made("grid")
    compiled, frames = compiled_of(encoder), frames_for(encoder, 3)
    compiled.hold(True)
    with torch.no_grad():
        before = compiled(frames)
        encoder.layers[0].weight.add_(1.0)  # type: ignore[operator]
        assert torch.equal(compiled(frames), before)
        compiled.hold(False)
        assert torch.equal(compiled(frames), plain(encoder, frames))


class Pictures(gym.Env):
    """The brighter half of a picture is the right action."""

    observation_space = box(16, 16, 3)
    action_space = gym.spaces.Discrete(2)

    def _picture(self) -> np.ndarray:
        picture = self.np_random.integers(0, 100, (16, 16, 3), dtype=np.uint8)
        self.side = int(self.np_random.integers(2))
        picture[:, 8 * self.side : 8 * self.side + 8] += 120
        return picture

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = float(action == self.side)
        return self._picture(), reward, self.steps == 8, False, {}


SIZES = {
    "preset": "none",
    "encoder": "impala",
    "impala_channels": (8, 16),
    "num_envs": 4,
    "num_steps": 16,
    "num_minibatches": 4,
}


GENTLE = {"adam_eps": 1e-3, "learning_rate": 1e-4}


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (pg.PPO, {"arch": "shared", "epochs": 4}),
        (pg.PPO, {"arch": "dual", "epochs": 2}),
        (pg.PPG, {"arch": "dual", "n_pi": 2, "aux_minibatches": 3, "aux_learning_rate": 1e-4, "e_aux": 2}),
        (pg.PPG, {"arch": "detach", "n_pi": 2, "aux_minibatches": 3, "aux_learning_rate": 1e-4, "e_aux": 2}),
        (
            pg.PPG,
            {
                "arch": "shared",
                "n_pi": 2,
                "aux_minibatches": 3,
                "aux_learning_rate": 1e-4,
                "measure_interference": True,
            },
        ),
    ],
)
def test_compiled_and_plain_runs_agree(kind: Any, options: dict[str, Any]) -> None:
    """Ten iterations on the same data in the same order end with the same parameters.

    Steps are small and gradients near 0 not blown up: with the usual settings torch on one thread and on two ends 1e-2
    apart here, since rounding decides which of two pixels is the larger.
    """
    settings = {name: value for name, value in {**SIZES, **GENTLE, **options}.items() if value is not None}
    ends = {}
    for how in ("on", "off"):
        with warnings.catch_warnings():
            warnings.simplefilter("error", PhasegradWarning)  # a fall-back would compare the plain path with itself
            agent = kind(Pictures, compile=how, seed=3, **settings)
            start = agent.flat.data.clone()
            agent.learn(640)
        assert agent.config.compile == how
        assert agent.computation.actor.runs_program == (how == "on")
        ends[how] = agent.flat.data
    assert float((ends["off"] - start).norm() / start.norm()) > 1e-3
    assert float((ends["on"] - ends["off"]).norm() / ends["off"].norm()) < 1e-5


class Scenes(Pictures):
    """A picture beside numbers, and a third action that is not always allowed."""

    observation_space = gym.spaces.Dict(
        {
            "zoo": box(16, 16, 3),
            "eye": box(12, 16, 3),
            "numbers": gym.spaces.Box(-1.0, 1.0, (3,)),
            "action_mask": gym.spaces.MultiBinary(3),
        }
    )
    action_space = gym.spaces.Discrete(3)

    def _picture(self) -> Any:
        zoo = super()._picture()
        numbers = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        mask = np.array([1, 1, self.np_random.integers(2)], dtype=np.int8)
        return {"zoo": zoo, "eye": 255 - zoo[:12], "numbers": numbers, "action_mask": mask}


@needs_compiler
@pytest.mark.parametrize("arch", ["shared", "dual"])
@pytest.mark.parametrize("env", [Pictures, Scenes])
def test_acting_behind_compiled_convolutions_is_acting(env: type[gym.Env], arch: str) -> None:
    """What the second rollout stored, when the first update has hardly moved the parameters."""
    stored = {}
    for how in ("on", "off"):
        agent = pg.PPO(env, compile=how, seed=5, arch=arch, policy_gain=1.0, learning_rate=1e-12, **SIZES).learn(128)
        assert agent.computation.actor.runs_program == (how == "on")
        stored[how] = agent.rollout
    on, off = stored["on"], stored["off"]
    assert torch.equal(on.actions, off.actions)
    assert len(off.actions.unique()) == off.behaviour_params.shape[-1]
    for name in ("behaviour_params", "values", "log_probs"):
        torch.testing.assert_close(getattr(on, name), getattr(off, name), rtol=1e-4, atol=1e-5)
    if off.masks is not None:
        assert not off.masks.all()


@needs_compiler
@pytest.mark.parametrize("arch", ["dual", "detach"])
def test_a_compiled_run_resumes_to_the_bits_of_one_never_stopped(arch: str, tmp_path: Path) -> None:
    options = {"arch": arch, "n_pi": 2, "aux_minibatches": 3, "checkpoint_every": 128, "seed": 2}
    agent = pg.PPG(Scenes, compile="on", run_dir=tmp_path / "whole", **SIZES, **options)
    resumed = resumed_to_the_same_bits(agent, 640, 320, Scenes)
    assert agent.computation.actor.runs_program
    assert resumed.computation.actor.runs_program


@needs_compiler
def test_trpo_needs_second_derivatives_and_goes_without() -> None:
    settings = {name: value for name, value in SIZES.items() if name != "num_minibatches"}
    agent = pg.TRPO(Pictures, compile="on", **settings).learn(64)
    assert agent.config.compile == "off"


@needs_compiler
def test_an_agent_is_compiled_while_it_trains_and_plain_afterwards() -> None:
    agent = pg.PPO(Pictures, compile="on", **SIZES)
    all_compiled, copies = [], []

    def watch(_: Any) -> None:
        encoder = agent.model.policy_encoder
        all_compiled.append(encoder.compiled_layers)
        copies.append(copy.deepcopy(encoder).compiled_layers)

    agent.learn(128, callback=watch)
    assert all(isinstance(compiled, CompiledConvolutions) for compiled in all_compiled)
    assert len(all_compiled) == 2
    assert copies == [None, None]  # a copy may be exported or outlive the training
    assert agent.model.policy_encoder.compiled_layers is None


@needs_compiler
def test_the_parts_of_a_minibatch_share_one_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part's graph is gone before the next part is computed, so memory does not grow with the minibatch."""
    taken: list[Tensor] = []
    original = CompiledConvolutions.take_tape

    def take_tape(self: CompiledConvolutions, count: int) -> Tape:
        tape = original(self, count)
        taken.append(tape.tensor)
        return tape

    agent = pg.PPG(Pictures, compile="on", arch="detach", n_pi=2, aux_minibatches=1, **SIZES | {"num_minibatches": 1})
    for stepper in agent.computation.steppers:
        stepper.plain.microbatch = 24
    monkeypatch.setattr(CompiledConvolutions, "take_tape", take_tape)
    agent.learn(256)
    of_parts = [tape.data_ptr() for tape in taken if len(tape) == 24]
    assert len(of_parts) > 40
    assert len(set(of_parts)) == 1


@needs_compiler
def test_layers_that_are_not_known_are_named_and_train_all_the_same() -> None:
    class Odd(ImpalaCNN):
        def __init__(self, space: gym.spaces.Box) -> None:
            super().__init__(space, (8,), "flatten")
            self.stacks.insert(1, nn.GELU())

    with pytest.warns(PhasegradWarning, match="without compiled code: a GELU after a convolution"):
        agent = pg.PPO(Pictures, compile="on", **{**SIZES, "encoder": Odd}).learn(64)
    assert agent.progress.step == 64

    class Twelve(ImpalaCNN):
        def __init__(self, space: gym.spaces.Box) -> None:
            super().__init__(space, (12,), "flatten")

    with pytest.raises(native.Unsupported, match="multiple of 8"):
        compiled_of(Twelve(box(16, 16, 3)))


@needs_compiler
def test_a_trunk_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = CompiledConvolutions.run_backward

    def crooked(self: CompiledConvolutions, *arguments: Tensor) -> list[Tensor]:
        return [1.001 * gradient for gradient in honest(self, *arguments)]

    monkeypatch.setattr(CompiledConvolutions, "run_backward", crooked)
    with pytest.raises(AssertionError):
        compile_convolutions(made("grid"))
