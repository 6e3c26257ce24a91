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

# How far the second point is: what a layer puts out changes by about twice what it takes in. Of 40 such points for each
# of the library's distributions, 39 or more had probability ratios on both sides of a clip range of 0.2.
FAR = 2.0
NEARBY = 1e-3  # where the first point is, from the second try on
# A sample within a rounding of a clip's or a ReLU's boundary may fall to either side of it, and its whole gradient with
# it. That is chance, and rare. A fault in the code shows at most points: so a difference is looked at again at others.
TRIES = 5
ROUNDINGS = (
    10  # of parameters and inputs, whose effect counts as no difference: the arithmetic itself has about as many
)
PROBES = 2  # of that effect
LOOSER = 10  # for metrics: each is one mean, whose terms may cancel, where a gradient's norm is of many

Function = Callable[..., list[Tensor]]


class Disagreement(Exception):
    """Code that does not find what autograd does."""


@dataclass
class _Point:
    """What the code and autograd find at one point, and autograd again after roundings of all that it is given."""

    found: list[Tensor]
    wanted: list[Tensor]
    rounded: list[list[Tensor]]


def require_agreement(
    found: Function,
    wanted: Function,
    minibatches: Sequence[Sequence[Tensor]],
    flat: FlatParameters,
    metrics: list[str],
    tolerance: float,
) -> None:
    """Raise `Disagreement` unless two functions to [flat gradient, *metrics] agree on two minibatches' inputs.

    Every parameter's gradient is measured by its own norm and its own largest entry, and every metric by itself, so that
    a small one is not lost beside a large one. `tolerance` is a share of the larger of the two points' norms: at one of
    them a quantity may vanish, and be rounding alone. `metrics` are the metrics' names, known after the first call.
    """

    def differences(attempt: int, draw: torch.Generator) -> list[str]:
        distances = (NEARBY if attempt else 0.0, FAR)
        points = [
            _computed(found, wanted, inputs, flat, distance, draw)
            for inputs, distance in zip(minibatches, distances, strict=True)
        ]
        groups = [_group_of(flat, start) for _, start in flat.places]
        names = [f"the {group} gradient" for group in groups] + [f"the metric {name}" for name in metrics]
        shares = [tolerance] * len(groups) + [LOOSER * tolerance] * len(metrics)
        return _differences(names, shares, points)

    _require_no_lasting(differences)


def require_same_outputs(
    found: Function, wanted: Function, inputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> None:
    """Raise `Disagreement` unless two functions have the same outputs, with parameters as they are and moved.

    A new policy's head is near 0 and hides what comes before it. A sampled choice may fall to the other side of a
    boundary, but not at most points.
    """

    def differences(attempt: int, draw: torch.Generator) -> list[str]:
        result = []
        for distance in (NEARBY if attempt else 0.0, FAR):
            with displaced(parameters, offsets(parameters, distance, draw)):
                pairs = [
                    (mine.double(), theirs.double())
                    for mine, theirs in zip(found(*inputs), wanted(*inputs), strict=True)
                ]
            errors = [float((a - b).abs().max()) for a, b in pairs if not torch.allclose(a, b, rtol=1e-4, atol=1e-5)]
            result.append(f"an output is off by {errors[0]:.1e}" if errors else "")
        return result

    _require_no_lasting(differences)


def _require_no_lasting(differences: Callable[[int, torch.Generator], list[str]]) -> None:
    """Raise unless what differs at a point, if anything, is gone at most of its neighbours."""
    tries = [differences(0, torch.Generator().manual_seed(0))]
    if not any(tries[0]):
        return
    tries += [differences(attempt, torch.Generator().manual_seed(attempt)) for attempt in range(1, TRIES)]
    for at_point in zip(*tries, strict=True):
        seen = [difference for difference in at_point if difference]
        if len(seen) > TRIES // 2:
            raise Disagreement(f"its self-check failed: {seen[0]}")


def _computed(
    found: Function,
    wanted: Function,
    inputs: Sequence[Tensor],
    flat: FlatParameters,
    distance: float,
    draw: torch.Generator,
) -> _Point:
    parameters = [parameter for parameter, _ in flat.places]

    def pieces(function: Function, given: Sequence[Tensor]) -> list[Tensor]:
        gradient, *metrics = (result.detach() for result in function(*given))
        own = [gradient[start : start + parameter.numel()] for parameter, start in flat.places]
        return [piece.clone() for piece in (*own, *metrics)]

    def rounded() -> list[Tensor]:
        with displaced(parameters, [_rounding(parameter.detach(), draw) for parameter in parameters]):
            return pieces(wanted, [given + _rounding(given, draw) for given in inputs])

    for size in (distance, distance / 10, distance / 100):  # where a ratio or KL overflows nothing is seen
        with displaced(parameters, offsets(parameters, size, draw)):
            theirs = pieces(wanted, inputs)
            if all(bool(piece.isfinite().all()) for piece in theirs):
                with torch.no_grad():
                    mine = pieces(found, inputs)
                return _Point(mine, theirs, [rounded() for _ in range(PROBES)])
    raise Disagreement("the gradient is not finite")


def _differences(names: Sequence[str], shares: Sequence[float], points: Sequence[_Point]) -> list[str]:
    """For each point the first result that is further off than floating-point arithmetic explains; else nothing."""
    result = [""] * len(points)
    for place, (name, share) in enumerate(zip(names, shares, strict=True)):
        for size in (torch.linalg.vector_norm, lambda piece: piece.abs().max()):
            scale = max(float(size(point.wanted[place])) for point in points)
            for number, point in enumerate(points):
                error = float(size(point.found[place] - point.wanted[place]))
                rounding = max(float(size(rounded[place] - point.wanted[place])) for rounded in point.rounded)
                if not error <= share * scale + rounding:  # true for NaN too
                    result[number] = result[number] or f"{name} is off by {error:.1e} of {scale:.1e}"
    return result


def _group_of(flat: FlatParameters, start: int) -> str:
    return next(group for group, where in flat.slices.items() if where.start <= start < where.stop)


def _rounding(tensor: Tensor, draw: torch.Generator) -> Tensor:
    """What some roundings may do to each entry, to be added; 0 where there are no fractions."""
    if not tensor.is_floating_point():
        return torch.zeros_like(tensor)
    noise = torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype).to(tensor.device)
    return tensor.nan_to_num(0.0, 0.0, 0.0) * noise * (ROUNDINGS * torch.finfo(tensor.dtype).eps)


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
    drawn = {size: torch.randint(size, (size,), generator=draw) for size in dict.fromkeys(map(len, rows))}
    return [row[drawn[len(row)].to(row.device)] for row in rows]
