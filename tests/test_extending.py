"""An algorithm, a distribution and an encoder from outside the package: they train, save, load, resume and are reported."""

from __future__ import annotations

import math
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from interrupted import resumed_to_the_same_bits
from torch import nn

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.compute import native
from phasegrad.config import ENCODERS
from phasegrad.distributions import DISTRIBUTIONS
from phasegrad.errors import ConfigError, RunError
from phasegrad.models.encoders import OWN_ENCODERS
from phasegrad.report import write_report

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL: dict[str, Any] = {"preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (8,), "seed": 3}
WAYS = [
    "off",
    "replay",
    pytest.param("on", marks=pytest.mark.skipif(native.compiler() is None, reason="no C compiler")),
]


@pytest.fixture(autouse=True)
def _registries() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    kept = [(registry, dict(registry)) for registry in (ALGORITHMS, DISTRIBUTIONS, OWN_ENCODERS)]
    names = list(ENCODERS)
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)  # type: ignore[arg-type]
    ENCODERS[:] = names


def example(name: str) -> dict[str, Any]:
    """What an example defines and registers."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.parametrize("how", WAYS)
def test_an_algorithm_from_outside_resumes_to_the_same_bits(tmp_path: Path, how: str) -> None:
    kind = example("own_algorithm")["SPMA"]
    agent = kind("CartPole-v1", run_dir=tmp_path / "run", compile=how, checkpoint_every=128, **SMALL)
    resumed = resumed_to_the_same_bits(agent, 64 * 8, 300)
    assert type(resumed).name == "spma"
    page = write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "SPMA" in Path(page).read_text().upper()
    resumed.save(tmp_path / "agent")
    assert np.array_equal(pg.load(tmp_path / "agent").predict(np.zeros(4))[0], resumed.predict(np.zeros(4))[0])


def test_ways_of_computing_agree_on_an_algorithm_from_outside() -> None:
    kind = example("own_algorithm")["SPMA"]
    found = []
    for how in ("off", "replay", *(["on"] if native.compiler() else [])):
        agent = kind("CartPole-v1", compile=how, **SMALL)
        agent.learn(64 * 5)
        found.append(agent.flat.data.clone())
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=1e-3, atol=1e-5)


def test_an_unknown_algorithm_is_to_be_registered(tmp_path: Path) -> None:
    agent = example("own_algorithm")["SPMA"]("CartPole-v1", run_dir=tmp_path / "run", **SMALL)
    agent.learn(64)
    del ALGORITHMS["spma"]
    with pytest.raises(RunError, match=r"unknown algorithm 'spma': .* register it with phasegrad.register first"):
        pg.load(tmp_path / "run")


def test_what_is_no_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"subclass of phasegrad\.Algorithm"):
        pg.register(int)  # type: ignore[type-var]

    class Nameless(pg.PPO):
        name = ""

    class Taken(pg.PPO):
        name = "ppg"

    with pytest.raises(ConfigError, match="Nameless needs a name in small letters"):
        pg.register(Nameless)
    with pytest.raises(ConfigError, match="an algorithm named ppg already"):
        pg.register(Taken)


def test_a_loop_that_ends_or_stands_still_is_named() -> None:
    class Ends(pg.PPO):
        name = "ends"

        def iterations(self) -> Iterator[dict[str, Any]]:
            with self.collected():
                pass
            yield {}

    class Stands(pg.PPO):
        name = "stands"

        def iterations(self) -> Iterator[dict[str, Any]]:
            while True:
                yield {}

    with pytest.raises(ConfigError, match=r"The loop of ends ended at step 64 of 128: .* while steps_left"):
        Ends("CartPole-v1", **SMALL).learn(128)
    with pytest.raises(ConfigError, match="The loop of stands yields at step 0 without having taken a step"):
        Stands("CartPole-v1", **SMALL).learn(128)


# Distributions


def test_a_distribution_from_outside_resumes_to_the_same_bits(tmp_path: Path) -> None:
    example("own_distribution")
    how = {"action_distribution": "logistic", "num_minibatches": 2, "epochs": 2, "checkpoint_every": 128}
    agent = pg.PPO("Pendulum-v1", run_dir=tmp_path / "run", log_steps=True, **how, **SMALL)
    resumed = resumed_to_the_same_bits(agent, 64 * 8, 300)
    assert type(resumed.distribution).__name__ == "Logistic"
    assert resumed.predict(np.zeros(3))[0].shape == (1,)
    steps = np.load(sorted((tmp_path / "run" / "steps").iterdir())[-1])
    assert steps["params"].shape == (16, 4, 2)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "acer"])
def test_every_algorithm_takes_a_distribution_from_outside(name: str) -> None:
    example("own_distribution")
    agent = ALGORITHMS[name]("Pendulum-v1", action_distribution="logistic", **SMALL)
    agent.learn(64 * 3)
    assert torch.isfinite(agent.flat.data).all()


def test_the_example_is_a_distribution() -> None:
    """Its formulas against torch's logistic distribution, made from a uniform one, and against sampling."""
    space = gym.spaces.Box(-1.0, 1.0, (2,))
    logistic = example("own_distribution")["Logistic"](space)
    generator = torch.Generator().manual_seed(1)
    params = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    mean, log_scale = params.chunk(2, -1)
    base = torch.distributions.Uniform(torch.zeros_like(mean), torch.ones_like(mean))
    transforms = [
        torch.distributions.SigmoidTransform().inv,
        torch.distributions.AffineTransform(mean, log_scale.exp()),
    ]
    wanted = torch.distributions.TransformedDistribution(base, transforms)
    actions = mean + log_scale.exp() * torch.randn(3, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(logistic.log_prob(params, actions), wanted.log_prob(actions).sum(-1))
    noise = torch.rand(200_000, 3, 2, generator=generator, dtype=torch.float64)
    drawn = logistic.sample(params, noise)
    torch.testing.assert_close(drawn.mean(0), mean, atol=0.05, rtol=0.02)
    torch.testing.assert_close(drawn.std(0), log_scale.exp() * math.pi / math.sqrt(3), atol=0.05, rtol=0.02)
    other = params + 0.2
    estimate = (logistic.log_prob(params, drawn) - logistic.log_prob(other, drawn)).mean(0)
    torch.testing.assert_close(logistic.kl(params, other), estimate, atol=0.02, rtol=0.05)
    torch.testing.assert_close(
        -logistic.log_prob(params, drawn).mean(0), logistic.entropy(params), atol=0.02, rtol=0.01
    )


def test_an_unknown_or_unfit_distribution_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="action_distribution must be one of auto, gaussian, tanh, beta, not 'logistic'"
    ):
        pg.PPO("Pendulum-v1", action_distribution="logistic", **SMALL)
    with pytest.raises(ConfigError, match="gaussian needs a Box action space"):
        pg.PPO("CartPole-v1", action_distribution="gaussian", **SMALL)
    example("own_distribution")
    with pytest.raises(ConfigError, match="logistic needs a Box action space"):
        pg.PPO("CartPole-v1", action_distribution="logistic", **SMALL)
    agent = pg.PPO("Pendulum-v1", action_distribution="logistic", **SMALL)
    agent.save(tmp_path / "agent")
    del DISTRIBUTIONS["logistic"]
    with pytest.raises(pg.PhasegradError, match=r"register it with phasegrad.register_distribution first"):
        pg.load(tmp_path / "agent")
    for name in ("auto", "gaussian", "tanh", "beta", "two words"):
        with pytest.raises(ConfigError, match="a word that is not taken"):
            pg.register_distribution(name, dict)  # type: ignore[arg-type]


