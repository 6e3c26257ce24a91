"""What a setting is: its documentation, range and choices, and how a value that was given becomes one of its type.

The same names and texts serve Python, JSON and the command line. Nothing here knows the settings that there are.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phasegrad.errors import ConfigError, nearest
from phasegrad.schedules import Scheduled, agree, as_given, completed, parsed

if TYPE_CHECKING:
    from phasegrad.config.shared import Config

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    live: bool = False,
    auto: bool = False,
    scheduled: bool = False,
    several: bool = False,
) -> Any:
    """A documented field; `low` and `high` are the closed range of a valid value, a `live` one may change in training.

    None stands for "auto" in a field that is `auto`. A `scheduled` one takes a schedule in place of a number. Of `several`
    choices, those that are made are joined by commas.
    """
    metadata: dict[str, Any] = {"help": help, "low": low, "high": high, "choices": choices, "live": live, "auto": auto}
    metadata |= {"scheduled": scheduled, "several": several}
    return dataclasses.field(default=default, metadata=metadata)


def live_fields(config_class: type[Config]) -> list[str]:
    """The settings that may change while an agent trains."""
    return [f.name for f in dataclasses.fields(config_class) if f.metadata.get("live")]


def documented_fields(config_class: type[Config]) -> dict[str, dataclasses.Field[Any]]:
    return {f.name: f for f in dataclasses.fields(config_class)}


def coerce_fields(config_class: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values checked and converted field by field; unknown names refused."""
    fields = documented_fields(config_class)
    hints = typing.get_type_hints(config_class)
    result = {}
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(f"Unknown setting {name!r} for {algorithm_name(config_class)}.{nearest(name, fields)}")
        result[name] = coerce(name, value, hints[name], fields[name].metadata)
    return result


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Names and values of FIELD=VALUE texts, as written."""
    for text in settings:
        if "=" not in text:
            raise ConfigError(f"--set takes FIELD=VALUE such as compile=replay, not {text!r}.")
    return dict(text.split("=", 1) for text in settings)


def option_value(text: str) -> Any:
    """An environment's option as a command writes it: JSON, or as Python has it (True, None, .5, (1, 2)), else text."""
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except (ValueError, RecursionError):  # ValueError: no JSON, or a number of thousands of digits
        pass
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return math.inf * (-1 if text[0] == "-" else 1) if text.lower() in ("inf", "-inf") else text
    found = list(found) if isinstance(found, tuple) else found
    return found if isinstance(found, bool | int | float | list | None) else text


