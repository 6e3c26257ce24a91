"""Environment ids: which family and backend an id belongs to, with which defaults.

Looks into the registries of envpool and gymnasium; makes no environment.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from phasegrad.envs import assets
from phasegrad.envs.envpool_ids import PROCGEN, envpool_packages, ids_of, import_envpool, package_of
from phasegrad.envs.options import (
    Keywords,
    envpool_options,
    gymnasium_takes,
    no_option,
    refuse_set_here,
    refuse_values,
    same_elsewhere,
)
from phasegrad.envs.refused import refuse, refuse_of_gymnasium
from phasegrad.envs.unknown_ids import package_of_id
from phasegrad.errors import ConfigError, EnvError, either, nearest, words_of

FAMILIES = ("classic", "box2d", "mujoco", "atari", "procgen", "minigrid", "other")

PROCGEN_DISTRIBUTIONS = ("easy", "hard", "extreme", "memory", "exploration")
# What envpool's Procgen takes, without `use_sequential_levels`, which does nothing there.
PROCGEN_OPTIONS = (
    "distribution", "num_levels", "start_level", "center_agent", "max_episode_steps", "paint_vel_info",
    "restrict_themes", "use_backgrounds", "use_easy_jump", "use_generated_assets", "use_monochrome_assets",
)  # fmt: skip

_FAMILY_OF_PACKAGE = {
    "envpool.classic_control": "classic",
    "envpool.box2d": "box2d",
    "envpool.mujoco.gym": "mujoco",
    "envpool.atari": "atari",
    "envpool.procgen": "procgen",
    "envpool.minigrid": "minigrid",
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "minigrid": "minigrid",
    "ale_py": "atari",
}


@dataclass(slots=True)
class EnvSpec:
    """An environment id after its defaults: what to ask which backend for."""

    family: str
    backend: str  # "envpool" or "gymnasium"
    id: str  # the backend's own id
    kwargs: dict[str, Any] = field(default_factory=dict)
    notice: str = ""  # the sentence for a user whose options have decided the backend


def resolve(
    env_id: str,
    options: Mapping[str, Any] | None = None,
    *,
    backend: str = "auto",
    evaluation: bool = False,
    render: bool = False,
) -> EnvSpec:
    """Find the family and the backend of `env_id` and complete `options` with the family's defaults.

    `auto` takes envpool for what it knows, except MiniGrid (kept as its authors wrote it), MuJoCo with `render`
    (envpool ends the process where there is no OpenGL), and options that only gymnasium's environment has. It follows from
    the id and the names of the options, so that a run that is resumed finds the same.
    """
    options = dict(options or {})
    refuse_set_here(env_id, options)
    if backend not in ("auto", "envpool", "gymnasium"):
        raise ConfigError(f"Unknown backend {backend!r}; use auto, envpool or gymnasium.")
    if ":" in env_id:
        return _resolve_gymnasium(env_id, options, explicit=backend == "gymnasium")
    if env_id.lower().startswith("procgen/"):
        return _resolve_procgen(env_id, options, backend)
    name = env_id.removeprefix("ALE/")
    package = None if backend == "gymnasium" else package_of(name)
    if package is None:
        packages = {} if backend == "gymnasium" else envpool_packages()
        sentence = assets.without_tasks(name) if packages and name not in gym.registry else None
        if sentence is not None:
            raise EnvError(sentence)
        if backend == "envpool":
            _require_envpool(env_id)
            raise EnvError(
                f"envpool has no environment {env_id!r}.{nearest(env_id, packages)} `phasegrad envs` lists all."
            )
        return _resolve_gymnasium(env_id, options, explicit=backend == "gymnasium")
    family = family_of(package)
    if family == "procgen":
        return _resolve_procgen(name, options, backend)
    if backend == "auto" and (family == "minigrid" or (family == "mujoco" and render)):
        return _resolve_gymnasium(env_id, options, explicit=False)
    refuse(name, package, options)
    if options:
        refuse_set_here(name, options, on_envpool=True)
        known = envpool_options(name, package)
        beyond = [option for option in options if option not in known]
        if beyond:
            return _beyond_envpool(name, family, options, beyond, list(known), backend)
        refuse_values(name, options, known)
    if family == "atari":
        training = not evaluation
        options = {
            "stack_num": 4, "frame_skip": 4, "img_height": 84, "img_width": 84, "noop_max": 30,
            "use_fire_reset": True, "episodic_life": training, "reward_clip": training, **options,
        }  # fmt: skip
    return EnvSpec(family, "envpool", name, options)


def _beyond_envpool(
    name: str, family: str, options: dict[str, Any], beyond: list[str], known: list[str], backend: str
) -> EnvSpec:
    """gymnasium's environment where envpool's lacks the options `beyond`, or the sentence for those neither has."""
    if family == "atari":  # gymnasium's has other observations: frames as they come, one at a time
        more = (
            " ALE's own environment has frames as they come, without resizing, stacking and skipping: "
            f"--backend gymnasium --env ALE/{name} (Python: backend='gymnasium'), with \"gymnasium[atari]\" installed."
        )
        raise ConfigError(no_option(f"envpool's {name}", beyond[0], known) + more)
    taken = gymnasium_takes(name) if name in gym.registry else Keywords(lambda: None)
    theirs = taken.names if taken is not None else []
    unknown = taken.unknown(options) if taken is not None else []
    neither = [option for option in unknown if option in beyond]
    if neither:
        raise ConfigError(no_option(name, neither[0], [*known, *theirs]))
    if unknown:
        raise ConfigError(
            f"{name} has no {either(unknown)} on gymnasium and no {either(beyond)} on envpool, so they cannot be used "
            "together: leave one out."
        )
    if backend == "envpool":
        raise ConfigError(
            f"envpool's {name} has no option {beyond[0]!r}, but gymnasium's has: use --backend gymnasium (Python: "
            "backend='gymnasium') or auto."
        )
    spec = _resolve_gymnasium(name, options, explicit=False)
    same = same_elsewhere(name, options, ids_of(package_of(name) or ""))
    faster = f"; {same} is the same on envpool" if same else ""
    spec.notice = (
        f"{name} runs on gymnasium, which steps slower, since envpool's has no option {either(beyond)}{faster}."
    )
    return spec


def family_of(module: str) -> str:
    """The family of what a module holds."""
    for package, family in _FAMILY_OF_PACKAGE.items():
        if module == package or module.startswith((package + ".", package + ":")):
            return family
    return "other"


def _require_envpool(env_id: str) -> None:
    try:
        import_envpool()
    except ImportError as error:
        raise EnvError(f"{env_id} needs envpool, which cannot be imported ({error}): pip install envpool.") from error


def _split_procgen(env_id: str) -> tuple[str, str]:
    """('coinrun', 'easy') of 'CoinrunEasy-v0'."""
    name = env_id.removesuffix("-v0").lower()
    distribution = next(mode for mode in PROCGEN_DISTRIBUTIONS if name.endswith(mode))
    return name.removesuffix(distribution), distribution


def procgen_game(env_id: str) -> str:
    """'coinrun' of 'CoinrunEasy-v0'."""
    return _split_procgen(env_id)[0]


def _resolve_procgen(env_id: str, options: dict[str, Any], backend: str) -> EnvSpec:
    if backend == "gymnasium":
        raise EnvError(f"{env_id} runs on envpool only; leave the backend at auto.")
    _require_envpool(env_id)
    known = [*PROCGEN_OPTIONS, "channel_first"]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"Procgen has no option {name!r}.{nearest(name, known)} It takes {', '.join(PROCGEN_OPTIONS)}."
            )
    modes: dict[str, dict[str, str]] = {}
    for known_id in ids_of(PROCGEN):
        game, mode = _split_procgen(known_id)
        modes.setdefault(game, {})[mode] = known_id
    distribution = options.pop("distribution", None)
    if env_id.lower().startswith("procgen/"):
        game = env_id.split("/", 1)[1].lower().replace("_", "").replace("-", "")
        distribution = "easy" if distribution is None else str(distribution).lower()
    else:
        game, named = _split_procgen(env_id)
        if distribution not in (None, named):
            raise ConfigError(f"{env_id} is {named} already; use procgen/{game} with distribution={distribution!r}.")
        distribution = named
    if game not in modes:
        close = nearest(env_id, [f"procgen/{known_game}" for known_game in modes])
        raise EnvError(f"Unknown environment {env_id!r}.{close} `phasegrad envs` lists all.")
    if distribution not in modes[game]:
        raise ConfigError(f"procgen/{game} has no distribution {distribution!r}; it has {', '.join(modes[game])}.")
    for name in ("num_levels", "start_level"):
        value = options.get(name, 0)
        if not isinstance(value, int) or value < 0:
            raise ConfigError(f"The Procgen option {name} must be an integer of 0 or more, got {value!r}.")
    return EnvSpec("procgen", "envpool", modes[game][distribution], {"channel_first": False, **options})


def register_minigrid() -> bool:
    """Add minigrid's ids to gymnasium's registry, where it is installed."""
    try:
        importlib.import_module("minigrid")
    except ImportError:
        return False
    return True


def _resolve_gymnasium(env_id: str, options: dict[str, Any], explicit: bool) -> EnvSpec:
    name, module = env_id, ""
    if ":" in env_id:
        module, name = env_id.split(":", 1)
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a stranger's module does when it is imported
            raise EnvError(
                f"{env_id} needs the module {module}, which cannot be imported ({_said(error)}): install the package "
                "that holds it, or correct its name."
            ) from error
    if name.startswith(("MiniGrid-", "BabyAI-")) and not register_minigrid():
        raise EnvError(f'{env_id} needs MiniGrid: pip install "phasegrad[minigrid]".')
    if name.startswith("ALE/"):
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")  # registers them
    spec = gym.registry.get(name)
    if module and (spec is None or spec.entry_point is None):
        raise EnvError(_unknown_of_module(module, name))
    if spec is None or spec.entry_point is None:
        known: Iterable[str] = gym.registry if explicit else {**envpool_packages(), **dict.fromkeys(gym.registry)}
        where = "gymnasium has no environment" if explicit else "Unknown environment"
        advice = package_of_id(name) or (
            f" `phasegrad envs` lists all; one that a module of yours registers is module:{name}."
        )
        alike = [known_id for known_id in known if known_id[:4] == name[:4]] if package_of_id(name) else known
        raise EnvError(f"{where} {env_id!r}.{nearest(name, alike)}{advice}")
    refuse_of_gymnasium(name)
    taken = gymnasium_takes(name) if options else None
    unknown = taken.unknown(options) if taken is not None else []
    if taken is not None and unknown:
        raise ConfigError(no_option(f"gymnasium's {name}", unknown[0], taken.names))
    if taken is not None:
        refuse_values(name, options, taken.defaults)
    return EnvSpec(family_of(str(spec.entry_point)), "gymnasium", name, options)


def _unknown_of_module(module: str, name: str) -> str:
    """The sentence for an id that its module does not register; only its own ids can be meant."""
    package = module.split(".")[0]
    own = [env_id for env_id, spec in gym.registry.items() if _package_of(spec.entry_point) == package]
    told = f"The module {module} was imported, but registers no environment {name!r}"
    if not own:
        return f"{told}, nor any other: import the module that calls gymnasium.register, or pass the class in Python."
    listed = f"{', '.join(sorted(own)[:5])}{' and more' if len(own) > 5 else ''}"
    return f"{told}.{nearest(name, own) or f' It registers {listed}.'}"


def _package_of(entry_point: Any) -> str:
    where = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "") or ""
    return str(where).split(":")[0].split(".")[0]


def _said(error: Exception) -> str:
    return words_of(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {words_of(error)}"
