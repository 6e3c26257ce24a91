"""Ids that are registered but cannot be trained on: each with the sentence that says why, before any of its code runs.

Some end the process from within their native code, where no exception can be caught. Knows names and registries only; imports
no environment.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym

from phasegrad.envs.assets import without_models
from phasegrad.envs.needs import is_installed
from phasegrad.errors import EnvError

SEVERAL_PLAYERS, NATIVE_CRASH, FILE_NEEDED, GONE = "several players", "ends the process", "needs a file", "gone"
NOT_INSTALLED = "needs a package"
_ONE_PLAYER = "only environments of one player can be trained on"
_PLAYED_IN_TURN = "envpool.pgx"  # board games and card games, one of which a player plays alone
# Games for several players who join over a network: envpool 1.2.5 plays them alone and dies of it.
_DYING = {"Cig-v1": "Deathmatch-v1", "MultiDuel-v1": "Deathmatch-v1"}
_OF_A_FILE = {"VizdoomCustom-v1": ("cfg_path", "wad_path")}
_DRAWN = "MiniGrid-WFC-"  # minigrid 3.2.0's wheel has no envs/wfc/patterns
_VERSION = re.compile(r"(.+)-v(\d+)")


def refusal(env_id: str, package: str, players: int = 1, options: Collection[str] = ()) -> tuple[str, str] | None:
    """(kind, sentence) for an id of envpool that cannot be trained on; None for the rest.

    `players` is what its registration says, `options` are the names of those that were given.
    """
    if players != 1:
        how = "for several players in turn" if package == _PLAYED_IN_TURN else f"for {players} players at once"
        return SEVERAL_PLAYERS, f"{env_id} is {how}, but {_ONE_PLAYER}."
    if env_id in _DYING:
        return NATIVE_CRASH, (
            f"{env_id} is for several players over a network, and envpool's native code ends the process in it: use "
            f"{_DYING[env_id]}, which one player plays."
        )
    missing = [name for name in _OF_A_FILE.get(env_id, ()) if name not in options]
    if missing:
        given = " ".join(f"--env.{name.replace('_', '-')} FILE" for name in _OF_A_FILE[env_id])
        return FILE_NEEDED, f"{env_id} plays a scenario of your own: give its files, {given}."
    lacking = without_models(env_id, package)
    return None if lacking is None else (NOT_INSTALLED, lacking)


def refusal_of_gymnasium(env_id: str) -> tuple[str, str] | None:
    """The same for an id of gymnasium's registry whose entry only raises an error, or whose package lacks its files."""
    if env_id.startswith(_DRAWN) and not _has_patterns():
        return FILE_NEEDED, (
            f"{env_id} draws its rooms from pictures that the installed package minigrid does not bring: use --backend envpool "
            "(Python: backend='envpool'), which has them."
        )
    spec = gym.registry.get(env_id)
    entry = None if spec is None else spec.entry_point
    name = str(getattr(entry, "__name__", ""))
    if not name.startswith("_raise_"):
        return None
    if "shimmy" in name:
        return GONE, (
            f"{env_id} stands for environments of the old Gym: pass a function that wraps yours by shimmy's "
            "GymV21CompatibilityV0 or GymV26CompatibilityV0 (pip install shimmy)."
        )
    newest = _newest(env_id)
    instead = f": use {newest}" if newest else ""
    return GONE, f"{env_id} needs mujoco-py, which is no longer maintained{instead}."


def refuse(env_id: str, package: str, options: Collection[str]) -> None:
    """Raise the sentence of an id of envpool that cannot be trained on."""
    found = refusal(env_id, package, players_of(env_id), options)
    if found is not None:
        raise EnvError(found[1])


def refuse_of_gymnasium(env_id: str) -> None:
    """The same of an id of gymnasium's."""
    found = refusal_of_gymnasium(env_id)
    if found is not None:
        raise EnvError(found[1])


def players_of(env_id: str) -> int:
    """How many players an id of envpool is registered for."""
    from envpool.registration import registry

    entry: Any = registry.specs.get(env_id)
    return 1 if entry is None else int(entry[2].get("max_num_players", 1))


def _has_patterns() -> bool:
    found = find_spec("minigrid") if is_installed("minigrid") else None
    places = (found.submodule_search_locations or ()) if found is not None else ()
    return not places or any(Path(place, "envs", "wfc", "patterns").is_dir() for place in places)


def _newest(env_id: str) -> str | None:
    """The latest version of an environment that gymnasium has and that is no such entry itself."""
    matched = _VERSION.fullmatch(env_id)
    if matched is None:
        return None
    versions = []
    for other, spec in gym.registry.items():
        found = _VERSION.fullmatch(other)
        if found is not None and found[1] == matched[1] and isinstance(spec.entry_point, str):
            versions.append(int(found[2]))
    return f"{matched[1]}-v{max(versions)}" if versions else None
