"""Activations and LayerNorm of fully connected layers in generated code, by the functions of dense_layers.h.

Their operations have arguments that are no numbers of an expression, so they are no entries of pointwise.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from phasegrad.compute.native.graph import Unsupported, View
from phasegrad.compute.native.pointwise import literal

if TYPE_CHECKING:
    from phasegrad.compute.native.emit import Emitter

HEADER = Path(__file__).with_name("dense_layers.h")
NAMES = ("elu_(", "elu_slope_(", "gelu_(", "gelu_slope_(", "silu_(", "silu_slope_(", "layer_norm")


def needs_header(lines: list[str]) -> bool:
    """Whether generated code calls something of dense_layers.h."""
    return any(name in line for line in lines for name in NAMES)


def activation(expression: str) -> Callable[..., View]:
    """An expression in the tensors {0}, {1} of an operation whose only option, if any, says which kind it is."""

    def emit(emitter: Emitter, example: Tensor, *views: View, approximate: str = "none") -> View:
        if approximate != "none":
            raise Unsupported(f"gelu with approximate {approximate}")
        return _each(emitter, example, expression, views)

    return emit


def elu(emitter: Emitter, example: Tensor, x: View, alpha: float = 1, scale: float = 1, inner: float = 1) -> View:
    _require_plain(scale, inner)
    return _each(emitter, example, f"elu_({{0}}, {literal(float(alpha))})", [x])


def elu_backward(
    emitter: Emitter, example: Tensor, grad: View, alpha: float, scale: float, inner: float, is_result: bool, x: View
) -> View:
    _require_plain(scale, inner, is_result)
    return _each(emitter, example, f"{{0}} * elu_slope_({{1}}, {literal(float(alpha))})", [grad, x])


def leaky_relu(emitter: Emitter, example: Tensor, x: View, slope: float = 0.01) -> View:
    return _each(emitter, example, f"({{0}} > 0.0f ? {{0}} : {{0}} * {literal(float(slope))})", [x])


def leaky_relu_backward(emitter: Emitter, example: Tensor, grad: View, x: View, slope: float, is_result: bool) -> View:
    _require_plain(1, 1, is_result)
    return _each(emitter, example, f"({{1}} > 0.0f ? {{0}} : {{0}} * {literal(float(slope))})", [grad, x])


def layer_norm(
    emitter: Emitter, example: Any, x: View, shape: Sequence[int], weight: View | None, bias: View | None, eps: float
) -> list[View]:
    """What is normalised, and each row's mean and rate, 1 / deviation, for the gradient."""
    if len(shape) != 1 or weight is None or bias is None:
        raise Unsupported("a LayerNorm over several dimensions or without weights")
    (reads, lent), width = _dense(emitter, [x, weight, bias]), shape[0]
    results = [emitter.allocate(each.shape, each.dtype) for each in example]
    places = [view.start for view in [*reads, *results]]
    sizes = f"{x.size // width}, {width}"
    emitter.lines.append(
        f"layer_norm({sizes}, {', '.join(places[:3])}, {literal(float(eps))}, {', '.join(places[3:])});"
    )
    _give_back(emitter, lent)
    return results


def layer_norm_backward(
    emitter: Emitter, example: Any, grad: View, x: View, shape: Sequence[int], mean: View, rate: View,
    weight: View | None, bias: View | None, wanted: Sequence[bool],
) -> list[View]:  # fmt: skip
    if len(shape) != 1 or weight is None or bias is None or not all(wanted):
        raise Unsupported("the gradient of a LayerNorm by some of its inputs")
    reads, lent = _dense(emitter, [grad, x, mean, rate, weight])
    results = [emitter.allocate(each.shape, each.dtype) for each in example]
    places = ", ".join(view.start for view in [*reads, *results])
    emitter.lines.append(f"layer_norm_backward({x.size // shape[0]}, {shape[0]}, {places});")
    _give_back(emitter, lent)
    return results


def _each(emitter: Emitter, example: Tensor, expression: str, views: Sequence[View]) -> View:
    out = emitter.allocate(example.shape, example.dtype)
    emitter.loops(out, expression, views)
    return out


def _require_plain(scale: float, inner: float, is_result: bool = False) -> None:
    if scale != 1 or inner != 1 or is_result:
        raise Unsupported("an activation with options")


def _dense(emitter: Emitter, views: Sequence[View]) -> tuple[list[View], list[View]]:
    """The views with elements one after another, and those that had to be copied for it."""
    dense = [emitter.dense(view) for view in views]
    return dense, [mine for mine, given in zip(dense, views, strict=True) if mine is not given]


def _give_back(emitter: Emitter, lent: Sequence[View]) -> None:
    for view in lent:
        emitter.workspace.give_back(view.slot)
