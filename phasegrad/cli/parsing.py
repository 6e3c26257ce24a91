"""Reads a command: the verbs' options, and of `train` one for every setting of its algorithm.

Heavy imports happen where settings are listed, so that help and errors come at once.
"""

from __future__ import annotations

import argparse
import json
import typing
from collections.abc import Sequence
from typing import Any

from phasegrad.cli.verbs import Parser, algorithm_names, build_parser
from phasegrad.errors import ConfigError, nearest


def add_fields(parser: Parser, algorithm: str) -> None:
    """An option for every field of the algorithm's config."""
    from phasegrad.algorithms import ALGORITHMS
    from phasegrad.config import documented_fields

    config_class = ALGORITHMS[algorithm].config_class
    hints = typing.get_type_hints(config_class)
    group = parser.add_argument_group(f"settings of {algorithm} (a preset may set other defaults)")
    for name, field in documented_fields(config_class).items():
        if name == "env_options":
            group.add_argument("--env.NAME", dest="_env_option", metavar="VALUE", help=field.metadata["help"])
            continue
        option = f"--{name.replace('_', '-')}"
        text = f"{field.metadata['help']} (default {field.default})".replace("%", "%%")
        if hints[name] is bool:
            group.add_argument(option, nargs="?", const="true", default=argparse.SUPPRESS, metavar="BOOL", help=text)
            group.add_argument(
                f"--no-{name.replace('_', '-')}",
                dest=name,
                action="store_const",
                const="false",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
        else:
            group.add_argument(option, default=argparse.SUPPRESS, metavar="VALUE", help=text)


def split_env_options(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes --env.NAME VALUE (or =VALUE) out of the arguments; values as JSON where they are, else as text."""
    rest: list[str] = []
    options: dict[str, Any] = {}
    pending = list(arguments)
    while pending:
        argument = pending.pop(0)
        if not argument.startswith("--env."):
            rest.append(argument)
            continue
        name, equals, value = argument.removeprefix("--env.").partition("=")
        if not equals:
            if not pending:
                raise ConfigError(f"--env.{name} needs a value.")
            value = pending.pop(0)
        try:
            options[name.replace("-", "_")] = json.loads(value.lower() if value.lower() in ("true", "false") else value)
        except json.JSONDecodeError:
            options[name.replace("-", "_")] = value
    return rest, options


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    rest, env_options = split_env_options(arguments)
    parser = build_parser()
    if rest[:1] == ["train"] and len(rest) > 1 and rest[1] in algorithm_names():
        train = typing.cast(Any, parser)._subparsers._group_actions[0].choices["train"]
        add_fields(train, rest[1])
    found, unknown = parser.parse_known_args(rest)
    if unknown:
        verb = typing.cast(Any, parser)._subparsers._group_actions[0].choices.get(found.verb, parser)
        known = [option for option in verb._option_string_actions if option.startswith("--")]
        bad = next((argument for argument in unknown if argument.startswith("-")), unknown[0])
        raise ConfigError(
            f"Unknown option {bad!r}.{nearest(bad.partition('=')[0], known)} `phasegrad {found.verb} --help` lists all."
        )
    found.env_options = env_options
    return found
