"""The recorder of operations against torch's own, make_fx, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from phasegrad.compute.in_place import without_changes
from phasegrad.compute.operations import Operations, operation_name
from phasegrad.compute.tracing import Traced

WEIGHT = nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3))
SCALE = torch.tensor([1.0, 2.0, 3.0])
ATTENTION = nn.MultiheadAttention(2, 2, batch_first=True).eval()


def gradient(x: Tensor, y: Tensor) -> list[Tensor]:
    left, right = F.layer_norm(x @ WEIGHT, (3,), SCALE).split([1, 2], -1)
    loss = (left.tanh() * right).mean() + torch.tensor(0.5) * torch.maximum(y, y.clamp(-0.2, 0.2) + WEIGHT.sum()).mean()
    return [*torch.autograd.grad(loss, [WEIGHT]), loss, SCALE]


def unseen(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(x + 1).mul_(2).masked_fill_(x > 0, 0.0), x * 3]


def into_a_view(x: Tensor, y: Tensor) -> list[Tensor]:
    whole = x + 1
    whole[0] = 7.0
    return [whole, whole[1].mul_(2)]


def under_a_view(x: Tensor, y: Tensor) -> list[Tensor]:
    whole = x + 1
    first = whole[0]
    return [whole.mul_(2), first + 1]


def of_another_type(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(x + 1).logical_and_(x > 0)]  # floats, since it is written into floats


def taken_apart(x: Tensor, y: Tensor) -> list[Tensor]:
    return [F.binary_cross_entropy_with_logits(x, x.sigmoid()), (x + 1).mul_(2)]


def number_of_its_own(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x * torch.tensor(3.0).add(1).item()]


def attention(x: Tensor, y: Tensor) -> list[Tensor]:
    with torch.no_grad():  # where torch would take one kernel for all of it, which has no gradient
        sequence = x.unsqueeze(0)
        return [ATTENTION(sequence, sequence, sequence, need_weights=False)[0]]


def autocast(x: Tensor, y: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        return [x @ WEIGHT, x @ WEIGHT]


def spelt(graph: Any, captured: Callable[[str], Tensor]) -> list[Any]:
    """A graph as plain text, one line a node, and what it has captured."""
    kept = [node for node in graph.nodes if node.op != "get_attr" or node.users]
    names = {node: f"%{place}" for place, node in enumerate(node for node in kept if node.op != "get_attr")}
    names |= {node: f"#{captured(str(node.target)).tolist()}" for node in kept if node.op == "get_attr"}

    def told(item: Any) -> Any:
        if isinstance(item, torch.fx.Node):
            return names[item]
        return [told(part) for part in item] if isinstance(item, (list, tuple)) else str(item)

    lines = []
    for node in kept:
        if node.op != "get_attr":
            value = node.meta.get("val")
            described = (value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else None
            lines.append((str(node.target), told(node.args), told(list(node.kwargs.items())), described))
    return [line[1:] if number < 2 or number == len(lines) - 1 else line for number, line in enumerate(lines)]


FUNCTIONS = [
    gradient,
    unseen,
    into_a_view,
    under_a_view,
    of_another_type,
    taken_apart,
    number_of_its_own,
    attention,
    autocast,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_the_operations_are_those_that_make_fx_finds(function: Callable[..., list[Tensor]]) -> None:
    examples = [torch.linspace(-1, 1, 8).reshape(4, 2), torch.linspace(-1, 1, 4)]
    module = make_fx(lambda *inputs: list(function(*inputs)))(*examples)
    found = Operations(function, examples)
    assert spelt(found.graph, found.captured.__getitem__) == spelt(module.graph, lambda name: getattr(module, name))
    with torch.no_grad():
        wanted, again = make_fx(functionalize(module))(*examples), without_changes(found, examples)
    changing = [node for node in found.graph.nodes if operation_name(node).endswith("_")]
    assert bool(changing) == (again is not found)
    if changing:
        assert spelt(again.graph, again.captured.__getitem__) == spelt(wanted.graph, lambda n: getattr(wanted, n))
    inputs = [torch.randn(4, 2), torch.randn(4)]
    traced = Traced(function, examples)
    with torch.no_grad():
        results = traced(*inputs)
    for mine, theirs in zip(results, function(*inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: [x * x.sum().item()],
        lambda x, y: [x if y.sum() > 0 else -x],
        lambda x, y: [x * float((WEIGHT.sum() + 1).detach())],
        lambda x, y: [x] if torch.equal(x[:, 0], y) else [-x],
    ],
)
def test_a_number_that_is_read_out_of_a_tensor_is_refused(function: Callable[..., list[Tensor]]) -> None:
    examples = [torch.linspace(-1, 1, 8).reshape(4, 2), torch.linspace(-1, 1, 4)]
    with pytest.raises(RuntimeError, match="trying to get value out of a tracing tensor"):
        make_fx(function)(*examples)
    with pytest.raises(RuntimeError, match=r"reads a number out of a tensor \(aten\."):
        Operations(function, examples)
