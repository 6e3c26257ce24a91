"""Ray: the connection to a cluster, and tasks on it with declared resources, retries and stops.

Nothing but this module knows about Ray, and it knows nothing of studies: a task is a function of this package by its
name, `module:function`, which gets a `Stop` and what it was submitted with.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from phasegrad.errors import ConfigError, PhasegradWarning, RunError
from phasegrad.machine.orphans import dying_with_parent
from phasegrad.machine.processors import usable_processors
from phasegrad.runs.below import read_start, remove_file
from phasegrad.runs.files import write_atomically
from phasegrad.studies.cluster_place import Place
from phasegrad.studies.runner import POLL_SECONDS, SECONDS_TO_STOP, Stop
from phasegrad.versions import __version__

RETRIES = 3  # of a task whose worker or node is lost; one that fails by itself is not tried again
MARKER = ".cluster"  # a file in the folder that all nodes must see
SECONDS_TO_SEE = 10.0  # how long a network file system may take to show a new file
SECONDS_TO_KILL = 10.0
SECONDS_TO_ANSWER = 10.0
OBJECT_STORE_BYTES = 80 * 2**20  # about Ray's least: tasks exchange a few kilobytes
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # what Ray tells the driver of lost workers goes past log_to_driver
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a task without GPUs sees none
}


@dataclass(frozen=True)
class Ended:
    """How a task ended: done (with what it returned), lost (its workers died), broken (it raised) or cancelled."""

    status: str
    value: Any = None
    message: str = ""


def connect(place: Place) -> Cluster | None:
    """The cluster, joined or started; None, with a warning that says what to install, where there is no Ray."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)  # read when Ray is imported
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        warnings.warn(
            '--cluster needs Ray, which is not installed: pip install "phasegrad[cluster]"; '
            "until then everything runs on this machine without it.",
            PhasegradWarning,
            stacklevel=2,
        )
        return None
    logging.getLogger("ray").setLevel(logging.ERROR)
    main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main_thread else None
    if place.address:
        _require_answer(place.address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            origin = _initialise(ray, place.address)
    except Exception as error:  # Ray raises whatever its layers do
        where = place.address or os.environ.get("RAY_ADDRESS") or "of this machine"
        # Ray sends its token only where it is told to, and a refused connection looks like any other.
        hint = "" if os.environ.get("RAY_AUTH_MODE") else "; one that asks for a token needs RAY_AUTH_MODE=token here"
        raise RunError(f"The Ray cluster {where} cannot be used ({_first_line(error)}){hint}.") from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)  # Ray takes it
    return Cluster(ray, place, origin)


