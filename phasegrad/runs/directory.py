"""A run directory: config.json, metrics.jsonl, checkpoints/, segments/, result.json, tensorboard/."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from phasegrad.errors import DamagedError, RunError
from phasegrad.machine.paths import as_path
from phasegrad.machine.regular_files import by_descriptor, open_folder
from phasegrad.runs.below import is_folder, move, names_in, remove_file, require_folders
from phasegrad.runs.carried import carried_pieces, piece_files, whole_pieces
from phasegrad.runs.checkpoint import read_state, saved_legs, write_checkpoint
from phasegrad.runs.contents import (
    CHECKPOINT,
    CHECKPOINTS,
    IN_FOLDERS,
    LAUNCH,
    is_stray,
    remove_run,
    require_own_run,
    require_plain,
)
from phasegrad.runs.contract import Trainer
from phasegrad.runs.files import intended_name, read_json, read_limited, reading, write_atomically, writing
from phasegrad.runs.lock import LOCK, Lock, cannot_be_written
from phasegrad.runs.metrics import plain_json
from phasegrad.runs.pieces import PieceStore
from phasegrad.runs.reading import CONFIG, METRICS, RESULT, number_or_none
from phasegrad.runs.replacing import STATE, TENSORS, remove_save
from phasegrad.runs.steps import STEPS
from phasegrad.versions import versions


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        self.metrics_path = self.path / METRICS
        self.checkpoints_path = self.path / CHECKPOINTS
        self.pieces = PieceStore(self.path)
        self.lock: Lock | None = None
        self._handle: int | None = None  # the directory itself, wherever it may be moved to
        self._found: os.stat_result | None = None  # of the directory as it was opened
        self._owner = os.getpid()

    def exists(self) -> bool:
        """Whether something is here; an empty folder, and what a run killed at its very start left, is nothing."""
        with reading(self.path):
            if not self.path.is_dir():
                return False
            return any(entry.name != LOCK and not is_stray(entry.name) for entry in self.path.iterdir())

    def require_free(self, overwrite: bool) -> None:
        """For the command line: refuse a directory in use, or with `overwrite` one that no run of ours may replace."""
        if not self.exists():
            return
        if not overwrite:
            raise RunError(
                f"Run directory {self.path} already holds files: use `phasegrad resume {self.path}`, --overwrite, or another --run-dir."
            )
        require_own_run(self.path, "choose another --run-dir")
        Lock(self.path).release()  # not while another process writes it

    def open(self, trainer: Trainer) -> None:
        """Take the directory for the agent to write, and change nothing in it yet.

        An agent that did not come from here needs an empty one, or a run that it may overwrite; one that did must stand
        at the last checkpoint.
        """
        if trainer.run.takes_over and not self.path.is_dir():
            raise RunError(
                f"Run directory {self.path} is gone: put it back, or save the agent with agent.save(FOLDER)."
            )
        if not trainer.run.takes_over:
            self._require_room(trainer.run.overwrite)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = Lock(self.path)
            self._handle = (
                open_folder(self.path) if by_descriptor() else None
            )  # while it is open its number is not given again
            self._found, self._owner = os.stat(self.path), os.getpid()
        except OSError as error:
            raise RunError(cannot_be_written(self.path, error)) from None
        if not trainer.run.takes_over:
            self._require_room(trainer.run.overwrite)  # again: another process may have been first
            require_plain(self.path, links=True)
            return
        require_plain(self.path, links=False)
        if not trainer.run.overwrite:
            self._require_last(trainer)

    def _require_room(self, overwrite: bool) -> None:
        if not self.exists():
            return
        if not overwrite:
            raise RunError(
                f"Run directory {self.path} already holds files: go on with phasegrad.load({str(self.path)!r}).learn(), "
                "give overwrite=True to replace the run, or another run_dir."
            )
        require_own_run(self.path, "give another run_dir")

    def _require_last(self, trainer: Trainer) -> None:
        """Refuse an agent that the directory has gone on without: its next checkpoints would take the place of others."""
        found = [path for path in self.checkpoints() if path.name not in trainer.run.passed_over]
        newest = found[-1] if found else None
        stands_on, step = trainer.run.stands_on, trainer.run.progress.step
        if newest is not None and (stands_on is None or step_of(newest) > stands_on[0]):
            raise RunError(
                f"Run directory {self.path} has gone on to step {step_of(newest)}, and this agent is at step {step}: load "
                "the run again to go on from its end, or to train on from here give phasegrad.load another run_dir=..., or "
                "overwrite=True to remove what came later."
            )
        there = None if newest is None else (step_of(newest), _checksum(newest))
        if there != stands_on and (there is None or there[1] is not None):
            raise RunError(
                f"Run directory {self.path} no longer holds the checkpoint that this agent at step {step} comes from: load "
                "the run again, or keep this agent with agent.save(FOLDER)."
            )

    def begin(self, trainer: Trainer) -> None:
        """Clear away what the agent's training replaces: a run to overwrite, what a killed attempt left unfinished.

        Checkpoints that were passed over as damaged are set aside; others beyond the agent's step go where it may
        overwrite them, and are not there where it may not.
        """
        with writing(self.path):
            if not trainer.run.takes_over:
                remove_run(self.path)
            for name in names_in(self.path, CHECKPOINTS):
                path = self.checkpoints_path / name
                if CHECKPOINT.fullmatch(intended_name(name) or ""):
                    remove_save(path)
                elif CHECKPOINT.fullmatch(name) and not is_folder(path):  # where the run's own is to be
                    move(path, _aside(path))
            for path in self.checkpoints():
                if path.name in trainer.run.passed_over:
                    move(path, _aside(path))
                elif trainer.run.overwrite and step_of(path) > trainer.run.progress.step:
                    remove_save(path)
            remove_file(self.path / RESULT)  # of a shorter total
            for stray in filter(is_stray, names_in(self.path)):
                remove_file(self.path / stray)
            for name in names_in(self.path, STEPS):
                if intended_name(name) is not None and IN_FOLDERS[STEPS].fullmatch(name):
                    remove_file(self.path / STEPS / name)

    def require_present(self) -> None:
        """Stop where the directory that was opened is no longer at its place, or no longer this run's alone.

        So does a fork of the process that has opened it: one writes, and that is not this one.
        """
        if self._found is None:
            return
        if os.getpid() != self._owner:
            raise RunError(
                f"Run directory {self.path} is written by the process {self._owner}, of which this one is a fork: an "
                "environment that forks must end its child itself."
            )
        try:
            same = os.path.samestat(self._found, os.stat(self.path))
        except OSError:
            same = False
        if not same:
            raise RunError(
                f"Run directory {self.path} was moved or removed while the run was training, so it has stopped: resume it "
                "where it is now, or start it again."
            )
        if self.lock is not None:
            self.lock.require_own()

    def close(self) -> None:
        if self.lock is not None and os.getpid() == self._owner:
            self.lock.release()
        handle, self._handle, self._found = self._handle, None, None
        if handle is not None:
            os.close(handle)

    def write_config(self, trainer: Trainer) -> None:
        """The settings as the run began with them; changes.jsonl has what was changed since."""
        begun = trainer.run.as_begun(trainer.config.to_json())
        self._write_json(CONFIG, {"algorithm": trainer.name, **begun, "versions": versions()})

    def note_launch(self, launch: str | None) -> None:
        """Remember which torchrun began this run, so that its restarts know it for theirs."""
        if launch is not None:
            self.write(LAUNCH, launch.encode())

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
        with contextlib.suppress(FileNotFoundError, DamagedError):
            result = read_json(self.path / RESULT)
            return isinstance(result, dict) and result.get("step") == step
        return False

    def is_finished(self) -> bool:
        """Whether the run's result says that it came to its end."""
        with contextlib.suppress(FileNotFoundError, DamagedError):
            result = read_json(self.path / RESULT)
            return isinstance(result, dict) and result.get("status") == "finished"
        return False

    def save(self, trainer: Trainer, extra: dict[str, Any], *, last: bool = False) -> Path:
        """A checkpoint of the agent's current step; the oldest beyond `keep_checkpoints` go, the best stays.

        Data that outlives an iteration goes to `segments/` first, each piece once. The `last` one of a run lets go of what
        only the ones before it would need. Every process of a run must call this; the first writes.
        """
        path = self.checkpoints_path / f"step-{trainer.run.progress.step:012d}"
        pieces = carried_pieces(trainer)
        new = trainer.ranks.from_first(lambda: self.pieces.missing(pieces.keys()))
        whole = whole_pieces(trainer, {number: pieces[number] for number in new})
        legs = saved_legs(trainer)
        if not trainer.ranks.is_first:
            return path
        self.require_present()
        if pieces and trainer.carries is not None:
            self.pieces.write(whole)
            files = self.pieces.entries(pieces.keys())
            extra = {**extra, "carried": {"files": files, "state": trainer.carries.state()}}
        write_checkpoint(path, trainer, legs, extra)
        trainer.run.stands_on = (trainer.run.progress.step, _checksum(path))
        with contextlib.suppress(OSError, RunError):  # what cannot be read now is not judged now, and stays
            self._let_go(trainer, last)
        return path

    def _let_go(self, trainer: Trainer, last: bool) -> None:
        """Remove the checkpoints that are no longer to be kept, and the segments that no other one needs."""
        best = self.best() if trainer.config.eval_checkpoints else None
        for old in self.checkpoints()[: -trainer.config.keep_checkpoints]:
            if old != best:
                remove_save(old)
        if os.path.lexists(self.pieces.path):
            needing = self.checkpoints()[-1:] if last else self.checkpoints()
            self.pieces.keep({name for folder in needing for name in piece_files(noted_in(folder))})

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first; only folders of this run's own."""
        require_folders(self.path, CHECKPOINTS)
        with reading(self.checkpoints_path):
            found = [self.checkpoints_path / name for name in names_in(self.path, CHECKPOINTS)]
            found = [path for path in found if CHECKPOINT.fullmatch(path.name) and is_folder(path)]
        return sorted((path for path in found if _holds_save(path)), key=step_of)

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
        """The checkpoint with the highest evaluation return in the environment of the latest, the earliest of equals."""
        found = self.checkpoints()
        where = {path: environment_of(path) for path in found}
        scores = {path: evaluation_return(path) for path in found if where[path] == where[found[-1]]}
        known = {path: score for path, score in scores.items() if score is not None}
        return max(known, key=lambda path: known[path]) if known else None

    def _write_json(self, name: str, data: dict[str, Any]) -> None:
        self.write(name, (json.dumps(plain_json(data), indent=1) + "\n").encode())

    def write(self, name: str, payload: bytes) -> None:
        """A file of the directory, whole."""
        self.require_present()
        write_atomically(self.path / name, payload)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def _holds_save(folder: Path) -> bool:
    """Whether a checkpoint is here, be it damaged or out of reach; what is left of one that was removed is none."""
    try:
        return not {STATE, TENSORS}.isdisjoint(names_in(folder))
    except OSError:
        return True


