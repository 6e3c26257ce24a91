"""bfloat16 for acting and for the auxiliary phase, and what `compile` means on a GPU, as far as a CPU can show."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_in_device import StandIn

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.compute import device_steps
from phasegrad.errors import ConfigError, PhasegradWarning
from phasegrad.models.precision import in_precision

FIELDS: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (16,), "seed": 3, "compile": "off",
    "total_steps": 256, "eval_episodes": 0, "num_minibatches": 2, "device": "cpu",
}  # fmt: skip
PPG = {"n_pi": 2, "e_aux": 2, "aux_minibatches": 4}
LOW = {"act_precision": "bfloat16", "aux_precision": "bfloat16"}


def tensors(agent: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in agent.tensors().items()}


def test_a_network_in_bfloat16_is_near_the_one_in_float32_and_comes_back() -> None:
    agent = pg.PPG("Pendulum-v1", **FIELDS, **PPG, std="state_dependent")
    seen = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    full = agent.model.policy_and_both_values(seen)
    with in_precision(agent.model, "bfloat16"):
        lower = agent.model.policy_and_both_values(seen)
    again = agent.model.policy_and_both_values(seen)
    for mine, theirs, after in zip(full, lower, again, strict=True):
        assert theirs.dtype == torch.float32
        assert not torch.equal(mine, theirs)
        torch.testing.assert_close(mine, theirs, atol=0.03, rtol=0.03)
        assert torch.equal(mine, after)


@pytest.mark.parametrize("name", ["act_precision", "aux_precision"])
def test_learning_in_bfloat16_is_near_that_in_float32(name: str) -> None:
    """One phase, whose weights differ by a part of what they moved."""
    fields = {**FIELDS, **PPG, "total_steps": 128}
    start = tensors(pg.PPG("Pendulum-v1", **fields))
    full, lower = (tensors(pg.PPG("Pendulum-v1", **{**fields, name: kind}).learn()) for kind in ("float32", "bfloat16"))
    weights = [key for key in full if key.startswith("model.") and full[key].dim() == 2]
    moved = sum(float((full[key] - start[key]).square().sum()) for key in weights)
    apart = sum(float((full[key] - lower[key]).square().sum()) for key in weights)
    assert 0 < apart < 0.25 * moved


def test_only_what_was_asked_for_is_lower() -> None:
    """The policy phase computes in float32 whatever acting and the auxiliary phase do."""
    agent: Any = pg.PPG("Pendulum-v1", **{**FIELDS, **PPG, **LOW})
    assert agent.computation.lowered == [agent.auxiliary_stepper]
    kinds: dict[str, set[torch.dtype]] = {"policy_and_value_loss": set(), "auxiliary_loss": set()}
    for name, found in kinds.items():
        real = getattr(agent, name)

        def loss(batch: Any, coefficients: Any, real: Any = real, found: Any = found) -> Any:
            hook = agent.model.value_head.register_forward_hook(lambda *_: found.add(torch.is_autocast_enabled("cpu")))
            inner = agent.model.policy_encoder.mlp.layers[0].register_forward_hook(
                lambda _, __, out: found.add(out.dtype)
            )
            try:
                return real(batch, coefficients)
            finally:
                hook.remove()
                inner.remove()

        loss.__name__ = name
        setattr(agent, name, loss)
    agent.learn()
    assert torch.float32 in kinds["policy_and_value_loss"]
    assert torch.bfloat16 not in kinds["policy_and_value_loss"]
    assert torch.bfloat16 in kinds["auxiliary_loss"]


@pytest.mark.parametrize("compile", ["off", "replay"])
def test_a_resumed_run_in_bfloat16_ends_as_one_that_was_never_stopped(tmp_path: Path, compile: str) -> None:
    fields = {**FIELDS, **PPG, **LOW, "compile": compile, "n_pi": 3, "checkpoint_every": 64}
    whole = tensors(pg.PPG("CartPole-v1", **fields).learn())
    pg.PPG("CartPole-v1", **fields).learn(callback=lambda row: row["step"] < 128).save(tmp_path)
    agent: Any = pg.load(tmp_path)
    assert agent.config.aux_precision == agent.config.act_precision == "bfloat16"
    agent.learn()
    found = tensors(agent)
    assert [name for name in found if not torch.equal(found[name], whole[name])] == []


def test_the_device_computes_in_bfloat16_too() -> None:
    with StandIn().on():
        pg.PPG("CartPole-v1", **{**FIELDS, **PPG, **LOW, "device": "cuda"}).learn()


@pytest.mark.parametrize("field", list(LOW))
def test_a_gpu_without_bfloat16_is_named(field: str) -> None:
    here = StandIn()
    here.knows_bfloat16 = False
    with here.on(), pytest.raises(ConfigError, match=f"{field} bfloat16 needs a GPU"):
        pg.PPG("CartPole-v1", **{**FIELDS, **PPG, field: "bfloat16", "device": "cuda"})


def test_compiled_paths_say_that_they_are_not_taken() -> None:
    agent: Any = pg.PPG("CartPole-v1", **{**FIELDS, **PPG, **LOW, "compile": "replay"})
    agent.learn()
    assert "the auxiliary phase and acting in bfloat16 by plain kernels" in agent.computation.described
    assert (agent.stepper.way, agent.auxiliary_stepper.way) == ("traced", "plain")


@pytest.mark.parametrize(("name", "field"), [("ppo", "act_precision"), ("ppg", "aux_precision")])
def test_networks_with_a_memory_are_refused(name: str, field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} bfloat16 is for networks without a memory"):
        ALGORITHMS[name]("CartPole-v1", **{**FIELDS, "memory": "gru", field: "bfloat16"})


# compile on a GPU


@pytest.mark.parametrize(
    ("fields", "settled", "sentence"),
    [
        ({"compile": "auto"}, "off", ""),
        ({"compile": "off"}, "off", ""),
        ({"compile": "replay"}, "off", "compile replay calls the kernels of a CPU"),
    ],
)
def test_compile_on_a_gpu_is_off_until_asked_for(fields: dict[str, Any], settled: str, sentence: str) -> None:
    with StandIn().on(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        agent: Any = pg.PPO("CartPole-v1", **{**FIELDS, **fields, "device": "cuda"}).learn()
    assert agent.config.compile == settled
    found = [str(each.message) for each in told if issubclass(each.category, PhasegradWarning)]
    assert any(sentence in each for each in found) if sentence else not found
    assert ("not measured on a GPU yet" in agent.computation.described) == (fields["compile"] == "auto")


def test_trpo_says_what_it_cannot_have() -> None:
    fields = {**FIELDS, "cg_iterations": 2, "value_epochs": 1, "device": "cuda", "compile": "on"}
    with StandIn().on(), pytest.warns(PhasegradWarning, match="not for trpo, on a GPU so far: the run goes on"):
        agent: Any = pg.TRPO("CartPole-v1", **fields).learn()
    assert agent.config.compile == "off"


@pytest.mark.parametrize("sooner", ["eager", "plain kernels"])
def test_the_soonest_of_what_agrees_is_taken(monkeypatch: pytest.MonkeyPatch, sooner: str) -> None:
    """On a CPU by a backend that compiles nothing: a way that fails is named and left, and the others find the same."""
    plain = tensors(pg.PPO("CartPole-v1", **FIELDS).learn())
    monkeypatch.setattr(
        device_steps, "CANDIDATES", {"eager": {"backend": "eager"}, "broken": {"backend": "no such thing"}}
    )
    calls = []

    def measured(function: Any, inputs: Any) -> float:
        calls.append(function)
        function(*inputs)
        return 1.0 if (len(calls) % 2 == 1) == (sooner == "plain kernels") else 2.0

    monkeypatch.setattr(device_steps, "measured", measured)
    agent: Any = pg.PPO("CartPole-v1", **FIELDS)
    agent.stepper.way = "device"
    monkeypatch.setattr(agent.computation, "choose", lambda begun: None)
    with pytest.warns(PhasegradWarning, match="broken cannot be had for the update"):
        agent.learn()
    assert agent.stepper.way == "device"
    assert len(calls) == 2 * len(agent.stepper.device.traces) > 0
    found = tensors(agent)
    for name in plain:
        torch.testing.assert_close(found[name], plain[name], atol=1e-4, rtol=1e-3)
