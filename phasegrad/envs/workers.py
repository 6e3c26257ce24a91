"""Environments in a process each: gymnasium's workers, which here say why they cannot begin and end in bounded time.

What they are asked to do, and what their answers mean, is known to vector_adapter.py.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from functools import partial
from multiprocessing import util
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector import async_vector_env as gymnasiums

from phasegrad.envs.gymnasium_backend import EnvFactory, GuardedEnv
from phasegrad.envs.making import MADE, first_words
from phasegrad.envs.watching import (
    close_limit,
    describe_death,
    describe_timeout,
    end_with_parent,
    end_workers,
    forking,
    is_forked_by_main_thread,
    unanswering,
    warn_of_close,
)
from phasegrad.errors import EnvError, words_of

_SECONDS_TO_LEAVE = 1.0  # for a process whose environment is closed


_living: weakref.WeakSet[Workers] = weakref.WeakSet()


class Workers(AsyncVectorEnv):
    """A process for each of `factories`, on its own of `seeds`; environment `first` of the run is the first of them."""

    def __init__(
        self, factories: Sequence[EnvFactory], seeds: Sequence[int], first: int = 0, timeout: float | None = None
    ) -> None:
        self.seeds, self.first_env, self._timeout = list(seeds), first, timeout
        self._owner = os.getpid()
        _living.add(self)
        makers = [
            partial(GuardedEnv, factory, first + index, seed, timeout, os.getpid())
            for index, (factory, seed) in enumerate(zip(factories, seeds, strict=True))
        ]
        work = partial(_work, 0 if is_forked_by_main_thread() else os.getpid())
        how: dict[str, Any] = {"shared_memory": True, "copy": False, "autoreset_mode": AutoresetMode.SAME_STEP}
        try:
            with forking():
                super().__init__(makers, worker=work, **how)
        except BaseException:  # whatever stopped it: those that are there already must not stay
            if hasattr(self, "parent_pipes"):
                end_workers(self)
            raise

    def _check_spaces(self) -> None:
        """The first word of every worker: one that could not make its environment says so, or is dead."""
        level, gym.logger.min_level = gym.logger.min_level, gym.logger.ERROR + 1  # it would print tracebacks
        try:
            names = [(self.first_env + index, seed) for index, seed in enumerate(self.seeds)]
            first_words(self.parent_pipes, names, self._timeout)
            super()._check_spaces()
        except EnvError as error:
            raise EnvError(str(error)) from error
        except (EOFError, OSError) as error:
            sentence = self.death("being made", hung_up=True)
            raise EnvError(sentence or f"The environments' processes could not be reached: {error}.") from error
        except RuntimeError as error:  # gymnasium names none of them
            raise EnvError("The environments have different spaces; all must be the same.") from error
        finally:
            gym.logger.min_level = level

    def death(self, when: str, hung_up: bool) -> str | None:
        """The sentence for the first worker that has died, if one has."""
        found = unanswering(self, hung_up)
        if found is None or not found[1]:
            return None
        index = found[0]
        return describe_death(self.first_env + index, self.seeds[index], when, self.processes[index].exitcode)

    def finish(self, timeout: float | None) -> None:
        """Close every environment in its process, then end the processes; what does not go well is told."""
        limit, of = close_limit(timeout)
        asked = [index for index, pipe in enumerate(self.parent_pipes) if self._ask_to_close(pipe)]
        deadline, hung = time.monotonic() + limit, False
        try:
            for index in asked:
                sentence = self._closed(index, deadline)
                if sentence is None:
                    hung = True
                    sentence = describe_timeout(self.first_env + index, self.seeds[index], "close", limit, of)
                if sentence:
                    warn_of_close(sentence)
            if not hung:
                self._dismiss(asked)
        finally:
            end_workers(self)

    def end(self) -> None:
        """End the processes as they are, once."""
        if not getattr(self, "closed", True) and hasattr(self, "parent_pipes") and os.getpid() == self._owner:
            end_workers(self)

    __del__ = end

    def _ask_to_close(self, pipe: Any) -> bool:
        try:
            pipe.send(("_call", ("finish", [], {})))
        except (OSError, AttributeError):  # one that has failed and been told of
            return False
        return True

    def _closed(self, index: int, deadline: float) -> str | None:
        """What there is to tell of a close, '' for nothing; None where there is no answer in time."""
        pipe: Any = self.parent_pipes[index]
        try:
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                return None
            answer, well = pipe.recv()
            return str(answer or "") if well else ""
        except (EOFError, OSError):
            self.processes[index].join(_SECONDS_TO_LEAVE)
            code = self.processes[index].exitcode
            return describe_death(self.first_env + index, self.seeds[index], "close", code)

    def _dismiss(self, asked: list[int]) -> None:
        """Let the processes whose environments are closed leave by themselves."""
        deadline = time.monotonic() + _SECONDS_TO_LEAVE
        for index in asked:
            pipe: Any = self.parent_pipes[index]
            try:
                pipe.send(("close", None))
            except OSError:
                continue
        for index in asked:
            self.processes[index].join(max(0.0, deadline - time.monotonic()))


def _end_all() -> None:
    """Before multiprocessing asks them to end and waits for them, at Python's end, where an agent was not closed."""
    for workers in list(_living):
        workers.end()


util.Finalize(None, _end_all, exitpriority=100)


def _work(
    parent: int, index: int, env_fn: Any, pipe: Any, parent_pipe: Any, shared: Any, errors: Any, *rest: Any
) -> None:
    """gymnasium's worker, but for one whose environment cannot be made: it answers with the reason."""
    end_with_parent(parent)
    try:
        env = env_fn()
    except BaseException as error:  # an environment may raise SystemExit
        failed = error if isinstance(error, EnvError) else EnvError(words_of(error))
        parent_pipe.close()
        pipe.send(MADE)
        errors.put((index, EnvError, EnvError(str(failed)), ""))
        pipe.recv()
        pipe.send((None, False))
        return
    pipe.send(MADE)
    gymnasiums._async_worker(index, lambda: env, pipe, parent_pipe, shared, errors, *rest)
