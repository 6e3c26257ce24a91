"""The errors a user can cause, each one sentence that names the option and the fix.

The command line prints them without a traceback and exits with their code; Python callers catch `PhasegradError`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Control characters but line feed and tab, line and paragraph separators, what turns the direction of writing or hides what
# is written, and halves of characters, which no stream can take.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Text from a file or a stranger's code as a terminal may have it: what would steer the terminal is spelt out."""
    return _UNSEEN.sub(lambda found: _spelt(ord(found[0])), text)


def _spelt(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def words_of(error: BaseException) -> str:
    """What an error of somebody else's code says, in one line and without its full stop; nothing where it cannot say."""
    try:
        return " ".join(str(error).split()).rstrip(".")
    except Exception:
        return ""


class PhasegradError(Exception):
    """Something the user can put right. The message is one sentence and says how."""

    exit_code = 2

    def __str__(self) -> str:
        return visible(super().__str__())


class ConfigError(PhasegradError, ValueError):
    """A setting that is unknown, out of range or at odds with another."""


class EnvError(PhasegradError):
    """An environment that does not exist, cannot be trained on, or misbehaved."""


class RunError(PhasegradError):
    """A run directory or a checkpoint that cannot be used as asked."""


class DamagedError(RunError):
    """A file that is cut, altered or not what its name says; the one before it may do."""


class NonFiniteError(PhasegradError):
    """NaN or infinity where a number is needed; says what and where."""


class RanksError(PhasegradError):
    """Processes of one run that have lost each other or no longer agree."""

    exit_code = 1


class PhasegradWarning(UserWarning):
    """Something that went on all the same but that the user should know, in one sentence."""

    def __str__(self) -> str:
        return visible(super().__str__())


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """' Did you mean a, b or c?' for a misspelt name, or '' where nothing comes close."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.55)]
    return f" Did you mean {either(close)}?" if close else ""


def unknown(what: str, name: str, known: Iterable[str], otherwise: str) -> str:
    """One sentence for a misspelt name: those that are as near as the nearest, or where to find them all."""
    typed = name.lower()
    likeness = {candidate: difflib.SequenceMatcher(None, candidate.lower(), typed).ratio() for candidate in known}
    best = max(likeness.values(), default=0.0)
    meant = [candidate for candidate, alike in likeness.items() if alike > max(best - 0.05, 0.55)]
    part = typed.strip("-")
    meant += [candidate for candidate in likeness if len(part) > 3 and part in candidate and candidate not in meant]
    return f"Unknown {what} {name!r}: {f'did you mean {either(meant[:3])}?' if meant else f'{otherwise}.'}"


def either(names: list[str]) -> str:
    """'a, b or c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
