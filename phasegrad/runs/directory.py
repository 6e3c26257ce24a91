"""A run directory: config.json, metrics.jsonl, checkpoints/, segments/, result.json, tensorboard/."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasegrad.config import Config
from phasegrad.errors import DamagedError, PhasegradError, RunError
from phasegrad.runs.checkpoint import STATE, read_state, unfinished_leg, whole_pieces, write_checkpoint
from phasegrad.runs.files import read_json, read_limited, write_atomically
from phasegrad.runs.lock import LOCK, Lock
from phasegrad.runs.metrics import plain_json
from phasegrad.runs.replacing import SEGMENTS
from phasegrad.runs.segments import SegmentStore
from phasegrad.versions import versions

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm

CONFIG, METRICS, RESULT, CHECKPOINTS = "config.json", "metrics.jsonl", "result.json", "checkpoints"
BAD_BATCH, LAUNCH = "bad-batch.safetensors", ".launch"
CHECKPOINT = re.compile(r"step-([0-9]{12,18})")


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics_path = self.path / METRICS
        self.checkpoints_path = self.path / CHECKPOINTS
        self.segments = SegmentStore(self.path)
        self.lock: Lock | None = None

    def exists(self) -> bool:
        """Whether a run was started here; an empty folder is none."""
        return self.path.is_dir() and any(entry.name != LOCK for entry in self.path.iterdir())

    def require_free(self, overwrite: bool) -> None:
        """Refuse a directory in use; with `overwrite`, clear it if it holds a run and nothing else's files."""
        if not self.exists():
            return
        if not overwrite:
            raise RunError(
                f"Run directory {self.path} already holds files: use `phasegrad resume {self.path}`, --overwrite, or another --run-dir."
            )
        if not (self.path / CONFIG).exists():
            raise RunError(
                f"{self.path} is not a run directory (it has no {CONFIG}), so --overwrite will not delete it: choose another --run-dir."
            )
        Lock(self.path).release()  # not while another process writes it
        shutil.rmtree(self.path)

    def open(self, fresh: bool) -> None:
        """Take the directory for writing; `fresh` refuses one that holds a run."""
        if fresh:
            self.require_free(overwrite=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = Lock(self.path)
        except OSError as error:
            raise RunError(f"Run directory {self.path} cannot be written: {error.strerror or error}.") from None
        if fresh:
            self.require_free(overwrite=False)  # again: another process may have been first

    def close(self) -> None:
        if self.lock is not None:
            self.lock.release()

    def tidy(self, step: int) -> None:
        """Remove what a killed or abandoned attempt left behind: unfinished writes, and checkpoints beyond `step`."""
        if self.checkpoints_path.is_dir():
            for entry in self.checkpoints_path.iterdir():
                if entry.name.startswith(".") and entry.name.endswith(".tmp"):
                    shutil.rmtree(entry, ignore_errors=True)
        for path in self.checkpoints():
            if step_of(path) > step:
                shutil.rmtree(path, ignore_errors=True)
        (self.path / RESULT).unlink(missing_ok=True)  # of a shorter total
        for stray in self.path.glob(".*.tmp"):
            stray.unlink(missing_ok=True)

    def write_config(self, algorithm: str, config: Config) -> None:
        self._write_json(CONFIG, {"algorithm": algorithm, **config.to_json(), "versions": versions()})

    def note_launch(self, launch: str | None) -> None:
        """Remember which torchrun began this run, so that its restarts know it for theirs."""
        if launch is not None:
            write_atomically(self.path / LAUNCH, launch.encode())

    def begun_by(self, launch: str | None) -> bool:
        """Whether this torchrun began the run that is here."""
        try:
            return launch is not None and read_limited(self.path / LAUNCH, 1 << 12) == launch.encode()
        except (OSError, RunError):
            return False

    def read_config(self) -> dict[str, Any]:
        """config.json as it is; a missing or damaged one is the user's to know."""
        try:
            data = read_json(self.path / CONFIG)
        except FileNotFoundError:
            raise RunError(f"{self.path} is not a run directory: it has no {CONFIG}.") from None
        if not isinstance(data, dict):
            raise RunError(f"{self.path / CONFIG} is damaged: it is not a JSON object.")
        return data

    def write_result(self, result: dict[str, Any]) -> None:
        self._write_json(RESULT, result)

    def has_result(self, step: int) -> bool:
        """Whether the run's result was written at this step."""
        with contextlib.suppress(FileNotFoundError, RunError):
            result = read_json(self.path / RESULT)
            return isinstance(result, dict) and result.get("step") == step
        return False

    def save(self, agent: Algorithm, extra: dict[str, Any], *, inside_leg: bool = False, last: bool = False) -> Path:
        """A checkpoint of the agent's current step; the oldest beyond `keep_checkpoints` go, the best stays.

        Data that outlives the leg goes to `segments/` first, each piece once. The `last` one of a run lets go of what
        only the ones before it would need. Every process of a run must call this; the first writes.
        """
        path = self.checkpoints_path / f"step-{agent.progress.step:012d}"
        pieces = agent.carried()
        new = agent.ranks.from_first(lambda: self.segments.missing(pieces.keys()))
        whole = whole_pieces(agent, {number: pieces[number] for number in new})
        leg = unfinished_leg(agent) if inside_leg else None
        if not agent.ranks.is_first:
            return path
        if pieces:
            self.segments.write(whole)
            files = self.segments.entries(pieces.keys())
            extra = {**extra, "carried": {"files": files, "state": agent.carried_state()}}
        write_checkpoint(path, agent, extra, leg)
        found = self.checkpoints()
        best = self.best() if agent.config.eval_checkpoints else None
        for old in found[: -agent.config.keep_checkpoints]:
            if old != best:
                shutil.rmtree(old, ignore_errors=True)
        if self.segments.path.is_dir():
            needing = [path] if last else self.checkpoints()
            self.segments.keep({name for folder in needing for name in segment_files(folder)})
        return path

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first; only folders of this run's own."""
        if not self.checkpoints_path.is_dir() or self.checkpoints_path.is_symlink():
            return []
        entries = self.checkpoints_path.iterdir()
        return sorted(
            (e for e in entries if CHECKPOINT.fullmatch(e.name) and e.is_dir() and not e.is_symlink()), key=step_of
        )

    def checkpoint(self, step: int | str | None = None) -> Path:
        """The latest checkpoint, the one of a step, or the best by evaluation."""
        found = self.checkpoints()
        if not found:
            raise RunError(f"{self.path} has no checkpoint yet: let it train until the first one is written.")
        if step is None:
            return found[-1]
        if step == "best":
            best = self.best()
            if best is None:
                raise RunError(f"{self.path} has no best checkpoint: train with eval_checkpoints set to keep one.")
            return best
        by_step = {step_of(path): path for path in found}
        if step not in by_step:
            raise RunError(f"{self.path} has no checkpoint of step {step}: it has {', '.join(map(str, by_step))}.")
        return by_step[int(step)]

    def best(self) -> Path | None:
        """The checkpoint with the highest evaluation return, the earliest of equals."""
        scores = {path: evaluation_return(path) for path in self.checkpoints()}
        known = {path: score for path, score in scores.items() if score is not None}
        return max(known, key=lambda path: known[path]) if known else None

    def _write_json(self, name: str, data: dict[str, Any]) -> None:
        write_atomically(self.path / name, (json.dumps(plain_json(data), indent=1) + "\n").encode())


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def _extra(checkpoint: Path) -> dict[str, Any]:
    """What the run noted in a checkpoint; nothing of a damaged one."""
    try:
        extra = read_state(checkpoint).get("extra")
    except PhasegradError:
        return {}
    return extra if isinstance(extra, dict) else {}


def evaluation_return(checkpoint: Path) -> float | None:
    """The mean return of the evaluation made with a checkpoint, if there was one."""
    evaluation = _extra(checkpoint).get("evaluation")
    value = evaluation.get("return_mean") if isinstance(evaluation, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def segment_files(checkpoint: Path) -> list[str]:
    """The names of the files in segments/ that a checkpoint needs."""
    carried = _extra(checkpoint).get("carried")
    files = carried.get("files") if isinstance(carried, dict) else None
    return [str(entry.get("file")) for entry in files if isinstance(entry, dict)] if isinstance(files, list) else []


def carried_by(state: dict[str, Any], checkpoint: Path) -> dict[str, Any] | None:
    """What a checkpoint lists for `Algorithm.restore_carried`, in a form that is safe to follow."""
    carried = state.get("extra", {}).get("carried")
    if carried is None:
        return None
    if (
        not isinstance(carried, dict)
        or not isinstance(carried.get("files"), list)
        or not isinstance(carried.get("state"), dict)
    ):
        raise DamagedError(f"{checkpoint / STATE} is damaged: what it says of segments is no list.")
    inside = checkpoint / SEGMENTS  # of a saved agent; a checkpoint's are beside it, shared with others
    return {**carried, "store": SegmentStore(checkpoint if inside.is_dir() else checkpoint.parents[1])}


def carried_limit(agent: Algorithm) -> int:
    """The most that an agent's carried data can take on disk."""
    return agent.carried_bytes() + (1 << 20)


def restore_carried(agent: Algorithm, directory: RunDirectory | None) -> None:
    """Read what a checkpoint listed for the agent, now that training needs it."""
    if agent.carried_from is None:
        return
    store: SegmentStore = agent.carried_from["store"]
    if directory is not None and store.path.parent.resolve() == directory.path.resolve():
        store = directory.segments
    pieces = store.read(agent.carried_from["files"], carried_limit(agent), agent.ranks)
    try:
        agent.restore_carried(agent.carried_from["state"], pieces)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RuntimeError) as error:
        raise DamagedError(f"What {store.path} holds does not fit this agent ({type(error).__name__}).") from None
    agent.carried_from = None
