"""The page of the Python interface, made from signatures and docstrings as Python itself shows them.

Read from the running package, not from its source: the constructors' signatures are made from the settings.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import phasegrad as pg
from phasegrad.algorithms.verbs import Verbs

INTRODUCTION = """# Python interface

This page is generated from the code; `help(pg.PPO)` shows the same. The settings that the constructors take are on
[a page of their own](settings.md).

```text
import phasegrad as pg
```
"""
SECTIONS: dict[str, tuple[str, ...]] = {
    "Algorithms": ("PPO", "PPG", "A2C", "VPG", "TRPO", "ACER", "load"),
    "Callbacks": ("Callback", "StopAtScore", "StopWithoutImprovement", "TimeLimit", "SaveBest"),
    "Extending": ("Algorithm", "register", "Distribution", "register_distribution", "register_encoder"),
    "Errors": ("PhasegradError", "ConfigError", "EnvError", "RunError", "NonFiniteError"),
}
MORE = (
    "phasegrad.envs:check", "phasegrad.runs.evaluation:Evaluation", "phasegrad.video.recorders:Video",
    "phasegrad.report:write_report", "phasegrad.report.plot:plot_runs",
)  # fmt: skip
MODULES = ("phasegrad.losses", "phasegrad.advantages", "phasegrad.schedules")
WIDTH = 100


def api_page() -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION, "## What an agent does {#agent}\n", "Every algorithm has these methods.\n"]
    parts += [described(name, member, "agent.") for name, member in members(Verbs)]
    named = {name for names in SECTIONS.values() for name in names}
    sections = dict(SECTIONS)
    sections["Tools"] = tuple(name for name in pg.__all__ if name not in named and not name.startswith("__"))
    for title, names in sections.items():
        parts.append(f"## {title}\n")
        parts += [described(name, getattr(pg, name), "pg.") for name in names if name in pg.__all__]
        if title == "Tools":
            for place in MORE:
                module, _, name = place.partition(":")
                parts.append(described(name, getattr(importlib.import_module(module), name), f"{module}."))
    for module_name in MODULES:
        parts.append(module_section(module_name))
    return "\n".join(parts)


def module_section(name: str) -> str:
    module = importlib.import_module(name)
    own = [
        (key, value)
        for key, value in vars(module).items()
        if not key.startswith("_") and callable(value) and getattr(value, "__module__", "") == name
    ]
    own = [(key, value) for key, value in own if inspect.getdoc(value) and inspect.isroutine(value)]
    parts = [f"## `{name}` {{#{name.replace('.', '-')}}}\n", docstring(module)]
    return "\n".join([*parts, *(described(key, value, "") for key, value in own)])


def described(name: str, thing: Any, prefix: str) -> str:
    """A heading, the signature, the docstring; of a class its own public members too."""
    anchor = f"{prefix}{name}".replace(".", "-").lower()
    parts = [f"### `{prefix}{name}` {{#{anchor}}}\n"]
    if not isinstance(thing, property):
        parts.append(f"```python\n{signature(name, thing)}\n```\n")
    parts.append(docstring(thing))
    if inspect.isclass(thing):
        if "__init__" in vars(thing) and vars(thing)["__init__"].__doc__:
            parts.append(docstring(vars(thing)["__init__"]))
        if not (issubclass(thing, Verbs) or issubclass(thing, Exception)):
            parts += [member_item(key, member) for key, member in members(thing)]
    return "\n".join(parts)


def member_item(name: str, member: Any) -> str:
    shown = f"`{name}`" if isinstance(member, property) else f"`{re.sub(r'self, |self', '', signature(name, member))}`"
    first = (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ")
    return f"- {shown}: {first}\n"


def members(kind: type) -> list[tuple[str, Any]]:
    """What a class itself says of its public methods and properties, in the order of its page."""
    return [
        (name, member)
        for name, member in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)) and member.__doc__
    ]


def docstring(thing: Any) -> str:
    """Its docstring as Markdown; what is written in columns stays as it is."""
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and text.startswith(f"{thing.__name__}("):  # what a dataclass says by itself
        text = ""
    parts = [f"```text\n{part}\n```" if re.search(r"\S {3,}\S", part) else part for part in text.split("\n\n")]
    return "\n\n".join(parts) + "\n"


def signature(name: str, thing: Any) -> str:
    """As one would write it: the settings among the arguments of an algorithm in one word."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parameters = [parameter for key, parameter in found.parameters.items() if key != "self"]
    if inspect.isclass(thing) and issubclass(thing, pg.Algorithm):
        parameters = constructor(parameters, thing)
    elif inspect.isclass(thing) and issubclass(thing, Exception):
        return name
    plain = [plainly(parameter) for parameter in parameters]
    words: list[str] = []
    for parameter, text in zip(parameters, plain, strict=True):
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words and not any(w.startswith("*") for w in words):
            words.append("*")
        words.append(text)
    back = (
        ""
        if found.return_annotation in (found.empty, None) or inspect.isclass(thing)
        else shortened(found.return_annotation)
    )
    tail = f" -> {back}" if back and back != "None" else ""
    line = f"{name}({', '.join(words)}){tail}"
    return line if len(line) <= WIDTH else f"{name}(\n    " + ",\n    ".join(words) + f",\n){tail}"


def constructor(parameters: list[inspect.Parameter], kind: type[pg.Algorithm]) -> list[inspect.Parameter]:
    """Without the settings, which have a page of their own, and the parts that loading puts in."""
    settings = vars(kind.config_class).get("__dataclass_fields__", {}).keys() - {"env"}
    left = [p for p in parameters if p.name not in settings | {"others", "config", "spaces", "fields", "settings"}]
    return [*left, inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)]


def plainly(parameter: inspect.Parameter) -> str:
    text = str(parameter.replace(annotation=inspect.Parameter.empty))
    if parameter.annotation is inspect.Parameter.empty:
        return text
    name, equals, default = text.partition("=")
    return f"{name}: {shortened(parameter.annotation)}" + (f" = {default}" if equals else "")


def shortened(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+([A-Za-z])", r"\1", text)
