"""The training loop around an algorithm's iterations: checkpoints, metrics, display, the result."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phasegrad.compute.circumstances import circumstances, differences
from phasegrad.compute.devices import pick_threads
from phasegrad.config import coerce
from phasegrad.data.transfers import fetched
from phasegrad.distributed import joining
from phasegrad.errors import (
    ConfigError,
    NonFiniteError,
    PhasegradError,
    PhasegradWarning,
    RanksError,
    RunError,
)
from phasegrad.machine.descriptors import hold_standard
from phasegrad.machine.memory import peak_bytes
from phasegrad.runs import sending
from phasegrad.runs.carried import take_up_carried
from phasegrad.runs.changing import ChangesFile, change_from_json
from phasegrad.runs.console import make_display
from phasegrad.runs.contract import Trainer
from phasegrad.runs.directory import RunDirectory, step_of
from phasegrad.runs.evaluating import Evaluations
from phasegrad.runs.evaluation import SUMMARY
from phasegrad.runs.first_phase import first_phase_notice
from phasegrad.runs.gaps import between, counted, sentence
from phasegrad.runs.hooks import Hooks, evaluation_of, evaluations_of
from phasegrad.runs.loggers import Loggers
from phasegrad.runs.metrics import TENSORBOARD, MetricsFile, TensorBoard, plain_json, read_metrics
from phasegrad.runs.needs import memory_explained, require_memory
from phasegrad.runs.rescuing import Rescue
from phasegrad.runs.stopping import Stopped, StopRequests
from phasegrad.runs.tracking import require_packages, starter, trackers_in

CHECKPOINTS_A_RUN = 10
DEAREST = 0.008  # the share of the time that checkpoints may take where nobody asked for them
ITERATIONS_BETWEEN_COMPARISONS = 16  # of the bits that several processes hold; checkpoints compare them too


def train(
    trainer: Trainer,
    total_steps: int | None,
    *,
    callback: Any = None,
    loggers: Any = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Run iterations until `total_steps`; returns what result.json holds."""
    hooks, written = Hooks(callback, trainer), Loggers(loggers, trainer.ranks.is_first)
    total = plan_total(trainer, total_steps)
    require_memory(trainer)
    trainer.config.follow(trainer.run.progress.step / total)
    computation = trainer.computation
    computation.settle()
    computation.choose(begun=trainer.run.progress.iteration > 0)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(_threads(trainer))
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(torch.set_num_threads, threads_before)
        with trainer.clock.section("compile"):
            cleanup.enter_context(computation.compiled_encoders())
        with memory_explained(trainer, lambda: "Nothing on disk was changed."):  # what a checkpoint carries is read
            session = Session(trainer, total, progress, cleanup, hooks, written)
        session.evaluations.seen = trainer.ranks.any(bool(hooks) or written.is_asked or session.is_seen)
        with memory_explained(trainer, session.rescue.where):
            return session.run()


def _threads(trainer: Trainer) -> int:
    """How many threads torch gets: as the run has had so far, where it can; says what else its bits may now differ by."""
    config, computation, run = trainer.config, trainer.computation, trainer.run
    kept = trainer.agent.kept_threads
    threads = pick_threads(config.torch_threads, computation.large, kept)
    now = circumstances(threads, computation.device, config.compile == "on")
    told = differences(run.computed, now) if run.progress.step else ""
    if told and trainer.ranks.is_first:
        keep = ""
        if run.computed.get("torch_threads", threads) != threads:
            keep = f"; torch_threads {run.computed['torch_threads']} would avoid that difference"
        warnings.warn(
            f"The run continues with {told}, so it may not end bit for bit as it would have{keep}.",
            PhasegradWarning,
            stacklevel=5,
        )
    elif (
        trainer.ranks.is_first
        and kept
        and run.progress.step
        and kept != (alone := pick_threads(config.torch_threads, computation.large))
    ):
        warnings.warn(
            f"torch keeps the {kept} thread{'s'[: kept > 1]} that the run was begun with, so that its bits stay the same: "
            f"torch_threads {alone} would use this machine.",
            PhasegradWarning,
            stacklevel=5,
        )
    run.computed = now
    return threads


