"""The three ways to compute a gradient step: their self-check, their fall-backs, the floats that they take."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from identity_envs import IdentityEnv, MaskedIdentityEnv
from machine import needs_compiler
from torch import Tensor, nn

from phasegrad.algorithms import ALGORITHMS
from phasegrad.compute import compiled, native
from phasegrad.compute.checking import FAR, Disagreement, displaced, offsets, require_agreement
from phasegrad.compute.compiled import CompiledSteps, Order
from phasegrad.compute.native import emit
from phasegrad.compute.native import program as programs
from phasegrad.compute.native.pointwise import POINTWISE
from phasegrad.compute.plain import PlainSteps
from phasegrad.compute.recording import CannotCompute, made_by_all
from phasegrad.compute.traced import TracedSteps
from phasegrad.config import FIXED_FIELDS, documented_fields
from phasegrad.errors import PhasegradWarning
from phasegrad.models import FlatParameters

SIZES: dict[str, Any] = {"preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (16,), "seed": 3}
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"num_minibatches": 2, "epochs": 2},
    "ppg": {"num_minibatches": 2, "n_pi": 1, "aux_minibatches": 2, "e_pi": 1, "e_v": 2, "e_aux": 1},
    "a2c": {"updates_per_iteration": 1},
    "acer": {"updates_per_iteration": 2, "replay_start": 0, "replay_ratio": 2.0},
    "vpg": {"value_steps": 2},
    "trpo": {"num_minibatches": 2, "value_epochs": 1},
}
SPACES = {
    "discrete": gym.spaces.Discrete(3),
    "multi-discrete": gym.spaces.MultiDiscrete([2, 3]),
    "binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(-1, 1, (2,), np.float32),
}
WAYS = [pytest.param("replay", id="traced"), pytest.param("on", id="compiled", marks=needs_compiler)]


def made(name: str, env: Any = "CartPole-v1", **fields: Any) -> Any:
    return ALGORITHMS[name](env, **SIZES | OWN[name] | fields)


def way_after(agent: Any, iterations: int = 3) -> str:
    """The way that an agent's updates are computed in the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PhasegradWarning)
        agent.learn(steps_of(agent) * iterations)
    return agent.stepper.way


def steps_of(agent: Any) -> int:
    """Environment steps of an iteration."""
    config = agent.config
    return int(config.num_steps * getattr(config, "updates_per_iteration", 1) * config.num_envs)


# The self-check finds faults


def former_check(found: Any, wanted: Any, minibatches: Any, *_: Any) -> None:
    """As it was: at the first minibatch alone, all of the gradient by its one largest entry."""
    for mine, theirs in zip(found(*minibatches[0]), wanted(*minibatches[0]), strict=True):
        tolerance = 1e-4 * float(theirs.detach().abs().max()) + 1e-5
        torch.testing.assert_close(mine, theirs.detach(), rtol=0.0, atol=tolerance)


def without_upper_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    real = emit.written

    def wrong(name: str, result: torch.dtype, arguments: Any, options: Any) -> Any:
        return real(name, result, arguments[:2] if name == "clamp" else arguments, options)

    monkeypatch.setattr(emit, "written", wrong)


def with_gradient_beyond_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    first = dataclasses.replace(POINTWISE["logical_and"], expression="{0}")
    monkeypatch.setitem(POINTWISE, "logical_and", first)  # of: within the lower bound, within the upper bound


