"""Cheap mistakes, found before anything heavy is imported: torch alone takes seconds.

Each check is one that the verb makes itself later, here with what can be known already.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from phasegrad.algorithms.known import algorithm_names, registered, settings_of
from phasegrad.cli.cloning import fitting_settings, require_data
from phasegrad.cli.values import chosen_checkpoint, coerced, whole_or_none
from phasegrad.config import coerce_fields, documented_fields, parse_settings
from phasegrad.errors import ConfigError, RunError, nearest
from phasegrad.machine.paths import as_path
from phasegrad.outside import is_outside
from phasegrad.runs.continuing import changed_settings
from phasegrad.runs.files import read_json_object, reading
from phasegrad.runs.hub import is_address, parse_address, parse_repository
from phasegrad.runs.tracking import require_packages
from phasegrad.tune.search_spaces import SPACES

CONFIG, STATE = "config.json", "state.json"
LAUNCHERS = ("RANK", "WORLD_SIZE")  # of the environment, where torchrun has started this process


def find_mistakes(options: argparse.Namespace) -> None:
    """Refuse what cannot work, as far as it can be told in a moment."""
    check = CHECKS.get(options.verb)
    if check is not None:
        check(options)


def check_train(options: argparse.Namespace) -> None:
    from phasegrad.presets import resolve_config

    config_class = settings_of(options.algorithm)
    given = {name: value for name, value in vars(options).items() if name in documented_fields(config_class)}
    leash = coerce_fields(config_class, given).get("leash")
    require_env(given.get("env"))
    if leash and options.verb == "train" and not options.resume:
        raise ConfigError(
            "--leash holds training to a policy that was cloned: begin the run with `phasegrad clone`, or leave it out."
        )
    if options.resume:
        return  # a run that goes on has its settings in its directory; what they came from may be gone
    if not options.overwrite and not any(name in os.environ for name in LAUNCHERS):
        require_unused(run_directory(options, given))
    config = resolve_config(config_class, {**given, "env_options": options.env_options})
    require_packages(config.track)

    from phasegrad import envs  # the registries of environments take longer than the rest

    envs.resolve(config.env, config.env_options, backend=config.backend)


def check_clone(options: argparse.Namespace) -> None:
    options.resume = False
    require_data(options.data)
    fitting_settings(options)
    check_train(options)


def run_directory(options: argparse.Namespace, given: Mapping[str, Any]) -> str:
    """Where the run goes, unless another place is named: a folder for each environment, algorithm and seed."""
    env = given["env"].replace("/", "-").replace(":", "-")
    return options.run_dir or f"runs/{env}-{options.algorithm}-s{given.get('seed', 1)}"


def require_unused(path: str) -> None:
    """The commonest case of a directory that is taken: it holds a run."""
    folder = as_path(path)
    if (folder / CONFIG).is_file():
        raise RunError(
            f"Run directory {folder} already holds files: use `phasegrad resume {folder}`, --overwrite, or another --run-dir."
        )


def require_env(env: str | None) -> None:
    if not env:
        raise ConfigError("--env is missing: give an environment id such as CartPole-v1; `phasegrad envs` lists them.")


def check_tune(options: argparse.Namespace) -> None:
    outside = [name for name, algorithm in registered().items() if is_outside(algorithm)]
    if options.algorithm not in (*SPACES, *outside):
        meant = "" if options.algorithm in algorithm_names() else nearest(options.algorithm, SPACES)
        raise ConfigError(f"tune knows a search space for {' and '.join(SPACES)}, not {options.algorithm!r}.{meant}")
    require_env(options.env)
    if options.env_options:
        from phasegrad import envs

        envs.resolve(options.env, options.env_options)
    parse_settings(options.set)
    coerced("trials", options.trials, int, 1)
    coerced("total_steps", options.steps, int, 1)
    coerced("seed", options.seed, int, 0)
    whole_or_none("jobs", options.jobs, 1)


def check_study(options: argparse.Namespace) -> None:
    for name, value in (("--total-steps", options.steps), ("--eval-episodes", options.eval_episodes)):
        whole_or_none(name, value, 1)
    whole_or_none("--jobs", options.jobs, 1)
    known = [entry.name for entry in (resources.files("phasegrad.studies") / "builtin").iterdir()]
    name = options.name
    if name is not None and f"{name}.toml" not in known and not name.endswith(".toml") and not as_path(name).is_file():
        close = nearest(name, [entry.removesuffix(".toml") for entry in known])
        raise ConfigError(f"Unknown study {name!r}.{close} `phasegrad study` lists all; a file of yours ends in .toml.")


def check_agent(options: argparse.Namespace) -> None:
    """Of the verbs that use a trained agent: that there is something to load, and numbers are numbers."""
    for name, low in (("episodes", 1), ("seed", 0), ("max_steps", 1)):
        whole_or_none(name, getattr(options, name, None), low)
    if getattr(options, "fps", None) is not None:
        coerced("fps", options.fps, float, 0)
    chosen_checkpoint(options.checkpoint)
    if is_address(options.dir):
        parse_address(options.dir)
        return
    path = as_path(options.dir)
    with reading(path):
        is_there = path.exists()
    if not is_there:
        raise RunError(f"{path} does not exist: DIR is a run directory or a saved agent.")


def check_push(options: argparse.Namespace) -> None:
    parse_repository(options.repository)
    check_agent(options)


def check_resume(options: argparse.Namespace) -> None:
    whole_or_none("total_steps", options.total_steps, 1)
    settings = parse_settings(options.set)
    require_run(options.dir)
    if settings:
        require_changeable(as_path(options.dir) / CONFIG, settings)


def require_changeable(config: Path, settings: Mapping[str, str]) -> None:
    """Of a run that goes on: that it may have these settings. What the file has wrong is told when it is loaded."""
    present = read_json_object(config)
    if present.get("algorithm") in algorithm_names():
        changed_settings(settings_of(present["algorithm"]), settings, present)


def check_plot(options: argparse.Namespace) -> None:
    for folder in options.dir:
        require_run(folder)


def check_report(options: argparse.Namespace) -> None:
    for path in map(as_path, options.dir):
        require_no_save(path)
        if not path.is_dir():
            raise RunError(f"{path} is not a directory: give run directories, or a folder that holds some.")


def require_run(folder: str) -> None:
    path = as_path(folder)
    with reading(path / CONFIG):
        is_run = os.path.lexists(path / CONFIG)
    if not is_run:
        require_no_save(path)
        raise RunError(f"{path} is not a run directory: it has no {CONFIG}.")


def require_no_save(path: Path) -> None:
    """Of the verbs that show or continue a training: refuse an agent that was saved apart from it."""
    packed = path.suffix.lower() == ".zip" and path.is_file()
    if packed or ((path / STATE).is_file() and not (path / CONFIG).is_file()):
        raise RunError(
            f"{path} is a saved agent, which has a card and no metrics: name the run directory that it came from."
        )


CHECKS: dict[str, Callable[[argparse.Namespace], None]] = {
    "train": check_train,
    "clone": check_clone,
    "tune": check_tune,
    "study": check_study,
    "resume": check_resume,
    "plot": check_plot,
    "report": check_report,
    "eval": check_agent,
    "video": check_agent,
    "export": check_agent,
    "play": check_agent,
    "save": check_agent,
    "push": check_push,
}