def first_difference(
    wanted: Mapping[str, Any], found: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> tuple[str, Any, Any] | None:
    """(name, what a run's config.json says, what is wanted) of the first setting that differs.

    What only concerns the machine does not count, nor an auto, which is decided when a run starts.
    """
    plain = json.loads(json.dumps({name: as_given(value) for name, value in wanted.items()}))
    for name, value in plain.items():
        there = found.get(name, (defaults or {}).get(name))
        same = there == value or (isinstance(wanted[name], Scheduled) and agree(wanted[name], there))
        if name not in MACHINE_FIELDS and value != "auto" and not same:
            return name, there, value
    return None


def make_config(config_class: type[Config], values: Mapping[str, Any]) -> Config:
    """A validated config from field values of the right names."""
    checked = coerce_fields(config_class, values)
    config = config_class(**checked | started(config_class, checked, {}))
    config.validate()
    return config


def started(config_class: type[Config], values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The schedules among `values` that name no start, begun at what `base` or else the default is without them."""
    defaults = {name: field.default for name, field in documented_fields(config_class).items()} | dict(base)
    found: dict[str, Any] = {}
    for name in sorted(values, key=lambda name: name != "learning_rate"):  # which stands in for the critic's
        if isinstance(values[name], Scheduled):
            instead = {**defaults, **values, **found}.get("learning_rate")
            start = instead if defaults[name] is None else defaults[name]
            found[name] = completed(name, values[name], start)
    return found


def lost_function(name: str, value: Scheduled) -> str:
    """What to do where only the name of a function is known."""
    return (
        f"{name} follows a function that was given in Python ({str(value.schedule)[:80]}), which no file can hold: give it "
        f"again with phasegrad.load(path, schedules={{{name!r}: ...}})."
    )


def algorithm_name(config_class: type[Config]) -> str:
    return config_class.__name__.removesuffix("Config").lower() or "any algorithm"


LARGE = 1 << 12
MOST_ITEMS = 64


def coerce(name: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """One value as its field's type: text is parsed as the command line writes it; ranges and choices are checked."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if value is None or (isinstance(value, str) and value.lower() == ("auto" if metadata.get("auto") else "none")):
            return None
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is dict and not (isinstance(value, Mapping) and all(isinstance(k, str) for k in value)):
        raise ConfigError(f"{name} must be an object of names and values, not {short(value)}.")
    if hint is Any or typing.get_origin(hint) is dict:
        return value
    if typing.get_origin(hint) is tuple:
        items = [item for item in value.split(",") if item.strip()] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            items = [items]
        if len(items) > MOST_ITEMS:
            raise ConfigError(f"{name} has {len(items)} entries: at most {MOST_ITEMS} make sense.")
        kind = typing.get_args(hint)[0]
        items = [item.strip() if isinstance(item, str) else item for item in items]
        return tuple(coerce(name, item, kind, metadata) for item in items)
    if metadata.get("scheduled"):
        schedule = parsed(name, value, lambda number: coerce(name, number, float, {**metadata, "scheduled": False}))
        if schedule is not None:
            return schedule
    if metadata.get("several"):
        return several_of(name, value, metadata)
    try:
        result = CONVERTERS[hint](value)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"{name} must be {KINDS[hint]}, not {short(value)}.") from None
    if isinstance(result, int) and abs(result) >= 1 << 63:  # no counter holds it
        raise ConfigError(f"{name} must be below 2^63, about 9.2e18, not {short(value)}.")
    low, high, choices = metadata.get("low"), metadata.get("high"), metadata.get("choices")
    if choices and result not in choices:
        raise ConfigError(
            f"{name} must be one of {', '.join(choices)}, not {short(result)}.{nearest(str(result)[:80], choices)}"
        )
    if (low is not None and result < low) or (high is not None and result > high):
        wanted = f"at least {low}" if high is None else f"at most {high}" if low is None else f"from {low} to {high}"
        if high is not None and LARGE <= high <= 1 << 24:  # a limit that only a slip or a hostile file exceeds
            wanted = f"at most {high}" if result > high else f"at least {low}"
        raise ConfigError(f"{name} must be {wanted}, not {str(value)[:80]}.")
    return result


def several_of(name: str, value: Any, metadata: Mapping[str, Any]) -> str:
    """Choices joined by commas, each once; also from a list. What stands for no choice stands alone."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    one = {**metadata, "several": False}
    made = [coerce(name, item.strip() if isinstance(item, str) else item, str, one) for item in items] or ["none"]
    chosen = list(dict.fromkeys(made))
    if len(chosen) > 1 and "none" in chosen:
        raise ConfigError(f"{name} none cannot be combined with others: leave it out, or leave them out.")
    return ",".join(chosen)


def short(value: Any) -> str:
    """A value as an error shows it, whatever its length."""
    if isinstance(value, int) and value.bit_length() > 1000:  # Python does not write one of thousands of digits
        return f"a number of about {int(value.bit_length() * 0.30103):,} digits"
    text = repr(value) if not isinstance(value, (list, tuple, dict)) or len(value) < 100 else f"{len(value)} entries"
    return text if len(text) <= 80 else f"{text[:77]}..."


def to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    number = float(value) if isinstance(value, str) and not value.lstrip("+-").replace("_", "").isdigit() else value
    if isinstance(number, str):
        return int(number)
    if number != int(number):
        raise ValueError
    return int(number)


def to_float(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def to_bool(value: Any) -> bool:
    text = str(value).lower()
    if text not in TRUE + FALSE:
        raise ValueError
    return text in TRUE


def to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


MACHINE_FIELDS = (
    "torch_threads",
    "env_threads",
    "device",
    "storage",
    "keep_checkpoints",
)  # do not change what is learned
CONVERTERS: dict[Any, Callable[[Any], Any]] = {int: to_int, float: to_float, bool: to_bool, str: to_str}
KINDS = {
    int: "a whole number (1e6 and 1_000_000 are fine)",
    float: "a finite number",
    bool: "true or false",
    str: "text",
}
