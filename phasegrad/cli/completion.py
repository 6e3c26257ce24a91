"""Completion for bash, zsh and fish: a script made from the command line's own parser, so that it never lags behind.

The script is static: pressing Tab starts no Python.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phasegrad.bench import TASKS
from phasegrad.cli.formatting import KEPT
from phasegrad.cli.parsing import WITH_SETTINGS, is_former
from phasegrad.tune.search_spaces import SPACES


@dataclass
class Words:
    """What can follow a verb: options with the values they take (None for a flag) and what they are, and names."""

    about: str
    options: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def words_of(parser: argparse.ArgumentParser, about: str, values: Mapping[str, tuple[str, ...]]) -> Words:
    """The words of one verb's parser; `values` are those of options that the parser does not list."""
    words = Words(about)
    for action in parser._actions:
        choices = tuple(map(str, action.choices)) if action.choices else ()
        if not action.option_strings:
            words.names += choices or values.get(action.dest, ())
            continue
        for option in action.option_strings:
            if not option.startswith("--") or option == "--env.NAME" or is_former(action):
                continue
            takes = action.nargs != 0
            words.options[option] = (choices or values.get(action.dest, ())) if takes else None
            hidden = action.help is None or action.help == argparse.SUPPRESS
            words.helps[option] = (
                "" if hidden else str(action.help).replace("%%", "%").partition(" (default")[0].replace(KEPT, " ")
            )
    return words


def collect() -> dict[str, Words]:
    """Every verb, and `train ALGORITHM` and `clone ALGORITHM` with the fields of each algorithm."""
    from phasegrad.algorithms import ALGORITHMS
    from phasegrad.cli.fields import add_fields
    from phasegrad.cli.verbs import build_parser
    from phasegrad.config import documented_fields
    from phasegrad.presets import PRESETS

    values: dict[str, tuple[str, ...]] = {
        "preset": tuple(PRESETS),
        "levels": ("train", "test"),
        "algorithm_name": tuple(SPACES),
        "task": tuple(TASKS),
    }
    parser = build_parser()
    verbs: Any = parser._subparsers._group_actions[0]  # type: ignore[union-attr]
    abouts = {choice.dest: str(choice.help) for choice in verbs._choices_actions}
    found = {name: words_of(sub, abouts.get(name, ""), values) for name, sub in verbs.choices.items()}
    found["presets"].names = tuple(PRESETS)
    for (name, algorithm), verb in itertools.product(ALGORITHMS.items(), WITH_SETTINGS):
        takes = build_parser()._subparsers._group_actions[0].choices[verb]  # type: ignore[union-attr, index]
        add_fields(takes, name, verb=verb)
        fields = documented_fields(algorithm.config_class)
        known = {key: tuple(map(str, f.metadata["choices"])) for key, f in fields.items() if f.metadata.get("choices")}
        found[f"{verb} {name}"] = words_of(takes, "", values | known)
    return found


def script(shell: str) -> str:
    """The script that the shell reads; `phasegrad completion --help` says where to put it."""
    found = collect()
    return {"bash": bash, "zsh": zsh, "fish": fish}[shell](found)


def bash(found: Mapping[str, Words]) -> str:
    verbs = [name for name in found if " " not in name]
    cases, options = [], []
    for name, words in found.items():
        names = " ".join(words.names) if " " not in name else ""
        cases.append(f'    "{name}") options="{" ".join(words.options)}"; names="{names}" ;;')
        options += [
            f'    "{name} {option}") values="{" ".join(values)}"; takes=1 ;;'
            for option, values in words.options.items()
            if values is not None
        ]
    listed, taking = "\n".join(cases), "\n".join(options)
    return f"""# phasegrad completion for bash
_phasegrad() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" verb="${{COMP_WORDS[1]}}"
  local key="$verb" options="" names="" values="" takes=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=( $(compgen -W "{" ".join(verbs)} --help --version" -- "$current") )
    return
  fi
  case "$verb" in
    {"|".join(WITH_SETTINGS)}) if [ "$COMP_CWORD" -gt 2 ]; then key="$verb ${{COMP_WORDS[2]}}"; fi ;;
  esac
  case "$key" in
{listed}
  esac
  case "$key $before" in
{taking}
  esac
  if [ -n "$takes" ]; then
    if [ -n "$values" ]; then COMPREPLY=( $(compgen -W "$values" -- "$current") ); else COMPREPLY=( $(compgen -f -- "$current") ); fi
  elif [ "${{current#-}}" != "$current" ]; then
    COMPREPLY=( $(compgen -W "$options" -- "$current") )
  elif [ -n "$names" ]; then
    COMPREPLY=( $(compgen -W "$names" -- "$current") )
  else
    COMPREPLY=( $(compgen -f -- "$current") )
  fi
}}
complete -o filenames -F _phasegrad phasegrad
"""


def zsh(found: Mapping[str, Words]) -> str:
    """zsh runs the bash function through its own bridge."""
    body = bash(found).replace("# phasegrad completion for bash\n", "")
    return "# phasegrad completion for zsh\nautoload -Uz compinit bashcompinit\ncompinit -C\nbashcompinit\n" + body


def fish(found: Mapping[str, Words]) -> str:
    lines = ["# phasegrad completion for fish"]
    for name, words in found.items():
        if " " not in name:
            about = shlex.quote(words.about)
            lines.append(f"complete -c phasegrad -f -n __fish_use_subcommand -a {name} -d {about}")
            condition = f"__fish_seen_subcommand_from {name}"
            if words.names:
                lines.append(f"complete -c phasegrad -f -n '{condition}' -a {shlex.quote(' '.join(words.names))}")
        else:
            verb, algorithm = name.split()
            condition = f"__fish_seen_subcommand_from {verb}; and __fish_seen_subcommand_from {algorithm}"
        for option, values in words.options.items():
            if " " in name and option in found[verb].options:
                continue  # of the verb itself, listed already
            line = f"complete -c phasegrad -n '{condition}' -l {option.removeprefix('--')}"
            if values is not None:
                line += " -r" + (f" -f -a {shlex.quote(' '.join(values))}" if values else "")
            if words.helps[option]:
                line += f" -d {shlex.quote(words.helps[option][:70])}"
            lines.append(line)
    return "\n".join(lines) + "\n"
