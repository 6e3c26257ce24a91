"""The self-check of traced and compiled code: before it is used it must find what autograd finds.

It is compared at two points: where the parameters are, and, on another minibatch, where they are not. A new loss is
first met where ratio = 1 and KL = 0; away from there the branches of clipping and the KL terms count too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phasegrad.models import FlatParameters

# How far the second point is: what a layer puts out changes by about this share of what it takes in. The probability
# ratios of the library's networks then lie between 0.5 and 2, on both sides of any usual clip range.
FAR = 0.3
# A sample within a rounding of a clip's or a ReLU's boundary may fall to either side of it, and its whole gradient with
# it. That is chance and passes with other parameters, where a fault in the code stays.
TRIES = 3
NEARBY = 1e-3  # where the first point is, from the second try on
ROUNDINGS = 10  # of parameters and inputs, whose effect counts as no difference
LOOSER = 10  # for metrics: each is one mean, whose terms may cancel, where a gradient's norm is of many


class Disagreement(Exception):
    """Code that does not find what autograd does."""


@dataclass
class _Point:
    """What the code and autograd find at one point, and autograd again after a rounding of all it is given."""

    found: list[Tensor]
    wanted: list[Tensor]
    rounded: list[Tensor]


def require_agreement(
    found: Callable[..., list[Tensor]],
    wanted: Callable[..., list[Tensor]],
    minibatches: Sequence[Sequence[Tensor]],
    flat: FlatParameters,
    metrics: list[str],
    tolerance: float,
) -> None:
    """Raise `Disagreement` unless two functions to [flat gradient, *metrics] agree at each of two minibatches' inputs.

    Every parameter's gradient is measured by its own norm and its own largest entry, and every metric by itself, so that
    a small one is not lost beside a large one. `tolerance` is a share of the larger of the two points' norms: at one of
    them a quantity may vanish, and be rounding alone. `metrics` are the metrics' names, known after the first call.
    """
    difference = ""
    for attempt in range(TRIES):
        draw = torch.Generator().manual_seed(attempt)
        first, second = minibatches
        points = [
            _computed(found, wanted, first, flat, NEARBY if attempt else 0.0, draw),
            _computed(found, wanted, second, flat, FAR, draw),
        ]
        groups = [_group_of(flat, start) for _, start in flat.places]
        names = [f"the {group} gradient" for group in groups] + [f"the metric {name}" for name in metrics]
        difference = _first_difference(names, points, tolerance)
        if not difference:
            return
    raise Disagreement(f"its self-check failed: {difference}")


def require_same_outputs(
    found: Callable[..., list[Tensor]],
    wanted: Callable[..., list[Tensor]],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> None:
    """Raise `Disagreement` unless two functions have the same outputs, with parameters as they are and moved.

    A new policy's head is near 0 and hides what comes before it. A sampled choice may fall to the other side of a
    boundary, but not at every try.
    """
    difference = ""
    for attempt in range(TRIES):
        draw = torch.Generator().manual_seed(attempt)
        difference = ""
        for distance in (NEARBY if attempt else 0.0, FAR):
            with displaced(parameters, offsets(parameters, distance, draw)):
                for mine, theirs in zip(found(*inputs), wanted(*inputs), strict=True):
                    if not torch.allclose(mine.double(), theirs.double(), rtol=1e-4, atol=1e-5):
                        error = float((mine.double() - theirs.double()).abs().max())
                        difference = f"an output is off by {error:.1e}"
        if not difference:
            return
    raise Disagreement(f"its self-check failed: {difference}")


def _computed(
    found: Callable[..., list[Tensor]],
    wanted: Callable[..., list[Tensor]],
    inputs: Sequence[Tensor],
    flat: FlatParameters,
    distance: float,
    draw: torch.Generator,
) -> _Point:
    parameters = [parameter for parameter, _ in flat.places]

    def pieces(function: Callable[..., list[Tensor]], given: Sequence[Tensor]) -> list[Tensor]:
        gradient, *metrics = (result.detach() for result in function(*given))
        own = [gradient[start : start + parameter.numel()] for parameter, start in flat.places]
        return [piece.clone() for piece in (*own, *metrics)]

    for size in (distance, distance / 10, distance / 100):  # a ratio or KL that overflows tells nothing
        with displaced(parameters, offsets(parameters, size, draw)):
            theirs = pieces(wanted, inputs)
            if size > distance / 50 and not all(bool(piece.isfinite().all()) for piece in theirs):
                continue
            with torch.no_grad():
                mine = pieces(found, inputs)
            with displaced(parameters, [_rounding(parameter.detach(), draw) for parameter in parameters]):
                return _Point(mine, theirs, pieces(wanted, [given + _rounding(given, draw) for given in inputs]))
    raise AssertionError


def _first_difference(names: Sequence[str], points: Sequence[_Point], tolerance: float) -> str:
    """Where two points' results differ by more than floating-point arithmetic explains; empty where they do not."""
    for place, name in enumerate(names):
        for measure in (torch.linalg.vector_norm, lambda piece: piece.abs().max()):
            scale = max(float(measure(point.wanted[place])) for point in points)
            for point in points:
                error = float(measure(point.found[place] - point.wanted[place]))
                rounding = float(measure(point.rounded[place] - point.wanted[place]))
                share = tolerance * (LOOSER if name.startswith("the metric") else 1)
                if not error <= share * scale + ROUNDINGS * rounding:  # true for NaN too
                    return f"{name} is off by {error:.1e} of {scale:.1e}"
    return ""


def _group_of(flat: FlatParameters, start: int) -> str:
    return next(group for group, where in flat.slices.items() if where.start <= start < where.stop)


def _rounding(tensor: Tensor, draw: torch.Generator) -> Tensor:
    """About a rounding of each entry, to be added; 0 where there are no fractions."""
    if not tensor.is_floating_point():
        return torch.zeros_like(tensor)
    noise = torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype).to(tensor.device)
    return tensor.nan_to_num(0.0, 0.0, 0.0) * noise * torch.finfo(tensor.dtype).eps


def offsets(parameters: Sequence[Tensor], distance: float, draw: torch.Generator) -> list[Tensor]:
    """Random moves of parameters, by which a layer's output moves about `distance` whatever its width."""
    moves = []
    for parameter in parameters:
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 10
        noise = torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype).to(parameter.device)
        moves.append(noise * (distance / max(fan_in, 1) ** 0.5))
    return moves


@contextlib.contextmanager
def displaced(parameters: Sequence[Tensor], moves: Sequence[Tensor]) -> Iterator[None]:
    """While it lasts, parameters are moved, in place; afterwards, and after an error, they have the bits they had."""
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter, move in zip(parameters, moves, strict=True):
                parameter.add_(move)
        yield
    finally:
        with torch.no_grad():
            for parameter, bits in zip(parameters, before, strict=True):
                parameter.copy_(bits)


def resampled(rows: Sequence[Tensor]) -> list[Tensor]:
    """Another minibatch of the same samples, drawn with replacement."""
    draw = torch.Generator().manual_seed(0)
    index = torch.randint(len(rows[0]), (len(rows[0]),), generator=draw).to(rows[0].device)
    return [row[index] for row in rows]
