"""What tests need of the machine beyond Python: marks that skip where it is missing, and how to hide it where it is not."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from phasegrad.compute import native
from phasegrad.envs import qt

ROOT = Path(__file__).parents[1]
COMPILERS = ("gcc", "cc", "clang", "c99", "tcc")

needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler on this machine")
_WITHOUT_QT = qt.missing()
needs_procgen = pytest.mark.skipif(_WITHOUT_QT is not None, reason=str(_WITHOUT_QT))


def environments(ids: Iterable[str]) -> list[Any]:
    """Parameters of a test that makes each of these environments."""
    return [pytest.param(name, marks=needs_procgen) if name.startswith("procgen/") else name for name in ids]


def without(folder: Path, *, compiler: bool = False, hide: Iterable[str] = ()) -> dict[str, str]:
    """The environment variables of a process for which the machine has no compiler, or not these libraries and modules.

    In `folder` is made what is its PATH then: links to every program but compilers.
    """
    found = {**os.environ, "PYTHONPATH": str(ROOT)}
    if compiler:
        programs = folder / "programs"
        programs.mkdir(parents=True)
        for place in os.environ.get("PATH", "").split(os.pathsep):
            for program in Path(place).iterdir() if Path(place).is_dir() else ():
                link = programs / program.name
                if not _is_left_out(program) and not link.is_symlink():
                    link.symlink_to(program)
        found["PATH"] = str(programs)
        found.pop("CC", None)
    hidden = ",".join(hide)
    if hidden:
        found["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "hiding"), str(ROOT)])
        found["PHASEGRAD_HIDE"] = hidden
    return found


def _is_left_out(program: Path) -> bool:
    """Compilers, and what is no program."""
    return not {program.name.split("-")[0], program.name.rpartition("-")[2]}.isdisjoint(COMPILERS) or not os.access(
        program, os.X_OK
    )
