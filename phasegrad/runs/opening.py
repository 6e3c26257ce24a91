"""A saved agent that is no folder, an archive or one on the Hub, as a folder for as long as it is read.

What is said of the folder, which nobody has heard of, is said of what the user named.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phasegrad.errors import PhasegradError, RunError
from phasegrad.machine.paths import as_path
from phasegrad.runs.archive import is_archive, unpack
from phasegrad.runs.files import reading
from phasegrad.runs.hub import UnreachableError, fetch, is_address, parse_address


def is_packed(path: Any) -> bool:
    """Whether an agent must be fetched or unpacked before it can be read."""
    if is_address(path):
        return True
    place = as_path(path)
    with reading(place):
        return place.is_file()


@contextmanager
def opened(path: Any) -> Iterator[Path]:
    """The folder that the agent is in for now."""
    place = Path(tempfile.mkdtemp(prefix="phasegrad-"))
    try:
        with named(place, str(path)):
            if is_address(path):
                fetch(parse_address(path), place)
            else:
                file = as_path(path)
                if not is_archive(file):
                    raise RunError(f"{file} is a file: an agent is a run directory, the folder of a save, or its .zip.")
                unpack(file, place)
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def named(place: Path, shown: str) -> Iterator[None]:
    """Have errors and warnings that speak of a folder speak of what it stands for."""

    def put(text: str) -> str:
        return text.replace(f"{place}/", f"{shown}: ").replace(str(place), shown)

    told: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield
    except UnreachableError as error:
        raise RunError(str(error)) from None
    except PhasegradError as error:
        raise type(error)(put(str(error))) from None
    finally:
        for each in told:
            warnings.warn(put(str(each.message)), each.category, stacklevel=2)
