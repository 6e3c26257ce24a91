"""What a search for settings is made of: Optuna's record of the trials, what a trial draws, trains and scores.

tuning.py runs the trials in this process, cluster_trials.py as tasks of a cluster, trials.py tells of them. Nothing but
these modules knows about Optuna; page.py and charts.py draw what they are given.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.base import Algorithm
from phasegrad.config import Config
from phasegrad.errors import ConfigError, PhasegradError, PhasegradWarning, RunError
from phasegrad.machine.failures import reason, remedy
from phasegrad.machine.orphans import began, is_running
from phasegrad.machine.paths import as_path
from phasegrad.models.images import is_image, with_images
from phasegrad.presets import resolve_config
from phasegrad.runs.below import open_own
from phasegrad.runs.files import write_json
from phasegrad.runs.reading import REPORT, is_report
from phasegrad.tune.search_spaces import COMMON, VECTORS, search_space
from phasegrad.tune.trials import STAGES, best_row, seconds_for, trial_line, trial_row

JOURNAL, PRESET, TRIALS = "trials.log", "best.json", "trials.json"
STUDY = "phasegrad"  # the name in the journal
INTERRUPTED = "interrupted"  # the mark of a trial that was stopped from outside
EVALUATION_EPISODES = 10
# Settings of a run, not of what is learned: no part of a preset.
MOST_JOURNAL_BYTES = 1 << 28  # thousands of trials
DAMAGED = (
    ValueError,
    KeyError,
    AssertionError,
    TypeError,
    AttributeError,
    IndexError,
    RecursionError,
)  # of Optuna's reading
NOT_IN_PRESET = (
    "env", "env_options", "total_steps", "seed", "preset", "device", "torch_threads", "run_dir", "eval_episodes",
)  # fmt: skip


class Search:
    """One call of `tune`."""

    def __init__(
        self,
        optuna: Any,
        env: str,
        algorithm: str,
        steps: int,
        folder: str | Path | None,
        seed: int,
        env_options: dict[str, Any],
        report: Callable[[str], object],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings` are those of every trial, over its preset's, which are not searched."""
        self.optuna, self.env, self.algorithm, self.seed, self.report = optuna, env, algorithm, seed, report
        self.interrupted: Callable[[], bool] = lambda: False  # asked after each iteration of a trial
        most = max(COMMON["num_envs"].choices)
        self.steps = max(most, steps - steps % most)  # reachable with any number of environments
        # A trial is evaluated once, at its end, by the search: no evaluations of the run's own.
        self.fixed: dict[str, Any] = {"env": env, "env_options": env_options, "torch_threads": 1, "eval_episodes": 0}
        self.settings = dict(settings or {})
        for name in self.settings:
            if name in NOT_IN_PRESET:
                raise ConfigError(f"{name} is no setting that a search can fix: a preset does not hold it.")
            if callable(self.settings[name]):
                raise ConfigError(f"{name} cannot be a function in a search, whose preset is a file: give it as text.")
        self.fixed |= self.settings
        self.trials = 0  # to be tried in all
        self.algorithm_class = ALGORITHMS[algorithm]
        self.folder = as_path(folder or f"tuning/{env.replace('/', '-').replace(':', '-')}-{algorithm}")
        self.require_own()
        # Before any trial: a mistake in what all of them share is the user's to know at once.
        agent = self.algorithm_class(**self.fixed, seed=seed)
        agent.close()
        images = any(is_image(part) for part in _parts(agent))
        space = search_space(algorithm, self.algorithm_class) | ({} if images else VECTORS)
        given = {"discount_left" if name == "gamma" else name for name in self.settings}
        config = agent.config
        if (
            getattr(config, "kl_learning_rate", 0)
            or {"learning_rate", "critic_learning_rate"} & config.schedules().keys()
        ):
            given.add("anneal_learning_rate")  # which would be a second schedule
        self.space = {name: values for name, values in space.items() if name not in given}
        self.baseline = config

    def require_own(self) -> None:
        """Refuse a folder whose files of a search's names no search wrote."""
        taken = [name for name in (JOURNAL, PRESET, TRIALS) if os.path.lexists(self.folder / name)]
        if taken and not is_journal(self.folder / JOURNAL):
            raise RunError(f"{self.folder} holds a {taken[0]} that is no search's: choose another --dir.")
        if os.path.lexists(self.folder / REPORT) and not is_report(self.folder / REPORT):
            raise RunError(f"{self.folder} holds a {REPORT} that is no search's: choose another --dir.")

    def open_study(self, trials: int) -> Any:
        """The study of the folder, new or as it was left."""
        optuna, self.trials = self.optuna, trials
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"The folder {self.folder} cannot be made: {error.strerror}.") from None
        try:
            study = optuna.create_study(
                study_name=STUDY, storage=self.storage(), direction="maximize", load_if_exists=True
            )
        except OSError as error:
            raise RunError(self.lost_journal(error)) from None
        except DAMAGED as error:
            raise RunError(f"{self.folder / JOURNAL} is damaged ({str(error)[:80]}): use another --dir.") from None
        asked = {"env": self.env, "algorithm": self.algorithm, "steps": self.steps}
        asked |= {"env_options": self.fixed["env_options"], "settings": self.settings}
        for name, value in asked.items():
            before = study.user_attrs.get(name, value)
            if before != value:
                raise ConfigError(
                    f"{self.folder} holds a search with {name} {before}, not {value}: use another --dir for this one."
                )
            study.set_user_attr(name, value)
        self.take_up_interrupted(study)
        if not study.trials:
            study.enqueue_trial(self.baseline_parameters())
        # The seed moves on with the trials: a continued search must not draw its first settings again.
        key = int(np.random.SeedSequence((self.seed, len(study.trials))).generate_state(1)[0])
        startup = max(2, min(10, trials // 3))
        study.sampler = optuna.samplers.TPESampler(seed=key, n_startup_trials=startup)
        study.pruner = self.pruner(trials)
        return study

    def join_study(self, trials: int) -> Any:
        """The study as a cluster's task sees it, which draws no settings."""
        return self.optuna.load_study(
            study_name=STUDY,
            storage=self.storage(),
            sampler=self.optuna.samplers.RandomSampler(),
            pruner=self.pruner(trials),
        )

    def lost_journal(self, error: OSError) -> str:
        """The sentence for a search whose journal cannot be written."""
        return f"{self.folder / JOURNAL} could not be written: {reason(error)}; {remedy(error)}, then run the search again."

    def storage(self) -> Any:
        backend = self.optuna.storages.journal.JournalFileBackend(str(self.folder / JOURNAL))
        return self.optuna.storages.JournalStorage(backend)

    def pruner(self, trials: int) -> Any:
        return self.optuna.pruners.MedianPruner(n_startup_trials=max(2, min(5, trials // 4)), n_warmup_steps=2)

    def take_up_interrupted(self, study: Any) -> None:
        """Trials whose process is gone are closed, and their settings tried again."""
        retried = {trial.user_attrs.get("retries") for trial in study.trials}
        for trial in study.trials:
            if trial.state.name == "RUNNING" and not _is_alive(trial.user_attrs.get("process", "")):
                study._storage.set_trial_user_attr(trial._trial_id, INTERRUPTED, True)
                study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
            elif INTERRUPTED not in trial.user_attrs:
                continue
            if trial.number not in retried:
                study.enqueue_trial(trial.params, user_attrs={"retries": trial.number})

    def baseline_parameters(self) -> dict[str, Any]:
        """The preset's settings as far as the search space holds them."""
        fields = dataclasses.asdict(self.baseline)
        fields["discount_left"] = 1 - fields["gamma"]
        if "hidden_sizes" in fields:
            fields["hidden_sizes"] = ",".join(map(str, fields["hidden_sizes"]))
        return {name: fields[name] for name, values in self.space.items() if values.holds(fields.get(name))}

    def objective(self, trial: Any) -> float:
        return self.attempt(trial, self.draw(trial))

    def draw(self, trial: Any) -> dict[str, Any]:
        """The settings of a trial, which is this process's now."""
        trial.set_user_attr("process", f"{socket.gethostname()}:{os.getpid()} {began(os.getpid()) or ''}".strip())
        return {name: values.suggest(trial, name) for name, values in self.space.items()}

    def attempt(self, trial: Any, parameters: Mapping[str, Any]) -> float:
        """What the settings score; how it went is on the trial's record."""
        started = time.monotonic()
        try:
            return self.score(trial, self.as_fields(parameters))
        except PhasegradError as error:
            trial.set_user_attr("error", str(error))
            raise
        except KeyboardInterrupt:
            trial.set_user_attr(INTERRUPTED, True)
            raise
        except self.optuna.TrialPruned:
            raise
        except Exception as error:  # a trial that breaks must not end the search; what broke is on record
            trial.set_user_attr("error", f"{type(error).__name__}: {error}")
            raise
        finally:
            trial.set_user_attr("seconds", time.monotonic() - started)

    def as_fields(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        fields = dict(parameters)
        if "discount_left" in fields:
            fields["gamma"] = 1 - fields.pop("discount_left")
        return fields

    def score(self, trial: Any, fields: dict[str, Any]) -> float:
        agent: Algorithm = self.algorithm_class(**self.fixed, **fields, seed=self.seed + trial.number)
        trial.set_user_attr("preset", self.preset_of(agent.config))
        reported = 0
        pruned = False

        def watch(row: dict[str, Any]) -> bool:
            nonlocal reported, pruned
            if self.interrupted():
                raise KeyboardInterrupt
            stage = STAGES * row["step"] // self.steps
            if not math.isnan(row["return_mean"]):  # an episode has ended
                for due in range(reported + 1, stage + 1):
                    trial.report(row["return_mean"], due)
                reported = max(reported, stage)
                pruned = stage < STAGES and trial.should_prune()
            return not pruned

        try:
            agent.learn(self.steps, callback=watch)
            if pruned:
                raise self.optuna.TrialPruned
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", PhasegradWarning
                )  # of episodes that were cut, which the trial's line says
                found = agent.evaluate(EVALUATION_EPISODES, seed=self.seed)
            trial.set_user_attr("episodes", EVALUATION_EPISODES)
            trial.set_user_attr("episodes_cut", int(getattr(found, "cut", 0)))
            return found.return_mean
        finally:
            agent.close()

    def preset_of(self, config: Config) -> dict[str, Any]:
        """What distinguishes a config from the plain defaults: all that a preset file must say."""
        plain = resolve_config(type(config), {"preset": "none"}).to_json()
        fields = {
            name: value
            for name, value in config.to_json().items()
            if name not in NOT_IN_PRESET and value != plain.get(name)
        }
        return {"algorithm": self.algorithm, **fields}

    def after_trial(self, study: Any, trial: Any) -> None:
        """Tell of a trial that has ended, and keep what is known by now."""
        if trial.state.name == "COMPLETE":
            self.write(study)
        rows = self.rows(study)
        left = self.trials - len(rows)
        row = trial_row(trial, self.settings_of(trial))
        self.report(trial_line(row, best_row(rows), left, seconds_for(rows, left)))

    def settings_of(self, trial: Any) -> dict[str, Any]:
        return self.as_fields(trial.params)

    def rows(self, study: Any) -> list[dict[str, Any]]:
        """Every trial that counts, as plain data."""
        return [trial_row(trial, self.settings_of(trial)) for trial in ended_trials(study)]

    def write(self, study: Any) -> None:
        """The best trial as a preset file, and all trials as a table for other programs."""
        write_json(self.folder / PRESET, study.best_trial.user_attrs["preset"], "run the search again")
        write_json(self.folder / TRIALS, self.rows(study), "run the search again")


def is_journal(path: Path) -> bool:
    """Whether this is the record of a search, or the place of one."""
    try:
        with open(open_own(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_JOURNAL_BYTES:
                return False
            entry = json.loads(file.readline(1 << 20) or b'{"op_code": 0}')
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and "op_code" in entry


def ended_trials(study: Any) -> list[Any]:
    """Trials that count; one that was interrupted is tried again."""
    return [t for t in study.trials if t.state.is_finished() and INTERRUPTED not in t.user_attrs]


def _is_alive(owner: str) -> bool:
    """Whether the process "HOST:PID BEGINNING" of a trial still runs; another machine's has the benefit of the doubt."""
    owner, _, since = owner.partition(" ")
    host, _, pid = owner.rpartition(":")
    if not pid.isdigit():
        return False
    if host != socket.gethostname():
        return True
    if int(pid) == os.getpid():
        return False  # an earlier call in this process
    return is_running(int(pid)) and (not since or began(int(pid)) in (None, since))


def _parts(agent: Algorithm) -> list[Any]:
    space = with_images(agent.agent.observation_space, agent.config.encoder, agent.config.images)
    return list(getattr(space, "spaces", {"": space}).values())


def require_optuna() -> Any:
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise RunError(f'Tuning needs Optuna ({error}): pip install "phasegrad[tune]".') from None
    return optuna