def without_kl(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compiled.EpochProgram  # the last inputs are kl_beta and clip_range

    def wrong(function: Callable[..., list[Tensor]], examples: Sequence[Tensor], rows: int) -> Any:
        return real(lambda *given: function(*given[:-2], 0 * given[-2], given[-1]), examples, rows)

    monkeypatch.setattr(compiled, "EpochProgram", wrong)


def with_a_wrong_small_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = programs.BODY.replace("{lines}", "{lines}\n((float *)outputs[0])[1] *= 1.5f;")
    assert wrong != programs.BODY
    monkeypatch.setattr(programs, "BODY", wrong)


@needs_compiler
@pytest.mark.parametrize(
    ("fault", "fields"),
    [
        (without_upper_clip, {}),
        (with_gradient_beyond_the_clip, {}),
        (without_kl, {"objective": "kl"}),
        (with_a_wrong_small_entry, {}),
    ],
)
def test_a_fault_is_found_that_the_former_check_did_not_find(
    fault: Any, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"value_coef": 5.0} | fields
    fault(monkeypatch)
    agent = made("ppo", compile="on", **fields)
    with pytest.warns(PhasegradWarning, match=r"update runs without compiled code: its self-check failed: the \w+"):
        agent.learn(128)
    assert agent.stepper.way == "traced"
    monkeypatch.setattr(compiled, "require_agreement", former_check)
    assert way_after(made("ppo", compile="on", **fields)) == "compiled"


@needs_compiler
def test_a_fault_of_acting_is_found_behind_a_head_near_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        programs, "BODY", programs.BODY.replace("{lines}", "{lines}\n((float *)outputs[0])[1] *= 1.001f;")
    )
    agent = made("ppo", compile="on")
    with pytest.warns(PhasegradWarning, match="Acting runs without compiled code: its self-check failed"):
        agent.learn(128)
    assert agent.stepper.way == "traced", "a thousandth of an entry is found in the gradient too"


class Pair:
    """Two linear maps as parameter groups, the gradient of the first 10,000 times that of the second."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.maps = [nn.Linear(3, 2), nn.Linear(3, 2)]
        groups = {name: list(each.parameters()) for name, each in zip(("value", "policy"), self.maps, strict=True)}
        self.flat = FlatParameters(groups)
        self.inputs = torch.randn(20, 3)

    def wanted(self, inputs: Tensor) -> list[Tensor]:
        large, small = (each(inputs).square().mean() for each in self.maps)
        return [self.flat.gradient(1e4 * large + small), large]

    def check(self, found: Callable[[Tensor], list[Tensor]]) -> None:
        before = self.flat.data.clone()
        try:
            require_agreement(found, self.wanted, [[self.inputs], [self.inputs.flip(0)]], self.flat, ["size"], 1e-4)
        finally:
            assert torch.equal(self.flat.data, before), "to the bit"

    def changed(self, place: int, factor: float, calls: Sequence[int] = range(100)) -> Callable[[Tensor], list[Tensor]]:
        """The right results, but for one entry of the gradient in some calls."""
        count = iter(range(100))

        def found(inputs: Tensor) -> list[Tensor]:
            with torch.enable_grad():
                gradient, metric = self.wanted(inputs)
            if next(count) in calls:
                gradient[place] *= factor
            return [gradient, metric.detach()]

        return found


def test_every_parameter_is_measured_by_itself() -> None:
    pair = Pair()
    assert pair.wanted(pair.inputs)[0][:8].abs().max() > 1e3 * pair.wanted(pair.inputs)[0][8:].abs().max()
    pair.check(pair.changed(9, 1.0))
    for place, group in ((1, "value"), (9, "policy"), (15, "policy")):
        with pytest.raises(Disagreement, match=f"the {group} gradient is off by"):
            pair.check(pair.changed(place, 1.01))
    with pytest.raises(Disagreement, match="the policy gradient"):
        pair.check(pair.changed(9, math.nan))
    with pytest.raises(Disagreement, match="the metric size"):
        pair.check(lambda inputs: [pair.changed(9, 1.0)(inputs)[0], torch.tensor(3.0)])


def test_what_passes_with_other_parameters_is_chance() -> None:
    """As where a sample is within a rounding of a clip's boundary; what stays at every try is a fault."""
    pair = Pair()
    for calls in ([0], [1], [0, 1], [0, 2], [1, 5]):
        pair.check(pair.changed(9, 2.0, calls))
    for calls in (
        [0, 2, 4],
        [1, 7, 9],
    ):  # calls of even number are where the parameters are, the others away from there
        with pytest.raises(Disagreement):
            pair.check(pair.changed(9, 2.0, calls))


def test_parameters_come_back_after_an_error_too() -> None:
    pair = Pair()
    before, seen = pair.flat.data.clone(), []

    def failing(inputs: Tensor) -> list[Tensor]:
        seen.append(pair.flat.data.clone())
        if len(seen) == 2:
            raise KeyboardInterrupt
        return pair.wanted(inputs)

    with pytest.raises(KeyboardInterrupt):
        pair.check(with_gradients(failing))
    assert torch.equal(pair.flat.data, before)
    assert torch.equal(seen[0], before)
    assert not torch.equal(seen[1], before)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("sizes", [(8,), (64, 64), (256, 256)])
