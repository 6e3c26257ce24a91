"""Small networks spend their time in autograd and dispatch, not in kernels: trace a gradient once, then call its kernels.

`Traced` records the plain tensor operations behind a function of tensors (its gradient included), tidies the record
(views of parameters are taken once, constants are folded, repeated work is shared) and turns it into one flat Python
function that calls the kernels directly. It needs no compiler and computes the same numbers. Parameters are read in
place: the record stays valid while they change, not when they are replaced.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from phasegrad.compute.in_place import without_changes
from phasegrad.compute.operations import Operations, operation_name

# Operations that return a view of their first argument: of a parameter, a view can be taken once and kept.
VIEWS = {"t", "view", "expand", "slice", "unsqueeze", "squeeze", "permute", "transpose", "select", "split"}
# Operations whose result does not depend on the numbers in their arguments.
FILLS = {"ones_like", "zeros_like", "full_like", "zeros", "ones", "full", "scalar_tensor", "arange"}
NO_WORK = {"detach", "alias", "lift_fresh_copy"}


class Traced:
    """`function(*tensors) -> list of tensors`, traced at `examples`; later calls must keep their shapes and dtypes."""

    def __init__(self, function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> None:
        self.source, scope = _source(*record(function, examples))
        exec(compile(self.source, "<traced>", "exec"), scope)  # written above from the recorded operations alone
        self._run: Callable[..., list[Tensor]] = scope["traced"]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        return self._run(*inputs)


def record(
    function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]
) -> tuple[fx.Graph, dict[fx.Node, Any]]:
    """The operations behind `function` at `examples`, tidied, and the values that are known before any call."""
    found = Operations(function, examples)
    with torch.no_grad():
        found = without_changes(found, examples)
        return found.graph, _Tidier(found).tidy()


class _Tidier:
    """Finds what need not be done at every call."""

    def __init__(self, found: Operations) -> None:
        self.graph, self.captured = found.graph, found.captured
        self.fixed: dict[fx.Node, Any] = {}  # known values: parameters and constants, and what follows from them
        self.constant: set[fx.Node] = set()  # those of `fixed` whose numbers never change

    def tidy(self) -> dict[fx.Node, Any]:
        seen: dict[Any, fx.Node] = {}
        for node in list(self.graph.nodes):
            if node.op == "get_attr":
                self.fixed[node] = self.captured[str(node.target)].detach()
            if node.op not in ("call_function", "get_attr"):
                continue
            simpler = self._simpler(node) or seen.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
            if simpler is not node:
                node.replace_all_uses_with(simpler)
                continue
            self._fix(node)
        self.graph.eliminate_dead_code()
        return self.fixed

    def _simpler(self, node: fx.Node) -> fx.Node | None:
        """A node that holds the same numbers already."""
        name, source = operation_name(node), node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            return None
        if (name in NO_WORK or (name == "pow" and node.args[1] == 1)) and _same_type(node, source):
            return source
        if name == "t" and operation_name(source) == "t" and isinstance(source.args[0], fx.Node):
            return source.args[0]
        if name in ("view", "expand"):
            before, after = source.meta.get("val"), node.meta.get("val")
            if isinstance(before, Tensor) and isinstance(after, Tensor):
                same = (before.shape, before.stride(), before.dtype) == (after.shape, after.stride(), after.dtype)
                return source if same else None
        if name == "add" and len(node.args) == 2 and not node.kwargs:  # a term whose weight is 0
            for term, other in (node.args, node.args[::-1]):
                if isinstance(other, fx.Node) and self._is_zero(term) and _same_shape(node, other):
                    return other
        return None

    def _is_zero(self, term: Any) -> bool:
        return isinstance(term, fx.Node) and term in self.constant and not bool(self.fixed[term].any())

    def _fix(self, node: fx.Node) -> None:
        """Compute now what later calls would compute again to the same end."""
        inputs = node.all_input_nodes
        if node.op != "call_function":
            return
        is_view = operation_name(node) in VIEWS or node.target is operator.getitem
        is_constant = operation_name(node) in FILLS or (bool(inputs) and all(i in self.constant for i in inputs))
        if not is_constant and not (is_view and inputs and inputs[0] in self.fixed):
            return
        find = _shaped_like if operation_name(node) in FILLS else self.fixed.__getitem__
        arguments, keywords = fx.map_arg((node.args, node.kwargs), find)
        self.fixed[node] = node.target(*arguments, **keywords)  # type: ignore[operator]
        if is_constant:
            self.constant.add(node)


def _shaped_like(node: fx.Node) -> Tensor:
    value = node.meta["val"]
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=node.meta["device"])


def _same_shape(node: fx.Node, other: fx.Node) -> bool:
    """Whether two values have one shape and one type of numbers."""
    mine, theirs = node.meta.get("val"), other.meta.get("val")
    return (
        isinstance(mine, Tensor)
        and isinstance(theirs, Tensor)
        and (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    )


def _same_type(node: fx.Node, other: fx.Node) -> bool:
    mine, theirs = node.meta.get("val"), other.meta.get("val")
    return not isinstance(mine, Tensor) or not isinstance(theirs, Tensor) or mine.dtype == theirs.dtype


def _key(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((name, _key(item)) for name, item in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(_key(item) for item in value)
    return (type(value).__name__, value) if isinstance(value, (bool, int, float)) else value


def _source(graph: fx.Graph, fixed: dict[fx.Node, Any]) -> tuple[str, dict[str, Any]]:
    """Python source of the tidied graph, and the functions and constants it names."""
    scope: dict[str, Any] = {}
    inputs, lines, result = [], [], "[]"

    def spell(value: Any) -> str:
        if isinstance(value, fx.Node):
            if value in fixed:
                scope[value.name] = fixed[value]
            return value.name
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(spell(item) for item in value) + "]"
        if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
            return repr(value)
        scope[name := f"constant_{len(scope)}"] = value
        return name

    needed = needed_nodes(graph, fixed)
    for node in graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "output":
            result = spell(list(node.args[0]))
        elif node in needed:
            if node.target is operator.getitem:
                lines.append(f"    {node.name} = {spell(node.args[0])}[{node.args[1]}]")
                continue
            function, arguments, keywords = _call(node)
            name = f"do_{operation_name(node)}_{getattr(node.target, '_overloadname', '')}"
            while scope.setdefault(name, function) != function:
                name += "_"  # one operation may be called in several ways
            spelt = [spell(argument) for argument in arguments]
            spelt += [f"{key}={spell(value)}" for key, value in keywords.items()]
            lines.append(f"    {node.name} = {name}({', '.join(spelt)})")
    return "\n".join([f"def traced({', '.join(inputs)}):", *lines, f"    return {result}", ""]), scope


def needed_nodes(graph: fx.Graph, fixed: dict[fx.Node, Any]) -> set[fx.Node]:
    """What the outputs depend on, short of what is known."""
    waiting = list(next(node for node in graph.nodes if node.op == "output").all_input_nodes)
    needed: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in fixed and node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed


def _call(node: fx.Node) -> tuple[Any, list[Any], dict[str, Any]]:
    """The quickest way from Python to the kernel: torch's own bindings cost a third of an operator object's call."""
    name = operation_name(node)
    arguments: list[Any] = list(node.args)
    keywords: dict[str, Any] = dict(node.kwargs)
    if name in ("view", "expand") and not keywords:
        return getattr(Tensor, name), arguments, keywords
    if name == "slice" and len(arguments) == 4 and 0 <= arguments[2] <= arguments[3] < 1 << 62:
        source, dim, start, end = arguments
        length = min(end, source.meta["val"].shape[dim]) - start
        return torch._C._VariableFunctions.narrow, [source, dim, start, length], {}
    if name == "_to_copy" and list(keywords) == ["dtype"]:
        return Tensor.to, [arguments[0], keywords["dtype"]], {}
    own = getattr(node.target, "namespace", "aten") != "aten"  # operations of this package, and of others
    quick = None if own else getattr(torch._C._VariableFunctions, name, None)
    if quick is None or name in ("split", "slice") or set(keywords) - {"alpha"}:
        return node.target, arguments, keywords
    return quick, arguments, keywords
