"""The training loop around an algorithm's iterations: legs, checkpoints, metrics, display, the result."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from phasegrad.devices import pick_threads
from phasegrad.errors import ConfigError
from phasegrad.memory import require_room
from phasegrad.runs.console import make_display
from phasegrad.runs.directory import RunDirectory
from phasegrad.runs.metrics import MetricsFile, TensorBoard

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm

CHECKPOINTS_A_RUN = 10


def train(
    agent: Algorithm,
    total_steps: int | None,
    *,
    callback: Callable[[dict[str, Any]], object] | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Run iterations until `total_steps`; returns what result.json holds."""
    total = plan_total(agent, total_steps)
    require_room(agent.storage_bytes(), agent.smaller_storage)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(pick_threads(agent.config.torch_threads, agent.microbatch < 1 << 20))
    session = Session(agent, total, progress)
    try:
        return session.run(callback)
    finally:
        session.close()
        torch.set_num_threads(threads_before)


def plan_total(agent: Algorithm, total_steps: int | None) -> int:
    """The final step count, exact: it must be reachable in whole steps of all environments."""
    config = agent.config
    total = config.total_steps if total_steps is None else int(total_steps)
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
    """One process's share of a run."""

    def __init__(self, agent: Algorithm, total: int, shown: bool) -> None:
        self.agent, self.total = agent, total
        config = agent.config
        self.checkpoint_every = config.checkpoint_every or max(1, total // CHECKPOINTS_A_RUN)
        self.started, self.first_step = time.perf_counter(), agent.progress.step
        self.directory: RunDirectory | None = None
        self.metrics: MetricsFile | None = None
        self.tensorboard: TensorBoard | None = None
        if agent.run_dir is not None:
            self.directory = RunDirectory(agent.run_dir)
            if agent.progress.step == 0 and not agent.takes_over:
                self.directory.require_free(overwrite=False)
            agent.takes_over = True
            self.directory.write_config(agent.name, config)
            self.metrics = MetricsFile(self.directory.metrics_path, agent.metrics_bytes)
            self.tensorboard = TensorBoard(self.directory.path / "tensorboard", agent.progress.step)
        self.display = make_display(agent, total, shown)  # last: an error before it must not leave a live terminal

    def run(self, callback: Callable[[dict[str, Any]], object] | None) -> dict[str, Any]:
        agent, config = self.agent, self.agent.config
        stopped = False
        while agent.progress.step < self.total and not stopped:
            begun, before = time.perf_counter(), agent.progress.step
            if agent.collector is None:
                agent.start_leg()
            row = agent.iterate(min(config.num_steps, (self.total - before) // config.num_envs))
            agent.progress.iteration += 1
            row = self._row(row, time.perf_counter() - begun, agent.progress.step - before)
            if self.metrics is not None and self.tensorboard is not None:
                self.metrics.write(row)
                self.tensorboard.write(row)
            self.display.iteration(row)
            stopped = callback is not None and callback(row) is False
            if self._checkpoint_due(before) or stopped:
                self._end_leg()
        result = self._result("stopped" if stopped else "finished")
        self.display.finished(result)
        return result

    def _checkpoint_due(self, before: int) -> bool:
        step = self.agent.progress.step
        if step >= self.total:
            return True
        self.agent.leg_due |= step // self.checkpoint_every > before // self.checkpoint_every
        return self.agent.leg_due and self.agent.at_boundary()

    def _end_leg(self) -> None:
        agent = self.agent
        agent.leg_due = False
        agent.end_leg()
        if self.directory is not None and self.metrics is not None:
            agent.metrics_bytes = self.metrics.bytes_written
            extra = {"metrics_bytes": agent.metrics_bytes, "seconds": self._seconds()}
            self.display.checkpoint(self.directory.save(agent, extra))

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
            "peak_rss_mb": peak_rss_mb(),
        }
        if agent.config.eval_episodes:
            result["eval"] = agent.evaluate(agent.config.eval_episodes).summary()
        if self.directory is not None:
            self.directory.write_result(result)
        return result

    def close(self) -> None:
        self.agent.seconds_before = self._seconds()
        self.display.close()
        for writer in (self.metrics, self.tensorboard):
            if writer is not None:
                writer.close()


def peak_rss_mb() -> float:
    """The most memory this process has had, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
