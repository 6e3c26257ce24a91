"""Writes phasegrad/algorithms/builtin.pyi: the constructors with every setting, for editors and type checkers.

    python tools/write_signatures.py

Run it after a setting was added, or its type or default changed; a test compares the file with the settings.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.known import ABOUT
from phasegrad.algorithms.signatures import documentation, keywords_of

STUB = Path(__file__).parents[1] / "phasegrad" / "algorithms" / "builtin.pyi"
HEAD = '''"""The algorithms as editors and type checkers see them: every setting by name. Written by tools/write_signatures.py."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phasegrad.agent import Spaces
{imports}
from phasegrad.algorithms.base import Algorithm as Algorithm
from phasegrad.algorithms.registry import ALGORITHMS as ALGORITHMS
from phasegrad.algorithms.registry import register as register
from phasegrad.config import Config

'''


def stub() -> str:
    """The file's text, before it is formatted."""
    imports = [f"from phasegrad.algorithms.{name} import {name.upper()} as _{name.upper()}" for name in sorted(ABOUT)]
    return HEAD.format(imports="\n".join(imports)) + "\n".join(_class(name) for name in ABOUT)


def _class(name: str) -> str:
    kind = ALGORITHMS[name]
    described = documentation(name, ABOUT_CLASS[name], kind.config_class).rstrip().replace("\n", "\n    ")
    lines = [f"class {name.upper()}(_{name.upper()}):", f'    """{described}\n    """', ""]
    lines += ["    def __init__(", "        self,", "        env: Any = None,", "        *,"]
    lines += [
        f"        {each}: {kind} = {default!r}," for each, (kind, default) in keywords_of(kind.config_class).items()
    ]
    return "\n".join([*lines, "    ) -> None: ...", ""]).replace("\n    \n", "\n\n")


ABOUT_CLASS = {name: (ALGORITHMS[name].__doc__ or "").splitlines()[0] for name in ABOUT}


if __name__ == "__main__":
    STUB.write_text(stub())
    for command in (["check", "--fix", "--quiet"], ["format", "--quiet"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, str(STUB)], check=True)