def record_result(trainer: Trainer) -> dict[str, Any]:
    """Evaluate and write the result of a run that was killed between its last checkpoint and its result."""
    with contextlib.ExitStack() as cleanup:
        return Session(trainer, trainer.run.progress.step, False, cleanup).run()


def write_start(trainer: Trainer) -> None:
    """Make the run directory of a run that has not begun, with a checkpoint to begin from."""
    total = plan_total(trainer, None)
    trainer.computation.settle()
    with contextlib.ExitStack() as cleanup:
        Session(trainer, total, False, cleanup).write_start()


def plan_total(trainer: Trainer, total_steps: int | None) -> int:
    """The final step count: what is asked for, in whole steps of all environments."""
    config = trainer.config
    total = config.total_steps if total_steps is None else coerce("total_steps", total_steps, int, {"low": 1})
    if total <= trainer.run.progress.step:
        raise ConfigError(
            f"total_steps {total} is not beyond the {trainer.run.progress.step} steps already taken: give a larger one."
        )
    if total % config.num_envs:
        above = -(-total // config.num_envs) * config.num_envs
        warnings.warn(
            f"total_steps {total:,} is not a multiple of num_envs {config.num_envs}: the run takes {above:,} steps.",
            PhasegradWarning,
            stacklevel=5,
        )
        total = above
    config.settle(total_steps=total)
    return total


class Session:
    """One sitting of a run; what it opens is closed by `cleanup`.

    Of several processes each has a session of its own. They go through the same steps, and whatever decides a step is
    agreed upon; the first one alone writes the run directory and speaks.
    """

    def __init__(
        self,
        trainer: Trainer,
        total: int,
        shown: bool,
        cleanup: contextlib.ExitStack,
        hooks: Hooks | None = None,
        loggers: Loggers | None = None,
    ) -> None:
        self.trainer, self.total, self.ranks = trainer, total, trainer.ranks
        self.hooks = Hooks(None, trainer) if hooks is None else hooks
        self.loggers = Loggers(None, self.ranks.is_first) if loggers is None else loggers
        self.is_seen = shown or trainer.run.run_dir is not None  # whether anyone can see its result
        config = trainer.config
        self.checkpoint_every = config.checkpoint_every or max(1, total // CHECKPOINTS_A_RUN)
        self.started, self.first_step = time.perf_counter(), trainer.run.progress.step
        self.directory: RunDirectory | None = None
        self.metrics: MetricsFile | None = None
        self.tensorboard: TensorBoard | None = None
        self.saved_at, self.saving_seconds = self.started, 0.0  # when the last checkpoint was done, what it took
        self.untold_saving = 0.0  # seconds of checkpoints that no row has told of yet
        self.evaluations = Evaluations(trainer.agent, trainer.run.progress, trainer.run.evaluations, total)
        cleanup.callback(self._note_seconds)
        cleanup.callback(self.loggers.close)
        self._start_alike()
        if trainer.run.place is not None:
            self.directory = RunDirectory(trainer.run.place)
        self.rescue = Rescue(trainer, self.directory, lambda: self._save({}, told=False))
        if self.directory is not None:
            require_packages(config.track)  # before a run is overwritten
            self.rescue.last_checkpoint = self.ranks.from_first(lambda: self._take_directory(cleanup))
            take_up_carried(trainer, self.directory.pieces)
            planned, trainer.run.history = self.ranks.from_first(lambda: self._open_files(cleanup))
            trainer.run.planned = [change_from_json(each) for each in planned]
            trainer.run.takes_over, trainer.run.overwrite, trainer.run.passed_over = True, False, []
        else:
            if config.track != "none":
                raise ConfigError(f"track {config.track} needs a run directory: give run_dir, or leave track out.")
            take_up_carried(trainer)
        self.stop = StopRequests(self.directory is not None, self.rescue.stopped_at_once, self.ranks.is_first)
        cleanup.callback(self.stop.close)
        # last: an error before it must not leave a live terminal
        self.display = make_display(trainer, total, shown and self.ranks.is_first, lambda: self.stop.requested > 0)
        self.stop.speaks &= not self.display.shows_stopping
        cleanup.push(self.display.leave)

    def _start_alike(self) -> None:
        """Refuse processes that stand at different places of a run; give all of them the first one's numbers."""
        progress = self.trainer.run.progress
        found = self.ranks.gather(torch.tensor([progress.step, progress.iteration]))
        if (found != found[0]).any():
            raise RanksError(
                f"The processes would continue from the steps {', '.join(map(str, found[:, 0].tolist()))}: the run "
                "directory must lie on a file system that all of them share."
            )
        self.ranks.copy_first_(self.trainer.tensors())

    def _take_directory(self, cleanup: contextlib.ExitStack) -> int | None:
        """Make the run directory this run's alone; the step of its latest checkpoint."""
        trainer = self.trainer
        assert self.directory is not None
        cleanup.callback(self.directory.close)
        self.directory.open(trainer)
        found = map(step_of, self.directory.checkpoints() if trainer.run.takes_over else [])
        return max((step for step in found if step <= trainer.run.progress.step), default=None)

    def _open_files(self, cleanup: contextlib.ExitStack) -> list[list[dict[str, Any]]]:
        """Make the directory ready to be written; changes of settings that the run is to make again, its evaluations."""
        trainer, config = self.trainer, self.trainer.config
        assert self.directory is not None
        known = self._known_metrics()  # a file that cannot be read stops the run before anything is changed
        self.directory.begin(trainer)
        self.directory.write_config(trainer)
        self.directory.note_launch(joining.launch_id())
        joining.remember_start()
        self.metrics = MetricsFile(self.directory.metrics_path, known, self.directory.require_present)
        cleanup.callback(self.metrics.close)
        cleanup.callback(self._note_metrics)
        rows = read_metrics(self.directory.metrics_path)
        self.tensorboard = TensorBoard(self.directory.path / TENSORBOARD, rows)
        cleanup.callback(self.tensorboard.close)
        for name in self._trackers(self.directory.path):
            about = {"algorithm": trainer.name, **config.to_json()}
            self.loggers.track(name, starter(name, self.directory.path, about))
        cleanup.callback(self.loggers.close)  # while the directory is this run's
        changes = ChangesFile(self.directory.path)
        planned = changes.take_up(trainer.run, anew=trainer.run.overwrite)
        trainer.run.on_change = changes.add
        cleanup.callback(setattr, trainer.run, "on_change", None)
        return [[each.to_json() for each in planned], list(evaluations_of(rows))]

    def _trackers(self, folder: Path) -> list[str]:
        """Those that the run sends to: all that its settings name, or none where a stranger's file names them."""
        wanted = trackers_in(self.trainer.config.track)
        if wanted and not self.trainer.run.may_send and not sending.is_known(folder):
            sending.warn_of_silence(folder, ",".join(wanted))
            return []
        if wanted:
            sending.remember(folder)
        return wanted

    def _known_metrics(self) -> int:
        """The bytes of metrics.jsonl that the run goes on after; says so where they are not what it had written."""
        run = self.trainer.run
        assert self.directory is not None
        if run.metrics_bytes <= 0:
            return 0
        end, iterations = counted(self.directory.metrics_path, run.progress.step)
        if end != run.metrics_bytes or between(iterations, run.progress.iteration):
            told = sentence(self.directory.metrics_path, iterations, run.progress.iteration)
            warnings.warn(told, PhasegradWarning, stacklevel=7)
        return end

    def run(self) -> dict[str, Any]:
        """All of it; what the disk refuses is told with what there is to go on from."""
        try:
            return self._run()
        except RunError as error:
            if self.directory is None or self.rescue.where() in str(error):
                raise
            raise type(error)(f"{error} {self.rescue.where()}") from error

    def _run(self) -> dict[str, Any]:
        trainer = self.trainer
        trainer.config.freeze()
        self._keep_what_was_given()
        if trainer.run.cloned is not None and self.rescue.last_checkpoint is None:
            self._save({})  # what the run begins with does not follow from its settings
        iterations = trainer.iterations()
        preparing = sum(
            trainer.clock.seconds.values()
        )  # of what was compiled before the first iteration, which tells it
        with self._kept():
            self.hooks.start()
        # a run that had come to its score before it was killed, or that a callback does not let begin
        stopped, _ = self._asked_to_stop(self.evaluations.reached())
        while trainer.run.progress.step < self.total and not stopped:
            before = trainer.run.progress.step
            with self.rescue.explained(before):
                trainer.begin_iteration(self.display.playing_back)
                begun = time.perf_counter()  # playing back is no part of an iteration's speed
                row = next_row(iterations, trainer)
                require_finite_parameters(trainer)
            hold_standard()  # an environment may have closed them
            trainer.end_iteration()
            self.stop.iteration_is_over()
            row = self._row(row, time.perf_counter() - begun + preparing, trainer.run.progress.step - before)
            preparing = 0.0
            self._tell_of_first_phase(row)
            due = self._checkpoint_due(before)
            if self.ranks.size > 1 and (due or trainer.run.progress.iteration % ITERATIONS_BETWEEN_COMPARISONS == 0):
                self.ranks.require_alike(trainer.tensors(), f"iteration {trainer.run.progress.iteration}")
            evaluated, taken = self._evaluate(self.evaluations.episodes_due(before, due))
            if evaluated:
                row |= evaluated | {"time_evaluation": taken * row["sps"] / (trainer.run.progress.step - before)}
            if self.metrics is not None and self.tensorboard is not None:
                self.metrics.write(row)
                self.tensorboard.write(row)
            elif self.directory is None:
                trainer.run.metrics.add(row)
            self.loggers.write(row)
            with self._kept(evaluated, due):
                self._show(row)
                self._tell(row)
            if trainer.run.progress.step >= self.total:
                trainer.end_run()
            if due:
                self.trainer.run.checkpoint_due = False
                self._save(noted(evaluated))
            stopped, requested = self._asked_to_stop(self.evaluations.reached())
            if (stopped or requested or trainer.run.unsaved) and not due:
                self._save(noted(evaluated))
            trainer.run.unsaved = False
            if requested and trainer.run.progress.step < self.total:
                raise self.stop.error(self.rescue.stopped())
        result = self._result("stopped" if stopped else "finished")
        self.loggers.finish(result)
        self.display.finished(result)
        self.hooks.end(result)
        return result

    def _keep_what_was_given(self) -> None:
        """A checkpoint of weights, or of another environment, that were given since the last: a kill must not lose them."""
        if self.ranks.any(self.trainer.run.unsaved):
            self._save({})
        self.trainer.run.unsaved = False

    def write_start(self) -> None:
        """The checkpoint of a run that is to begin later."""
        self._save({})

    def _show(self, row: dict[str, Any]) -> None:
        try:
            self.display.iteration(row)
        except OSError:
            if not self.stop.requested:  # the terminal that has gone has asked for the stop
                raise

    def _tell(self, row: dict[str, Any]) -> None:
        """The callbacks hear of an evaluation first, then of the iteration."""
        evaluation = evaluation_of(row)
        if evaluation is not None:
            self.trainer.run.history.append(plain_json(evaluation))
            self.hooks.evaluation(evaluation)
        self.hooks.iteration(row)

    def _tell_of_first_phase(self, row: Mapping[str, Any]) -> None:
        trainer = self.trainer
        notice = first_phase_notice(vars(trainer.config), row, trainer.agent.device.type == "cpu")
        if notice and self.ranks.is_first:
            warnings.warn(notice, PhasegradWarning, stacklevel=6)

    def _asked_to_stop(self, stopped: bool) -> tuple[bool, bool]:
        """Whether some process's callback, and whether a signal to some process, wants the run to stop.

        By the way all learn whether one was given what a checkpoint is to keep.
        """
        given = self.trainer.run.unsaved
        asked, self.stop.requested, unsaved = self.ranks.most(stopped or self.hooks.stopped, self.stop.requested, given)
        self.trainer.run.unsaved = bool(unsaved)
        return bool(asked), self.stop.requested > 0

    def _checkpoint_due(self, before: int) -> bool:
        step = self.trainer.run.progress.step
        if step >= self.total:
            return True
        self.trainer.run.checkpoint_due |= step // self.checkpoint_every > before // self.checkpoint_every
        if not self.trainer.run.checkpoint_due or not self.trainer.at_boundary():
            return False
        return self.trainer.config.checkpoint_every > 0 or self.ranks.from_first(self._is_cheap)

    def _is_cheap(self) -> bool:
        """Whether a checkpoint that nobody asked for would cost little, by what the last one did.

        The clock may decide that, since a checkpoint leaves no trace in what the run computes.
        """
        waited = time.perf_counter() - self.saved_at
        return self.saving_seconds <= DEAREST * waited

    def _evaluate(self, episodes: int) -> tuple[dict[str, Any], float]:
        """What an evaluation by the first process found, of which all know afterwards, and the seconds it took."""
        if not episodes:
            return {}, 0.0
        with self.trainer.clock.apart("evaluation") as taken:
            found = self.ranks.from_first(lambda: self.evaluations.make(episodes))
            self._share_evaluations()
        self.trainer.run.seconds_evaluating += taken.seconds
        return found, taken.seconds

    def _share_evaluations(self) -> None:
        mine = self.evaluations
        record, mine.failed = self.ranks.from_first(lambda: (asdict(mine.record), mine.failed))
        vars(mine.record).update(record)

    def _save(self, extra: dict[str, Any], told: bool = True) -> None:
        trainer, begun = self.trainer, time.perf_counter()
        if self.directory is None:
            return
        if self.metrics is not None:
            self.metrics.sync()
            trainer.run.metrics_bytes = self.metrics.bytes_written
            seconds = {"seconds": self._seconds(), "seconds_evaluating": trainer.run.seconds_evaluating}
            extra = {"metrics_bytes": trainer.run.metrics_bytes, **seconds, **extra}
        last = trainer.run.progress.step >= self.total
        path = self.directory.save(trainer, extra, last=last)
        self.display.checkpoint(path)
        self.rescue.last_checkpoint, self.saved_at = trainer.run.progress.step, time.perf_counter()
        self.saving_seconds = self.saved_at - begun
        self.untold_saving += self.saving_seconds
        if told:
            with self._kept():
                self.hooks.checkpoint(path)

    @contextlib.contextmanager
    def _kept(self, evaluated: Mapping[str, Any] | None = None, due: bool = False) -> Iterator[None]:
        """An error or an interrupt in a callback goes on to the caller, with what was trained on disk and said so.

        `evaluated` is given after an iteration that is not saved yet.
        """
        trainer = self.trainer
        try:
            yield
        except BaseException as error:
            if self.directory is not None and not isinstance(error, Stopped):  # by a second signal, at once
                # other processes cannot know of the error now
                if evaluated is not None and self.ranks.size == 1:
                    if trainer.run.progress.step >= self.total:
                        trainer.end_run()
                    trainer.run.checkpoint_due &= not due
                    with contextlib.suppress(PhasegradError, OSError):  # the first error is the one to tell
                        self._save(noted(evaluated), told=False)
                error.add_note(self.rescue.where())
            raise

    def _row(self, row: dict[str, float], seconds: float, steps: int) -> dict[str, Any]:
        progress, times = self.trainer.run.progress, self.trainer.clock.take()
        head = {
            "step": progress.step,
            "iteration": progress.iteration,
            "return_mean": float(np.mean(progress.recent_returns)) if progress.recent_returns else None,
            "length_mean": float(np.mean(progress.recent_lengths)) if progress.recent_lengths else None,
            "episodes": progress.episodes,
        }
        if progress.success_rate is not None:
            head["success_rate"] = progress.success_rate
        tail = {"sps": steps / seconds, "seconds": self._seconds()}
        if self.untold_saving:
            times["checkpoint"], self.untold_saving = self.untold_saving, 0.0
        if "auxiliary" in times:
            tail["sps_policy_phase"] = steps / (seconds - times["auxiliary"])
        in_force = {name: float(value) for name, value in self.trainer.config.schedules().items()}
        return head | in_force | row | tail | {f"time_{name}": taken / seconds for name, taken in times.items()}

    def _seconds(self) -> float:
        return self.trainer.run.seconds_before + time.perf_counter() - self.started

    def _result(self, status: str) -> dict[str, Any]:
        trainer = self.trainer
        returns = trainer.run.progress.recent_returns
        result: dict[str, Any] = {
            "status": status,
            "step": trainer.run.progress.step,
            "return_mean": float(np.mean(returns)) if returns else None,
            "episodes": trainer.run.progress.episodes,
            "sps": (trainer.run.progress.step - self.first_step) / (time.perf_counter() - self.started),
            "seconds": self._seconds(),
            "peak_rss_mb": self.ranks.mean(peak_bytes() / (1 << 20))[0] * self.ranks.size,
        }
        if trainer.run.progress.success_rate is not None:
            result["success_rate"] = trainer.run.progress.success_rate
        if self.ranks.size > 1:
            result["processes"] = self.ranks.size
        made = self.evaluations.record.last
        self.evaluations.seen = self.ranks.any(self.is_seen or self.hooks.hears_of_the_end())
        with trainer.clock.apart("evaluation") as taken:
            result |= self.ranks.from_first(self.evaluations.result)
            self._share_evaluations()
        result["seconds_evaluation"] = trainer.run.seconds_evaluating + taken.seconds
        if status == "stopped" and self.evaluations.reached():
            result["reached"] = trainer.config.stop_at
        result["seconds"] = self._seconds()
        if self.directory is not None and self.ranks.is_first:
            self.directory.write_result(result)
        if "eval" in result and result["eval"] != made:  # made just now: no row tells of it
            self.hooks.evaluation(
                {**result["eval"], **({"test": result["eval_test"]} if "eval_test" in result else {})}
            )
        return result

    def _note_metrics(self) -> None:
        """An agent that learns on after an error goes on from its own rows, not from those of its last checkpoint."""
        if self.metrics is not None:
            self.trainer.run.metrics_bytes = self.metrics.bytes_written

    def _note_seconds(self) -> None:
        self.trainer.run.seconds_before = self._seconds()


def noted(evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of the evaluation made with it, if there was one."""
    summary = {name: evaluated[f"eval_{name}"] for name in SUMMARY if f"eval_{name}" in evaluated}
    return {"evaluation": summary} if summary else {}


def next_row(iterations: Iterator[dict[str, Any]], trainer: Trainer) -> dict[str, Any]:
    """One iteration of the loop, and its metrics."""
    before = trainer.run.progress.step
    for row in iterations:
        if trainer.run.progress.step > before:
            return fetched(row)
        raise ConfigError(
            f"The loop of {trainer.name} yields at step {before} without having taken a step since the last."
        )
    raise ConfigError(
        f"The loop of {trainer.name} ended at step {before} of {trainer.config.total_steps}: `iterations` must go on while "
        "steps_left()."
    )


def require_finite_parameters(trainer: Trainer) -> None:
    """Stop within the iteration that broke a parameter, and name it; a sum shows every NaN and infinity."""
    if torch.isfinite(trainer.computation.flat.data.sum()):
        return
    for name, parameter in trainer.agent.model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise NonFiniteError(
                f"The parameter {name} became NaN or infinite in iteration {trainer.run.progress.iteration}, before step "
                f"{trainer.run.progress.step}: training has diverged; lower learning_rate."
            )
