"""Compiled code against torch: every operation it knows, every loss of the library, whole runs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from identity_envs import IdentityEnv
from interrupted import resumed_to_the_same_bits
from machine import needs_compiler
from torch import Tensor

import phasegrad as pg
from phasegrad.compute import native
from phasegrad.compute.native import Program, Unsupported
from phasegrad.compute.native.emit import SPECIAL, Emitter
from phasegrad.compute.native.pointwise import POINTWISE, POWERS
from phasegrad.compute.operations import operation_name
from phasegrad.compute.tracing import needed_nodes, record
from phasegrad.errors import PhasegradWarning

SIZES = {"preset": "none", "num_envs": 4, "num_steps": 16, "num_minibatches": 4, "hidden_sizes": (9, 7), "seed": 3}


def close(found: Tensor, wanted: Tensor, tolerance: float = 2e-6) -> None:
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def every_operation(x: Tensor, y: Tensor, bits: Tensor, choice: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Each operation at least once; x, y [6, 5], bits [6, 5] bool, choice [6, 1] int64, weight [9, 5], bias [9]."""
    row, positive = y[0], y.abs() + 0.1
    mean, spread = x.chunk(2, 0)
    left, middle, right = x.split([2, 1, 2], -1)
    return [
        x * y, x / positive, -x, x.abs(), x.exp(), positive.log(), x.tanh(), x.sigmoid(), F.softplus(x), positive.sqrt(),
        x.erf(), positive.log1p(), x.expm1(),
        positive.reciprocal(), x.relu(), bits.to(torch.float32), x > y, x < row, x >= 0.3, x <= y, choice == 2,
        bits & (x > 0), ~bits, torch.where(bits, x, y), x.masked_fill(bits, -1e8), torch.maximum(x, y),
        torch.minimum(x, row), x.clamp(-0.5, 0.5), x.clamp(max=0.2), x.clamp(min=-0.2), x.clamp_min(0.1), x.clamp_max(0.1), x != y,
        torch.logical_and(bits, x > 0), torch.logical_not(bits), x + 2 * y, x - row, 1 - x,
        x.square(), positive**-1, x.add(y, alpha=3), x @ weight.t(), F.linear(x, weight, bias), x.t() @ y,
        x.sum(), x.sum(0), x.sum(-1), x.sum(-1, keepdim=True), x.mean(), x.mean(0), x.var(), x.std(), (x > 0).sum(-1),
        torch.cat([x, y[:, :2]], -1), torch.cat([mean, spread, mean], 0), torch.stack([x, y]), torch.stack([x, y], -1),
        x.log_softmax(-1), x.softmax(-1), x.cumsum(-1), x.log_softmax(-1).gather(-1, choice),
        F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none"), F.logsigmoid(40 * x), left, right * middle,
        x.t(), x[1:4], x[:, 1::2], x.unsqueeze(1).expand(6, 3, 5), x.reshape(-1), x.unbind(-1)[2], x[2],
        x.permute(1, 0).contiguous(), torch.zeros_like(x).scatter_add(-1, choice, y[:, :1]),
        F.elu(x), F.gelu(x), F.silu(x), F.leaky_relu(x), F.layer_norm(x, (5,), row, positive[1]), F.elu(x, 0.3),
        F.layer_norm(x.t(), (6,), y[:, 0], y[:, 1]),
    ]  # fmt: skip


