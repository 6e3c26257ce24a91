"""While environments are being made: env_timeout holds there too, and without one a sentence says what a run waits for.

Nothing here knows what an environment does.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any, cast

from phasegrad.envs.watching import StepTimeout, describe_timeout, time_limit
from phasegrad.errors import EnvError, PhasegradWarning

SECONDS_UNTIL_TOLD = 60.0
MADE = "made"  # the first word of a worker


@contextlib.contextmanager
def being_made(index: int, seed: int, timeout: float | None) -> Iterator[None]:
    """Around the function that makes an environment in this process."""
    timer = threading.Timer(SECONDS_UNTIL_TOLD, tell_of_wait, (index, seed, SECONDS_UNTIL_TOLD))
    timer.daemon = True
    if timeout is None:
        timer.start()
    try:
        with time_limit(timeout):
            yield
    except StepTimeout as error:
        raise EnvError(describe_timeout(index, seed, "being made", timeout)) from error
    finally:
        if timeout is None:
            timer.cancel()
            timer.join()  # worker processes may be forked next, and a thread is not in a fork


def tell_of_wait(index: int, seed: int, seconds: float) -> None:
    warnings.warn(
        f"Environment {index} (seed {seed}) is still being made after {seconds:g} s, and the run waits for it: Ctrl-C stops the "
        "run, and env_timeout SECONDS would give it up.",
        PhasegradWarning,
        stacklevel=2,
    )


def first_words(pipes: Sequence[Any], names: Sequence[tuple[int, int]], timeout: float | None) -> None:
    """Wait until every worker has said its first word: that its environment is made, or could not be.

    Where more are made than there are processors, the last may wait long for the first: the limit is between two answers.
    """
    waiting: dict[Any, tuple[int, int]] = dict(zip(pipes, names, strict=True))
    told, since = False, time.monotonic()
    while waiting:
        limit = SECONDS_UNTIL_TOLD if timeout is None else timeout
        ready = wait(list(waiting), None if told else max(0.0, since + limit - time.monotonic()))
        for pipe in ready:
            _ = cast(Any, pipe).recv()
            del waiting[pipe]
            since = time.monotonic()
        if ready:
            continue
        index, seed = next(iter(waiting.values()))
        if timeout is not None:
            raise EnvError(describe_timeout(index, seed, "being made", timeout))
        tell_of_wait(index, seed, limit)
        told = True
