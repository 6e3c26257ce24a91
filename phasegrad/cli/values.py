"""Values of options, checked as settings are."""

from __future__ import annotations

from typing import Any


def chosen_checkpoint(value: str | None) -> int | str | None:
    """A step, or the word best."""
    return value if value == "best" else whole_or_none("checkpoint", value, 0)


def whole_or_none(name: str, value: str | None, low: int) -> int | None:
    """An option as a whole number of at least `low`, or None where it was not given."""
    return None if value is None else coerced(name, value, int, low)


def coerced(name: str, value: str, kind: type, low: float) -> Any:
    from phasegrad.config import coerce

    return coerce(name, value, kind, {"low": low})