def _require_answer(address: str) -> None:
    """Ray itself takes half a minute to say that nothing answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise RunError(f"No Ray cluster answers at {address} ({_first_line(error)}).") from None


def _initialise(ray: Any, address: str) -> str:
    """Join the cluster, or start one in this process: joined, started, or found where the caller had joined one."""
    if ray.is_initialized():
        return "found"
    quietly: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address or os.environ.get("RAY_ADDRESS"):
        ray.init(address=address or None, **quietly)
        return "joined"
    own = {
        "num_cpus": usable_processors(),
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_node_ip_address": "127.0.0.1",  # reachable from this machine alone
    }
    try:
        ray.init(**own, **quietly)
    except ValueError:  # there is one that `ray start` began on this machine, and it has its own idea of these
        try:
            ray.init(**quietly)
            return "joined"
        except ConnectionError:  # there was one
            ray.init(address="local", **own, **quietly)
    return "started"


class Cluster:
    """A connection; closing it ends a cluster that was started for it, and leaves one that was joined."""

    def __init__(self, ray: Any, place: Place, origin: str) -> None:
        """`origin`: as `_initialise` gives it."""
        self.ray, self.place, self.origin = ray, place, origin
        self.folder, self.token = "", ""  # of `shared`
        self.remote = ray.remote(_portable()).options(
            num_cpus=place.cpus, num_gpus=place.gpus, max_retries=RETRIES, retry_exceptions=False
        )

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.origin != "found":
            self.ray.shutdown()

    def capacity(self) -> int:
        """How many tasks fit on the nodes there are, were nobody else using them."""
        fits = 0
        for node in self.ray.nodes():
            if node["Alive"]:
                shares = [node["Resources"].get("CPU", 0) / self.place.cpus]
                if self.place.gpus:
                    shares.append(node["Resources"].get("GPU", 0) / self.place.gpus)
                fits += int(min(shares) + 1e-9)
        return fits

    def describe(self) -> str:
        """For the console; a task that no node has room for is refused or, where nodes may join, waits with a warning."""
        room, nodes = self.capacity(), sum(node["Alive"] for node in self.ray.nodes())
        if not room:
            wanted = f"{self.place.cpus:g} CPUs and {self.place.gpus:g} GPUs"
            if self.origin == "started":
                raise ConfigError(f"This machine has no room for a run with {wanted}: ask for less.")
            warnings.warn(
                f"No node of the cluster has {wanted}: the runs wait for one to join.", PhasegradWarning, stacklevel=2
            )
        return f"Ray cluster {self.origin}: {nodes} {'node' if nodes == 1 else 'nodes'}, room for {room} at a time"

    @contextmanager
    def shared(self, folder: Path) -> Iterator[None]:
        """Tasks work in this folder, which every node must see: they look for a mark in it first."""
        self.folder, self.token = str(folder), uuid.uuid4().hex
        write_atomically(folder / MARKER, self.token.encode())
        try:
            yield
        finally:
            remove_file(folder / MARKER)

    def submit(self, function: str, *arguments: Any) -> Any:
        """Have `function(stop, *arguments)` run somewhere; a reference to what comes of it."""
        path = [entry or os.getcwd() for entry in sys.path]
        # By reference, within a list: a worker must not unpack objects of this package before it can import it.
        task = [self.ray.put((self.folder, self.token, function, arguments))]
        return self.remote.remote(path, os.getcwd(), __version__, task)

    def wait(self, references: Collection[Any], seconds: float) -> list[Any]:
        """Those that have ended, after at most this time; as soon as there is one."""
        try:
            ended, _ = self.ray.wait(list(references), num_returns=1, timeout=seconds)
        except ConnectionError as error:
            raise RunError(
                f"The connection to the cluster is lost ({_first_line(error)}); the same command continues."
            ) from None
        return list(ended)

    def result(self, reference: Any) -> Ended:
        """How a task ended; a node that cannot work for us ends everything."""
        errors = self.ray.exceptions
        try:
            status, value = self.ray.get(reference)
        except errors.TaskCancelledError:
            return Ended("cancelled")
        except errors.RayTaskError as error:
            return Ended("broken", message=f"{type(error.cause).__name__}: {_first_line(error.cause)}")
        except errors.RayError as error:
            return Ended("lost", message=f"its worker or node was lost {RETRIES + 1} times ({type(error).__name__})")
        if status == "unusable":
            raise RunError(value)
        return Ended("done", value)

    def stop(self, references: Collection[Any], stop: Stop) -> dict[Any, Ended]:
        """End tasks in order, and at once where that takes too long or the user asks again; how each ended."""
        left, ended = set(references), dict[Any, Ended]()

        def collect(seconds: float) -> None:
            for reference in self.wait(left, seconds):
                left.discard(reference)
                try:
                    ended[reference] = self.result(reference)
                except RunError as error:
                    ended[reference] = Ended("broken", message=str(error))

        for reference in left:
            self.ray.cancel(reference)  # SIGINT where it runs, and out of the queue where it does not
        deadline = time.monotonic() + SECONDS_TO_STOP + SECONDS_TO_KILL
        while left and time.monotonic() < deadline and not stop.at_once.is_set():
            collect(POLL_SECONDS)
        for reference in left:
            self.ray.cancel(reference, force=True)  # its worker dies, and what that started with it
        deadline = time.monotonic() + SECONDS_TO_KILL
        while left and time.monotonic() < deadline:
            collect(POLL_SECONDS)
        return ended | dict.fromkeys(left, Ended("cancelled"))


def _portable() -> Callable[..., tuple[str, Any]]:
    """What Ray runs. A function within a function travels whole, so it can say that a node has no phasegrad."""

    def work(path: list[str], directory: str, version: str, task: list[Any]) -> tuple[str, Any]:
        import importlib
        import os
        import socket
        import sys

        # The driver's imports and relative paths are the task's: a checkout on PYTHONPATH works without installing it.
        sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
        if os.path.isdir(directory):
            os.chdir(directory)
        try:
            from phasegrad.studies.cluster import perform
            from phasegrad.versions import __version__ as found
        except ImportError as error:
            return "unusable", f"Node {socket.gethostname()} cannot run phasegrad ({error}): install the same there."
        if found != version:
            return "unusable", f"Node {socket.gethostname()} has phasegrad {found}, not {version}: install the same."
        ray: Any = importlib.import_module("ray")
        return perform(*ray.get(task[0]))

    return work


def perform(folder: str, token: str, function: str, arguments: Sequence[Any]) -> tuple[str, Any]:
    """In the worker: call the task's function, with a Stop that a cancelled task's SIGINTs reach."""
    if not sees(Path(folder), token):
        return "unusable", (
            f"Node {socket.gethostname()} does not see {folder} as this machine does: "
            "--dir must be in a folder that all nodes of the cluster share."
        )
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    stop = Stop()
    before = signal.signal(signal.SIGINT, lambda number, frame: stop.ask(number))
    try:
        # A worker whose node agent has died would finish its task all the same, while the cluster tries it elsewhere.
        with dying_with_parent():
            return "done", call(stop, *arguments)
    finally:
        signal.signal(signal.SIGINT, before)


def sees(folder: Path, token: str) -> bool:
    """Whether the mark is there; a network file system gets some time."""
    deadline = time.monotonic() + SECONDS_TO_SEE
    while True:
        try:
            if read_start(folder / MARKER, 100) == token.encode():
                return True
        except OSError:
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)


def _first_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300].rstrip(".")
