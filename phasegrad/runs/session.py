"""The training loop around an algorithm's iterations: checkpoints, metrics, display, the result."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch

from phasegrad.compute.choosing import choose_kernels, compiled_encoders, settle_computation
from phasegrad.compute.devices import pick_threads
from phasegrad.config import coerce, short
from phasegrad.distributed import joining as parallel
from phasegrad.errors import ConfigError, EnvError, NonFiniteError, PhasegradError, RanksError
from phasegrad.machine.memory import require_room
from phasegrad.runs.console import make_display
from phasegrad.runs.contents import BAD_BATCH
from phasegrad.runs.directory import RunDirectory, restore_carried, step_of
from phasegrad.runs.metrics import TENSORBOARD, MetricsFile, TensorBoard, read_metrics
from phasegrad.runs.stopping import StopRequests
from phasegrad.runs.tracking import Wandb, require_wandb
from phasegrad.tree import named_leaves

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm

CHECKPOINTS_A_RUN = 10
DEAREST = 0.008  # the share of the time that checkpoints may take where nobody asked for them
ITERATIONS_BETWEEN_COMPARISONS = 16  # of the bits that several processes hold; checkpoints compare them too


def train(
    agent: Algorithm,
    total_steps: int | None,
    *,
    callback: Callable[[dict[str, Any]], object] | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Run iterations until `total_steps`; returns what result.json holds."""
    total = plan_total(agent, total_steps)
    require_room(agent.storage_bytes() * agent.ranks.local_size, agent.smaller_storage)
    settle_computation(agent)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(pick_threads(agent.config.torch_threads, agent.microbatch < 1 << 20))
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(torch.set_num_threads, threads_before)
        cleanup.enter_context(compiled_encoders(agent))
        session = Session(agent, total, progress, cleanup)
        return session.run(callback)


def record_result(agent: Algorithm) -> dict[str, Any]:
    """Evaluate and write the result of a run that was killed between its last checkpoint and its result."""
    with contextlib.ExitStack() as cleanup:
        return Session(agent, agent.progress.step, False, cleanup).run(None)


def plan_total(agent: Algorithm, total_steps: int | None) -> int:
    """The final step count, exact: it must be reachable in whole steps of all environments."""
    config = agent.config
    total = config.total_steps if total_steps is None else coerce("total_steps", total_steps, int, {"low": 1})
    if total <= agent.progress.step:
        raise ConfigError(
            f"total_steps {total} is not beyond the {agent.progress.step} steps already taken: give a larger one."
        )
    if total % config.num_envs:
        below = total - total % config.num_envs
        near = f"{below} or {below + config.num_envs}" if below else str(config.num_envs)
        raise ConfigError(
            f"total_steps {total} is not a multiple of num_envs {config.num_envs}: use {near}, or another num_envs."
        )
    config.total_steps = total
    return total


