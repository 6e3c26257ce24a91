"""How an algorithm is called, as `help()`, notebooks and editors show it: its settings with their types and defaults.

A signature at run time and the lines of builtin.pyi, which editors and type checkers read, come from one list: the fields
of the config. Nothing here is called to make an agent.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phasegrad.agent import Spaces
from phasegrad.algorithms.most_changed import EVERYONES, MOST_CHANGED
from phasegrad.config import Config, documented_fields

# What is given beside settings, as `Algorithm.__init__` takes it.
BESIDE: dict[str, tuple[str, Any]] = {
    "run_dir": ("str | Path | None", None),
    "overwrite": ("bool", False),
    "config": ("Config | None", None),
    "spaces": ("Spaces | None", None),
}
NAMES = {"Any": Any, "Callable": Callable, "Mapping": Mapping, "Sequence": Sequence, "Path": Path, "Config": Config}
WIDTH = 100  # characters of a line of help


class ShownSignature:
    """The `__signature__` of a class of algorithms: that of its own settings, unless it has an `__init__` of its own."""

    def __get__(self, agent: Any, kind: type[Any]) -> inspect.Signature:
        maker = getattr(kind, "__init__", None)
        if agent is not None or getattr(maker, "__module__", "") != "phasegrad.algorithms.base":
            raise AttributeError("__signature__")
        return signature_of(kind.config_class)


def signature_of(config_class: type[Config]) -> inspect.Signature:
    """The environment first, then what every algorithm takes, then the settings."""
    first = inspect.Parameter("env", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Any)
    names = NAMES | {"Spaces": Spaces}
    others = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=eval(kind, names))
        for name, (kind, default) in keywords_of(config_class).items()
    ]
    return inspect.Signature([first, *others])


def keywords_of(config_class: type[Config]) -> dict[str, tuple[str, Any]]:
    """What can be given by name: the type as one writes it, and the default."""
    hints = typing.get_type_hints(config_class)
    found = dict(BESIDE)
    for name, field in documented_fields(config_class).items():
        if name != "env":
            default = {} if field.default is dataclasses.MISSING else field.default
            found[name] = (taken(hints[name], bool(field.metadata.get("scheduled"))), default)
    return found


def taken(hint: Any, scheduled: bool) -> str:
    """What a setting takes: sequences for its tuples, mappings for its objects, a schedule where it may have one."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = next(option for option in typing.get_args(hint) if option is not type(None))
        return f"{taken(inner, scheduled)} | None"
    if typing.get_origin(hint) is tuple:
        return f"Sequence[{typing.get_args(hint)[0].__name__}]"
    if typing.get_origin(hint) is dict:
        return "Mapping[str, Any]"
    if scheduled:
        return "float | str | Callable[[float], float]"
    return "Any" if hint is Any else str(hint.__name__)


def documentation(name: str, about: str, config_class: type[Config]) -> str:
    """The docstring of an algorithm's class: what it is, how it is called, and the settings that people change."""
    fields = documented_fields(config_class)
    own = [field for field in fields if field not in documented_fields(Config)]
    shown = [each for each in MOST_CHANGED.get(name, (*EVERYONES, "learning_rate", *own)) if each in fields]
    lines = [
        about.strip(),
        "",
        "`env` is an environment id, a function that makes a gymnasium environment, or a gymnasium VectorEnv. `run_dir` is",
        "where checkpoints and metrics go; nothing is written without it. `overwrite` replaces a run that is there.",
        "",
        f"Settings changed most, of {len(fields)}, with their defaults. What you do not set, the environment's preset may:",
        "",
    ]
    for each in shown:
        if each != "env":
            default = {} if fields[each].default is dataclasses.MISSING else fields[each].default
            entry = f"{each} = {default!r}: {fields[each].metadata['help']}"
            lines += textwrap.wrap(entry, WIDTH, initial_indent="    ", subsequent_indent=" " * 8)
    return "\n".join(lines) + "\n"
