"""Whether every pin of the lock files installs from a wheel on each Python that phasegrad supports.

    python tools/check_lock.py [--index URL] [LOCK ...]

Reads the package index, installs and downloads nothing, and ends with 1 where a pin has no wheel for one of the Pythons or asks
for a later patch release than the first: Debian's Python is 3.11.2, and a pin that needs 3.11.5 ends the set-up there.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCKS = (ROOT / "requirements.lock", ROOT / "requirements-dev.lock")
PYTHONS = ("3.11.0", "3.12.0", "3.13.0", "3.14.0")  # the first patch release of each: who has the first has least
GLIBC = 34  # 2.34: Debian 12, Ubuntu 22.04, RHEL 9 and later
SECONDS = 60


@dataclass(frozen=True)
class File:
    """One file of a project on the index."""

    name: str
    requires_python: str = ""


class Page(HTMLParser):
    """The files that a project's page of an index links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.files: list[File] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a" and found.get("href") and "data-yanked" not in found:
            name = (found["href"] or "").partition("#")[0].rpartition("/")[2]
            self.files.append(File(unquote(name), found.get("data-requires-python") or ""))


@dataclass(frozen=True)
class Pin:
    """One line of a lock file."""

    name: str
    version: str
    marker: Marker | None = None

    def concerns(self, python: str) -> bool:
        """Whether the line installs anything on this Python."""
        short = python.rpartition(".")[0]
        environment = {"python_full_version": python, "python_version": short, "sys_platform": "linux"}
        return self.marker is None or self.marker.evaluate(environment)


def pins(lock: Path) -> Iterator[Pin]:
    """Every pin of a lock file."""
    for line in lock.read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line and not line.startswith("-"):  # another lock, which is checked on its own
            pinned = Requirement(line)
            if not re.fullmatch(r"==[^,*]+", str(pinned.specifier)):
                raise SystemExit(f"{lock.name}: {line!r} pins no version.")
            yield Pin(pinned.name, str(pinned.specifier).removeprefix("=="), pinned.marker)


@functools.cache
def tags(python: str) -> set[Tag]:
    """The wheels that a Python on an ordinary Linux takes."""
    version = [int(part) for part in python.split(".")[:2]]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    interpreter = f"cp{version[0]}{version[1]}"
    return {*cpython_tags(version, platforms=platforms), *compatible_tags(version, interpreter, platforms)}


def faults(pin: Pin, files: list[File]) -> Iterator[str]:
    """A sentence for every Python on which the pin installs from no wheel."""
    wheels = []
    for file in files:
        try:
            found, number, _, supported = parse_wheel_filename(file.name)
        except (InvalidWheelFilename, ValueError):
            continue
        if found == canonicalize_name(pin.name) and number == Version(pin.version):
            wheels.append((supported, file.requires_python))
    for python in filter(pin.concerns, PYTHONS):
        fitting = [requires for supported, requires in wheels if supported & tags(python)]
        if not fitting:
            yield f"{pin.name}=={pin.version} has no wheel for Python {python}."
        elif not any(_admits(requires, python) for requires in fitting):
            yield f"{pin.name}=={pin.version} asks for Python {fitting[0]}, which {python} is not."


def _admits(requires: str, python: str) -> bool:
    try:
        return SpecifierSet(requires).contains(python)
    except InvalidSpecifier:
        return True  # as pip has it


def fetched(index: str, name: str) -> list[File]:
    """What the index has of a project."""
    try:
        with urllib.request.urlopen(f"{index.rstrip('/')}/{canonicalize_name(name)}/", timeout=SECONDS) as answer:
            return Page(answer.read().decode()).files
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return []
        raise


def check(locks: list[Path], files_of: Callable[[str], list[File]]) -> list[str]:
    """Every fault of every pin, and of a package that two locks pin differently."""
    pinned: dict[str, Pin] = {}
    found = []
    for lock in locks:
        for pin in pins(lock):
            first = pinned.setdefault(canonicalize_name(pin.name), pin)
            if first.version != pin.version:
                found.append(f"{pin.name} is pinned to {first.version} and, in {lock.name}, to {pin.version}.")
    with ThreadPoolExecutor(8) as pool:
        for pin, files in zip(pinned.values(), pool.map(files_of, pinned), strict=True):
            found += faults(pin, files)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check that every pin has a wheel for each supported Python.")
    parser.add_argument("locks", nargs="*", type=Path, metavar="LOCK", default=list(LOCKS))
    parser.add_argument("--index", default="https://pypi.org/simple", help="a package index (PEP 503)")
    options = parser.parse_args(arguments)
    found = check(options.locks, lambda name: fetched(options.index, name))
    for sentence in found:
        print(sentence)
    if not found:
        print(f"Every pin has a wheel for Python {', '.join(PYTHONS)}.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