def test_the_second_point_is_off_policy_on_both_sides_of_the_clip(space: str, sizes: tuple[int, ...]) -> None:
    agent = made("ppo", lambda: IdentityEnv(SPACES[space]), hidden_sizes=sizes, compile="off").learn(64)
    batch = captured(agent)["ppo"][1]
    parameters = list(agent.model.parameters())
    with displaced(parameters, offsets(parameters, FAR, torch.Generator().manual_seed(0))), torch.no_grad():
        params = agent.model.policy(batch.observations, batch.masks)
    ratio = (agent.distribution.log_prob(params, batch.actions) - batch.old_log_probs).exp()
    assert (ratio > 1.2).any()
    assert (ratio < 0.8).any()
    assert 0.01 < agent.distribution.kl(batch.behaviour_params, params).mean() < 100


# And raises no false alarm

ORDINARY: list[tuple[str, Any, dict[str, Any]]] = [
    *(("ppo", space, {"objective": objective, "entropy_coef": 0.01, "value_clip": 0.2})
      for objective, space in zip(("clip", "kl", "cpi", "pg"), SPACES, strict=True)),
    ("ppo", "box", {"arch": "shared", "activation": "relu", "std": "state_dependent"}),
    ("ppo", "masked", {"clip_range": 0.0}),
    ("ppg", "multi-discrete", {"arch": "dual", "aux_target": "value_network"}),
    ("ppg", "binary", {"arch": "shared", "objective": "kl"}),
    ("ppg", "masked", {"arch": "detach"}),
    ("a2c", "box", {"value_coef": 0.0}),
    ("a2c", "masked", {"normalize_advantage": "batch"}),
    ("vpg", "binary", {}),
    ("trpo", "multi-discrete", {}),
    ("acer", "discrete", {}),
    ("acer", "masked", {"trust_region": False, "arch": "shared"}),
]  # fmt: skip


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("name", "space", "fields"), ORDINARY, ids=str)
def test_ordinary_losses_pass(name: str, space: str, fields: dict[str, Any], how: str) -> None:
    env = MaskedIdentityEnv if space == "masked" else lambda: IdentityEnv(SPACES[space])
    agent = made(name, env, compile=how, **fields)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PhasegradWarning)
        agent.learn(steps_of(agent) * 3)
    assert {stepper.way for stepper in agent.computation.steppers} == {"compiled" if how == "on" else "traced"}


