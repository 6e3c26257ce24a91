"""How help and errors look: a usage of one line, examples that fit the terminal, one sentence for a mistake."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn

from phasegrad.cli.streams import lost_output
from phasegrad.errors import ConfigError

ON_OFF = "BOOL"  # the metavar of a setting that is on or off: help shows it as --x, --no-x
WIDEST = 100
FOR_HELP = 26  # the column at which explanations begin
LEAST = 14
LAST = ("help", "help_all", "debug")  # options that are listed after those of the command
KEPT = "\u00a0"  # a space at which no line is broken


def terminal_width() -> int:
    return min(WIDEST, shutil.get_terminal_size().columns) - 2


def filled(text: str) -> str:
    """A paragraph in lines that fit the terminal."""
    return textwrap.fill(text, terminal_width(), break_on_hyphens=False, break_long_words=False)


def example_lines(examples: Iterable[str]) -> str:
    """Commands as one can paste them; one that is too long for the terminal goes on after a backslash."""
    lines = ["examples:"]
    for example in examples:
        line = "  "
        for part in re.split(r" (?=--)", example):
            if len(line) + len(part) + 3 > terminal_width() and line.strip():
                lines.append(f"{line} \\")
                line = "     "
            line += part if not line.strip() and line == "  " else f" {part}"
        lines.append(line)
    return "\n".join(lines)


def place(action: argparse.Action) -> int:
    """Where help lists an option among the others."""
    return LAST.index(action.dest) if action.dest in LAST else -1


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Explanations in one column, and a setting that is on or off with both its forms."""

    def __init__(self, prog: str, **_: Any) -> None:
        super().__init__(prog, max_help_position=FOR_HELP, width=terminal_width())
        self._action_max_length = LEAST  # argparse forgets how far commands are indented

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.metavar == ON_OFF:
            option = action.option_strings[0]
            return f"{option}, --no-{option.removeprefix('--')}"
        return super()._format_action_invocation(action)


class Parser(argparse.ArgumentParser):
    """argparse with a usage of one line, one-sentence errors and no guessing of abbreviations."""

    remark = ""  # a paragraph between the settings and the options

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", HelpFormatter)
        super().__init__(*args, **kwargs)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Without argparse's silence where nothing can be written."""
        file = file or sys.stderr
        try:
            file.write(message or "")
            file.flush()
        except OSError as error:
            raise SystemExit(lost_output(error) if file is sys.stdout else 2) from None

    def format_help(self) -> str:
        """As argparse's, but for the usage, and with groups of settings before the options that all verbs have."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage or self.short_usage(), self._actions, [])
        formatter.add_text(self.description)
        for group in sorted(self._action_groups, key=lambda group: group.title == "options"):
            if group.title == "options":
                formatter.add_text(self.remark)
            formatter.start_section((group.title or "").replace("positional ", ""))
            formatter.add_text(group.description)
            formatter.add_arguments(sorted(group._group_actions, key=place))
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help().replace(KEPT, " ")

    def short_usage(self) -> str:
        """The arguments that must be given, and that there are options."""
        words = [self.prog]
        for action in self._actions:
            name = str(action.metavar or action.dest.upper())
            if not action.option_strings:
                words.append({"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(str(action.nargs), name))
            elif action.required:
                words += [action.option_strings[0], name]
        return " ".join([*words, "[options]"]).replace("%", "%%")

    def error(self, message: str) -> NoReturn:
        found = re.fullmatch(r"argument (\S+): expected (?:one|at least one) argument", message)
        if found:
            raise ConfigError(f"{found[1]} needs a value; `{self.prog} --help` says which.")
        found = re.fullmatch(r"argument (\S+): invalid choice: (.+?) \(choose from (.+)\)", message)
        if found:
            raise ConfigError(f"{found[1]} must be one of {found[3].replace(chr(39), '')}, not {found[2]}.")
        found = re.fullmatch(r"the following arguments are required: (.+)", message)
        if found:
            raise ConfigError(f"{found[1]} is missing; `{self.prog} --help` says what it is.")
        raise ConfigError(message[0].upper() + message[1:].rstrip(".") + f"; `{self.prog} --help` lists the options.")
