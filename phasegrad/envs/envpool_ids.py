"""Which of envpool's packages an environment is in, importing no more of envpool than it takes to know.

`import envpool` imports all its packages, and one of them matplotlib: a second or more that most runs have no use for. Here it
is imported without them, and each when it is asked for. Whoever else uses envpool in this process still finds it whole: its
tables of ids import what is missing before they say that there is no more. Makes no environment.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

from phasegrad.envs import assets, qt

ENTRY = "envpool.entry"  # imports all packages' registrations, and does nothing else
PROCGEN = "envpool.procgen"
_LAST = (PROCGEN, "envpool.jumanji")  # which load Qt and matplotlib
# Where envpool has what gymnasium has too; elsewhere all are asked in turn.
_LIKELY = {
    "gymnasium.envs.classic_control": "envpool.classic_control",
    "gymnasium.envs.box2d": "envpool.box2d",
    "gymnasium.envs.mujoco": "envpool.mujoco.gym",
    "gymnasium.envs.toy_text": "envpool.toy_text",
}
_LIKELY_BY_NAME = {"MiniGrid-": "envpool.minigrid", "BabyAI-": "envpool.minigrid"}

log = logging.getLogger("phasegrad")


def package_of(env_id: str) -> str | None:
    """The package that holds an id; None where envpool does not know it or cannot be imported."""
    try:
        specs = _specs()
    except ImportError:
        return None
    if isinstance(specs, _Table):
        specs.rest.look_for(env_id, specs)
    found = specs.get(env_id)
    return None if found is None else str(found[0])


def ids_of(package: str) -> list[str]:
    """The ids that one package holds."""
    try:
        specs = _specs()
    except ImportError:
        return []
    if isinstance(specs, _Table):
        specs.rest.load(package)
        return [env_id for env_id, entry in specs.present() if entry[0] == package]
    return [env_id for env_id, entry in specs.items() if entry[0] == package]


def envpool_packages() -> dict[str, str]:
    """Every id envpool knows with the package that holds it; empty where envpool cannot be imported."""
    try:
        return {env_id: entry[0] for env_id, entry in _specs().items()}
    except ImportError:
        return {}


def import_envpool() -> None:
    """Import envpool, as yet without its packages; ImportError says why that cannot be done."""
    _specs()


def _specs() -> dict[str, Any]:
    if "envpool" not in sys.modules:  # else it is whole, or was imported here
        assets.let_envpool_be_imported()
        packages = _all_packages()
        if packages:
            return _imported_without(packages)
        qt.preload()  # before all packages are imported, one of which remembers that it found no Qt
    from envpool.registration import registry

    return registry.specs


def _all_packages() -> list[str]:
    """Those that envpool would import, in its order; [] where it does that in another way than is known here."""
    found = find_spec("envpool")
    if found is None or not found.origin or ENTRY in sys.modules:
        return []
    try:
        statements = ast.parse(Path(found.origin).with_name("entry.py").read_text()).body[1:]  # but for its docstring
    except (OSError, ValueError, SyntaxError):
        return []
    names = [alias.name for each in statements if isinstance(each, ast.Import) for alias in each.names]
    known = all(name.startswith("envpool.") and name.endswith(".registration") for name in names)
    return [name.removesuffix(".registration") for name in names] if known and len(names) == len(statements) else []


def _imported_without(packages: list[str]) -> _Table:
    sys.modules[ENTRY] = ModuleType(ENTRY)  # in its place, while envpool is imported
    try:
        registry = importlib.import_module("envpool.registration").registry
    finally:
        del sys.modules[ENTRY]
    rest = _Rest(packages)
    registry.specs, registry.envpools = _Table(registry.specs, rest), _Table(registry.envpools, rest)
    rest.tables = [registry.specs, registry.envpools]
    specs: _Table = registry.specs
    return specs


class _Rest:
    """The packages of envpool that are not imported yet."""

    def __init__(self, packages: list[str]) -> None:
        self.packages, self.waiting = packages, list(packages)
        self.tables: list[_Table] = []
        self.unordered = True  # whether an id was added since they were last put in order
        self._lock, self._loading = threading.RLock(), False

    def look_for(self, env_id: str, table: _Table) -> None:
        """Import packages, likely ones first, until one has registered the id."""
        likely = _likely(env_id)
        for package in sorted(self.waiting, key=lambda name: (name != likely, name in _LAST)):
            if table.has(env_id):
                return
            self.load(package)

    def load(self, package: str) -> None:
        """Have a package register its ids; one that cannot be imported has none."""
        with self._lock:
            if self._loading or package not in self.waiting:  # its own calls of `register` look into the tables too
                return
            self.waiting.remove(package)
            if package == PROCGEN:
                qt.preload()  # which it looks for now, and never again
            self._loading = True
            try:
                importlib.import_module(f"{package}.registration")
            except ImportError as error:
                log.debug("%s cannot be imported: %s", package, error)
            finally:
                self._loading = False

    def load_all(self) -> None:
        """As if envpool had been imported in the usual way, down to the order of its ids."""
        with self._lock:
            if self._loading or not (self.waiting or self.unordered):
                return
            for package in list(self.waiting):
                self.load(package)
            order = {package: place for place, package in enumerate(self.packages)}
            for table in self.tables:
                places = {env_id: order.get(_package(entry), len(order)) for env_id, entry in table.present()}
                table.sort(places.__getitem__)
            self.unordered = False
            with contextlib.suppress(ImportError):
                importlib.import_module(ENTRY)


def _package(entry: Any) -> str:
    """Of what a table has of an id: its package first, or that for each kind of interface."""
    return str((entry if isinstance(entry, tuple) else next(iter(entry.values())))[0])


def _likely(env_id: str) -> str:
    spec = gym.registry.get(env_id)
    entry_point = "" if spec is None else str(spec.entry_point)
    by_name = (package for start, package in _LIKELY_BY_NAME.items() if env_id.startswith(start))
    return next((package for module, package in _LIKELY.items() if entry_point.startswith(module)), next(by_name, ""))


class _Table(dict[str, Any]):
    """A table of envpool's registry. Whoever asks for all of it, or for an id that is not there, gets the rest imported."""

    def __init__(self, known: dict[str, Any], rest: _Rest) -> None:
        super().__init__(known)
        self.rest = rest

    def has(self, env_id: str) -> bool:
        """Whether it is there already."""
        return super().__contains__(env_id)

    def present(self) -> list[tuple[str, Any]]:
        """What is there already."""
        return list(super().items())

    def sort(self, key: Callable[[str], int]) -> None:
        entries = sorted(super().items(), key=lambda entry: key(entry[0]))
        super().clear()
        super().update(entries)

    def __setitem__(self, env_id: str, entry: Any) -> None:
        super().__setitem__(env_id, entry)
        self.rest.unordered = True

    def __missing__(self, env_id: str) -> Any:
        if env_id in self:
            return super().__getitem__(env_id)
        raise KeyError(env_id)

    def __contains__(self, env_id: object) -> bool:
        if not super().__contains__(env_id):
            self.rest.load_all()
        return super().__contains__(env_id)

    def get(self, env_id: str, default: Any = None) -> Any:
        return super().get(env_id, default) if env_id in self else default

    def __iter__(self) -> Iterator[str]:
        self.rest.load_all()
        return super().__iter__()

    def __len__(self) -> int:
        self.rest.load_all()
        return super().__len__()

    def keys(self) -> Any:
        self.rest.load_all()
        return super().keys()

    def values(self) -> Any:
        self.rest.load_all()
        return super().values()

    def items(self) -> Any:
        self.rest.load_all()
        return super().items()
