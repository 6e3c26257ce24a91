"""Observations are one array or a flat dict of arrays by name; these few functions treat both alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """`function` applied to each leaf of `tree` (and the same leaf of the others), in the same structure."""
    if isinstance(tree, dict):
        return {name: function(leaf, *(other[name] for other in others)) for name, leaf in tree.items()}
    return function(tree, *others)


def leaves(tree: Any) -> list[Any]:
    """The arrays of an observation, in the order of their names."""
    return [tree[name] for name in sorted(tree)] if isinstance(tree, dict) else [tree]


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """(name, array) pairs; a plain observation has the empty name."""
    return sorted(tree.items()) if isinstance(tree, dict) else [("", tree)]
