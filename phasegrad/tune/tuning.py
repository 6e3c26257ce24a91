"""`tune`: a search for good settings with Optuna that can be stopped and continued; the best ones as a preset file.

Each trial is a short run in this process on one thread of torch, or in a task of a cluster.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phasegrad.algorithms import ALGORITHMS
from phasegrad.errors import ConfigError, RunError, nearest, visible
from phasegrad.outside import is_outside
from phasegrad.runs.files import write_atomically
from phasegrad.runs.reading import REPORT
from phasegrad.studies.cluster import connect
from phasegrad.studies.cluster_place import Place, parse_place
from phasegrad.tune.cluster_trials import run_trials
from phasegrad.tune.page import SearchData, render
from phasegrad.tune.search import EVALUATION_EPISODES, PRESET, Search, ended_trials, require_optuna
from phasegrad.tune.search_spaces import SPACES
from phasegrad.tune.trials import importances_of, importances_text


@dataclass(frozen=True)
class Tuning:
    """What a search found."""

    preset: Path
    algorithm: str
    env: str
    best_return: float
    counts: dict[str, int]  # trials by how they ended: complete, pruned, failed
    importances: dict[str, float] = field(
        default_factory=dict
    )  # share of each setting, largest first; {} for few trials
    page: Path | None = None  # the trials in pictures

    def describe(self) -> str:
        """For the console: the result and what to do with it."""
        counted = ", ".join(f"{count} {state}" for state, count in self.counts.items() if count)
        lines = [f"best return {self.best_return:,.2f} of {sum(self.counts.values())} trials ({counted})"]
        if self.importances:
            lines.append(importances_text(self.importances))
        if self.page is not None:
            lines.append(f"page: {self.page}")
        return "\n".join([*lines, f"next: {train_command(self.algorithm, self.env, self.preset)}"])


def train_command(algorithm: str, env: str, preset: Path) -> str:
    """The command that uses what was found."""
    return shlex.join(["phasegrad", "train", algorithm, "--env", env, "--preset", str(preset)])


def tune(
    env: str,
    *,
    algorithm: str = "ppo",
    trials: int = 20,
    steps: int = 100_000,
    folder: str | Path | None = None,
    seed: int = 1,
    env_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    report: Callable[[str], object] | None = None,
    cluster: str | None = None,
    jobs: int | None = None,
    cpus_per_run: float | str | None = None,
    gpus_per_run: float | str | None = None,
) -> Tuning:
    """Try settings until `folder` holds `trials` of them, and write the best as `folder`/best.json.

    The first trial is the environment's preset. A trial is scored by the mean return of a deterministic evaluation
    after `steps`, and stopped early where its return while learning is below the median of earlier trials. Calling
    again with the same folder goes on. `settings` are fixed for all trials, such as {"memory": "gru"}.

    With `cluster` ("ray", "ray://HOST:10001" or "ray:HOST:PORT") the trials are tasks of that cluster, as many at a time
    as it has room for at `cpus_per_run` and `gpus_per_run`, and at most `jobs`.
    """
    optuna = require_optuna()
    place = parse_place(cluster, cpus_per_run, gpus_per_run)
    if jobs is not None and place is None:
        raise ConfigError("--jobs needs --cluster: without one a search runs one trial after another.")
    if not is_searchable(algorithm):
        raise ConfigError(
            f"tune knows a search space for {' and '.join(SPACES)}, not {algorithm!r}.{nearest(algorithm, SPACES)}"
        )
    search = Search(optuna, env, algorithm, steps, folder, seed, dict(env_options or {}), report or _silent, settings)
    return run_search(search, trials, place, jobs)


def run_search(search: Search, trials: int, place: Place | None, jobs: int | None) -> Tuning:
    """Try what is missing, here or on a cluster, and write what was found; also where it is stopped before its end."""
    study = search.open_study(trials)
    try:
        _try_missing(search, study, trials, place, jobs)
    except BaseException as error:
        if isinstance(error, AssertionError):  # of Optuna, which did not see that its journal was refused
            _probe(search)
        with contextlib.suppress(RunError):  # the first error is the one to tell
            if _complete(study):
                write_page(search, study)
        if isinstance(error, OSError):
            raise RunError(search.lost_journal(error)) from error
        raise
    if not _complete(study):
        errors = [trial.user_attrs["error"] for trial in study.trials if "error" in trial.user_attrs]
        raise RunError(f"No trial was completed in {search.folder}: {errors[-1] if errors else 'all were pruned.'}")
    search.write(study)
    page, importances = write_page(search, study)
    states = [trial.state.name for trial in ended_trials(study)]
    counts = {
        "complete": states.count("COMPLETE"),
        "pruned": states.count("PRUNED"),
        "failed": states.count("FAIL"),
    }
    best = float(study.best_value)
    return Tuning(search.folder / PRESET, search.algorithm, search.env, best, counts, importances, page)


def _try_missing(search: Search, study: Any, trials: int, place: Place | None, jobs: int | None) -> None:
    missing = trials - len(ended_trials(study))
    if missing <= 0:
        return
    head = f"{missing} of {trials} trials of {search.steps:,} steps to go" if missing < trials else f"{trials} trials"
    head += "" if missing < trials else f" of {search.steps:,} steps"
    head += f"; return: mean of {EVALUATION_EPISODES} evaluation episodes at a trial's end"
    cluster = connect(place) if place is not None else None
    if cluster is not None:
        with cluster:
            search.report(cluster.describe())
            search.report(head)
            run_trials(search, study, trials, cluster, jobs)
        return
    search.report(head)
    study.optimize(search.objective, n_trials=missing, catch=(Exception,), callbacks=[search.after_trial])


def _probe(search: Search) -> None:
    """A sentence, where a file of the search's folder cannot grow any more."""
    probe = search.folder / f".probe.{os.getpid()}.tmp"
    try:
        probe.write_bytes(bytes(1 << 16))
    except OSError as error:
        raise RunError(search.lost_journal(error)) from None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _complete(study: Any) -> bool:
    return any(trial.state.name == "COMPLETE" for trial in study.trials)


def write_page(search: Search, study: Any) -> tuple[Path, dict[str, float]]:
    """report.html in the search's folder, and the importances that it shows."""
    importances = importances_of(search.optuna, study, _shown_name)
    spaces = {_shown_name(name): values for name, values in search.space.items()}
    data = SearchData(
        env=search.env,
        algorithm=search.algorithm,
        steps=search.steps,
        episodes=EVALUATION_EPISODES,
        rows=search.rows(study),
        importances=importances,
        spaces=spaces,
        preset=search.folder / PRESET,
        command=train_command(search.algorithm, search.env, search.folder / PRESET),
    )
    path = search.folder / REPORT
    write_atomically(path, visible(render(data)).encode(errors="replace"), "run the search again")
    return path, importances


def _shown_name(name: str) -> str:
    """A setting by the name that `train` has for it: the search draws 1 - gamma."""
    return "gamma" if name == "discount_left" else name


def is_searchable(algorithm: str) -> bool:
    """Whether there is a search space: the baselines have none, since no ranges have been tried on them."""
    return algorithm in SPACES or (algorithm in ALGORITHMS and is_outside(ALGORITHMS[algorithm]))


def _silent(line: str) -> None: ...