def with_gradients(function: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    def found(*inputs: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            return function(*inputs)

    return found


# Fall-backs


def test_a_trace_that_fails_within_an_epoch_repeats_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = TracedSteps._trace

    def failing(self: TracedSteps, loss: Any, batch: Any, numbers: Any) -> Any:
        if len(batch) == 21:  # 64 samples are 22, 21 and 21
            raise RuntimeError("it cannot be")
        return trace(self, loss, batch, numbers)

    monkeypatch.setattr(TracedSteps, "_trace", failing)
    plain, other = (made("ppo", compile=how, num_minibatches=3) for how in ("off", "replay"))
    plain.learn(192)
    with pytest.warns(PhasegradWarning, match="without traced kernels: it cannot be"):
        other.learn(192)
    assert (other.stepper.way, other.stepper.count) == ("plain", plain.stepper.count)
    assert torch.equal(plain.flat.data, other.flat.data)


@needs_compiler
def test_an_epoch_is_compiled_as_a_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compiled.EpochProgram

    def failing(function: Any, examples: Any, rows: int) -> Any:
        if len(examples[0]) == 21:
            raise RuntimeError("it cannot be")
        return real(function, examples, rows)

    monkeypatch.setattr(compiled, "EpochProgram", failing)
    plain, other = (made("ppo", compile=how, num_minibatches=3) for how in ("off", "on"))
    other.computation.actor.compiled = False
    plain.learn(192)
    with pytest.warns(PhasegradWarning, match="without compiled code: it cannot be"):
        other.learn(192)
    assert (other.stepper.way, other.stepper.count) == ("traced", plain.stepper.count)
    torch.testing.assert_close(plain.flat.data, other.flat.data, rtol=1e-5, atol=1e-6)


def test_all_processes_take_the_same_way() -> None:
    class Others:
        def any(self, flag: bool) -> bool:
            return True

    with pytest.raises(CannotCompute, match="another process cannot") as left:
        made_by_all(Others(), lambda: 1, instead="traced")  # type: ignore[arg-type]
    assert left.value.instead == "plain", "the other one's network may be what cannot be recorded"


# Floats


def captured(agent: Any) -> dict[str, tuple[Any, Any, dict[str, float]]]:
    """One minibatch of each loss of an iteration, by the loss's name."""
    found: dict[str, tuple[Any, Any, dict[str, float]]] = {}
    gradient = PlainSteps.gradient

    def watched(self: PlainSteps, name: str, loss: Any, batch: Any, scalars: Any) -> Any:
        tensors, rebuild = batch.tensors()
        found[name] = (loss, rebuild([tensor.clone() for tensor in tensors]), dict(scalars))
        return gradient(self, name, loss, batch, scalars)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainSteps, "gradient", watched)
        agent.learn(agent.progress.step + steps_of(agent))
    return found


def compiled_gradient(steps: CompiledSteps, name: str, loss: Any, batch: Any, scalars: dict[str, float]) -> Tensor:
    rows, rebuild = batch.tensors()
    numbers, order = steps.recorder.numbers(scalars), Order((torch.arange(len(batch)),), 1)
    key = (name, len(batch), False, numbers.key)
    program = steps._program(key, loss, rows, batch.tables(), rebuild, order, numbers)[0]
    return program.gradient(rows, numbers.inputs)[0]


READ = {
    "ppo": {"clip_range", "kl_beta", "entropy_coef", "value_coef", "value_clip"},
    "ppg": {"clip_range", "kl_beta", "entropy_coef", "value_coef", "value_clip", "beta_clone"},
    "a2c": {"entropy_coef", "value_coef"},
    "acer": {"entropy_coef", "q_coef", "importance_clip", "trust_region_delta"},
    "vpg": {"entropy_coef"},
    "trpo": {"entropy_coef"},
}
VALUES = {"importance_clip": (1.0, 1.1), "trust_region_delta": (0.0, 0.3), "value_clip": (0.01, 10.0)}


@pytest.mark.parametrize("objective", ["clip", "kl"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_float_that_changes_changes_the_gradient_of_every_way(name: str, objective: str) -> None:
    """Every float setting of every algorithm, at parameters where clipping and penalties count."""
    has_objective = name in ("ppo", "ppg")
    if objective == "kl" and not has_objective:
        pytest.skip("has no objective to choose")
    agent = made(name, compile="off", entropy_coef=0.01, **({"objective": objective} if has_objective else {}))
    losses, config = captured(agent), agent.config
    for _, batch, _ in losses.values():  # targets above and below the values, so that every limit is met
        batch.value_targets.copy_(torch.linspace(-30, 30, len(batch)))
    moves = offsets([agent.flat.data], 0.2 * 10**0.5, torch.Generator().manual_seed(0))
    agent.flat.data.add_(moves[0])
    for field, (first, _) in VALUES.items():
        if hasattr(config, field):
            config.settle(**{field: first})

    def gradients() -> dict[str, list[Tensor]]:
        found = {}
        for kind, (loss, batch, scalars) in losses.items():
            given = (kind, loss, batch, {field: getattr(config, field) for field in scalars})
            found[kind] = [steps.gradient(*given)[0].clone() for steps in (agent.stepper.plain, agent.stepper.traced)]
            if native.compiler() is not None:
                found[kind].append(compiled_gradient(agent.stepper.compiled, *given))
            for other in found[kind][1:]:
                assert (other - found[kind][0]).norm() <= 1e-5 * found[kind][0].norm(), (kind, field)
        return found

    matter, field = set(), ""
    before = gradients()
    for field, described in documented_fields(type(config)).items():
        value = getattr(config, field)
        if field in FIXED_FIELDS or not isinstance(value, float):
            continue
        high = described.metadata["high"]
        if field == "kl_target" and objective != "kl":
            continue  # refused
        config.settle(**{field: VALUES.get(field, (0, 0.3 * high if high else 1.3 * value + 0.05))[1]})
        after = gradients()
        if any((after[kind][0] - before[kind][0]).norm() > 1e-4 * before[kind][0].norm() for kind in losses):
            matter.add(field)
        before = after
    unread = {"clip_range"} if objective == "kl" else {"kl_beta"}
    assert matter == READ[name] - unread, matter ^ (READ[name] - unread)
