"""The runs of a study as tasks of a cluster: the same commands, folders and table as on one machine."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phasegrad.runs.lock import is_held
from phasegrad.studies.cluster import Cluster
from phasegrad.studies.grid import PlannedRun
from phasegrad.studies.progress import StudyDisplay
from phasegrad.studies.runner import (
    POLL_SECONDS,
    SHOW_SECONDS,
    Outcome,
    Stop,
    StudyStopped,
    execute,
    in_order,
    noted,
    open_log,
    stoppable,
)

MOST_IN_FLIGHT = 1000  # handed to the cluster at a time, which starts as many as it has room for
SECONDS_TO_FREE = 120.0  # a server of network files lets go of a dead machine's lock after about 90


def run_on_cluster(
    cluster: Cluster,
    runs: Sequence[PlannedRun],
    jobs: int | None,
    display: StudyDisplay,
    root: Path,
    ended: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Execute the runs as tasks, at most `jobs` in flight; a failed one does not stop the others. `ended` hears of each."""
    stop, outcomes = Stop(), list[Outcome]()
    waiting, submitted = deque(in_order(runs)), dict[Any, PlannedRun]()
    unseen: dict[Any, int] = {}  # the log's size when a run was submitted: it grows when the run starts
    with cluster.shared(root), stoppable(stop, raising=False):
        try:
            while waiting or submitted:
                while waiting and len(submitted) < (jobs or MOST_IN_FLIGHT):
                    run = waiting.popleft()
                    size = _size(run.log)
                    reference = cluster.submit("phasegrad.studies.cluster_runs:run_in_worker", run)
                    submitted[reference], unseen[reference] = run, size
                for reference in cluster.wait(submitted, SHOW_SECONDS):
                    outcome = _outcome(cluster, submitted[reference], reference)
                    _notice(reference, unseen, submitted, display, ended=True)
                    del submitted[reference]
                    outcomes.append(outcome)
                    display.ended(outcome.run, outcome.status, outcome.message)
                    if ended:
                        ended(outcome)
                for reference in list(unseen):
                    _notice(reference, unseen, submitted, display)
                display.refresh()
                if stop.asked.is_set():
                    raise StudyStopped(stop.number)
        finally:
            display.close()
            if submitted:
                cluster.stop(submitted, stop)
    return outcomes


def _outcome(cluster: Cluster, run: PlannedRun, reference: Any) -> Outcome:
    ended = cluster.result(reference)
    if ended.status == "done":
        return Outcome(run, *ended.value)
    return noted(Outcome(run, "stopped" if ended.status == "cancelled" else "failed", ended.message))


def _notice(
    reference: Any, unseen: dict[Any, int], submitted: dict[Any, PlannedRun], display: StudyDisplay, ended: bool = False
) -> None:
    """Tell the display of a run that has started, which shows in its log, for the cluster does not say."""
    run = submitted[reference]
    if reference in unseen and (ended or _size(run.log) > unseen[reference]):
        del unseen[reference]
        display.started(run)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def run_in_worker(stop: Stop, run: PlannedRun) -> tuple[str, str]:
    """In the worker: the run's status and message. A second attempt goes on from the first one's checkpoint."""
    with open_log(run.log) as log:
        log.write(f"$ # on {socket.gethostname()}\n".encode())
    # The study's own lock stays with the driver; here it is the run's that matters. The processes of an attempt whose
    # worker died die with it (see bound_process.py), but that takes a moment, and longer where the lock is a file server's.
    deadline = time.monotonic() + SECONDS_TO_FREE
    while is_held(run.folder) and time.monotonic() < deadline and not stop.asked.is_set():
        time.sleep(POLL_SECONDS)
    if stop.asked.is_set():
        return "stopped", ""
    outcome = execute(run, stop, bound=True)
    return outcome.status, outcome.message