# Encoders


def test_an_encoder_under_a_name_resumes_without_being_given_again(tmp_path: Path) -> None:
    example("custom_encoder")
    how = {"encoder": "two_stream", "num_minibatches": 2, "epochs": 2, "checkpoint_every": 128}
    agent = pg.PPO("CartPole-v1", run_dir=tmp_path / "run", **how, **SMALL)
    resumed = resumed_to_the_same_bits(agent, 64 * 8, 300)
    assert type(resumed.model.policy_encoder).__name__ == "TwoStream"
    ENCODERS.remove("two_stream")
    del OWN_ENCODERS["two_stream"]
    with pytest.raises(RunError, match="encoder must be one of auto, mlp, nature, impala, grid, not 'two_stream'"):
        pg.load(tmp_path / "run")


def test_a_name_of_an_encoder_is_checked() -> None:
    for name in ("mlp", "auto", "two words"):
        with pytest.raises(ConfigError, match="a word that is not taken"):
            pg.register_encoder(name, nn.Linear)
    with pytest.raises(ConfigError, match="registered with its class"):
        pg.register_encoder("mine", None)  # type: ignore[arg-type]


class Pictures(gym.Env):
    """Noise to look at."""

    observation_space = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (12, 12, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.np_random.integers(0, 256, (12, 12, 3), np.uint8), float(action), False, False, {}


class OwnCNN(nn.Module):
    """A convolution that the package does not know."""

    features = 16

    def __init__(self, space: gym.Space) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 16))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(observation.permute(0, 3, 1, 2).float() / 255)
        return out


@pytest.mark.skipif(native.compiler() is None, reason="no C compiler")
def test_own_convolutions_that_are_not_compiled_are_told() -> None:
    for encoder, told in ((OwnCNN, True), ("grid", False)):
        agent = pg.PPO(Pictures, encoder=encoder, compile="on", num_minibatches=2, epochs=1, **SMALL)
        agent.learn(64)
        assert ("own convolutions by torch" in agent.computation.described) == told