class Session:
    """One sitting of a run; what it opens is closed by `cleanup`.

    Of several processes each has a session of its own. They go through the same steps, and whatever decides a step is
    agreed upon; the first one alone writes the run directory and speaks.
    """

    def __init__(self, agent: Algorithm, total: int, shown: bool, cleanup: contextlib.ExitStack) -> None:
        self.agent, self.total, self.ranks = agent, total, agent.ranks
        config = agent.config
        self.checkpoint_every = config.checkpoint_every or max(1, total // CHECKPOINTS_A_RUN)
        self.started, self.first_step = time.perf_counter(), agent.progress.step
        self.directory: RunDirectory | None = None
        self.metrics: MetricsFile | None = None
        self.tensorboard: TensorBoard | None = None
        self.tracker: Wandb | None = None
        self.last_checkpoint: int | None = None
        self.saved_at, self.saving_seconds = self.started, 0.0  # when the last checkpoint was done, what it took
        cleanup.callback(self._note_seconds)
        self._start_alike()
        if agent.run_dir is not None:
            self.directory = RunDirectory(agent.run_dir)
            if config.track == "wandb":
                require_wandb()  # before a run is overwritten
            self.last_checkpoint = self.ranks.from_first(lambda: self._take_directory(cleanup))
            restore_carried(agent, self.directory)
            self.ranks.from_first(lambda: self._open_files(cleanup))
            agent.takes_over, agent.overwrite, agent.passed_over = True, False, []
        else:
            if config.track != "none":
                raise ConfigError(f"track {config.track} needs a run directory: give run_dir, or leave track out.")
            restore_carried(agent, None)
        self.stop = StopRequests(self.directory is not None, self._stopped_at_once, self.ranks.is_first)
        cleanup.callback(self.stop.close)
        # last: an error before it must not leave a live terminal
        self.display = make_display(agent, total, shown and self.ranks.is_first)
        cleanup.callback(self.display.close)

    def _start_alike(self) -> None:
        """Refuse processes that stand at different places of a run; give all of them the first one's numbers."""
        progress = self.agent.progress
        found = self.ranks.gather(torch.tensor([progress.step, progress.iteration]))
        if (found != found[0]).any():
            raise RanksError(
                f"The processes would continue from the steps {', '.join(map(str, found[:, 0].tolist()))}: the run "
                "directory must lie on a file system that all of them share."
            )
        self.ranks.copy_first_(self.agent.tensors())

    def _take_directory(self, cleanup: contextlib.ExitStack) -> int | None:
        """Make the run directory this run's alone; the step of its latest checkpoint."""
        agent = self.agent
        assert self.directory is not None
        cleanup.callback(self.directory.close)
        self.directory.open(agent)
        found = map(step_of, self.directory.checkpoints() if agent.takes_over else [])
        return max((step for step in found if step <= agent.progress.step), default=None)

    def _open_files(self, cleanup: contextlib.ExitStack) -> None:
        agent, config = self.agent, self.agent.config
        assert self.directory is not None
        self.directory.begin(agent)
        self.directory.write_config(agent.name, config)
        self.directory.note_launch(parallel.launch_id())
        parallel.remember_start()
        self.metrics = MetricsFile(self.directory.metrics_path, agent.metrics_bytes, self.directory.require_present)
        cleanup.callback(self.metrics.close)
        cleanup.callback(self._note_metrics)
        rows = read_metrics(self.directory.metrics_path)
        self.tensorboard = TensorBoard(self.directory.path / TENSORBOARD, rows)
        cleanup.callback(self.tensorboard.close)
        if config.track == "wandb":
            self.tracker = Wandb(self.directory.path, self.directory.path.name, config.to_json())
            cleanup.callback(self.tracker.close)

    def run(self, callback: Callable[[dict[str, Any]], object] | None) -> dict[str, Any]:
        agent, config = self.agent, self.agent.config
        stopped = False
        while agent.progress.step < self.total and not stopped:
            before = agent.progress.step
            with self._explained(before):
                if agent.collector is None:
                    agent.start_environments(self.display.playing_back)
                agent.renew_environments()
                begun = time.perf_counter()  # playing back is no part of an iteration's speed
                row = agent.iterate(min(agent.iteration_steps(), (self.total - before) // config.num_envs))
                require_finite_parameters(agent)
            agent.count_episodes()
            agent.progress.iteration += 1
            if agent.progress.iteration == 1:
                choose_kernels(agent)
            self.stop.iteration_is_over()
            row = self._row(row, time.perf_counter() - begun, agent.progress.step - before)
            due = self._checkpoint_due(before)
            if self.ranks.size > 1 and (due or agent.progress.iteration % ITERATIONS_BETWEEN_COMPARISONS == 0):
                self.ranks.require_alike(agent.tensors(), f"iteration {agent.progress.iteration}")
            evaluation = self._evaluation() if due else None
            if evaluation is not None:
                row |= {f"eval_{name}": value for name, value in evaluation.items()}
            if self.metrics is not None and self.tensorboard is not None:
                self.metrics.write(row)
                self.tensorboard.write(row)
            if self.tracker is not None:
                self.tracker.write(row)
            self.display.iteration(row)
            stopped = callback is not None and asks_to_stop(callback, row)
            if agent.progress.step >= self.total:
                agent.end_run()
            if due:
                self.agent.checkpoint_due = False
                self._save({} if evaluation is None else {"evaluation": evaluation})
            stopped, requested = self._wishes(stopped)
            if (stopped or requested) and not due:
                self._save({})
            if requested and agent.progress.step < self.total:
                raise self.stop.error(self._stopped_sentence())
        result = self._result("stopped" if stopped else "finished")
        self.display.finished(result)
        return result

    def _wishes(self, stopped: bool) -> tuple[bool, bool]:
        """Whether some process's callback, and whether a signal to some process, wants the run to stop."""
        wish, self.stop.requested = self.ranks.most(stopped, self.stop.requested)
        return bool(wish), self.stop.requested > 0

    def _checkpoint_due(self, before: int) -> bool:
        step = self.agent.progress.step
        if step >= self.total:
            return True
        self.agent.checkpoint_due |= step // self.checkpoint_every > before // self.checkpoint_every
        if not self.agent.checkpoint_due or not self.agent.at_boundary():
            return False
        return self.agent.config.checkpoint_every > 0 or self.ranks.from_first(self._is_cheap)

    def _is_cheap(self) -> bool:
        """Whether a checkpoint that nobody asked for would cost little, by what the last one did.

        The clock may decide that, since a checkpoint leaves no trace in what the run computes.
        """
        waited = time.perf_counter() - self.saved_at
        return self.saving_seconds <= DEAREST * waited

    def _evaluation(self) -> dict[str, float | int] | None:
        """Episodes in environments of their own, at a checkpoint that may turn out the best."""
        episodes = self.agent.config.eval_checkpoints
        return self.ranks.from_first(lambda: self.agent.evaluate(episodes).summary()) if episodes else None

    def _save(self, extra: dict[str, Any]) -> None:
        agent, begun = self.agent, time.perf_counter()
        if self.directory is None:
            return
        if self.metrics is not None:
            self.metrics.sync()
            agent.metrics_bytes = self.metrics.bytes_written
            extra = {"metrics_bytes": agent.metrics_bytes, "seconds": self._seconds(), **extra}
        last = agent.progress.step >= self.total
        self.display.checkpoint(self.directory.save(agent, extra, last=last))
        self.last_checkpoint, self.saved_at = agent.progress.step, time.perf_counter()
        self.saving_seconds = self.saved_at - begun

    @contextlib.contextmanager
    def _explained(self, before: int) -> Iterator[None]:
        """Adds to the sentence of what went wrong in an iteration what was saved of it, and saves what was good."""
        agent = self.agent
        try:
            yield
        except (EnvError, NonFiniteError) as error:
            if self.directory is None:
                raise
            told = [str(error)]
            with contextlib.suppress(PhasegradError):  # the first error is the one to tell
                if isinstance(error, NonFiniteError) and agent.rollout is not None:
                    if parallel.first_to_say(f"{BAD_BATCH} {before}"):  # the process that saw it, or one of all
                        self.directory.write(BAD_BATCH, rollout_bytes(agent))
                    told.append(f"The rollout is in {self.directory.path / BAD_BATCH}.")
                alone = self.ranks.size == 1  # other processes cannot know of the error now
                if isinstance(error, EnvError) and alone and agent.progress.step == before > 0:
                    agent.close()  # the environments failed before anything was learnt from them
                    self._save({})
            told.append(self._where())
            raise type(error)(" ".join(told)) from error
        except BaseException:
            agent.collector = None  # the environments are in the middle of a rollout: learning again brings them back
            raise

    def _where(self) -> str:
        if self.last_checkpoint is None or self.directory is None:
            return "There is no checkpoint yet."
        return f"The last good checkpoint is that of step {self.last_checkpoint} in {self.directory.path}."

    def _stopped_sentence(self) -> str:
        assert self.directory is not None
        kept = "with a checkpoint" if self.last_checkpoint == self.agent.progress.step else "without a new checkpoint"
        resume = f"`phasegrad resume {self.directory.path}` continues"
        return f"stopped at step {self.agent.progress.step} {kept}; {resume} as if it had never stopped."

    def _stopped_at_once(self) -> str:
        assert self.directory is not None
        return f"stopped at once. {self._where()} `phasegrad resume {self.directory.path}` continues."

    def _row(self, row: dict[str, float], seconds: float, steps: int) -> dict[str, Any]:
        progress, times = self.agent.progress, self.agent.clock.take()
        head = {
            "step": progress.step,
            "iteration": progress.iteration,
            "return_mean": float(np.mean(progress.recent_returns)) if progress.recent_returns else None,
            "length_mean": float(np.mean(progress.recent_lengths)) if progress.recent_lengths else None,
            "episodes": progress.episodes,
        }
        tail = {"sps": steps / seconds, "seconds": self._seconds()}
        if "auxiliary" in times:
            tail["sps_policy_phase"] = steps / (seconds - times["auxiliary"])
        return head | row | tail | {f"time_{name}": taken / seconds for name, taken in times.items()}

    def _seconds(self) -> float:
        return self.agent.seconds_before + time.perf_counter() - self.started

    def _result(self, status: str) -> dict[str, Any]:
        agent = self.agent
        returns = agent.progress.recent_returns
        result: dict[str, Any] = {
            "status": status,
            "step": agent.progress.step,
            "return_mean": float(np.mean(returns)) if returns else None,
            "episodes": agent.progress.episodes,
            "sps": (agent.progress.step - self.first_step) / (time.perf_counter() - self.started),
            "seconds": self._seconds(),
            "peak_rss_mb": self.ranks.mean(peak_rss_mb())[0] * self.ranks.size,
        }
        if self.ranks.size > 1:
            result["processes"] = self.ranks.size
        if agent.config.eval_episodes:
            result["eval"] = self.ranks.from_first(lambda: agent.evaluate(agent.config.eval_episodes).summary())
        if self.directory is not None and self.ranks.is_first:
            self.directory.write_result(result)
        return result

    def _note_metrics(self) -> None:
        """An agent that learns on after an error goes on from its own rows, not from those of its last checkpoint."""
        if self.metrics is not None:
            self.agent.metrics_bytes = self.metrics.bytes_written

    def _note_seconds(self) -> None:
        self.agent.seconds_before = self._seconds()


def asks_to_stop(callback: Callable[[dict[str, Any]], object], row: dict[str, Any]) -> bool:
    """Whether a callback ends the training: None goes on, anything else counts as the boolean it is.

    It sees NaN where the files have null, so that it can compare a mean before the first episode has ended.
    """
    answer = callback({name: float("nan") if value is None else value for name, value in row.items()})
    if answer is None:
        return False
    try:
        return not answer
    except (TypeError, ValueError, RuntimeError):  # such as an array of several
        raise ConfigError(
            f"The callback returned {short(answer)}: return None or True to go on, False to stop."
        ) from None


def require_finite_parameters(agent: Algorithm) -> None:
    """Stop within the iteration that broke a parameter, and name it; a sum shows every NaN and infinity."""
    if torch.isfinite(agent.flat.data.sum()):
        return
    for name, parameter in agent.model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise NonFiniteError(
                f"The parameter {name} became NaN or infinite in iteration {agent.progress.iteration}, before step "
                f"{agent.progress.step}: training has diverged; lower learning_rate."
            )


def rollout_bytes(agent: Algorithm) -> bytes:
    """The latest rollout as a safetensors file."""
    named: dict[str, torch.Tensor] = {}
    for each in fields(agent.rollout):  # type: ignore[arg-type]
        tree = getattr(agent.rollout, each.name)
        if tree is not None:
            named |= {f"{each.name}.{name}".rstrip("."): leaf.contiguous() for name, leaf in named_leaves(tree)}
    return safetensors.torch.save(named)


def peak_rss_mb() -> float:
    """The most memory this process has had, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
