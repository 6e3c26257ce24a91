"""Reads a command: the verbs' options, and of `train` and `clone` one for every setting of its algorithm. Needs no torch."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from phasegrad.algorithms.known import algorithm_names, settings_of
from phasegrad.cli.fields import add_fields, defaults_for, list_algorithms
from phasegrad.cli.formatting import Parser
from phasegrad.cli.verbs import build_parser
from phasegrad.config import option_value
from phasegrad.errors import ConfigError, unknown

WITH_SETTINGS = ("train", "clone")  # verbs that take an algorithm and its settings
HELP = ("-h", "--help", "--help-all")
TAKES_ENV_OPTIONS = ("train", "tune")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command; help prints and exits."""
    rest, env_options = split_env_options(arguments)
    parser = build_parser()
    verbs = verb_parsers(parser)
    if rest and not rest[0].startswith("-") and rest[0] not in verbs:
        raise ConfigError(unknown("command", rest[0], verbs, "`phasegrad --help` lists the commands"))
    if rest and rest[0] in WITH_SETTINGS:
        prepare_settings(rest[0], verbs[rest[0]], rest[1:], env_options)
    found, left = parser.parse_known_args(rest)
    if left:
        refuse(left, verbs.get(found.verb, parser))
    if found.verb == "tune":
        found.algorithm = searched_algorithm(found)
    refuse_env_options(found.verb or "", env_options)
    found.env_options = env_options
    return found


def verb_parsers(parser: Parser) -> dict[str, Parser]:
    return typing.cast(Any, parser)._subparsers._group_actions[0].choices


def prepare_settings(verb: str, parser: Parser, arguments: Sequence[str], env_options: Mapping[str, Any]) -> None:
    """Add the settings of the algorithm that is named; where help is asked for, with the defaults of the environment."""
    asked = [argument for argument in arguments if argument in HELP]
    algorithm = named_algorithm(arguments)
    if algorithm is None:
        list_algorithms(parser, verb)
        if not asked:
            raise ConfigError(
                f"ALGORITHM is missing: `phasegrad {verb} ppo --env CartPole-v1` names one of {', '.join(algorithm_names())}."
            )
        return
    defaults = None
    if asked:
        given = Parser(prog=f"phasegrad {verb} {algorithm}", add_help=False)
        given.add_argument("--env")
        given.add_argument("--preset")
        chosen, _ = given.parse_known_args(arguments)
        defaults = defaults_for(settings_of(algorithm), chosen.env, chosen.preset, env_options)
    add_fields(parser, algorithm, defaults, everything="--help-all" in asked, verb=verb)


def named_algorithm(arguments: Sequence[str]) -> str | None:
    """The algorithm: the first word of all, or one that comes after some options."""
    names = algorithm_names()
    if arguments and not arguments[0].startswith("-"):
        if arguments[0] not in names:
            listed = f"there are {', '.join(names)}"
            raise ConfigError(unknown("algorithm", arguments[0], names, listed))
        return arguments[0]
    words = [(word, before) for before, word in zip(("", *arguments), arguments) if word in names]
    apart = [word for word, before in words if not before.startswith("-")]  # not what may be an option's value
    return next(iter(apart), next((word for word, _ in words), None))


def searched_algorithm(found: argparse.Namespace) -> str:
    """Of `tune`: named as a position, or as --algorithm, which it was before."""
    by_option = getattr(found, "algorithm", None)
    if by_option and found.algorithm_name and by_option != found.algorithm_name:
        raise ConfigError(f"tune takes one algorithm, not both {found.algorithm_name} and {by_option}: leave one out.")
    return found.algorithm_name or by_option or "ppo"


def refuse(left: Sequence[str], parser: Parser) -> typing.NoReturn:
    """The sentence for an option that does not exist, or a word too many."""
    bad = next((argument for argument in left if argument.startswith("-")), None)
    lists = f"`{parser.prog} --help` lists the options"
    if bad is None:
        raise ConfigError(f"{left[0]!r} is unexpected: {lists}.")
    hidden = {option for action in parser._actions if is_former(action) for option in action.option_strings}
    known = [option for option in parser._option_string_actions if option.startswith("--") and option not in hidden]
    raise ConfigError(unknown("option", bad.partition("=")[0], known, lists))


def is_former(action: argparse.Action) -> bool:
    """Whether an option is what another one was called before: still read, and not shown."""
    return action.help == argparse.SUPPRESS and isinstance(action, argparse._StoreAction) and not action.metavar


def split_env_options(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes --env.NAME VALUE (or =VALUE) out of the arguments; without a value it is true."""
    rest: list[str] = []
    options: dict[str, Any] = {}
    pending = list(arguments)
    while pending:
        argument = pending.pop(0)
        if not argument.startswith("--env."):
            rest.append(argument)
            continue
        name, equals, value = argument.removeprefix("--env.").partition("=")
        if not name:
            raise ConfigError("--env.NAME VALUE names an option of the environment, such as --env.gravity -5.")
        if not equals:
            value = "true" if not pending or is_option(pending[0]) else pending.pop(0)
        options[name.replace("-", "_")] = option_value(value)
    return rest, options


def is_option(argument: str) -> bool:
    """Whether a word begins another option; a negative number is a value."""
    return argument.startswith("-") and not isinstance(option_value(argument), int | float)


def refuse_env_options(verb: str, options: Mapping[str, Any]) -> None:
    """Verbs that make no new environments of their own have nowhere to put --env.NAME."""
    if not options or verb in TAKES_ENV_OPTIONS:
        return
    name = next(iter(options))
    instead = f"--set env.{name}=VALUE" if verb == "study" else "a run keeps the options that it was trained with"
    raise ConfigError(f"{verb} takes no --env.{name}: {instead}.")
