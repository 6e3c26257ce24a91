"""Which tensor operations a function runs, below autograd and its gradient among them, in their order: a graph of them.

torch has a recorder of its own, make_fx, but that imports torch's compilers, for longer than many a run trains. Knows nothing
of what a graph is for.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

SMALL = 1  # elements of a constant that may be asked for its number
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class Operations:
    """The operations of `function(*examples) -> tensors`, run once for it.

    `graph` has a node for each, whose `meta["val"]` has the shape, strides and type of the result (and no numbers), and
    `meta["device"]` where that was; `captured` has the tensors that the function brought along, by the targets of their nodes.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> None:
        recorder = _Recorder()
        for number, example in enumerate(examples):
            recorder.remember(example, recorder.graph.placeholder(f"arg{number}_1"))
        with _without_autocast_cache(), _CallsSeen(), recorder:
            results = function(*examples)
        recorder.graph.output([recorder.node_of(result) for result in results])
        self.graph, self.captured = recorder.graph, recorder.captured

    def run(self, *inputs: Tensor, instead: Mapping[fx.Node, Any] | None = None) -> list[Tensor]:
        """The recorded operations on other inputs; `instead` has others for some of them."""
        given, values = iter(inputs), dict[fx.Node, Any]()
        for node in self.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = self.captured[str(node.target)]
            else:
                arguments, keywords = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                if node.op == "output":
                    return list(arguments[0])
                called = node.target if instead is None else instead.get(node, node.target)
                values[node] = called(*arguments, **keywords)
        raise AssertionError("a graph ends with its output")


def operation_name(node: fx.Node) -> str:
    """The operation of a node without its overload, such as "mul"."""
    target = node.target
    return target._schema.name.split("::")[1] if isinstance(target, torch._ops.OpOverload) else ""


class _Recorder(TorchDispatchMode):
    """Sees every operation on its way to a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.captured: dict[str, Tensor] = {}
        self._nodes: Any = WeakTensorKeyDictionary()  # of the tensors that are alive
        self._constants: Any = WeakTensorKeyDictionary()  # those of them whose number is known

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To skip torch's compiler would be to import it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if func is torch.ops.prim.device.default:
            return func(*args, **keywords)
        given = [each for each in _flat([*args, *keywords.values()]) if isinstance(each, Tensor)]
        if any(type(each) not in (Tensor, nn.Parameter) and each not in self._nodes for each in given):
            return NotImplemented  # a class of tensors that has its own way first
        if _is_composite(func, given):
            with self:
                result = func.decompose(*args, **keywords)
            if result is not NotImplemented:
                return result
        known = [each in self._constants for each in given if each in self._nodes]
        if torch.Tag.data_dependent_output in func.tags:
            if all(known):
                return func(*args, **keywords)
            raise RuntimeError(
                f"it reads a number out of a tensor ({func}), as `.item()`, `float()` and `if` do, which a record of its operations "
                "would keep for ever"
            )
        if (
            func is torch.ops.aten.lift_fresh.default
        ):  # torch.tensor(...): each call of the record begins with that number again
            func = torch.ops.aten.lift_fresh_copy.default
        node = self._called(func, args, keywords)
        result = func(*args, **keywords)
        is_number = func is torch.ops.aten.lift_fresh_copy.default
        follows = bool(known) and all(known) and torch.Tag.nondeterministic_seeded not in func.tags
        self.remember(result, node, constant=(is_number or follows) and _is_small(result))
        return result

    def _called(self, func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> fx.Node:
        arguments, named = tuple(self._with_nodes(args)), self._with_nodes(keywords)
        return self.graph.create_node("call_function", func, arguments, named, name=func._schema.name.split("::")[1])

    def _with_nodes(self, item: Any) -> Any:
        if isinstance(item, Tensor):
            return self.node_of(item)
        if isinstance(item, (list, tuple)):
            return [self._with_nodes(each) for each in item]
        if isinstance(item, dict):
            return {key: self._with_nodes(value) for key, value in item.items()}
        return item

    def node_of(self, tensor: Tensor) -> fx.Node:
        """Where a tensor came from; one that no operation made was captured."""
        node = self._nodes.get(tensor)
        return node if node is not None else self._capture(tensor)

    def _capture(self, tensor: Tensor) -> fx.Node:
        target = next((target for target, known in self.captured.items() if known is tensor), None)
        if target is None:
            kind = "_param_constant" if isinstance(tensor, nn.Parameter) else "_tensor_constant"
            target = f"{kind}{sum(known.startswith(kind) for known in self.captured)}"
            self.captured[target] = tensor
        node = self.graph.create_node("get_attr", target)
        _describe(node, tensor)
        return node

    def remember(self, result: Any, node: fx.Node, constant: bool = False) -> None:
        """`node` holds this tensor from now on, or several of them."""
        if isinstance(result, Tensor):
            self._nodes[result] = node
            self._constants.pop(result, None)
            if constant:
                self._constants[result] = True
            _describe(node, result)
        elif isinstance(result, (list, tuple)):
            node.meta["val"] = [_outline(each) for each in result]
            for place, each in enumerate(result):
                self.remember(each, self.graph.call_function(operator.getitem, (node, place)), constant)


class _CallsSeen(TorchFunctionMode):
    """Changes nothing; while somebody watches, layers of torch's keep to operations that have a gradient, as in training."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Without the copies of parameters that an earlier call has left, which no operation would be seen to make."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _flat(items: Sequence[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, (list, tuple)):
            yield from _flat(item)
        else:
            yield item


def _is_composite(func: Any, given: Sequence[Tensor]) -> bool:
    """Whether autograd would have taken it apart, had it not been left out (as in inference mode)."""
    name = func.name()
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE):
        return False
    own = torch._C._dispatch_key_for_device(given[0].device.type) if given else None
    return own is None or not torch._C._dispatch_has_kernel_for_dispatch_key(name, own)


def _is_small(result: Any) -> bool:
    return all(each.numel() <= SMALL for each in _flat([result]) if isinstance(each, Tensor))


def _describe(node: fx.Node, tensor: Tensor) -> None:
    node.meta["val"], node.meta["device"] = _outline(tensor), tensor.device


def _outline(value: Any) -> Any:
    """A tensor of that shape, strides and type without any memory."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
