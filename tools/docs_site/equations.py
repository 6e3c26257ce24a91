"""Equations of a page, written in LaTeX as GitHub takes them, turned into MathML, which browsers draw by themselves.

A block is fenced by ```math, a formula in a line stands in $`...`$. No script and no font is fetched for either.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from latex2mathml.converter import convert

BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\$`([^`\n]+)`\$")


def with_equations(text: str) -> str:
    """A page with each of its formulas as MathML."""
    text = BLOCK.sub(lambda found: f'<div class="equation">{"".join(side_by_side(found[1]))}</div>', text)
    # a <math> at the start of a line would begin a block of its own
    return INLINE.sub(lambda found: f"<span>{mathml(found[1], 'inline')}</span>", text)


def side_by_side(latex: str) -> list[str]:
    """The formulas of a block; those that a line of \\qquad parts may stand below each other on a narrow screen."""
    return [f"<div>{mathml(part, 'block')}</div>" for part in re.split(r"^\\qquad$", latex, flags=re.MULTILINE)]


def mathml(latex: str, display: str) -> str:
    """One formula as a <math> element on one line, so that Markdown leaves it alone."""
    return re.sub(r"\s*\n\s*", " ", convert(latex.strip(), display=display))


CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """`text` with `change` made to all of it but fenced blocks and code within lines."""
    parts = CODE.split(text)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))
