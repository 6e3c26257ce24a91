"""A cache of compiled code that is a test's own, and a program to build in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasegrad.compute.native import build

SOURCE = "int answer(void) { return 42; }\n"


def new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is, for a process that has loaded nothing yet."""
    monkeypatch.setenv("PHASEGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_loaded", {})
    build._tell_unsafe.cache_clear()
    return tmp_path / "cache" / "phasegrad" / "native"


def answer(number: int = 42) -> int:
    """What a program answers that is loaded anew."""
    build._loaded.clear()
    return int(build.library(SOURCE.replace("42", str(number))).answer())
