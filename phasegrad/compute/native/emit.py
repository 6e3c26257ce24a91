"""The C statements of each operation of a traced graph, one loop nest an operation, sizes and strides as constants.

Loops over small tensors that stay in the first-level cache need no fusing: what costs is calling, and there are no calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from phasegrad.compute.native import dense_layers, recurrence
from phasegrad.compute.native.graph import C_TYPES, Unsupported, View, Workspace, dense_strides, view_of
from phasegrad.compute.native.pointwise import BOOL, EVERY, FLOAT32, FLOATS, INT64, INTEGERS, literal, plain, written

Value = Any  # a View, or a list of them where an operation has several results


class Emitter:
    """Turns a tidied graph into the body of a C function of (external, inputs, outputs, work)."""

    def __init__(
        self, graph: fx.Graph, fixed: dict[fx.Node, Any], needed: set[fx.Node], name: Callable[[fx.Node], str]
    ):
        self.name_of = name
        self.external: list[Tensor] = []  # memory of the caller's that the program reads: parameters, statistics
        self.lines: list[str] = []
        self.workspace = Workspace()
        self.values: dict[fx.Node, Value] = {}
        self.inputs: list[View] = []
        order = [node for node in graph.nodes if node in needed or node.op == "placeholder"]
        results = list(next(node for node in graph.nodes if node.op == "output").args[0])
        self.fixed = fixed
        last_use = self._last_uses(order, results)
        for place, node in enumerate(order):
            if node.op == "placeholder":
                view = view_of(
                    f"((const {C_TYPES.get(node.meta['val'].dtype)} *)inputs[{len(self.inputs)}])", node.meta["val"]
                )
                self.inputs.append(view)
                self.values[node] = view
            else:
                self.values[node] = self._emit(node)
            for slot in last_use.get(place, ()):
                if slot in self.values:
                    self._give_back(slot, order, place)
        self.outputs: list[View] = []
        for index, node in enumerate(results):
            view = self.value(node)
            target = View(f"(({view.c_type} *)outputs[{index}])", view.dtype, view.shape, dense_strides(view.shape))
            self.outputs.append(target)
            self.loops(target, "{0}", [view])

    # Lifetimes

    def _last_uses(self, order: list[fx.Node], results: Sequence[Any]) -> dict[int, list[fx.Node]]:
        """For each position, the nodes that nothing after it reads directly."""
        position = {node: place for place, node in enumerate(order)}
        last: dict[fx.Node, int] = {}
        for node in order:
            for source in node.all_input_nodes:
                last[source] = position[node]
        keep = {node for node in results if isinstance(node, fx.Node)}
        ends: dict[int, list[fx.Node]] = {}
        for node, place in last.items():
            if node in position and node not in keep:
                ends.setdefault(place, []).append(node)
        return ends

    def _give_back(self, node: fx.Node, order: list[fx.Node], place: int) -> None:
        """Free the slots that no living value looks into."""
        mine = {view.slot for view in _views(self.values.pop(node))} - {-1}
        for value in self.values.values():
            mine -= {view.slot for view in _views(value)}
        for slot in mine:
            self.workspace.give_back(slot)

    # Values

    def value(self, item: Any) -> Any:
        """What a node holds: a view, or a list of views."""
        if item in self.fixed:
            tensor = self.fixed[item]
            if not isinstance(tensor, Tensor):
                return [self._external(part) for part in tensor]
            return self._external(tensor)
        return self.values[item]

    def _external(self, tensor: Tensor) -> View:
        known = next((i for i, other in enumerate(self.external) if other is tensor), len(self.external))
        if known == len(self.external):
            self.external.append(tensor)
        return view_of(f"((const {C_TYPES.get(tensor.dtype)} *)external[{known}])", tensor)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> View:
        if dtype not in C_TYPES:
            raise Unsupported(f"numbers of type {dtype}")
        view = View("", dtype, tuple(shape), dense_strides(shape))
        slot = self.workspace.take(view.size * torch.empty((), dtype=dtype).element_size())
        return View(self.workspace.pointer(slot, view.c_type), dtype, view.shape, view.strides, 0, slot)

    def dense(self, view: View) -> View:
        """The same elements one after another, copied where they are not."""
        if view.is_dense:
            return view
        copied = self.allocate(view.shape, view.dtype)
        self.loops(copied, "{0}", [view])
        return copied

    # Loops

    def loops(self, out: View, expression: str, inputs: Sequence[View], accumulate: bool = False) -> None:
        """`out = expression(inputs)` for every element."""
        views = [item.broadcast(out.shape) for item in inputs]
        sizes, strides = _merged(out.shape, [out.strides, *(view.strides for view in views)])
        terms, declarations = [], []
        for number, item in enumerate(inputs):
            declarations.append(f"const {item.c_type} *restrict x{number} = {item.start};")
            terms.append(f"x{number}[{_index(strides[number + 1])}]")
        sign = "+=" if accumulate else "="
        statement = f"y[{_index(strides[0])}] {sign} {expression.format(*terms)};"
        loops = "".join(f"for (int i{d} = 0; i{d} < {size}; i{d}++) " for d, size in enumerate(sizes))
        self.lines.append(f"{{ {' '.join(declarations)} {out.c_type} *restrict y = {out.start}; {loops}{statement} }}")

    def rows(self, source: View, body: str) -> None:
        """A statement for each row of the last dimension; `row` counts them and `x` is where the row starts."""
        sizes, strides = source.shape[:-1], source.strides[:-1]
        loops = "".join(f"for (int i{d} = 0; i{d} < {size}; i{d}++) " for d, size in enumerate(sizes))
        row = " + ".join(f"i{d} * {step}" for d, step in enumerate(dense_strides(sizes))) or "0"
        start = f"{source.start} + {_index(strides)}"
        self.lines.append(f"{loops}{{ long row = {row}; const {source.c_type} *x = {start}; {body} }}")

    # Operations

    def _emit(self, node: fx.Node) -> Value:
        name = self.name_of(node)
        if node.target is operator.getitem:
            return self.value(node.args[0])[node.args[1]]
        arguments = [self._argument(item) for item in node.args]
        example = node.meta["val"]
        if name in VIEWS:
            if isinstance(example, Tensor) and example.dtype != arguments[0].dtype:
                raise Unsupported(f"the bits of {plain(arguments[0].dtype)} as {plain(example.dtype)}")
            return VIEWS[name](self, node, *arguments, **node.kwargs)
        if name in SPECIAL:
            SPECIAL[name].check(name, example, arguments)
            return SPECIAL[name].emit(self, example, *arguments, **node.kwargs)
        expression, views = written(name, example.dtype, arguments, dict(node.kwargs))
        out = self.allocate(example.shape, example.dtype)
        self.loops(out, expression, views)
        return out

    def _argument(self, item: Any) -> Any:
        if isinstance(item, fx.Node):
            return self.value(item)
        return [self._argument(part) for part in item] if isinstance(item, (list, tuple)) else item


def _index(strides: Sequence[int]) -> str:
    terms = [f"i{d}" if step == 1 else f"i{d} * {step}" for d, step in enumerate(strides) if step]
    return " + ".join(terms) or "0"


def _merged(shape: Sequence[int], strides: list[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """The same loops with as few dimensions as the strides of all operands allow."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d, size in enumerate(shape):
        if size == 1:
            continue
        own = [operand[d] for operand in strides]
        if sizes and all(step[-1] == mine * size for step, mine in zip(steps, own, strict=True)):
            sizes[-1] *= size
            for step, mine in zip(steps, own, strict=True):
                step[-1] = mine
        else:
            sizes.append(size)
            for step, mine in zip(steps, own, strict=True):
                step.append(mine)
    return sizes, steps


