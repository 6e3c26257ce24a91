"""What can be trained on here, by family, and what is registered but cannot be, with the reason.

Looks into the registries of envpool and gymnasium; makes no environment. The families here are finer than those of
families.py, which say how fast an environment is; presets go by these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from phasegrad.envs import assets, qt
from phasegrad.envs.envpool_ids import envpool_packages, package_of
from phasegrad.envs.families import family_of, procgen_game, register_minigrid, resolve
from phasegrad.envs.needs import missing_for
from phasegrad.envs.refused import NOT_INSTALLED, players_of, refusal, refusal_of_gymnasium

# Those without a family of their own in families.py, by envpool's package.
_FINER = {
    "envpool.toy_text": "toy_text",
    "gymnasium.envs.toy_text": "toy_text",
    "envpool.mujoco.dmc": "dm_control",
    "envpool.mujoco.metaworld": "metaworld",
    "envpool.mujoco.myosuite": "myosuite",
    "envpool.mujoco.playground": "playground",
    "envpool.mujoco.robotics": "robotics",
    "gymnasium_robotics": "robotics",
    "envpool.highway": "highway",
    "envpool.jumanji": "jumanji",
    "envpool.vizdoom": "vizdoom",
    "envpool.gfootball": "gfootball",
    "envpool.pgx": "pgx",
}
LISTED = (
    "classic", "box2d", "mujoco", "atari", "procgen", "minigrid", "toy_text", "dm_control", "metaworld", "myosuite",
    "playground", "robotics", "highway", "jumanji", "vizdoom", "gfootball", "pgx", "other",
)  # fmt: skip


@dataclass(frozen=True)
class Listed:
    """One id: whether it can be trained on (`reason` is empty), or in few words why not, and the whole sentence."""

    id: str
    family: str
    backend: str
    reason: str = ""
    sentence: str = ""


def list_envs() -> dict[str, list[str]]:
    """The ids that can be trained on here, by family; Procgen under its game names."""
    listed: dict[str, list[str]] = {}
    for entry in all_envs():
        if not entry.reason:
            listed.setdefault(entry.family, []).append(entry.id)
    return listed


def all_envs() -> list[Listed]:
    """Every id that is registered here, by family and name."""
    register_minigrid()
    found: dict[str, Listed] = {}
    without_qt = None
    for env_id, package in envpool_packages().items():
        family = listed_family(package)
        if family == "procgen":
            game = f"procgen/{procgen_game(env_id)}"
            without_qt = qt.missing() or "" if without_qt is None else without_qt
            found[game] = Listed(game, family, "envpool", NOT_INSTALLED if without_qt else "", without_qt)
            continue
        if family == "minigrid":
            continue  # they are made by gymnasium, below, where minigrid is installed
        reason, sentence = refusal(env_id, package, players_of(env_id)) or ("", "")
        found[env_id] = Listed(env_id, family, "envpool", reason, sentence)
    lacking = assets.without_tasks(assets.ANY_MYOSUITE)
    if lacking is not None:
        found[assets.ANY_MYOSUITE] = Listed(assets.ANY_MYOSUITE, "myosuite", "envpool", NOT_INSTALLED, lacking)
    for env_id, spec in gym.registry.items():
        if spec.entry_point is None or env_id in found:
            continue
        reason, sentence = refusal_of_gymnasium(env_id) or ("", "")
        command = missing_for(spec.entry_point)
        if command:
            reason, sentence = NOT_INSTALLED, f"{env_id} needs a package that is not installed: {command}."
        found[env_id] = Listed(env_id, listed_family(str(spec.entry_point)), "gymnasium", reason, sentence)
    for env_id, package in envpool_packages().items():
        if listed_family(package) == "minigrid" and env_id not in found:
            sentence = f'{env_id} needs MiniGrid: pip install "phasegrad[minigrid]".'
            found[env_id] = Listed(env_id, "minigrid", "gymnasium", NOT_INSTALLED, sentence)
    return sorted(found.values(), key=lambda entry: (LISTED.index(entry.family), entry.id))


def listed_family(module: str) -> str:
    """The family under which what `module` holds is listed."""
    finer = next((name for package, name in _FINER.items() if module.startswith(package)), None)
    return finer or family_of(module)


def listed_family_of(env_id: str, options: Mapping[str, Any] | None = None) -> str:
    """The family under which an id is listed, or would be if it were registered."""
    spec = resolve(env_id, options)
    if spec.family != "other":
        return spec.family
    if spec.backend == "envpool":
        return listed_family(package_of(spec.id) or "")
    return listed_family(str(gym.registry[spec.id].entry_point))
