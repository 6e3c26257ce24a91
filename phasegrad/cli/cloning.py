"""The verb clone: a run directory whose policy is fitted to demonstrations, for `resume` to train on. Imports torch inside."""

from __future__ import annotations

import argparse
import os
from typing import Any

from phasegrad.cli.values import coerced
from phasegrad.errors import ConfigError

# Options of the fitting and their settings; those of the algorithm have the plain names.
SETTINGS: dict[str, tuple[str, type, str]] = {
    "clone_epochs": ("epochs", int, "maximum passes over the data; the held-out loss may stop it sooner (default 100)"),
    "clone_minibatch": ("minibatch_size", int, "steps per minibatch (default 128)"),
    "clone_learning_rate": ("learning_rate", float, "Adam's step size while cloning (default 1e-3)"),
    "clone_held_out": ("held_out", float, "share of the episodes held out to decide when to stop (default 0.1)"),
    "clone_least_std": (
        "least_std",
        float,
        "smallest std of continuous actions, as a share of half their range (default 0.2)",
    ),
}


def fitting_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of the fitting that were given."""
    given = {name: getattr(options, name) for name in SETTINGS if getattr(options, name) is not None}
    return {SETTINGS[name][0]: coerced(name, value, SETTINGS[name][1], 0) for name, value in given.items()}


def require_data(data: str | None) -> None:
    if not data:
        raise ConfigError("--data is missing: give an .npz of a demonstrator's steps, or minari:ID.")
    if not data.startswith("minari:") and not os.path.isfile(os.path.expanduser(data)):
        raise ConfigError(f"--data {data} does not exist: give an .npz of a demonstrator's steps, or minari:ID.")


def run_clone(options: argparse.Namespace) -> int:
    from phasegrad.algorithms import ALGORITHMS
    from phasegrad.cli.early import run_directory
    from phasegrad.config import documented_fields
    from phasegrad.runs.directory import RunDirectory
    from phasegrad.runs.session import write_start

    algorithm = ALGORITHMS[options.algorithm]
    fields = {name: value for name, value in vars(options).items() if name in documented_fields(algorithm.config_class)}
    fields["env_options"] = options.env_options
    path = run_directory(options, fields)
    RunDirectory(path).require_free(options.overwrite)
    agent = algorithm(run_dir=path, overwrite=options.overwrite, **fields)
    try:
        result = agent.clone(options.data, **fitting_settings(options))
        write_start(agent)
    finally:
        agent.close()
    if not options.quiet:
        print(f"{result.describe()}.\n{path} begins with it: `phasegrad resume {path}` trains it on.")
    return 0
