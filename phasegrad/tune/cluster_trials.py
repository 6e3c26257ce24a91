"""The trials of a search as tasks of a cluster.

The driver draws the settings and records how trials end; a task trains, and reports to the journal in the shared folder,
where it also finds what the other trials reported and so whether to give up.
"""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

from phasegrad.outside import register_entries, registered_outside
from phasegrad.runs.stopping import Interrupted, Terminated
from phasegrad.studies.cluster import Cluster, Ended
from phasegrad.studies.runner import SHOW_SECONDS, Stop, stoppable
from phasegrad.tune.search import INTERRUPTED, Search, ended_trials, require_optuna

IN_WORKER = "phasegrad.tune.cluster_trials:try_in_worker"


@dataclasses.dataclass(frozen=True)
class TrialTask:
    """What a task is told of the search and of its trial."""

    env: str
    env_options: dict[str, Any]
    algorithm: str
    steps: int
    folder: str
    seed: int
    trials: int
    trial_id: int
    parameters: dict[str, Any]
    outside: list[str]  # algorithms that the worker must register
    settings: dict[str, Any]  # of every trial


def run_trials(search: Search, study: Any, trials: int, cluster: Cluster, jobs: int | None) -> None:
    """Try settings until the study holds `trials` of them, as many at a time as the cluster has room for."""
    stop, submitted = Stop(), dict[Any, Any]()
    with cluster.shared(search.folder.absolute()), stoppable(stop, raising=False):
        try:
            while not stop.asked.is_set():
                missing = trials - len(ended_trials(study)) - len(submitted)
                most = min(jobs or cluster.capacity(), cluster.capacity()) or 1
                for _ in range(min(missing, most - len(submitted))):
                    # One at a time: each draw knows of those under way.
                    trial = study.ask()
                    submitted[cluster.submit(IN_WORKER, _task_of(search, trial, trials))] = trial
                if not submitted:
                    return
                for reference in cluster.wait(submitted, SHOW_SECONDS):
                    ended = cluster.result(reference)
                    _record(search, study, submitted.pop(reference), ended)
        finally:
            for reference, ended in cluster.stop(submitted, stop).items():
                _record(search, study, submitted[reference], ended)
    done = len(ended_trials(study))
    sentence = f"stopped with {done} of {trials} trials done; the same command continues."
    raise Terminated(sentence) if stop.number == signal.SIGTERM else Interrupted(sentence)


def _task_of(search: Search, trial: Any, trials: int) -> TrialTask:
    return TrialTask(
        search.env,
        search.fixed["env_options"],
        search.algorithm,
        search.steps,
        str(search.folder.absolute()),
        search.seed,
        trials,
        trial._trial_id,
        search.draw(trial),
        registered_outside(),
        search.settings,
    )


def _record(search: Search, study: Any, trial: Any, ended: Ended) -> None:
    """Close the trial. One that was stopped is tried again by the next call, one that kills its workers is not."""
    states = search.optuna.trial.TrialState
    how, value = ended.value if ended.status == "done" else (ended.status, None)
    if how == "complete":
        study.tell(trial, value)
    elif how == "pruned":
        study.tell(trial, state=states.PRUNED)
    else:
        if how == "cancelled":
            trial.set_user_attr(INTERRUPTED, True)
        elif how != "failed":  # which has left its reason
            trial.set_user_attr("error", ended.message)
        study.tell(trial, state=states.FAIL)
    if how != "cancelled":
        search.after_trial(study, study.trials[trial.number])


def try_in_worker(stop: Stop, task: TrialTask) -> tuple[str, float | None]:
    """In the worker: how the trial ended, and its score."""
    optuna = require_optuna()
    register_entries(task.outside)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    given = (task.env, task.algorithm, task.steps, task.folder, task.seed, task.env_options, print, task.settings)
    search = Search(optuna, *given)
    search.interrupted = stop.asked.is_set
    study = search.join_study(task.trials)
    trial = optuna.trial.Trial(study, task.trial_id)
    try:
        return "complete", search.attempt(trial, task.parameters)
    except optuna.TrialPruned:
        return "pruned", None
    except KeyboardInterrupt:
        return "cancelled", None
    except Exception:  # on the trial's record
        return "failed", None
