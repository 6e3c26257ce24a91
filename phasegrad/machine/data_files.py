"""Settings in files that anyone may have written: their bytes are counted, and how deep they nest, before a parser sees them.

A parser's time and memory follow from more than a file's size: keys with a million dots, numbers of a million digits. What
passes here is small in every way. Each fault is a ConfigError that names the file. Knows no settings.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from phasegrad.errors import ConfigError
from phasegrad.machine.regular_files import open_below, open_regular, read_bounded

MOST_BYTES = 1 << 18
DEEPEST = 8  # tables and lists within each other, and parts of a dotted key
MOST_KEYS = 2_000  # and tables and lists
MOST_ITEMS = 50_000  # commas
LONGEST_WORD = 128  # digits of a number, letters of a key
_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*"|'[^'\n]*')|(?P<word>[A-Za-z0-9_+:-]+)|(?P<blank>[ \t\r\n]+)|(?P<mark>.)""",
    re.DOTALL,
)


def read_text(what: str, path: Path, below: tuple[str, ...] | None = None) -> str:
    """The text of a small file in UTF-8. With `below`, of one in the folder `path`, where no part of the way is a link."""
    named = path if below is None else path.joinpath(*below)
    try:
        descriptor = open_regular(path) if below is None else open_below(path, *below, flags=os.O_RDONLY)
        return read_bounded(descriptor, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {named} is not text in UTF-8.") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise ConfigError(f"{what} {named} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def parse_toml(where: str, text: str) -> dict[str, Any]:
    """The tables of a TOML text."""
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{where} has more than {MOST_BYTES:,} characters: a study is far smaller.")
    _require_modest(where, text)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: no TOML, or a number of thousands of digits
        raise ConfigError(f"{where} is not valid TOML: {str(error)[:120]}.") from None


def parse_json(where: str, text: str) -> Any:
    """The value of a JSON text in which no name comes twice in one object."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ConfigError(f"{where} has {name[:80]!r} twice: leave one out.")
            found[name] = value
        return found

    try:
        _require_shallow(where, text)
        return json.loads(text, object_pairs_hook=once)
    except ConfigError:
        raise
    except (ValueError, RecursionError):  # ValueError: no JSON, or a number of thousands of digits
        raise ConfigError(f"{where} is not valid JSON.") from None


def _require_shallow(where: str, text: str) -> None:
    """Of JSON, whose strings have one form."""
    depth = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > DEEPEST:
            raise ConfigError(f"{where} nests deeper than {DEEPEST} levels.")


def _require_modest(where: str, text: str) -> None:
    """Refuse what no file of settings needs; what is no TOML at all is left for its parser to say."""
    place = depth = keys = items = parts = 0
    joined = False  # whether the last mark was a dot, which joins the parts of a key
    while place < len(text):
        if text.startswith(('"""', "'''"), place):
            place = _end_of_block(text, place)
            continue
        found = _TOKEN.match(text, place)
        assert found is not None, "one character is always a mark"
        place, kind, token = found.end(), found.lastgroup, found[0]
        if kind == "word" and len(token) > LONGEST_WORD:
            raise ConfigError(f"{where} has a number or a key of {len(token):,} characters: {token[:20]}...")
        if kind in ("word", "string"):
            parts, joined = (parts + 1 if joined else 1), False
        elif kind == "mark":
            joined = token == "."
            depth += (token in "[{") - (token in "]}")
            keys, items = keys + (token in "=[{"), items + (token == ",")
            if token in "\"'":  # a string without an end
                return
        if max(depth, parts) > DEEPEST:
            raise ConfigError(f"{where} has keys, tables or lists of more than {DEEPEST} levels.")
        if keys > MOST_KEYS or items > MOST_ITEMS:
            raise ConfigError(f"{where} has more than {MOST_KEYS:,} keys or {MOST_ITEMS:,} entries.")


def _end_of_block(text: str, start: int) -> int:
    """Where a string of three quotes ends."""
    quotes, place = text[start : start + 3], start + 3
    while (place := text.find(quotes, place)) >= 0:
        escapes = 0
        while quotes == '"""' and place - escapes > start + 3 and text[place - escapes - 1] == "\\":
            escapes += 1
        if escapes % 2 == 0:
            return place + 3 + sum(text.startswith(quotes[0] * extra, place + 3) for extra in (1, 2))
        place += 1
    return len(text)
