"""Processes that stay joined as the ranks of one run, and what the tests of `phasegrad.parallel` have them do."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.estimates import explained_variance, normalized
from phasegrad.algorithms.surrogate import epoch_of_minibatches, normalized_by_minibatch
from phasegrad.data.minibatches import Batch, Minibatch, Minibatches
from phasegrad.data.phase_buffer import AuxiliaryBatch, BufferedStates
from phasegrad.data.reward_scaling import RewardNormalizer
from phasegrad.data.storage import Rollout
from phasegrad.distributed import joining as parallel
from phasegrad.distributed.moments import moments_of, pooled_moments
from phasegrad.models.scaling import ObservationNormalizer

SECONDS = 120
TIMES = ("sps", "seconds", "time_")


class Team:
    """`size` processes that run the functions they are sent, each with the others as its ranks.

    Of a task that failed on one of them others may still wait for its messages, so all of them are replaced before the
    next: what a test finds does not depend on the tests before it.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self.size, self.folder, self.started = size, folder, 0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        self.started += 1
        meeting = self.folder / f"meeting-{self.started}"
        for rank in range(self.size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(rank, self.size, str(meeting), theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What each process's call gives, in their order."""
        if not self.processes:
            self._start()
        try:
            for pipe in self.pipes:
                pipe.send((function, arguments))
            return self._replies()
        except BaseException:
            self.close()
            raise

    def _replies(self) -> list[Any]:
        results: list[Any] = [None] * self.size
        waiting = {pipe: rank for rank, pipe in enumerate(self.pipes)}
        deadline = time.monotonic() + SECONDS
        while waiting:
            ready: Any = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            assert ready, f"processes {sorted(waiting.values())} do not answer"
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    error, results[rank] = pipe.recv()
                except EOFError:
                    error = "it has ended"
                assert error is None, f"process {rank}: {error}"  # at once: the others may never answer
        return results

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(10)
        for pipe in self.pipes:
            pipe.close()
        self.pipes, self.processes = [], []


def _work(rank: int, size: int, meeting: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    parallel.join(rank=rank, size=size, init_method=f"file://{meeting}")
    while True:
        function, arguments = pipe.recv()
        try:
            pipe.send((None, function(*arguments)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))


def fail_on(rank: int) -> Tensor:
    """An error on one process while the others wait for its number."""
    ranks = parallel.current()
    if ranks.rank == rank:
        raise ValueError(f"rank {rank} fails")
    return ranks.mean_(torch.zeros(3))


def learn_and_fail(failing: list[int], share: bool, meeting: str) -> dict[str, Any]:
    """A callback that raises on some processes, what each is told then and by its next exchange, and a fresh start."""
    ranks = parallel.current()
    ranks.may_share = ranks.may_share and share
    agent = pg.PPO("CartPole-v1", num_envs=4, num_steps=8, num_minibatches=2, epochs=1, seed=1)

    def callback(row: dict[str, Any]) -> None:
        if row["iteration"] == 3 and ranks.rank in failing:
            raise ValueError("a bug of the user's")

    begun = time.monotonic()
    found: dict[str, Any] = {"learn": error_of(lambda: agent.learn(4096, callback=callback))}
    found["seconds"] = time.monotonic() - begun
    agent.close()
    found["next"] = error_of(lambda: ranks.mean_(torch.full((3,), float(ranks.rank))))
    parallel.leave()
    fresh = parallel.join(rank=ranks.rank, size=ranks.size, init_method=f"file://{meeting}")
    found["mean"] = fresh.mean(float(ranks.rank))
    return found


def told_by_first() -> dict[str, Any]:
    """What each process learns of an error in what the first does for all, and whether they go on in step."""
    ranks = parallel.current()

    def broken() -> Any:
        raise ZeroDivisionError("by zero")

    found: dict[str, Any] = {"broken": error_of(lambda: ranks.from_first(broken))}
    found["no json"] = error_of(lambda: ranks.from_first(lambda: {1, 2}))
    found["mean"] = ranks.mean(float(ranks.rank))
    return found


def process_number() -> int:
    return os.getpid()


def error_of(function: Callable[[], Any]) -> tuple[str, str]:
    try:
        function()
    except BaseException as error:
        return type(error).__name__, getattr(error, "sentence", "") or str(error)
    return "", ""


# The same numbers of one process and of several

PPO_FIELDS = {"num_envs": 4, "num_steps": 6, "num_minibatches": 3, "hidden_sizes": "8", "preset": "none", "seed": 5}


@contextlib.contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def make_agent(algorithm: str, **fields: Any) -> Algorithm:
    own = {"aux_minibatches": 4} if algorithm == "ppg" else {}
    return ALGORITHMS[algorithm]("CartPole-v1", **{**PPO_FIELDS, **own, **fields})


def random_rollout(agent: Algorithm, num_envs: int, dtype: torch.dtype = torch.float64) -> Rollout:
    """A rollout [T, N] of all environments, the same wherever it is made."""
    generator = torch.Generator().manual_seed(11)
    steps = agent.config.num_steps

    def normal(*shape: int) -> Tensor:
        return torch.randn(steps, num_envs, *shape, generator=generator, dtype=torch.float64).to(dtype)

    flags = torch.zeros(steps, num_envs, dtype=torch.bool)
    params = agent.distribution.masked(normal(agent.distribution.parameter_size), None)
    actions = torch.randint(2, (steps, num_envs), generator=generator)
    log_probs = agent.distribution.log_prob(params, actions) + 0.3 * normal()
    return Rollout(
        observations=normal(4), actions=actions, behaviour_params=params, raw_rewards=normal(), rewards=normal(),
        terminated=flags, truncated=flags, values=normal(), next_values=normal(), log_probs=log_probs,
        advantages=3 * normal() + 1, value_targets=normal(), masks=None,
    )  # fmt: skip


def own_part(rollout: Rollout, ranks: parallel.Ranks) -> Rollout:
    tensors = {name: None if t is None else ranks.own(t, 1).contiguous() for name, t in rollout.tensors().items()}
    return dataclasses.replace(rollout, **tensors)


def losses(agent: Any) -> dict[str, tuple[Any, list[str], type[Minibatch]]]:
    """Every loss of an algorithm by name, with the groups it trains and what it is a loss of."""
    groups = list(agent.flat.slices)
    if agent.name == "ppo":
        return {"ppo": (agent.loss, groups, Batch)}
    shared = agent.config.arch == "shared"
    return {
        "policy+value": (agent.policy_and_value_loss, groups, Batch),
        "policy": (agent.policy_loss, groups if shared else ["policy"], Batch),
        "value": (agent.value_loss, groups if shared else ["value"], Batch),
        "auxiliary": (agent.auxiliary_loss, groups, AuxiliaryBatch),
    }


class Recorder:
    """In an optimiser's place: keeps the gradients that it is to move down, and leaves the parameters.

    Of compiled steps it sees none, so there it is a step of RMSProp that forgets all and divides by 1.
    """

    def __init__(self, flat: Any, where: slice) -> None:
        self.flat, self.where = flat, where
        self.seen: list[Tensor] = []

    def step(self, gradients: Tensor, learning_rate: float, scale: Tensor | None = None) -> None:
        self.seen.append(gradients.detach().clone())

    def native(self, rate: float, longest: float) -> tuple[float, ...]:
        self.before = self.flat.data[self.where].clone()
        self.square = torch.zeros_like(self.before)
        length, address = len(self.square), self.square.data_ptr()
        return self.where.start, length, 0, address, 0, 1.0, 1.0, 1.0, 0.0, 1  # p -= g / (sqrt(0) + 1)

    def note_compiled(self) -> None:
        """The gradient of the one compiled step that was taken, undone."""
        self.seen.append(self.before - self.flat.data[self.where])
        self.flat.data[self.where] = self.before


SCALARS = {"clip_range": 0.2, "kl_beta": 0.7}


def stepped_gradients(algorithm: str, fields: dict[str, Any], way: str) -> dict[str, Any]:
    """Of every loss what the optimisers get, minibatch by minibatch, and whose samples [environment, step] it was."""
    compiled = way == "compiled"
    with contextlib.nullcontext() if compiled else float64():
        agent = make_agent(algorithm, **fields)
        ranks, config = agent.ranks, agent.config
        rollout = own_part(random_rollout(agent, config.num_envs, agent.flat.data.dtype), ranks)
        found, coefficients = {}, {**config.weights(), **SCALARS}
        for name, (loss, groups, kind) in losses(agent).items():
            stepper = agent.computation.steppers[0]
            stepper.way = way
            recorders = {group: Recorder(agent.flat, agent.flat.slices[group]) for group in groups}
            for steps in (stepper.plain, stepper.traced, stepper.compiled):
                steps.optimizers = dict(recorders)
            minibatches: Any = epoch_of_minibatches(
                rollout, config, agent.generator("minibatches"), agent.device, ranks
            )
            if kind is AuxiliaryBatch:
                states = BufferedStates(rollout.observations, None, rollout.value_targets, rollout.behaviour_params)
                minibatches = Minibatches(states, minibatches.indices, agent.device, AuxiliaryBatch)
            if not compiled:
                stepper.epoch(name, loss, minibatches, coefficients, dict.fromkeys(groups, 1e-3))
            for index in minibatches.indices if compiled else ():
                one = dataclasses.replace(minibatches, indices=[index])
                stepper.epoch(name, loss, one, coefficients, dict.fromkeys(groups, 1e-3))
                for recorder in recorders.values():
                    recorder.note_compiled()
            assert stepper.way == way
            samples = [
                (index % agent.experience.num_envs + agent.experience.first_env, index // agent.experience.num_envs)
                for index in minibatches.indices
            ]
            found[name] = {
                "gradients": {group: [seen.numpy() for seen in recorder.seen] for group, recorder in recorders.items()},
                "samples": [torch.stack(pair, 1).numpy() for pair in samples],
            }
        agent.close()
        return found


def pooled_numbers() -> dict[str, Any]:
    """What moments and normalisers make of data that is divided among the processes; seeds as in `pool`."""
    import gymnasium as gym

    ranks = parallel.current()
    data = pool()
    observations = ObservationNormalizer(gym.spaces.Box(-10.0, 10.0, (3,)), True, 10.0)
    observations.ranks = ranks
    rewards = RewardNormalizer(True, 0.9, 10.0, ranks)
    scaled = []
    for part in range(2):  # two rollouts one after the other
        observations.update(ranks.own(data["observations"][part], 1))
        scaled.append(rewards(ranks.own(data["rewards"][part], 1), ranks.own(data["done"][part], 1)))
    agent = make_agent("ppo")
    advantages = ranks.own(data["advantages"], 1)
    indices = list(torch.arange(advantages.numel()).tensor_split(5))  # not all of one size
    uneven = data["advantages"].flatten()[:5] if ranks.is_first else data["advantages"].flatten()[5:]
    result = {
        "observation_moments": observations.state_dict()["moments_0"].numpy(),
        "reward_moments": rewards.moments.numpy(),
        "rewards": torch.stack(scaled).numpy(),
        "advantages": normalized(advantages, ranks).numpy(),
        "advantages_by_minibatch": normalized_by_minibatch(advantages, indices, ranks).numpy(),
        "uneven": pooled_moments(moments_of(uneven), ranks).numpy(),
        "explained_variance": explained_variance(advantages, ranks.own(data["targets"], 1), ranks),
    }
    agent.close()
    return result


def pool() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "observations": 5 * normal(2, 7, 4, 3) + 100, "rewards": normal(2, 7, 4) + 1, "done": normal(2, 7, 4) > 1,
        "advantages": 3 * normal(7, 4) + 2, "targets": normal(7, 4),
    }  # fmt: skip


def left_alone() -> list[tuple[str, str]]:
    """What a process is told that waits for another, the last, which has ended: by memory, then by gloo."""
    ranks = parallel.current()
    if ranks.rank == ranks.size - 1:
        os._exit(9)
    told = [error_of(lambda: ranks.mean_(torch.zeros(10)))]
    ranks.may_share = False
    return [*told, error_of(lambda: ranks.mean_(torch.zeros(10)))]


def uses_shared_memory() -> bool:
    return parallel.current()._memory is not None


def reduced(length: int, share: bool = True) -> tuple[bytes, bytes]:
    """The bits of a mean over the processes, and what one of them had."""
    ranks = parallel.current()
    own = torch.randn(length, generator=torch.Generator().manual_seed(ranks.rank))
    before, ranks.may_share = ranks.may_share, ranks.may_share and share
    mean = ranks.mean_(own.clone())
    ranks.may_share = before
    return mean.numpy().tobytes(), own.numpy().tobytes()


# Whole runs


def state_digest(agent: Algorithm) -> str:
    sha = hashlib.sha256()
    for name, tensor in sorted(agent.tensors().items()):
        sha.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def train(
    algorithm: str,
    env: str,
    total: int,
    run_dir: str | None = None,
    stop_after: int = 0,
    fields: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A run from its start, stopped by its callback after some iterations where asked."""
    agent = ALGORITHMS[algorithm](env, run_dir=run_dir, **(fields or {}))
    return finish(agent, total, stop_after)


def resume(run_dir: str, total: int | None = None, stop_after: int = 0) -> dict[str, Any]:
    return finish(pg.load(run_dir), total, stop_after)


def finish(agent: Algorithm, total: int | None, stop_after: int = 0) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []

    def callback(row: dict[str, Any]) -> bool:
        rows.append({name: value for name, value in row.items() if not name.startswith(TIMES)})
        return len(rows) != stop_after

    agent.learn(total, callback=callback)
    agent.close()
    progress = agent.progress
    return {
        "digest": state_digest(agent),
        "rows": rows,
        "step": progress.step,
        "returns": list(progress.recent_returns),
        "episodes": progress.episodes,
    }


class Hooked(pg.Callback):
    """Notes the hooks that are called, and answers False to one of them on one process."""

    def __init__(self, stops: int, hook: str, at: int) -> None:
        self.stops, self.hook, self.at, self.calls = stops, hook, at, list[str]()

    def note(self, hook: str, agent: Algorithm, step: int) -> bool:
        self.calls.append(f"{hook} {step}")
        return (agent.ranks.rank, hook, step) != (self.stops, self.hook, self.at)

    def on_start(self, agent: Algorithm) -> bool:
        return self.note("start", agent, agent.progress.step)

    def on_evaluation(self, agent: Algorithm, evaluation: dict[str, Any]) -> bool:
        return self.note("evaluation", agent, evaluation["step"])

    def on_iteration(self, agent: Algorithm, metrics: dict[str, Any]) -> bool:
        return self.note("iteration", agent, metrics["step"])

    def on_checkpoint(self, agent: Algorithm, path: Path) -> bool:
        return self.note("checkpoint", agent, int(path.name.removeprefix("step-")))

    def on_end(self, agent: Algorithm, result: dict[str, Any]) -> None:
        self.note("end", agent, result["step"])


class Counting:
    """A logger that notes the steps of its rows."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def write(self, row: dict[str, Any]) -> None:
        self.steps.append(row["step"])


def hooked(run_dir: str | None, stops: int, hook: str, at: int, best: str) -> dict[str, Any]:
    """A run with callbacks on every process, of which one process's may stop it; given on the first process alone: a logger."""
    fields: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "epochs": 1, "seed": 1}
    fields |= {"checkpoint_every": 64, "eval_every": 64, "eval_episodes": 1}
    agent = pg.PPO("CartPole-v1", run_dir=run_dir, **fields)
    seen, logger = Hooked(stops, hook, at), Counting()
    agent.learn(192, callback=[seen, pg.SaveBest(best), pg.StopWithoutImprovement(patience=9)], loggers=logger)
    agent.close()
    found = {"calls": seen.calls, "step": agent.progress.step, "digest": state_digest(agent), "written": logger.steps}
    return found | {"history": agent.run.history}


def limited(seconds: dict[int, float]) -> int:
    """The steps of a run whose processes have different time limits."""
    fields: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "epochs": 1, "eval_episodes": 0}
    agent = pg.PPO("CartPole-v1", compile="off", **fields)
    agent.learn(1 << 20, callback=pg.TimeLimit(seconds[agent.ranks.rank]))
    agent.close()
    return agent.progress.step


def diverge(run_dir: str) -> tuple[str, str]:
    """A run in which process 1 loses a bit of one parameter in its third iteration."""
    agent = pg.PPO("CartPole-v1", num_envs=4, num_steps=8, num_minibatches=2, epochs=1, seed=1, run_dir=run_dir)

    def callback(row: dict[str, Any]) -> None:
        if row["iteration"] == 3 and agent.ranks.rank == 1:
            with torch.no_grad():
                agent.model.value_head.bias += 1e-7  # type: ignore[union-attr]

    found = error_of(lambda: agent.learn(4096, callback=callback))
    agent.close()
    return found


def signalled(run_dir: str) -> tuple[str, str]:
    """A run whose process 1 alone is asked to stop."""
    agent = pg.PPO("CartPole-v1", num_envs=4, num_steps=8, num_minibatches=2, epochs=1, seed=1, run_dir=run_dir)

    def callback(row: dict[str, Any]) -> None:
        if row["iteration"] == 3 and agent.ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    found = error_of(lambda: agent.learn(4096, callback=callback))
    agent.close()
    return found


def refused(algorithm: str, fields: dict[str, Any]) -> tuple[str, str]:
    return error_of(lambda: ALGORITHMS[algorithm]("CartPole-v1", **fields))
