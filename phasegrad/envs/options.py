"""An environment's own options: which of them envpool has, which gymnasium's environment of that id has.

Looks at signatures and at envpool's specifications; makes no environment and chooses no backend.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym

from phasegrad.errors import ConfigError, nearest

# What envpool takes and phasegrad sets itself; an option of this name would silently fight with it.
OWN_OPTIONS = ("num_envs", "batch_size", "num_threads", "seed", "env_seed", "max_num_players", "gym_reset_return_info")
# Set by the id (another value would be another environment under its name), or read by nothing.
_OF_THE_ID = ("task", "task_name", "env_name", "scenario", "hand_task", "qpos_dim", "qvel_dim", "version", "base_path")
_WITHOUT_EFFECT = ("reward_threshold", "thread_affinity_offset")
# envpool looks for the file among its own, gymnasium where the path says.
_OF_OTHER_MEANING = {"envpool.mujoco.gym": ("xml_file",)}
# max_episode_steps is taken there and changes nothing.
_WITHOUT_TIME_LIMIT = ("envpool.highway", "envpool.jumanji", "envpool.pgx")
_IDS_WITHOUT_TIME_LIMIT = ("CliffWalking-v1", "CliffWalkingSlippery-v1")
_PIXELS = ("from_pixels", "render_width", "render_height", "render_camera_id")
# Packages whose classes hand every keyword they do not know on to their parents.
_HANDING_ON = ("gymnasium", "minigrid")
# What `make` of gymnasium takes beside the environment's own, and what phasegrad sets there.
_OF_MAKE = ("max_episode_steps",)
_SET_HERE = ("render_mode", "disable_env_checker", "id")


def envpool_options(name: str, package: str) -> dict[str, Any]:
    """The options that have an effect in envpool's environment `name` of `package`, and their defaults.

    Imports that package's library.
    """
    from envpool.registration import registry

    defaults = registry.make_spec(name).config._asdict()
    known = list(defaults)
    if package == "envpool.minigrid":  # one list for all of its games, most of which read few of them
        known = [option for option in registry.specs[name][2] if option in known]
    left_out = [*OWN_OPTIONS, *_OF_THE_ID, *_WITHOUT_EFFECT, *_OF_OTHER_MEANING.get(package, ())]
    if package in _WITHOUT_TIME_LIMIT or name in _IDS_WITHOUT_TIME_LIMIT:
        left_out.append("max_episode_steps")
    pixels = _PIXELS if package.startswith("envpool.mujoco") else ()
    return {option: defaults.get(option) for option in (*known, *pixels) if option not in left_out}


def refuse_set_here(env_id: str, options: Iterable[str], on_envpool: bool = False) -> None:
    """Refuse what phasegrad passes itself: to any environment, or to those of envpool."""
    for option in options:
        if option == "render_mode":
            raise ConfigError(
                f"The option 'render_mode' of {env_id} is set by phasegrad: `phasegrad video` films a run, training draws "
                "nothing."
            )
        if option in (OWN_OPTIONS if on_envpool else _SET_HERE):
            raise ConfigError(f"The option {option!r} of {env_id} is set by phasegrad and cannot be passed on.")


class Keywords:
    """What a class or function that makes environments takes as keywords."""

    def __init__(self, creator: Callable[..., Any]) -> None:
        self.names: list[str] = []
        self.defaults: dict[str, Any] = {}  # of those that have one
        self.all_known = True  # False where any other keyword may be taken too
        kinds = creator.__mro__ if isinstance(creator, type) else ()
        own = [kind.__dict__["__init__"] for kind in kinds if "__init__" in kind.__dict__ and kind is not object]
        handed_on = str(getattr(creator, "__module__", "")).split(".")[0] in _HANDING_ON
        for depth, function in enumerate(own or [creator]):
            try:
                parameters = list(inspect.signature(function).parameters.values())
            except (TypeError, ValueError):  # of code that is not Python
                self.all_known = False
                return
            for parameter in parameters[1 if own else 0 :]:
                named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
                # A parent's parameter without a default is the child's to give.
                if named and (depth == 0 or parameter.default is not parameter.empty):
                    self.names.append(parameter.name)
                    if parameter.default is not parameter.empty:
                        self.defaults.setdefault(parameter.name, parameter.default)
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
                return
            if not handed_on:
                self.all_known = False
        self.all_known = False

    def unknown(self, options: Iterable[str]) -> list[str]:
        """Those of `options` that are refused for certain."""
        return [name for name in options if name not in self.names] if self.all_known else []

    def as_declared(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Lists as tuples where the default is one: a command and a file have no tuples."""
        return {
            name: tuple(value) if isinstance(value, list) and isinstance(self.defaults.get(name), tuple) else value
            for name, value in options.items()
        }


def refuse_values(whose: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse text where a number or a truth value is meant: Python takes 'no' for true."""
    for name, value in options.items():
        default = defaults.get(name)
        if isinstance(default, bool):
            if isinstance(value, str) or value is None:
                raise ConfigError(f"The option {name} of {whose} must be true or false, not {value!r}.")
        elif isinstance(default, int | float) and isinstance(value, str):
            raise ConfigError(f"The option {name} of {whose} must be a number, not {value!r}.")


def gymnasium_takes(env_id: str) -> Keywords | None:
    """What a registered environment takes; None where its module cannot be imported, which making it will tell."""
    entry = gym.registry[env_id].entry_point
    try:
        creator = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    except Exception:  # a package that is missing, or whatever a stranger's module does when it is imported
        return None
    if creator is None:
        return None
    taken = Keywords(creator)
    taken.names = [name for name in taken.names if name not in _SET_HERE] + list(_OF_MAKE)
    return taken


def same_elsewhere(env_id: str, options: Mapping[str, Any], known: Iterable[str]) -> str | None:
    """The id, one of `known`, under which gymnasium has the environment with just these options."""
    spec = gym.registry[env_id]
    wanted = {**spec.kwargs, **options}
    for other in known:
        found = gym.registry.get(other)
        if found is None or (found.entry_point, found.max_episode_steps) != (spec.entry_point, spec.max_episode_steps):
            continue
        if found.kwargs == wanted:
            return other
    return None


def no_option(whose: str, option: str, known: Iterable[str]) -> str:
    """The sentence for an option that an environment does not have."""
    names = sorted(set(known))
    close = nearest(option, names)
    listed = f" It takes {', '.join(names[:12])}{' and more' if len(names) > 12 else ''}." if names else " It has none."
    return f"{whose} has no option {option!r}.{close or listed}"


def refused_option(error: BaseException, options: Iterable[str]) -> str | None:
    """The option that a constructor's TypeError is about, where it takes none of that name."""
    if not isinstance(error, TypeError) or "unexpected keyword argument" not in str(error):
        return None
    return next((name for name in options if f"'{name}'" in str(error)), None)