def _views(value: Value) -> list[View]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, View)]


# Operations that look at the same memory in another way


def _slice(_: Emitter, node: fx.Node, x: View, dim: int = 0, start: int = 0, end: int = 1 << 62, step: int = 1) -> View:
    size = x.shape[dim]
    start = max(0, start + size) if start < 0 else min(start, size)
    end = max(0, end + size) if end < 0 else min(end, size)
    return x.sliced(dim, start, max(0, -(-(end - start) // step)), step)


def _split(_: Emitter, node: fx.Node, x: View, sizes: Any, dim: int = 0) -> list[View]:
    total = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [x.sliced(dim, start, size) for start, size in zip(starts, sizes, strict=True)]


def _view(emitter: Emitter, node: fx.Node, x: View, *_: Any) -> View:
    shape = node.meta["val"].shape
    try:
        return x.reshaped(shape)
    except Unsupported:  # expanded or transposed memory: put in order first
        return emitter.dense(x).reshaped(shape)


def _squeeze(_: Emitter, node: fx.Node, x: View, *dims: Any) -> View:
    return x.reshaped(node.meta["val"].shape)


VIEWS: dict[str, Callable[..., Value]] = {
    "t": lambda _, node, x: x.transposed(0, 1),
    "transpose": lambda _, node, x, first, second: x.transposed(first % len(x.shape), second % len(x.shape)),
    "permute": lambda _, node, x, order: x.permuted([d % len(x.shape) for d in order]),
    "view": _view,
    "_unsafe_view": _view,
    "reshape": _view,
    "expand": lambda _, node, x, *rest: x.broadcast(tuple(node.meta["val"].shape)),
    "slice": _slice,
    "select": lambda _, node, x, dim, index: x.selected(dim, index),
    "unsqueeze": lambda _, node, x, dim: x.unsqueezed(dim),
    "squeeze": _squeeze,
    "split": _split,
    "split_with_sizes": _split,
    "unbind": lambda _, node, x, dim=0: [x.selected(dim, i) for i in range(x.shape[dim])],
    "detach": lambda _, node, x: x,
    "alias": lambda _, node, x: x,
}


# Operations that are more than a loop over elements


@dataclass(frozen=True)
class Special:
    """A function that writes an operation, and the types of numbers it is right for.

    `reads` is for each tensor among the arguments, the last entry for all further ones; of the numbers that become the
    result none may lose digits on the way, unless the operation `narrows`.
    """

    emit: Callable[..., Value]
    reads: tuple[frozenset[torch.dtype], ...]
    gives: frozenset[torch.dtype]
    narrows: bool = False

    def check(self, name: str, example: Any, arguments: Sequence[Any]) -> None:
        result = (example if isinstance(example, Tensor) else example[0]).dtype
        if result not in self.gives:
            raise Unsupported(f"{name} to {plain(result)}")
        views = [view for item in arguments for view in _views(item)]
        for place, view in enumerate(views):
            if view.dtype not in self.reads[min(place, len(self.reads) - 1)]:
                raise Unsupported(f"{name} of {plain(view.dtype)}")
            if not self.narrows and torch.promote_types(view.dtype, result) != result:
                raise Unsupported(f"{name} of {plain(view.dtype)} to {plain(result)}")


def _product(emitter: Emitter, example: Tensor, a: View, b: View, bias: View | None = None) -> View:
    out = emitter.allocate(example.shape, example.dtype)
    (rows, inner), columns = a.shape, b.shape[1]
    packed = emitter.allocate((inner, -(-columns // 8) * 8), torch.float32)
    bias_start = "0"
    if bias is not None:
        wide = bias.broadcast((columns,)) if len(bias.shape) < 2 else None
        if wide is None or (columns > 1 and wide.strides != (1,)):
            raise Unsupported("a bias that is no dense vector")
        bias_start = wide.start
    emitter.lines.append(
        f"product({rows}, {columns}, {inner}, {a.start}, {a.strides[0]}, {a.strides[1]}, {b.start}, {b.strides[0]}, "
        f"{b.strides[1]}, {out.start}, {columns}, {bias_start}, {packed.start});"
    )
    emitter.workspace.give_back(packed.slot)
    return out


def _addmm(emitter: Emitter, example: Tensor, bias: View, a: View, b: View, beta: float = 1, alpha: float = 1) -> View:
    if beta != 1 or alpha != 1:
        raise Unsupported("addmm with factors")
    return _product(emitter, example, a, b, bias)


def _sum(emitter: Emitter, example: Tensor, x: View, dims: Any = None, keep: bool = False, dtype: Any = None) -> View:
    dims = range(len(x.shape)) if dims is None or dims == [] else [d % len(x.shape) for d in dims]
    return _reduced(emitter, x, set(dims), example.dtype, example.shape)


def _reduced(emitter: Emitter, x: View, dims: set[int], dtype: torch.dtype, shape: Sequence[int]) -> View:
    out = emitter.allocate(shape, dtype)
    kept = [d for d in range(len(x.shape)) if d not in dims]
    kept_sizes = [x.shape[d] for d in kept]
    kept_strides = dict(zip(kept, dense_strides(kept_sizes), strict=True))
    own = tuple(kept_strides.get(d, 0) for d in range(len(x.shape)))
    target = View(out.pointer, dtype, x.shape, own)
    if len(x.shape) - 1 in dims or not x.shape:  # innermost: sum in a register
        outer = [d for d in range(len(x.shape)) if d not in dims]
        inner = [d for d in range(len(x.shape)) if d in dims]
        order = [*outer, *inner]
        sizes, (steps, targets) = _merged(
            [x.shape[d] for d in order], [x.permuted(order).strides, target.permuted(order).strides]
        )
        is_outer = [step != 0 for step in targets]
        head = "".join(f"for (int i{d} = 0; i{d} < {sizes[d]}; i{d}++) " for d in range(len(sizes)) if is_outer[d])
        tail = "".join(f"for (int i{d} = 0; i{d} < {sizes[d]}; i{d}++) " for d in range(len(sizes)) if not is_outer[d])
        pragma = '_Pragma("omp simd reduction(+ : sum)") ' if sum(not o for o in is_outer) == 1 else ""
        emitter.lines.append(
            f"{{ const {x.c_type} *restrict x0 = {x.start}; {out.c_type} *restrict y = {out.start}; {head}{{ {out.c_type} sum = 0; "
            f"{pragma}{tail}sum += x0[{_index(steps)}]; y[{_index(targets)}] = sum; }} }}"
        )
        return out
    emitter.loops(View(out.pointer, dtype, tuple(kept_sizes), dense_strides(kept_sizes)), "0", [])
    emitter.loops(target, "{0}", [x], accumulate=True)
    return out


def _mean(emitter: Emitter, example: Tensor, x: View, dims: Any = None, keep: bool = False, dtype: Any = None) -> View:
    total = _sum(emitter, example, x, dims, keep)
    emitter.lines.append(_scaled(total, 1.0 / (x.size / max(1, total.size))))
    return total


def _scaled(view: View, factor: float) -> str:
    return f"for (int i = 0; i < {view.size}; i++) {view.at('i')} *= {factor!r}f;"


def _variance(
    emitter: Emitter, example: Tensor, x: View, dims: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> View:
    if (dims is not None and len(dims) < len(x.shape)) or x.size <= (1 if correction is None else correction):
        raise Unsupported("a variance over some dimensions")
    mean = _mean(emitter, example, x)
    squares = emitter.allocate(x.shape, x.dtype)
    emitter.loops(squares, "({0} - {1}) * ({0} - {1})", [x, View(mean.pointer, mean.dtype, (), ())])
    total = _reduced(emitter, squares, set(range(len(x.shape))), example.dtype, example.shape)
    emitter.lines.append(_scaled(total, 1.0 / (x.size - (1 if correction is None else correction))))
    return total


def _deviation(emitter: Emitter, example: Tensor, x: View, dims: Any = None, **keywords: Any) -> View:
    variance = _variance(emitter, example, x, dims, **keywords)
    out = emitter.allocate(variance.shape, variance.dtype)
    emitter.loops(out, "sqrtf({0})", [variance])
    return out


def _cat(emitter: Emitter, example: Tensor, parts: list[View], dim: int = 0) -> View:
    out = emitter.allocate(example.shape, example.dtype)
    dim, start = dim % len(out.shape), 0
    for part in parts:
        emitter.loops(out.sliced(dim, start, part.shape[dim]), "{0}", [part])
        start += part.shape[dim]
    return out


def _stack(emitter: Emitter, example: Tensor, parts: list[View], dim: int = 0) -> View:
    out = emitter.allocate(example.shape, example.dtype)
    for index, part in enumerate(parts):
        emitter.loops(out.selected(dim, index), "{0}", [part])
    return out


def _last_dim_only(x: View, dim: int) -> int:
    if dim % len(x.shape) != len(x.shape) - 1 or not x.shape:
        raise Unsupported("an operation along a dimension that is not the last")
    return x.shape[-1]


def _softmax(log: int) -> Callable[..., View]:
    def emit(emitter: Emitter, example: Tensor, x: View, dim: int, half: bool = False) -> View:
        n, out = _last_dim_only(x, dim), emitter.allocate(example.shape, example.dtype)
        emitter.rows(x, f"softmax_row({n}, x, {x.strides[-1]}, {out.start} + row * {n}, {log});")
        return out

    return emit


def _log_softmax_backward(emitter: Emitter, example: Tensor, grad: View, output: View, dim: int, dtype: Any) -> View:
    n = _last_dim_only(grad, dim)
    total = _reduced(emitter, grad, {len(grad.shape) - 1}, example.dtype, (*grad.shape[:-1], 1))
    out = emitter.allocate(example.shape, example.dtype)
    wide = View(total.pointer, total.dtype, (*grad.shape[:-1], 1), (*dense_strides(grad.shape[:-1]), 0))
    assert n == grad.shape[-1]
    emitter.loops(out, "{0} - exp_({1}) * {2}", [grad, output, wide])
    return out


def _cumsum(emitter: Emitter, example: Tensor, x: View, dim: int, dtype: Any = None) -> View:
    n, out = _last_dim_only(x, dim), emitter.allocate(example.shape, example.dtype)
    step = x.strides[-1]
    emitter.rows(
        x,
        f"{out.c_type} sum = 0; for (int i = 0; i < {n}; i++) {{ sum += x[i * {step}]; ({out.start})[row * {n} + i] = sum; }}",
    )
    return out


def _gather(emitter: Emitter, example: Tensor, x: View, dim: int, index: View) -> View:
    n, out = _last_dim_only(x, dim), emitter.allocate(example.shape, example.dtype)
    if x.shape[:-1] != index.shape[:-1]:
        raise Unsupported("gather of some rows")
    index = emitter.dense(index)
    each = index.shape[-1]
    body = f"for (int i = 0; i < {each}; i++) {{ int64_t at = ({index.start})[row * {each} + i]; "
    body += f"({out.start})[row * {each} + i] = at < 0 || at >= {n} ? NAN : x[at * {x.strides[-1]}]; }}"
    emitter.rows(x, body)
    return out


def _scatter_add(emitter: Emitter, example: Tensor, x: View, dim: int, index: View, source: View) -> View:
    n, out = _last_dim_only(x, dim), emitter.allocate(example.shape, example.dtype)
    if not x.shape[:-1] == index.shape[:-1] == source.shape[:-1]:
        raise Unsupported("scatter to some rows")
    index = emitter.dense(index)
    emitter.loops(out, "{0}", [x])
    each, step = index.shape[-1], source.strides[-1]
    body = f"for (int i = 0; i < {each}; i++) {{ int64_t at = ({index.start})[row * {each} + i]; "
    body += f"if (at >= 0 && at < {n}) ({out.start})[row * {n} + at] += x[i * {step}]; }}"
    emitter.rows(source, body)
    return out


def _binary_cross_entropy(
    emitter: Emitter, example: Tensor, x: View, y: View, weight: Any, positive: Any, reduction: int
) -> View:
    if weight is not None or positive is not None or reduction != 0:
        raise Unsupported("cross-entropy with weights")
    out = emitter.allocate(example.shape, example.dtype)
    emitter.loops(out, "({0} > 0 ? {0} : 0) - {0} * {1} + log1pf(expf({0} > 0 ? -{0} : {0}))", [x, y])
    return out


def _log_sigmoid(emitter: Emitter, example: Any, x: View) -> list[View]:
    out = emitter.allocate(x.shape, x.dtype)
    emitter.loops(out, "log_sigmoid_({0})", [x])
    return [out, out]  # the second is scratch of torch's kernel, which the gradient here does not need


def _copied(emitter: Emitter, example: Tensor, x: View, **_: Any) -> View:
    expression = "{0} != 0" if example.dtype == torch.bool != x.dtype else "{0}"
    if x.dtype in FLOATS and example.dtype in INTEGERS:  # one that does not fit becomes what the processor likes
        if (x.dtype, example.dtype) != (torch.float32, torch.int64):
            raise Unsupported(f"a conversion of {plain(x.dtype)} to {plain(example.dtype)}")
        expression = (
            "({0} > -9e18f && {0} < 9e18f ? (int64_t){0} : INT64_MIN)"  # choices among a hybrid action's numbers
        )
    out = emitter.allocate(example.shape, example.dtype)
    emitter.loops(out, expression, [x])
    return out


def _filled(number: float) -> Callable[..., View]:
    def emit(emitter: Emitter, example: Tensor, *_: Any, **__: Any) -> View:
        out = emitter.allocate(example.shape, example.dtype)
        emitter.loops(out, literal(number), [])
        return out

    return emit


SUMS = FLOATS | INT64
SPECIAL = {
    "mm": Special(_product, (FLOAT32,), FLOAT32), "addmm": Special(_addmm, (FLOAT32,), FLOAT32),
    "sum": Special(_sum, (EVERY,), SUMS), "cumsum": Special(_cumsum, (EVERY,), SUMS),
    "mean": Special(_mean, (EVERY,), FLOAT32), "var": Special(_variance, (FLOAT32,), FLOAT32),
    "std": Special(_deviation, (FLOAT32,), FLOAT32),
    "cat": Special(_cat, (EVERY,), EVERY), "stack": Special(_stack, (EVERY,), EVERY),
    "_log_softmax": Special(_softmax(1), (FLOAT32,), FLOAT32), "_softmax": Special(_softmax(0), (FLOAT32,), FLOAT32),
    "_log_softmax_backward_data": Special(_log_softmax_backward, (FLOAT32,), FLOAT32),
    "gather": Special(_gather, (FLOATS, INT64), FLOATS),
    "scatter_add": Special(_scatter_add, (EVERY - BOOL, INT64, EVERY - BOOL), EVERY - BOOL, narrows=True),
    "binary_cross_entropy_with_logits": Special(_binary_cross_entropy, (FLOAT32,), FLOAT32),
    "log_sigmoid_forward": Special(_log_sigmoid, (FLOAT32,), FLOAT32),
    "clone": Special(_copied, (EVERY,), EVERY), "_to_copy": Special(_copied, (EVERY,), EVERY, narrows=True),
    "lstm": Special(recurrence.lstm, (FLOAT32,), FLOAT32),
    "lstm_backward": Special(recurrence.lstm_backward, (FLOAT32,), FLOAT32),
    "gru": Special(recurrence.gru, (FLOAT32,), FLOAT32),
    "gru_backward": Special(recurrence.gru_backward, (FLOAT32,), FLOAT32),
    "elu": Special(dense_layers.elu, (FLOAT32,), FLOAT32),
    "elu_backward": Special(dense_layers.elu_backward, (FLOAT32,), FLOAT32),
    "gelu": Special(dense_layers.activation("gelu_({0})"), (FLOAT32,), FLOAT32),
    "gelu_backward": Special(dense_layers.activation("{0} * gelu_slope_({1})"), (FLOAT32,), FLOAT32),
    "silu": Special(dense_layers.activation("silu_({0})"), (FLOAT32,), FLOAT32),
    "silu_backward": Special(dense_layers.activation("{0} * silu_slope_({1})"), (FLOAT32,), FLOAT32),
    "leaky_relu": Special(dense_layers.leaky_relu, (FLOAT32,), FLOAT32),
    "leaky_relu_backward": Special(dense_layers.leaky_relu_backward, (FLOAT32,), FLOAT32),
    "native_layer_norm": Special(dense_layers.layer_norm, (FLOAT32,), FLOAT32),
    "native_layer_norm_backward": Special(dense_layers.layer_norm_backward, (FLOAT32,), FLOAT32),
    "new_zeros": Special(_filled(0.0), (EVERY,), EVERY, narrows=True),
    "empty_like": Special(_filled(0.0), (EVERY,), EVERY, narrows=True),
}  # fmt: skip