def inputs(seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(6, 5, generator=draw), torch.randn(6, 5, generator=draw)
    bits = torch.rand(6, 5, generator=draw) < 0.5
    choice = torch.randint(5, (6, 1), generator=draw)
    return [x, y, bits, choice, torch.randn(9, 5, generator=draw), torch.randn(9, generator=draw)]


@needs_compiler
def test_every_operation_computes_what_torch_does() -> None:
    program = Program(every_operation, inputs())
    for seed in range(3):
        given = inputs(seed)
        for place, (found, wanted) in enumerate(zip(program(*given), every_operation(*given), strict=True)):
            assert found.shape == wanted.shape, place
            close(found, wanted.contiguous())


@needs_compiler
def test_exponentials_are_right_over_their_whole_range() -> None:
    numbers = torch.cat([torch.linspace(-100, 100, 20_001), torch.tensor([0.0, -1e8, 1e-12, torch.inf, -torch.inf])])
    found = Program(lambda x: [x.exp(), x.tanh(), x.sigmoid(), F.logsigmoid(x), F.softplus(x)], [numbers])(numbers)
    exact = numbers.double()
    wanted = [exact.exp(), exact.tanh(), exact.sigmoid(), F.logsigmoid(exact), F.softplus(exact)]
    within = numbers < 88.0  # beyond it e^x may already be infinite
    torch.testing.assert_close(found[0][within].double(), wanted[0][within], rtol=3e-7, atol=1e-37)
    assert torch.isinf(found[0][numbers > 89]).all()
    for mine, theirs in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-6, atol=2e-7)


@needs_compiler
@pytest.mark.parametrize("activation", [F.elu, F.gelu, F.silu, F.leaky_relu])
def test_activations_and_their_slopes_are_right_over_their_whole_range(activation: Any) -> None:
    numbers = torch.cat(
        [torch.linspace(-100, 100, 20_001), torch.linspace(-0.5, 0.5, 999), torch.tensor([1e-12, -1e8])]
    )

    def function(x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        outputs = activation(x)
        return [outputs.detach(), *torch.autograd.grad(outputs.sum(), x)]

    found, wanted = Program(function, [numbers])(numbers), function(numbers.double())
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-6, atol=5e-7)


