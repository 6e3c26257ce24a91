"""Records of operations none of which changes a tensor, as whoever reorders or leaves out operations must have them.

Nothing here knows what a record is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from phasegrad.compute.operations import Operations, operation_name


def without_changes(found: Operations, examples: Sequence[Tensor]) -> Operations:
    """The same results by operations that leave their inputs as they are."""
    changing = [node for node in found.graph.nodes if operation_name(node).endswith("_")]
    if not changing:
        return found
    instead = {node: _unchanging(node) for node in changing}
    if None not in instead.values() and not any(map(_is_taken_apart, found.graph.nodes)):
        again = Operations(partial(found.run, instead=instead), examples)
        before, after = list(found.graph.nodes), list(again.graph.nodes)
        if len(before) == len(after) and all(map(_alike, before, after)):
            return again
    from torch.func import functionalize  # which follows views of views, and imports sympy when it is called

    return Operations(functionalize(found.run), examples)


def _unchanging(node: fx.Node) -> Any | None:
    """The operation that returns what this one puts into its input, where nobody would see that it is not there.

    So it is in torch's own gradients, which use memory again that they have just filled. None where it is not so.
    """
    source, target = node.args[0], node.target
    if not isinstance(source, fx.Node) or set(source.users) != {node}:
        return None
    made_by = source.target
    if not isinstance(made_by, torch._ops.OpOverload) or not isinstance(target, torch._ops.OpOverload):
        return None  # an input, what was captured, one of several results
    looks_at_others = any(result.alias_info is not None for result in made_by._schema.returns)
    if looks_at_others and not operation_name(source).endswith("_"):  # such an operation is looked at by itself
        return None
    operations = getattr(getattr(torch.ops, target.namespace), operation_name(node)[:-1], None)
    return getattr(operations, target._overloadname, None)


def _is_taken_apart(node: fx.Node) -> bool:
    """Whether functionalize makes several of this operation. A program has the same source whichever way it was recorded."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "FuncTorchDynamicLayerFrontMode")


def _alike(before: fx.Node, after: fx.Node) -> bool:
    """Whether two nodes have results of one shape and type: what is written into memory takes the type of that."""
    mine, theirs = before.meta.get("val"), after.meta.get("val")
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        return not isinstance(mine, Tensor) and not isinstance(theirs, Tensor)
    return (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
