"""One MLflow run for one run directory, kept by a thread of its own: a store may take its time, or not be there.

What goes wrong in the thread is told by the next call from outside it.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phasegrad.errors import RunError
from phasegrad.runs.tracking import curves, flat, known_id, remember_id
from phasegrad.versions import __version__

SECONDS_TO_END = 120.0  # that the end of a run waits for what is not written yet
MOST_METRICS, MOST_PARAMS, LONGEST = 1000, 100, 500  # in one request; letters of a value
EXPERIMENT = "phasegrad"


class Mlflow:
    """Metrics by their step, settings as parameters, algorithm and environment as tags."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.store = Store(folder, about)
        self.waiting: queue.SimpleQueue[Callable[[], None] | Mapping[str, Any] | None] = queue.SimpleQueue()
        self.failed: Exception | None = None
        self.is_over = False
        self.thread = threading.Thread(target=self._work, name="phasegrad-mlflow", daemon=True)
        self.thread.start()

    def write(self, metrics: Mapping[str, Any]) -> None:
        self._put({"metrics": curves(metrics), "step": int(metrics["step"]), "time": int(time.time() * 1000)})

    def finish(self, result: Mapping[str, Any]) -> None:
        self._put(lambda: self.store.write_result(result))
        self.is_over = True

    def close(self) -> None:
        status = "FINISHED" if self.is_over else "KILLED"
        if self.failed is None:
            self.waiting.put(lambda: self.store.end(status))
        self.waiting.put(None)
        self.thread.join(SECONDS_TO_END)
        self._tell()
        if self.thread.is_alive():
            raise RunError(f"its store has not taken all of the run within {SECONDS_TO_END:g} s")

    def _put(self, item: Callable[[], None] | Mapping[str, Any]) -> None:
        self._tell()
        self.waiting.put(item)

    def _tell(self) -> None:
        failed, self.failed = self.failed, None
        if failed is not None:
            raise failed

    def _work(self) -> None:
        """Rows that have come together go in one request."""
        try:
            self.store.begin()
            item = self.waiting.get()
            while item is not None:
                rows = []
                while isinstance(item, Mapping):
                    rows.append(item)
                    try:
                        item = self.waiting.get_nowait()
                    except queue.Empty:
                        break
                self.store.write(rows)
                if callable(item):
                    item()
                item = self.waiting.get() if item is not None else None
        except Exception as error:
            self.failed = error


class Store:
    """What is asked of MLflow, all of it in the thread; the client leaves a run that the user has begun alone."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about = folder, about

    def begin(self) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient()
        known = known_id(self.folder, "mlflow")
        self.id = known if known is not None and self._goes_on(known) else self._made()
        self._write_params()

    def _goes_on(self, known: str) -> bool:
        """Take up the run again; a store that has none of that id gets a new one."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.update_run(known, status="RUNNING")
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return True

    def _made(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self.client.get_experiment_by_name(name)
        experiment = self.client.create_experiment(name) if found is None else found.experiment_id
        tags = {each: str(self.about[each]) for each in ("algorithm", "env") if self.about.get(each)}
        tags |= {"phasegrad": __version__, "run_dir": str(self.folder.resolve())}
        made = str(self.client.create_run(experiment, tags=tags, run_name=self.folder.resolve().name).info.run_id)
        remember_id(self.folder, "mlflow", made)
        return made

    def _write_params(self) -> None:
        """MLflow lets no parameter change: of a run that goes on, those that it has stay."""
        from mlflow.entities import Param

        there = self.client.get_run(self.id).data.params
        params = [Param(name, str(value)[:LONGEST]) for name, value in self.about.items() if name not in there]
        for first in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(self.id, params=params[first : first + MOST_PARAMS])

    def write(self, rows: list[Mapping[str, Any]]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, float(value), row["time"], row["step"])
            for row in rows
            for name, value in row["metrics"].items()
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(self.id, metrics=metrics[first : first + MOST_METRICS])

    def write_result(self, result: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric, RunTag

        now, step, found = int(time.time() * 1000), int(result["step"]), flat(result)
        numbers = {name: value for name, value in found.items() if isinstance(value, (int, float))}
        tags = [RunTag(name, str(value)[:LONGEST]) for name, value in found.items() if name not in numbers]
        self.client.log_batch(self.id, [Metric(name, float(value), now, step) for name, value in numbers.items()], tags=tags)  # fmt: skip

    def end(self, status: str) -> None:
        self.client.set_terminated(self.id, status)