@needs_compiler
def test_functions_of_bounded_actions_are_right_over_their_whole_range() -> None:
    small = torch.logspace(-12, 0, 400)
    numbers = torch.cat([torch.linspace(-85, 85, 20_001), torch.linspace(-2, 2, 4_001), small, -small, torch.zeros(1)])
    above = numbers[numbers > -1]
    found = Program(lambda x, y: [x.erf(), x.expm1(), y.log1p()], [numbers, above])(numbers, above)
    wanted = [numbers.double().erf(), numbers.double().expm1(), above.double().log1p()]
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=4e-7, atol=1e-30)
    edges = torch.tensor([torch.inf, -torch.inf, torch.nan, -1.0, -2.0, 1e30])
    for mine, theirs in zip(
        Program(lambda x: [x.erf(), x.expm1(), x.log1p()], [edges])(edges),
        [edges.erf(), edges.expm1(), edges.log1p()],
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


@needs_compiler
def test_not_a_number_stays_one() -> None:
    bad = torch.tensor([torch.nan, 1.0])

    def function(x: Tensor) -> list[Tensor]:
        return [x.exp(), x.tanh(), x.clamp(-1, 1), x.relu(), x.sum(), F.elu(x), F.gelu(x), F.silu(x), F.leaky_relu(x)]

    for result in Program(function, [bad])(bad):
        assert torch.isnan(result.flatten()[0])


@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 5, 13])
def test_products_of_every_remainder(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    shapes = [(1, 1), (3, 8), (7, 9), (17, 16), (4, 31)]
    a = [torch.randn(rows, inner, generator=draw) for inner, _ in shapes]
    b = [torch.randn(inner, columns, generator=draw) for inner, columns in shapes]

    def products(*both: Tensor) -> list[Tensor]:
        left, right = both[: len(shapes)], both[len(shapes) :]
        plain = [x @ y for x, y in zip(left, right, strict=True)]
        return plain + [x.t() @ p for x, p in zip(left, plain, strict=True)]

    for found, wanted in zip(Program(products, a + b)(*a, *b), products(*a, *b), strict=True):
        close(found, wanted, 1e-5)


def test_an_unknown_operation_is_refused_before_anything_is_compiled() -> None:
    with pytest.raises(Unsupported, match="erfinv"):
        Program(lambda x: [x.erfinv()], [torch.zeros(3)])
    with pytest.raises(Unsupported, match="float64"):
        Program(lambda x: [x @ x], [torch.zeros(3, 3, dtype=torch.float64)])


def test_every_operation_of_the_tables_is_compared_with_torch() -> None:
    """A new entry must come with its line in `every_operation`; gradients, and what only they need, in the agents' test."""
    graph, _ = record(every_operation, inputs())
    compared = {operation_name(node) for node in graph.nodes}
    of_gradients = {name for name in [*POINTWISE, *SPECIAL] if "backward" in name} | {"fill", "new_zeros", "empty_like"}
    assert {*POINTWISE, *SPECIAL} - compared - {"lstm", "gru"} == of_gradients


DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
NUMBERS: tuple[Any, ...] = (2, -1, 0.1, 300, True)
OPS = torch.ops.aten
Call = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of x, y [4, 3], a mask [4, 3] and positions [4, 2]


def one(function: Any) -> list[Call]:
    return [lambda x, y, mask, at: function(x)]


def two(function: Any) -> list[Call]:
    """With a tensor, with one without dimensions, and with plain numbers."""
    calls: list[Call] = [lambda x, y, mask, at: function(x, y), lambda x, y, mask, at: function(x, y[1, 1])]
    return calls + [lambda x, y, mask, at, number=number: function(x, number) for number in NUMBERS]


def scaled(function: Any) -> list[Call]:
    calls = two(function)
    for alpha in (3, 0.1):
        calls.append(lambda x, y, mask, at, alpha=alpha: function(x, y, alpha=alpha))
        calls.append(lambda x, y, mask, at, alpha=alpha: function(x, 2, alpha=alpha))
    return calls


def summed(function: Any) -> list[Call]:
    calls: list[Call] = [lambda x, y, mask, at, dim=dim: function(x, dim) for dim in (0, -1)]
    return calls + [lambda x, y, mask, at, dtype=dtype: function(x, -1, dtype=dtype) for dtype in DTYPES]


def as_each(function: Any) -> list[Call]:
    return [lambda x, y, mask, at, dtype=dtype: function(x, dtype) for dtype in DTYPES]


CALLS: dict[str, list[Call]] = {
    **{name: one(getattr(OPS, name)) for name in (
        "abs", "exp", "log", "erf", "log1p", "expm1", "tanh", "sigmoid", "sqrt", "reciprocal", "neg", "relu", "logical_not", "bitwise_not", "clone",
        "var", "std",
    )},
    **{name: two(getattr(OPS, name)) for name in (
        "mul", "div", "maximum", "minimum", "gt", "lt", "ge", "le", "eq", "ne", "logical_and", "bitwise_and",
        "tanh_backward", "sigmoid_backward", "clamp_min", "clamp_max", "fill",
    )},
    **{name: scaled(getattr(OPS, name)) for name in ("add", "sub", "rsub")},
    **{f"pow {power}": one(lambda x, power=power: OPS.pow(x + 0, power)) for power in POWERS},
    "softplus": [*one(OPS.softplus), *one(lambda x: OPS.softplus(x, 2.0))],
    "softplus_backward": [
        lambda x, y, mask, at: OPS.softplus_backward(x, y, 1, 20), lambda x, y, mask, at: OPS.softplus_backward(x, y, 2, 20)
    ],
    "log_sigmoid_backward": [lambda x, y, mask, at: OPS.log_sigmoid_backward(x, y, (-y.abs()).exp())],
    "threshold_backward": [lambda x, y, mask, at: OPS.threshold_backward(x, y, 0)],
    "clamp": [
        *(lambda x, y, mask, at, low=low, high=high: OPS.clamp(x, low, high)
          for low, high in ((-1, 2), (0.1, 1.3), (None, 1), (0.1, None), (2, 1))),
        lambda x, y, mask, at: OPS.clamp(x, y, y + 1), lambda x, y, mask, at: OPS.clamp(x, y[1, 1], y[1, 1]),
    ],
    "where": [
        lambda x, y, mask, at: OPS.where(mask, x, y), lambda x, y, mask, at: OPS.where(mask, x, y[1, 1]),
        lambda x, y, mask, at: OPS.where(x, y, y),
        *(lambda x, y, mask, at, number=number: OPS.where(mask, x, number) for number in NUMBERS),
    ],
    "masked_fill": [
        lambda x, y, mask, at: OPS.masked_fill(x, mask, y[1, 1]), lambda x, y, mask, at: OPS.masked_fill(x, y, 1),
        *(lambda x, y, mask, at, number=number: OPS.masked_fill(x, mask, number) for number in NUMBERS),
    ],
    "mm": [lambda x, y, mask, at: OPS.mm(x, y.t())],
    "addmm": [lambda x, y, mask, at: OPS.addmm(y.reshape(-1)[:4], x, y.t()), lambda x, y, mask, at: OPS.addmm(y.reshape(-1)[:4], x, x.t())],
    "sum": [*summed(lambda x, dim, **how: OPS.sum(x, [dim], **how)), *one(OPS.sum)],
    "mean": [*summed(lambda x, dim, **how: OPS.mean(x, [dim], **how)), *one(OPS.mean)],
    "cumsum": summed(OPS.cumsum),
    "cat": [lambda x, y, mask, at: OPS.cat([x, y], 1)],
    "stack": [lambda x, y, mask, at: OPS.stack([x, y], 1)],
    "_log_softmax": one(lambda x: OPS._log_softmax(x, -1, False)),
    "_softmax": one(lambda x: OPS._softmax(x, -1, False)),
    "_log_softmax_backward_data": [lambda x, y, mask, at: OPS._log_softmax_backward_data(x, y, -1, x.dtype)],
    "gather": [lambda x, y, mask, at: OPS.gather(x, -1, at), lambda x, y, mask, at: OPS.gather(x, -1, at.int())],
    "scatter_add": [
        lambda x, y, mask, at: OPS.scatter_add(x, -1, at, y), lambda x, y, mask, at: OPS.scatter_add(x[:2], -1, at[:2], y)
    ],
    "binary_cross_entropy_with_logits": [
        lambda x, y, mask, at: OPS.binary_cross_entropy_with_logits(x, y, None, None, 0)
    ],
    "log_sigmoid_forward": one(lambda x: OPS.log_sigmoid_forward(x)[0]),
    "_to_copy": as_each(lambda x, dtype: OPS._to_copy(x, dtype=dtype)),
    "new_zeros": as_each(lambda x, dtype: OPS.new_zeros(x, [2, 2], dtype=dtype)),
    "empty_like": as_each(lambda x, dtype: OPS.empty_like(x, dtype=dtype)),
    **{name: one(getattr(OPS, name)) for name in ("elu", "gelu", "silu", "leaky_relu")},
    "elu_backward": [
        lambda x, y, mask, at: OPS.elu_backward(x, 0.3, 1, 1, False, y), lambda x, y, mask, at: OPS.elu_backward(x, 1, 1, 1, True, y)
    ],
    "gelu_backward": [
        lambda x, y, mask, at: OPS.gelu_backward(x, y), lambda x, y, mask, at: OPS.gelu_backward(x, y, approximate="tanh")
    ],
    "silu_backward": [lambda x, y, mask, at: OPS.silu_backward(x, y)],
    "leaky_relu_backward": [lambda x, y, mask, at: OPS.leaky_relu_backward(x, y, 0.2, False)],
    "native_layer_norm": [
        lambda x, y, mask, at, part=part: OPS.native_layer_norm(x, [3], y[0], y[1], 1e-5)[part] for part in range(3)
    ],
    "native_layer_norm_backward": [
        lambda x, y, mask, at, part=part: OPS.native_layer_norm_backward(
            x, y, [3], y.mean(1, keepdim=True), 1 / ((y * y).mean(1, keepdim=True) + 1).sqrt(), x[0], x[1], [True] * 3
        )[part] for part in range(3)
    ],
    "view": as_each(lambda x, dtype: OPS.view(x, [12] if dtype.itemsize == x.dtype.itemsize else dtype)),
}  # fmt: skip


def drawn(dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers of both signs and 0; of integers also some that float32 rounds, or that wrap around."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randn(4, 3, generator=draw, dtype=torch.float64) * 2
    numbers[0, 0], numbers[1, 1], numbers[2, 2] = 0.0, 2.0, -1.0
    if dtype == torch.bool:
        return numbers > 0
    if dtype == torch.uint8:
        return torch.randint(0, 256, (4, 3), generator=draw).masked_fill(numbers == 0, 0).to(torch.uint8)
    if dtype == torch.int64:
        return numbers.masked_fill(numbers == -1.0, 2**24 + 1).to(dtype)
    return numbers.to(dtype)


def mask_and_positions(seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(4, 3, generator=draw) < 0.5, torch.randint(3, (4, 2), generator=draw)


def test_every_entry_names_its_types_and_is_called_here() -> None:
    named = {**POINTWISE, **{f"pow {power}": known for power, known in POWERS.items()}}
    assert all(known.dtypes for known in named.values())
    assert all(known.reads and known.gives for known in SPECIAL.values())
    assert set(CALLS) - {"view"} == {*named, *SPECIAL} - {"lstm", "lstm_backward", "gru", "gru_backward"}


@needs_compiler
@pytest.mark.parametrize("size", [5, 8, 20])  # with and without a rest of a vector
@pytest.mark.parametrize(("kind", "gates"), [("lstm", 4), ("gru", 3)])
def test_recurrent_layers_are_computed_as_torch_does(kind: str, gates: int, size: int) -> None:
    torch.manual_seed(0)
    steps, count = 6, 7
    parts, operations = (2 if kind == "lstm" else 1), torch.ops.phasegrad
    projected, grad = torch.randn(steps * count, gates * size), torch.randn(steps * count, size)
    states, keep = torch.randn(count, parts * size), (torch.rand(steps * count) > 0.3).float()
    weights, bias = torch.randn(size, gates * size) / size**0.5, torch.randn(size)
    given = (projected, states, keep, weights, *([] if kind == "lstm" else [bias]))

    def forward(*inputs: Tensor) -> list[Tensor]:
        return list(getattr(operations, kind)(*inputs))

    found = Program(forward, given)(*given)
    results = forward(*given)
    for mine, theirs in zip(found, results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    kept = (results[1], results[2]) if kind == "lstm" else (results[0], results[1])
    inputs = (grad, states, keep, weights, *kept)

    def backward(*inputs: Tensor) -> list[Tensor]:
        return [getattr(operations, f"{kind}_backward")(*inputs)]

    torch.testing.assert_close(Program(backward, inputs)(*inputs)[0], backward(*inputs)[0], rtol=1e-4, atol=1e-5)


def is_taken(graph: Any, fixed: Any, result: Any) -> bool:
    """Whether the C of one result of a recorded function can be written."""
    next(node for node in graph.nodes if node.op == "output").args = ([result],)
    try:
        Emitter(graph, fixed, needed_nodes(graph, fixed), operation_name)
    except Unsupported:
        return False
    return True


@needs_compiler
@pytest.mark.parametrize("name", CALLS)
def test_numbers_of_every_type_are_computed_as_torch_does_or_refused(name: str) -> None:
    given = [*(drawn(dtype, seed) for seed in (1, 2) for dtype in DTYPES), *mask_and_positions(3)]
    possible: list[tuple[str, Callable[..., Tensor]]] = []
    for number, call in enumerate(CALLS[name]):
        for i, first in enumerate(DTYPES):
            for j, second in enumerate(DTYPES, len(DTYPES)):

                def function(*given: Tensor, call: Call = call, i: int = i, j: int = j) -> Tensor:
                    return call(given[i], given[j], *given[-2:])

                with contextlib.suppress(RuntimeError, TypeError):  # what torch does not take either
                    function(*given)
                    possible.append((f"call {number} of {first} and {second}", function))
    graph, fixed = record(lambda *given: [function(*given) for _, function in possible], given)
    results = next(list(node.args[0]) for node in graph.nodes if node.op == "output")
    accepted = {result: is_taken(graph, fixed, result) for result in set(results)}
    taken = [each for each, result in zip(possible, results, strict=True) if accepted[result]]
    assert taken, "nothing was compared"
    program = Program(lambda *given: [function(*given) for _, function in taken], given)
    for (what, function), found in zip(taken, program(*given), strict=True):
        wanted = torch.zeros_like(found) if name == "empty_like" else function(*given).contiguous()
        assert found.dtype == wanted.dtype, what
        tolerance = 1e-12 if found.dtype == torch.float64 else 2e-6
        torch.testing.assert_close(
            found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text, what=what: f"{what}: {text}"
        )


SPACES = {
    "discrete": gym.spaces.Discrete(3),
    "multi-discrete": gym.spaces.MultiDiscrete([2, 3]),
    "binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(-1, 1, (2,), np.float32),
}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("ppo", space, options)
    for space in SPACES
    for options in (
        {"entropy_coef": 0.01, "value_clip": 0.2},
        {"objective": "kl", "arch": "shared", "activation": "relu"},
    )
] + [
    ("ppo", "box", {"std": "state_dependent", "objective": "cpi", "normalize_observation": True}),
    ("ppo", "box", {"std": "fixed", "mean_tanh": True, "objective": "pg", "normalize_advantage": "none"}),
    *(
        ("ppo", "box", {"activation": name, "layer_norm": place % 2 == 0, "arch": "dual", "value_hidden_sizes": (5,)})
        for place, name in enumerate(("elu", "gelu", "silu", "leaky_relu"))
    ),
    ("ppg", "discrete", {"arch": "dual", "n_pi": 2, "aux_minibatches": 3, "layer_norm": True}),
    ("ppg", "discrete", {"arch": "dual", "n_pi": 2, "aux_minibatches": 3, "e_v": 2}),
    ("ppg", "box", {"arch": "detach", "n_pi": 2, "aux_minibatches": 3}),
    ("ppg", "binary", {"arch": "dual", "n_pi": 2, "aux_minibatches": 3, "aux_target": "value_network"}),
]


@needs_compiler
@pytest.mark.parametrize(("algorithm", "space", "options"), CASES)
def test_compiled_and_plain_runs_agree(algorithm: str, space: str, options: dict[str, Any]) -> None:
    """Ten iterations on the same data in the same order end with the same parameters."""
    agents = {}
    for how in ("on", "off"):
        with warnings.catch_warnings():
            warnings.simplefilter("error", PhasegradWarning)  # a fall-back would compare the plain path with itself
            kind = {"ppo": pg.PPO, "ppg": pg.PPG}[algorithm]
            agent = kind(lambda: IdentityEnv(SPACES[space]), compile=how, **SIZES, **options)
            agents[how] = agent.learn(640)
    for how, agent in agents.items():  # else one way would be compared with itself
        assert agent.computation.actor.compiled == (how == "on")
        assert all(bool(stepper.compiled.programs) == (how == "on") for stepper in agent.computation.steppers)
    fast, plain = agents["on"].flat.data, agents["off"].flat.data
    assert float((fast - plain).norm() / plain.norm()) < 1e-5
    assert agents["on"].progress.recent_returns == pytest.approx(agents["off"].progress.recent_returns)


@needs_compiler
def test_masks_and_dict_observations_are_compiled_too() -> None:
    class Masked(gym.Env):
        observation_space = gym.spaces.Dict(
            a=gym.spaces.Box(-1, 1, (3,), np.float32), b=gym.spaces.Discrete(4), c=gym.spaces.MultiBinary(2)
        )
        action_space = gym.spaces.Discrete(3)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            if seed is not None:
                self.observation_space.seed(seed)
            self.steps = 0
            return self.observation_space.sample(), {"action_mask": np.array([True, False, True])}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert action != 1
            self.steps += 1
            done = self.steps % 10 == 0
            return (
                self.observation_space.sample(),
                float(action),
                done,
                False,
                {"action_mask": np.array([True, False, True])},
            )

    ends = []
    for how in ("on", "off"):
        with warnings.catch_warnings():
            warnings.simplefilter("error", PhasegradWarning)
            ends.append(pg.PPO(Masked, compile=how, **SIZES).learn(320).flat.data)
    assert float((ends[0] - ends[1]).norm() / ends[1].norm()) < 1e-5


@needs_compiler
def test_the_same_run_twice_gives_the_same_bits() -> None:
    first, second = (pg.PPO("CartPole-v1", compile="on", **SIZES).learn(640).flat.data for _ in range(2))
    assert torch.equal(first, second)


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (pg.PPO, {"objective": "kl", "normalize_observation": True}),
        (pg.PPG, {"arch": "dual", "n_pi": 2, "aux_minibatches": 3}),
        (pg.PPG, {"arch": "detach", "n_pi": 2, "aux_minibatches": 3}),
        (pg.A2C, {"num_minibatches": None, "updates_per_iteration": 4}),
        (pg.VPG, {"num_minibatches": None}),
        (pg.TRPO, {"num_minibatches": None}),
        (pg.ACER, {"num_minibatches": None, "arch": "shared"}),
    ],
)
def test_a_compiled_run_resumes_to_the_bits_of_one_never_stopped(
    kind: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    """The resumed agent has never run the plain first iteration."""
    fields = {name: value for name, value in {**SIZES, **options}.items() if value is not None}
    agent = kind("CartPole-v1", compile="on", checkpoint_every=128, run_dir=tmp_path / "whole", **fields)
    resumed = resumed_to_the_same_bits(agent, 1280, 640)
    assert agent.computation.actor.runs_program
    assert resumed.computation.actor.runs_program


@needs_compiler
def test_a_network_that_is_not_known_still_trains() -> None:
    class Odd(torch.nn.Module):
        features = 4

        def __init__(self, space: gym.Space) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, observation: Tensor) -> Tensor:
            return torch.sinh(self.linear(observation))

    with pytest.warns(PhasegradWarning, match="without compiled code: the operation sinh"):
        agent = pg.PPO("CartPole-v1", encoder=Odd, compile="on", **SIZES).learn(128)
    assert agent.progress.step == 128


@needs_compiler
def test_the_first_iteration_of_a_run_is_plain_and_the_next_is_not() -> None:
    agent = pg.PPO("CartPole-v1", compile="on", **SIZES).learn(64)
    assert [bool(stepper.compiled.programs) for stepper in agent.computation.steppers] == [False]
    agent.learn(128)
    assert [bool(stepper.compiled.programs) for stepper in agent.computation.steppers] == [True]


def test_the_setting_is_made_definite(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(**fields: Any) -> str:
        agent = pg.PPO("CartPole-v1", **{**SIZES, **fields})
        agent.computation.settle()
        return agent.config.compile

    assert settled(total_steps=1_000) == "off"
    assert settled(total_steps=10**6) == ("on" if native.compiler() else "replay")
    assert settled(total_steps=1_000, compile="replay") == "replay"
    monkeypatch.setattr(native, "compiler", lambda: None)
    assert settled(total_steps=10**6) == "replay"
    with pytest.warns(PhasegradWarning, match="no C compiler"):
        assert settled(compile="on") == "replay"