def _aside(checkpoint: Path) -> Path:
    """Where a damaged checkpoint is kept to be looked at."""
    place = checkpoint.with_name(f"damaged-{checkpoint.name}")
    count = 2
    while os.path.lexists(place):
        place = checkpoint.with_name(f"damaged-{checkpoint.name}-{count}")
        count += 1
    return place


def _checksum(checkpoint: Path) -> str | None:
    """What tells a checkpoint from another of the same step; None where it cannot be told."""
    try:
        return str(read_state(checkpoint).get("sha256"))
    except RunError:
        return None


def noted_in(checkpoint: Path) -> dict[str, Any]:
    """What the run noted in a checkpoint; nothing of a damaged one."""
    try:
        extra = read_state(checkpoint).get("extra")
    except DamagedError:
        return {}
    return extra if isinstance(extra, dict) else {}


def environment_of(checkpoint: Path) -> tuple[Any, Any] | None:
    """Where a checkpoint's agent was trained, with its options; nothing of a damaged one."""
    try:
        config = read_state(checkpoint).get("config")
    except DamagedError:
        return None
    return (config.get("env"), config.get("env_options")) if isinstance(config, dict) else None


def evaluation_return(checkpoint: Path) -> float | None:
    """The mean return of the evaluation made with a checkpoint, if there was one."""
    evaluation = noted_in(checkpoint).get("evaluation")
    return number_or_none(evaluation.get("return_mean")) if isinstance(evaluation, dict) else None
