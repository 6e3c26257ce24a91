"""The verbs that train: train, resume, tune and study. Heavy imports happen inside them, so that errors come at once."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasegrad.cli.values import coerced, whole_or_none
from phasegrad.config import parse_settings
from phasegrad.errors import ConfigError, RunError

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm
    from phasegrad.runs.directory import RunDirectory


def run_train(options: argparse.Namespace) -> int:
    from phasegrad.algorithms import ALGORITHMS
    from phasegrad.config import documented_fields
    from phasegrad.distributed import joining as parallel
    from phasegrad.runs.directory import RunDirectory

    algorithm = ALGORITHMS[options.algorithm]
    fields = {name: value for name, value in vars(options).items() if name in documented_fields(algorithm.config_class)}
    fields["env_options"] = options.env_options
    require_env(fields.get("env"))
    seed = fields.get("seed", 1)
    path = options.run_dir or f"runs/{fields['env'].replace('/', '-').replace(':', '-')}-{options.algorithm}-s{seed}"
    directory = RunDirectory(path)

    def is_to_continue(restarted: bool) -> bool:
        """Whether the directory's run goes on: asked for, or begun by this torchrun, which has restarted since."""
        if restarted and directory.begun_by(parallel.launch_id()):
            return True
        if options.resume and directory.exists():
            require_same_run(directory, algorithm, fields)
            return True
        directory.require_free(options.overwrite)
        return False

    with parallel.joined() as ranks:
        restarted = ranks.any(parallel.restarted())  # not every machine's torchrun counts another's restart
        if ranks.from_first(lambda: is_to_continue(restarted)):
            settings = {"track": fields["track"]} if "track" in fields else {}
            return continue_run(path, None, options.quiet, is_named(directory, fields), settings)
        agent = algorithm(run_dir=path, overwrite=options.overwrite, **fields)
        try:
            with shown(options.quiet):
                agent.learn(progress=not options.quiet)
        finally:
            agent.close()
    return 0


@contextlib.contextmanager
def shown(quiet: bool) -> Iterator[None]:
    """While a command trains: its display has the terminal, and its last words are commands."""
    from phasegrad.runs.ending import told_in_commands
    from phasegrad.runs.screen import keys_unseen

    with told_in_commands(), contextlib.nullcontext() if quiet else keys_unseen():
        yield


def require_env(env: str | None) -> None:
    if not env:
        raise ConfigError("--env is missing: give an environment id such as CartPole-v1; `phasegrad envs` lists them.")


def require_same_run(directory: RunDirectory, algorithm: type[Algorithm], fields: Mapping[str, Any]) -> None:
    """Refuse to continue a run that is not the one whose settings are given; a total may have grown since."""
    from phasegrad.config import coerce_fields, first_difference

    found = directory.read_config()
    given = coerce_fields(algorithm.config_class, {name: v for name, v in fields.items() if name != "total_steps"})
    given["env_options"] = {**found.get("env_options", {}), **given["env_options"]}  # a preset may have added some
    differs = first_difference({"algorithm": algorithm.name, **given}, found)
    if differs:
        name, there, value = differs
        raise ConfigError(
            f"Run directory {directory.path} holds a run with {name} {there!r}, not {value!r}: use another --run-dir, or "
            f"`phasegrad resume {directory.path}` to continue that run."
        )


def is_named(directory: RunDirectory, fields: Mapping[str, Any]) -> bool:
    """Whether the user has named the environment that a run's files have, and its options that may be paths.

    Then it is they who ask for its module and for those, and not the file.
    """
    from phasegrad import envs

    found = directory.read_config()
    if str(found.get("env")) != fields["env"] or has_moved(directory.path):
        return False
    options = found.get("env_options")
    asked = envs.beyond_files(fields["env"], options, str(found.get("backend"))) if isinstance(options, dict) else []
    return all(name in fields["env_options"] for name in asked)


def has_moved(run_dir: Path) -> bool:
    """Whether the run has been moved to another environment than its config.json names."""
    from phasegrad.runs.changing import ChangesFile

    return any("env" in change.after for change in ChangesFile(run_dir).recorded)


def continue_run(
    path: str,
    total_steps: str | None,
    quiet: bool,
    allow_import: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> int:
    from phasegrad.algorithms.loading import go_on_with, load, restart
    from phasegrad.runs.directory import RunDirectory

    settings = dict(settings or {})
    wanted = whole_or_none("total_steps", settings.pop("total_steps", total_steps), 1)
    directory = RunDirectory(path)
    directory.read_config()  # says so where this is no run
    if directory.checkpoints():
        agent = load(path, allow_import=allow_import, device=settings.get("device"))
    else:  # killed before its first checkpoint: the run starts again from its config
        if directory.is_finished():
            raise RunError(
                f"{path} is finished and its checkpoints are gone, so it cannot go on: `phasegrad train` with --overwrite "
                "starts it again."
            )
        agent = restart(path, allow_import=allow_import, device=settings.get("device"))
    go_on_with(agent, settings)
    step, configured = agent.progress.step, agent.config.total_steps
    total = configured if wanted is None else wanted
    if total < step:
        raise ConfigError(f"--total-steps {total} is below the {step} steps that {path} has taken: give a larger one.")
    if step == total:
        if step >= configured and not agent.ranks.from_first(lambda: directory.has_result(step)):
            from phasegrad.runs.session import record_result

            record_result(agent)
        if not quiet and agent.ranks.is_first:
            print(f"{path} has reached its {total:,} steps already; --total-steps N goes further.")
        return 0
    try:
        with shown(quiet):
            agent.learn(total, progress=not quiet)
    finally:
        agent.close()
    return 0


def run_resume(options: argparse.Namespace) -> int:
    from phasegrad.distributed import joining as parallel

    with parallel.joined():
        settings = parse_settings(options.set)
        return continue_run(options.dir, options.total_steps, options.quiet, options.allow_import, settings)


def run_tune(options: argparse.Namespace) -> int:
    from phasegrad.tune.tuning import tune

    require_env(options.env)
    result = tune(
        options.env,
        algorithm=options.algorithm,
        trials=coerced("trials", options.trials, int, 1),
        steps=coerced("steps", options.steps, int, 1),
        folder=options.dir,
        seed=coerced("seed", options.seed, int, 0),
        env_options=options.env_options,
        settings=parse_settings(options.set),
        report=None if options.quiet else print,
        cluster=options.cluster,
        jobs=whole_or_none("jobs", options.jobs, 1),
        cpus_per_run=options.cpus_per_run,
        gpus_per_run=options.gpus_per_run,
    )
    print(result.describe())
    return 0


def run_study(options: argparse.Namespace) -> int:
    from phasegrad.studies.command import run_study as run

    return run(options)
