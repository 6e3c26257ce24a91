"""Values from a study's file or from its options, checked one by one: a sentence where one is not what it must be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from phasegrad.config import coerce, short
from phasegrad.errors import ConfigError, nearest, visible
from phasegrad.machine.paths import folder_name as folder_name  # grid.py and definition.py know it by this module

MOST_SEEDS = 1_000


def known_only(data: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in data:
        if key not in known:
            raise ConfigError(f"unknown key {short(key)} in {where}.{nearest(key[:80], known)}")


def typed(data: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    """The value of a key, of the right type."""
    value = data.get(key, default)
    if value is not None and not isinstance(value, kind):
        kinds: dict[type, str] = {str: "text", list: "a list", dict: "a table"}
        raise ConfigError(f"{key} must be {kinds[kind]}, not {short(value)}.")
    return value


def whole(key: str, value: Any, low: int) -> int:
    return int(coerce(key, value, int, {"low": low}))


def finite_number(key: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{key} must be a finite number, not {short(value)}.")
    return float(value)


def checked_seeds(values: Sequence[Any]) -> tuple[int, ...]:
    if len(values) > MOST_SEEDS:
        raise ConfigError(f"seeds names {len(values):,} seeds; {MOST_SEEDS:,} is the most.")
    seeds = tuple(whole("seeds", value, 0) for value in values)
    if not seeds:
        raise ConfigError("seeds must name at least one seed.")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds names {next(seed for seed in seeds if seeds.count(seed) > 1)} twice.")
    if max(seeds) > 2**31 - 1:
        raise ConfigError(f"seeds must be at most {2**31 - 1}, not {max(seeds)}.")
    return seeds


def one_line(text: str) -> str:
    """Text for a terminal: control characters are spelt out."""
    shown = visible(" ".join(text.split()))
    return "".join(character if character.isprintable() else " " for character in shown).strip()


def distinct_folders(what: str, names: Iterable[str]) -> None:
    taken: dict[str, str] = {}
    for name in names:
        if not name.isprintable() or len(name) > 80:  # control characters would reach the terminal
            raise ConfigError(f"{name[:80]!r} in {what} must be at most 80 printable characters.")
        folder = folder_name(name).lower()
        if not folder:
            raise ConfigError(f"{name!r} in {what} has no letter or digit that could name its folder.")
        if folder in taken:
            raise ConfigError(f"{taken[folder]!r} and {name!r} in {what} need names that differ in letters or digits.")
        taken[folder] = name
