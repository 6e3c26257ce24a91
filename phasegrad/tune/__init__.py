"""Searching for settings with Optuna."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phasegrad.tune.tuning import tune

__all__ = ["tune"]


def __getattr__(name: str) -> Any:
    """`tune` when it is asked for: it needs torch, and the command line looks at the search spaces for its help."""
    if name == "tune":
        from phasegrad.tune.tuning import tune

        return tune
    raise AttributeError(f"module 'phasegrad.tune' has no attribute {name!r}")
