"""What a file from somebody else may ask of an environment: the options that can name neither a file nor code.

An option is harmless where its name is known from envpool's specification or the environment's signature and it is a number
or a truth value there and here, or where its name is among the words of its family below. All others, what takes any keyword
included, are the user's to give, or to allow. Makes no environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym

from phasegrad.config import short
from phasegrad.envs.envpool_ids import package_of
from phasegrad.envs.families import PROCGEN_OPTIONS, EnvSpec, resolve
from phasegrad.envs.options import envpool_options, gymnasium_takes
from phasegrad.errors import ConfigError, EnvError, PhasegradError

PLAIN_WORD = re.compile(r"[A-Za-z0-9_+-]{0,40}")  # no dot, slash, colon, space: neither a path nor an address
MOST_NUMBERS = 10_000  # of a list
# Options that are words, by the package that holds the environment: each chooses among what that package has. Not here are
# xml_file (MuJoCo, robotics), cfg_path, wad_path, vzd_path, iwad_path, lmp_save_dir, game_args (ViZDoom), game (ALE).
WORDS: dict[str, tuple[str, ...]] = {
    "envpool.procgen": ("distribution",),
    "envpool.minigrid": (
        "obstacle_type", "obj_type", "wfc_preset", "select_by", "first_color", "second_color",
    ),
    "envpool.jumanji": ("sudoku_database",),
    "envpool.mujoco.robotics": (
        "reward_type", "target_position", "target_rotation", "touch_visualisation", "touch_get_obs", "adroit_task",
        "maze_map",
    ),
    "envpool.pgx": ("rules",),
    "envpool.vizdoom": ("map_id",),
    "gymnasium.envs.toy_text": ("map_name", "desc"),
    "minigrid": ("obj_type", "select_by", "first_color", "second_color"),
    "ale_py": ("obs_type",),
    "gymnasium_robotics": ("reward_type",),
    "metaworld": ("env_name", "reward_function_version"),
}  # fmt: skip


def beyond_files(env_id: str, options: Mapping[str, Any], backend: str = "auto") -> list[str]:
    """Those of `options` that a file may not set by itself; [] for an id that does not exist.

    An id of the form module:Id-v0 may not be in a file to begin with, so nothing is said here of its options.
    """
    if not options or ":" in env_id:
        return []
    try:
        spec = _resolved(env_id, options, backend)
    except EnvError:
        return []
    except ConfigError:  # it has no such option: text for one is no better for that
        return [name for name, value in options.items() if not all(map(_is_number, _items(value)))]
    package = package_of(spec.id) or "" if spec.backend == "envpool" else ""
    if spec.family == "procgen":
        known: Mapping[str, Any] = dict.fromkeys(PROCGEN_OPTIONS)
    elif spec.backend == "envpool":
        known = envpool_options(spec.id, package)
    else:
        known = _of_gymnasium(spec.id)
    words = _words(package or _module(gym.registry[spec.id].entry_point))
    return [name for name, value in options.items() if not (name in known and _is_harmless(name, value, known, words))]


def require_harmless(env_id: str, options: Mapping[str, Any], backend: str = "auto") -> None:
    """Refuse what a run's file may not set."""
    beyond = beyond_files(env_id, options, backend)
    if beyond:
        raise EnvError(
            f"The file gives {env_id} the option {beyond[0]} {short(options[beyond[0]])}, which may be a path or code: where "
            "you trust it, allow that with --allow-import, or in Python with phasegrad.load(path, allow_import=True)."
        )


def _resolved(env_id: str, options: Mapping[str, Any], backend: str) -> EnvSpec:
    """By the backend of training, else by gymnasium's, which draws for videos."""
    try:
        return resolve(env_id, options, backend=backend)
    except PhasegradError:
        if backend == "gymnasium" or env_id not in gym.registry:
            raise
        return resolve(env_id, options, backend="gymnasium")


def _of_gymnasium(env_id: str) -> dict[str, Any]:
    """The options by name, with their defaults; of what takes any keyword only those that it names."""
    taken = gymnasium_takes(env_id)
    if taken is None:
        return {}
    return dict.fromkeys(taken.names) | taken.defaults | dict(gym.registry[env_id].kwargs)


def _module(entry_point: Any) -> str:
    return entry_point if isinstance(entry_point, str) else str(getattr(entry_point, "__module__", ""))


def _words(package: str) -> tuple[str, ...]:
    return next((names for start, names in WORDS.items() if re.match(rf"{re.escape(start)}(?![a-z_])", package)), ())


def _is_harmless(name: str, value: Any, known: Mapping[str, Any], words: Iterable[str]) -> bool:
    if name in words:
        return all(_is_number(item) or (isinstance(item, str) and PLAIN_WORD.fullmatch(item)) for item in _items(value))
    default = known[name]
    return (default is None or all(map(_is_number, _items(default)))) and all(map(_is_number, _items(value)))


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _items(value: Any) -> list[Any]:
    """The entries of a list, and of lists in it; what cannot be looked through counts as one entry that is no number."""
    if not isinstance(value, list | tuple):
        return [value]
    found: list[Any] = []
    for entry in value[: MOST_NUMBERS + 1]:
        found += list(entry) if isinstance(entry, list | tuple) else [entry]
        if len(found) > MOST_NUMBERS:
            return [value]
    return found
