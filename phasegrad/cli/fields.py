"""`train` and `clone`: an option for every setting of an algorithm, with its type, its choices and its default.

Defaults are what the preset makes of them that fits the environment at hand. Needs no torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from phasegrad.algorithms.known import about, algorithm_names, settings_of
from phasegrad.cli.formatting import KEPT, ON_OFF, Parser, example_lines, filled
from phasegrad.cli.groups import examples_of, in_groups, most_changed
from phasegrad.config import Config, documented_fields
from phasegrad.presets import PRESETS, preset_fields, resolve_config, tuned_algorithm
from phasegrad.schedules import as_given

WORDS = {"env": "ID", "preset": "NAME", "encoder": "NAME", "action_distribution": "NAME", "device": "DEVICE"}
ENV_OPTION = "an option of the environment itself, such as --env.max-episode-steps 200"
NEEDED = {"train": "[--total-steps N]", "clone": "--data FILE"}  # beside the environment
NUMBERS = {int: "INT", float: "FLOAT"}


@dataclass(frozen=True)
class Defaults:
    """What settings are where they are not given, which of them a preset sets, and a sentence on where they come from."""

    values: Mapping[str, Any]
    by_preset: Collection[str] = ()
    source: str = ""

    def describe(self, name: str, field: dataclasses.Field[Any]) -> str:
        """For help: ' (default: 0.99)', or ' (preset: 0.98)'; nothing for what has none."""
        value = self.values[name]
        if value is None and field.metadata.get("auto"):
            value = "auto"
        source = "preset" if name in self.by_preset else "default"
        return "" if value in ("", {}, ()) else f" ({source}:{KEPT}{written(value).replace(' ', KEPT)})"


def written(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    value = as_given(value)
    if isinstance(value, (tuple, list)):
        return ",".join(map(written, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {written(entry)}" for name, entry in value.items())
    if isinstance(value, int) and value >= 10_000:
        return f"{value:_}"
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def plain_defaults(config_class: type[Config]) -> dict[str, Any]:
    fields = documented_fields(config_class).items()
    return {name: {} if field.default is dataclasses.MISSING else field.default for name, field in fields}


def defaults_for(
    config_class: type[Config], env: str | None, preset: str | None, env_options: Mapping[str, Any]
) -> Defaults:
    """The defaults of a run on `env`, or with `preset`; the plain ones where neither is given."""
    if not env and not preset:
        how = "These are the plain defaults. With --env ID or --preset NAME this page shows the preset's."
        return Defaults(plain_defaults(config_class), (), how)
    given = {"env": env, "preset": preset, "env_options": env_options}
    config = resolve_config(config_class, {name: value for name, value in given.items() if value})
    if config.preset == "none":
        why = f"no preset fits {env}" if preset in (None, "auto") else "--preset none"
        return Defaults(vars(config), (), f"These are the plain defaults ({why}).")
    fits = f", which fits {env}" if preset in (None, "auto") else ""
    told = f" ({PRESETS[config.preset].about})" if config.preset in PRESETS else ""
    source = (
        f"Values marked (preset: ...) come from the preset {config.preset}{fits}{told}; --preset none leaves it out."
    )
    values = {**vars(config), "env": "", "preset": "auto" if preset is None else config.preset}
    return Defaults(values, set(preset_fields(config.preset, tuned_algorithm(config_class))), source)


def metavar(name: str, hint: Any, field: dataclasses.Field[Any]) -> str:
    """What a value looks like: INT, FLOAT, INT,INT, {pg,cpi,clip,kl}, NAME."""
    if field.metadata.get("choices"):
        return "{" + ",".join(map(str, field.metadata["choices"])) + "}"
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    of = next((typing.get_args(kind)[0] for kind in (hint, *kinds) if typing.get_origin(kind) is tuple), None)
    if of is not None:
        shown = typing.cast(tuple[Any, ...], field.default or ())
        return ",".join([NUMBERS.get(of, "KEY")] * (len(shown) or 2))
    if hint is bool:
        return ON_OFF
    number = next((NUMBERS[kind] for kind in kinds if kind in NUMBERS), None)
    if field.metadata.get("scheduled"):
        return f"{number}|SCHEDULE"
    return number or WORDS.get(name, "TEXT")


def add_fields(
    parser: Parser, algorithm: str, defaults: Defaults | None = None, everything: bool = True, verb: str = "train"
) -> None:
    """An option for every setting, of which help shows all in groups, or the most changed."""
    config_class = settings_of(algorithm)
    defaults = defaults or Defaults(plain_defaults(config_class))
    names = list(documented_fields(config_class))
    chosen = most_changed(algorithm, names)
    sections = in_groups(algorithm, names)
    parser.prog = f"phasegrad {verb} {algorithm}"
    parser.usage = f"{parser.prog} --env ID {NEEDED[verb]} [options]"
    parser.description = "\n\n".join(map(filled, filter(None, (f"{about(algorithm)}.", defaults.source))))
    if verb == "train":
        parser.epilog = example_lines(examples_of(algorithm))
    if not everything:
        left = len(names) - len(chosen)
        parser.remark = filled(f"--help-all shows the other {left} settings too, in groups: {', '.join(sections)}.")
        sections = {"settings changed most often": chosen}
    hints, fields = typing.get_type_hints(config_class), documented_fields(config_class)
    for title, members in sections.items():
        group = parser.add_argument_group(title)
        for name in members:
            meaning = ENV_OPTION if name == "env_options" else fields[name].metadata["help"]
            text = (meaning + defaults.describe(name, fields[name])).replace("%", "%%")
            add_field(group, name, hints[name], fields[name], text)
    for name in [] if everything else [name for name in names if name not in chosen]:
        add_field(parser, name, hints[name], fields[name], argparse.SUPPRESS)


def add_field(group: Any, name: str, hint: Any, field: dataclasses.Field[Any], text: str) -> None:
    """One setting's option; one that is on or off has a second, --no-X."""
    if name == "env_options":
        group.add_argument("--env.NAME", dest="_env_option", metavar="VALUE", help=text)
        return
    option = name.replace("_", "-")
    how: dict[str, Any] = {"default": argparse.SUPPRESS, "metavar": metavar(name, hint, field), "help": text}
    if hint is bool:
        group.add_argument(f"--{option}", nargs="?", const="true", **how)
        off = {"action": "store_const", "const": "false", "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        group.add_argument(f"--no-{option}", dest=name, **off)
    else:
        group.add_argument(f"--{option}", **how)


def list_algorithms(parser: Parser, verb: str) -> None:
    """Help of `train` or `clone` without an algorithm: what there is to train with."""
    lines = [f"  {name:10}{about(name)}" for name in algorithm_names()]
    parser.usage = f"phasegrad {verb} ALGORITHM --env ID {NEEDED[verb]} [options]"
    parser.description = "\n".join(
        [
            str(parser.description),
            "",
            "algorithms:",
            *lines,
            "",
            f"`phasegrad {verb} ppo --help` shows the settings of one.",
        ]
    )
