"""A case: a name, an area and a function that does it on a scene; and what a case says when something did not hold.

Knows nothing of phasegrad but its documented exit codes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fault_cases.scene import Scene

# 0 done, 1 a run or a check failed, 2 bad input, 130 and 143 stopped, 141 the reader of our output left
DOCUMENTED = (0, 1, 2)
# Tabs and ends of lines are the only control characters that a file or a pipe is to be given; C1 codes drive terminals too
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Broke(Exception):
    """What must hold does not; the reason in one line."""


class Skipped(Exception):
    """The case cannot be set up here; why."""


@dataclass(frozen=True)
class Case:
    area: str
    name: str
    act: Callable[[Scene], None]
    quick: bool = True  # no process of its own that imports torch: tens of milliseconds to a second

    @property
    def title(self) -> str:
        return f"{self.area}: {self.name}"


@dataclass
class Outcome:
    """What a command left: exit code (negative: the signal it died of), its output, and what it took."""

    arguments: list[str]
    code: int
    out: str
    err: str
    seconds: float
    peak_mb: float
    late: bool = False
    orphans: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """The last sentence on stderr."""
        return next((line for line in reversed(self.err.splitlines()) if line.strip()), "")

    @property
    def told(self) -> bool:
        """Whether somebody at a terminal would know that something is wrong."""
        return self.code != 0 or "phasegrad: " in self.err


def require(holds: Any, reason: str) -> None:
    if not holds:
        raise Broke(reason)


def require_sound(outcome: Outcome, codes: Iterable[int], most_mb: float) -> None:
    """What holds for every command, whatever it was given."""
    last = outcome.said[-200:]
    require(not outcome.late, f"still running after {outcome.seconds:.0f} s")
    text = outcome.out + outcome.err
    if "Traceback (most recent call last)" in text:
        raised = [
            line for line in text.splitlines() if re.match(r"[A-Za-z_.]+(Error|Exception|Warning|Interrupt)\b", line)
        ]
        raise Broke(f"traceback: {raised[-1][:200] if raised else last}")
    require(outcome.code >= 0 or outcome.code in codes, f"died of signal {-outcome.code}: {last}")
    require(outcome.code in codes, f"exit code {outcome.code}: {last}")
    found = CONTROL.search(text)
    require(not found, f"control character {found and found.group()!r} in the output")
    require(outcome.peak_mb < most_mb, f"took {outcome.peak_mb:.0f} MB")
    require(not outcome.orphans, f"left processes behind: {', '.join(outcome.orphans)[:150]}")
    if outcome.code == 2:
        require(outcome.said.startswith(("phasegrad: ", "phasegrad ")), f"exit code 2 without a sentence: {last}")
        require(outcome.said.rstrip().endswith((".", "?", ")")), f"no whole sentence: {last}")


def strictly_increasing(metrics: Path) -> None:
    """Every line of a metrics file is whole, and its steps only ever grow."""
    last = -1
    for number, line in enumerate(metrics.read_text().splitlines(), 1):
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Broke(f"line {number} of {metrics.name} is damaged: {line[:60]!r}") from None
        require(step > last, f"{metrics.name} has step {step} after {last}")
        last = step
