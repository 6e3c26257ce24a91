"""Operations on each element by itself: their C expressions, and the types of numbers each of them is right for.

Knows nothing of loops and memory. In C numbers of two types meet by other rules than in torch (1 / 2 is 0, a byte that
holds a bool can become 2), so arguments are converted here as torch does it, and what an entry does not name is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from phasegrad.compute.native.graph import C_TYPES, Unsupported, View

EVERY = frozenset(C_TYPES)
BOOL = frozenset({torch.bool})
FLOAT32 = frozenset({torch.float32})
FLOATS = frozenset({torch.float32, torch.float64})
INTEGERS = EVERY - FLOATS - BOOL
NUMBERS = FLOATS | INTEGERS
INT64 = frozenset({torch.int64})
SMALLEST, LARGEST = -(2**63) + 1, 2**63 - 1  # of the whole numbers that C can spell


@dataclass(frozen=True)
class Pointwise:
    """An expression in {0}, {1} ..., and the types it may be computed in.

    Arguments are converted to one type before: that of the result, or, where the result is a bool whatever they are, the
    one torch promotes them to.
    """

    expression: str
    dtypes: frozenset[torch.dtype]
    gives_bool: bool = False
    mask: int | None = None  # which argument is a condition, and stays a bool
    takes_alpha: bool = False


def written(
    name: str, result: torch.dtype, arguments: Sequence[Any], options: dict[str, Any]
) -> tuple[str, list[View]]:
    """The expression of an operation, in which {0}, {1} ... stand for the views that come with it."""
    known = _entry(name, arguments, options)
    alpha = options.get("alpha", 1)
    if known.takes_alpha and len(arguments) > 2:  # where the other argument is a number, it is the third
        *arguments, alpha = arguments
    kind = _common(arguments) if known.gives_bool else result
    if kind not in known.dtypes:
        raise Unsupported(f"{name} of {plain(kind)}")
    terms: list[str] = []
    views: list[View] = []
    for place, item in enumerate(arguments):
        if isinstance(item, View):
            wanted = torch.bool if place == known.mask else kind
            terms.append(_converted(f"{{{len(views)}}}", item.dtype, wanted, name))
            views.append(item)
        else:
            terms.append(literal(item, kind))
    if alpha != 1:
        scaled = 0 if name == "rsub" else 1
        terms[scaled] = f"{literal(alpha, kind)} * {terms[scaled]}"
    return known.expression.format(*terms), views


def _entry(name: str, arguments: Sequence[Any], options: dict[str, Any]) -> Pointwise:
    """What the tables say of an operation, given the numbers among its arguments that change its expression."""
    if name == "pow" and not isinstance(arguments[1], View) and arguments[1] in POWERS:
        return POWERS[arguments[1]]
    if name not in POINTWISE:
        raise Unsupported(f"the operation {name}")
    found = POINTWISE[name]
    if set(options) - ({"alpha"} if found.takes_alpha else set()) or (name == "softplus" and len(arguments) > 1):
        raise Unsupported(f"{name} with options")
    if name == "softplus_backward" and tuple(arguments[2:]) != (1, 20):
        raise Unsupported("softplus with options")
    if name == "clamp":
        low, high = (*arguments[1:], None, None)[:2]
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and not low <= high:
            raise Unsupported(f"clamp between {low} and {high}")
        inner = "{0}" if high is None else "({0} > {2} ? {2} : {0})"
        found = replace(found, expression=inner if low is None else f"({{0}} < {{1}} ? {{1}} : {inner})")
    return found


def _common(arguments: Sequence[Any]) -> torch.dtype:
    """The type in which torch compares arguments; a tensor without dimensions counts less than one with some."""
    alike = [torch.empty((1,) * len(x.shape), dtype=x.dtype) if isinstance(x, View) else x for x in arguments]
    return torch.result_type(alike[0], alike[-1])


def _converted(term: str, held: torch.dtype, wanted: torch.dtype, name: str) -> str:
    """A number of one type as another, where C and torch agree on what that is."""
    if held == wanted:
        return term
    if wanted == torch.bool or (held in FLOATS and wanted not in FLOATS):
        raise Unsupported(f"{name} of {plain(held)} as {plain(wanted)}")
    return f"({C_TYPES[wanted]}){term}"


def literal(value: Any, kind: torch.dtype = torch.float32) -> str:
    """A number in C, in an expression of numbers of type `kind`, which must be able to hold it."""
    if value is None:
        return "0"
    if isinstance(value, (bool, int)):
        whole = int(value)
        if kind in FLOATS:
            fits = SMALLEST <= whole <= LARGEST
        elif kind == torch.bool:
            fits = whole in (0, 1)
        else:
            fits = max(SMALLEST, torch.iinfo(kind).min) <= whole <= torch.iinfo(kind).max
        if not fits:
            raise Unsupported(f"the number {whole} among {plain(kind)}")
        return str(whole)
    if isinstance(value, float):
        if kind not in FLOATS:
            raise Unsupported(f"the number {value} among {plain(kind)}")
        if math.isinf(value):
            return "INFINITY" if value > 0 else "-INFINITY"
        if math.isnan(value):
            return "NAN"
        return f"{value!r}f" if kind == torch.float32 else repr(value)
    raise Unsupported(f"an argument {value!r}")


def plain(dtype: torch.dtype) -> str:
    """A type as users write it: float32."""
    return str(dtype).removeprefix("torch.")


def _all(dtypes: frozenset[torch.dtype], expressions: dict[str, str], **options: Any) -> dict[str, Pointwise]:
    return {name: Pointwise(expression, dtypes, **options) for name, expression in expressions.items()}


# Constants such as 1.0f are exact, so that expressions with them are right in float64 too; functions of C are not.
POINTWISE = {
    **_all(FLOAT32, {
        "abs": "fabsf({0})", "exp": "exp_({0})", "log": "logf({0})", "tanh": "tanh_({0})", "sigmoid": "sigmoid_({0})",
        "softplus": "softplus_({0})", "sqrt": "sqrtf({0})", "expm1": "expm1_({0})", "log1p": "log1p_({0})",
        "erf": "erf_({0})",
        "softplus_backward": "{0} * ({1} > 20 ? 1.0f : sigmoid_({1}))", "log_sigmoid_backward": "{0} * sigmoid_(-{1})",
    }),
    **_all(FLOATS, {
        "div": "{0} / {1}", "reciprocal": "1.0f / {0}", "tanh_backward": "{0} * (1.0f - {1} * {1})",
        "sigmoid_backward": "{0} * (1.0f - {1}) * {1}", "threshold_backward": "({1} > {2} ? {0} : 0)",
    }),
    **_all(NUMBERS, {
        "neg": "-{0}", "relu": "({0} < 0 ? 0 : {0})", "clamp_min": "({0} < {1} ? {1} : {0})",
        "clamp_max": "({0} > {1} ? {1} : {0})", "clamp": "({0} < {1} ? {1} : ({0} > {2} ? {2} : {0}))",
    }),
    **_all(NUMBERS, {"add": "{0} + {1}", "sub": "{0} - {1}", "rsub": "{1} - {0}"}, takes_alpha=True),
    **_all(EVERY, {
        "mul": "{0} * {1}", "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})",
        "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})", "fill": "{1}",
    }),
    **_all(EVERY, {
        "gt": "{0} > {1}", "lt": "{0} < {1}", "ge": "{0} >= {1}", "le": "{0} <= {1}", "eq": "{0} == {1}",
        "ne": "{0} != {1}",
    }, gives_bool=True),
    "where": Pointwise("({0} ? {1} : {2})", EVERY, mask=0),
    "masked_fill": Pointwise("({1} ? {2} : {0})", EVERY, mask=1),
    "logical_and": Pointwise("{0} && {1}", EVERY, gives_bool=True),
    "logical_not": Pointwise("!{0}", EVERY, gives_bool=True),
    "bitwise_and": Pointwise("{0} & {1}", INTEGERS | BOOL),
    "bitwise_not": Pointwise("!{0}", BOOL),
}  # fmt: skip
POWERS = {
    1: Pointwise("{0}", NUMBERS),
    2: Pointwise("{0} * {0}", NUMBERS),
    0.5: Pointwise("sqrtf({0})", FLOAT32),
    -0.5: Pointwise("1.0f / sqrtf({0})", FLOAT32),
    -1: Pointwise("1.0f / {0}", FLOATS),
}
