"""A traced policy as statements of portable C: the package's code generator, for one observation and without extensions.

What compute/native writes is for this machine and for batches; here every value is an array of its own type, weights are
constants of the file, and functions come from libm. Knows graphs and tensors; nothing of agents and files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from phasegrad.compute.native.emit import SPECIAL, VIEWS, Emitter
from phasegrad.compute.native.graph import C_TYPES, Unsupported, View, dense_strides, view_of
from phasegrad.compute.operations import operation_name
from phasegrad.compute.tracing import needed_nodes, record

PREFIX = "phasegrad_"  # of every name of the file, since it may be included in another
FUNCTIONS = {
    "exp_": "float {}(float x) {{ return expf(x); }}",
    "tanh_": "float {}(float x) {{ return tanhf(x); }}",
    "sigmoid_": "float {}(float x) {{ return 1.0f / (1.0f + expf(-x)); }}",
    "log_sigmoid_": "float {}(float x) {{ return (x < 0.0f ? x : 0.0f) - log1pf(expf(x < 0.0f ? x : -x)); }}",
    "softplus_": "float {}(float x) {{ return x > 20.0f ? x : log1pf(expf(x)); }}",
    "expm1_": "float {}(float x) {{ return expm1f(x); }}",
    "log1p_": "float {}(float x) {{ return log1pf(x); }}",
    "erf_": "float {}(float x) {{ return erff(x); }}",
    "elu_": "float {}(float x, float alpha) {{ return x > 0.0f ? x : alpha * expm1f(x); }}",
    "gelu_": "float {}(float x) {{ return 0.5f * x * (1.0f + erff(x * 0.707106781f)); }}",
    "silu_": "float {}(float x) {{ return x / (1.0f + expf(-x)); }}",
    "product": """void {}(int rows, int inner, int columns, const float *a, const float *b, const float *bias, float *out) {{
    for (int i = 0; i < rows; i++, a += inner, out += columns) {{
        for (int j = 0; j < columns; j++) out[j] = bias ? bias[j] : 0.0f;
        for (int k = 0; k < inner; k++) {{
            const float *row = b + (ptrdiff_t)k * columns;
            float x = a[k];
            if (x == 0.0f) continue; /* all but one number of a choice */
            for (int j = 0; j < columns; j++) out[j] += x * row[j];
        }}
    }}
}}""",
    "layer_norm": """void {}(int rows, int n, const float *x, const float *weight, const float *bias, float eps, float *out,
                       float *means, float *rates) {{
    for (int row = 0; row < rows; row++, x += n, out += n) {{
        float sum = 0.0f, squares = 0.0f;
        for (int i = 0; i < n; i++) sum += x[i];
        means[row] = sum / (float)n;
        for (int i = 0; i < n; i++) squares += (x[i] - means[row]) * (x[i] - means[row]);
        rates[row] = 1.0f / sqrtf(squares / (float)n + eps);
        for (int i = 0; i < n; i++) out[i] = (x[i] - means[row]) * rates[row] * weight[i] + bias[i];
    }}
}}""",
    "softmax_row": """void {}(int n, const float *x, int stride, float *out, int log) {{
    float top = x[0], sum = 0.0f;
    for (int i = 1; i < n; i++) top = x[i * stride] > top ? x[i * stride] : top;
    for (int i = 0; i < n; i++) {{ out[i] = expf(x[i * stride] - top); sum += out[i]; }}
    for (int i = 0; i < n; i++) out[i] = log ? x[i * stride] - top - logf(sum) : out[i] / sum;
}}""",
}  # fmt: skip
_CALLED = re.compile(rf"\b({'|'.join(FUNCTIONS)})\(")


class CBody(Emitter):
    """The statements of `function` at `examples`, of one row each, with the arrays and the constants that they need.

    They read `inputs` and write `outputs`, arrays of pointers, in the order of the function's own.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> None:
        self.arrays: list[tuple[str, int]] = []  # (type, numbers) of each slot
        self.constants: list[Tensor] = []
        self._known: dict[Any, int] = {}
        graph, fixed = record(function, examples)
        super().__init__(graph, fixed, needed_nodes(graph, fixed), operation_name)

    def statements(self) -> str:
        return "\n".join("    " + _CALLED.sub(lambda found: PREFIX + found[0], line) for line in self.lines)

    def declarations(self) -> str:
        return "\n".join(f"    {kind} t{slot}[{count}];" for slot, (kind, count) in enumerate(self.arrays))

    def functions(self) -> str:
        """What the statements call."""
        called = {name for line in self.lines for name in _CALLED.findall(line)}
        own = [f"static {text.format(PREFIX + name)}" for name, text in FUNCTIONS.items() if name in called]
        return "\n\n".join(own)

    def bytes_of_arrays(self) -> int:
        """About what a call needs of the stack."""
        sizes = {kind: torch.empty((), dtype=dtype).element_size() for dtype, kind in C_TYPES.items()}
        return sum(sizes[kind] * count for kind, count in self.arrays)

    # What is written differently here

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> View:
        if dtype not in C_TYPES:
            raise Unsupported(f"numbers of type {dtype}")
        view, free = View("", dtype, tuple(shape), dense_strides(shape)), self.workspace.free
        slot = next((slot for slot in free if self.arrays[slot][0] == view.c_type), len(self.arrays))
        if slot == len(self.arrays):
            self.arrays.append((view.c_type, 1))
        else:
            free.remove(slot)
        self.arrays[slot] = (view.c_type, max(self.arrays[slot][1], view.size))
        return replace(view, pointer=f"t{slot}", slot=slot)

    def loops(self, out: View, expression: str, inputs: Sequence[View], accumulate: bool = False) -> None:
        if expression == "{0}" and inputs[0].dtype != out.dtype:
            expression = f"({out.c_type}){{0}}"  # said aloud, so that no compiler warns
        super().loops(out, expression, inputs, accumulate)

    def _external(self, tensor: Tensor) -> View:
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        index = self._known.setdefault(key, len(self.constants))
        if index == len(self.constants):
            self.constants.append(tensor.detach().contiguous())  # as it is read: a layer's weights by input
        return view_of(f"{PREFIX}{index}", self.constants[index])

    def _emit(self, node: fx.Node) -> Any:
        name = self.name_of(node)
        if name in ("mm", "addmm"):
            return self._product(node)
        if name == "argmax":
            return self._largest(node)
        if isinstance(node.meta["val"], tuple | list) and name not in VIEWS and name not in SPECIAL:
            raise Unsupported(f"the operation {name}")
        return super()._emit(node)

    def _product(self, node: fx.Node) -> View:
        *bias, a, b = (self._argument(item) for item in node.args)
        if node.kwargs or any(view.dtype != torch.float32 for view in (*bias, a, b)):
            raise Unsupported("a product with factors, or of other numbers than float32")
        (rows, inner), columns = a.shape, b.shape[1]
        if bias and (len(bias[0].shape) != 1 or bias[0].shape != (columns,)):
            raise Unsupported("a bias that is no vector")
        given = [a, b, *bias]
        dense = [self.dense(view) for view in given]
        out = self.allocate((rows, columns), torch.float32)
        start = dense[2].start if bias else "NULL"
        self.lines.append(
            f"product({rows}, {inner}, {columns}, {dense[0].start}, {dense[1].start}, {start}, {out.start});"
        )
        for mine, theirs in zip(dense, given, strict=True):
            if mine is not theirs:
                self.workspace.give_back(mine.slot)
        return out

    def _largest(self, node: fx.Node) -> View:
        x, dim, *_ = (*(self._argument(item) for item in node.args), None)
        if not isinstance(dim, int) or dim % len(x.shape) != len(x.shape) - 1:
            raise Unsupported("the largest along a dimension that is not the last")
        out, step = self.allocate(node.meta["val"].shape, torch.int64), x.strides[-1]
        body = f"int64_t at = 0; for (int i = 1; i < {x.shape[-1]}; i++) if (x[i * {step}] > x[at * {step}]) at = i; "
        self.rows(x, body + f"({out.start})[row] = at;")
        return out
