"""Whether very many environments fit into memory, looked at before they are made.

Where they do not, the kernel would end the process while it makes them, without a word. Numbers that are usual cost nothing here.
"""

from __future__ import annotations

from collections.abc import Callable

from phasegrad.config import Config
from phasegrad.distributed.ranks import Ranks
from phasegrad.envs import VectorEnv
from phasegrad.machine.memory import available_bytes, require_room, resident_bytes
from phasegrad.runs.needs import BYTES_A_WORKER

MANY = 1024  # fewer are made at once, and a run of theirs that does not fit is refused when it begins
BYTES_A_STEP = 16  # stored of each step at the least: its reward, value, advantage and action
MOST_OF_ONE = 1 << 20  # bytes of an environment; HalfCheetah's has 0.7 MB
PROBED = 128
REMEDY = "make num_envs or num_steps smaller"


def require_room_for_envs(config: Config, ranks: Ranks, count: int, make: Callable[[int], VectorEnv]) -> None:
    """Refuse `count` environments in each process that cannot fit; `make` makes a few of them, to see what one takes."""
    if count < MANY:
        return
    apart, processes = config.vectorization == "async", ranks.local_size
    needed = {
        "stored rollouts": count * config.num_steps * BYTES_A_STEP * processes,
        "environments": count * BYTES_A_WORKER * processes if apart else 0,
    }
    require_room(needed, REMEDY)
    available = available_bytes()
    if apart or available is None or count * MOST_OF_ONE * processes <= available:
        return
    needed["environments"] = int(count * bytes_of_one(make)) * processes
    require_room(needed, REMEDY)


def bytes_of_one(make: Callable[[int], VectorEnv]) -> float:
    """What one of many environments takes, without what the first of them all load."""
    few = make(2)
    few.reset()
    few.close()
    before = resident_bytes()
    some = make(PROBED)
    some.reset()
    after = resident_bytes()
    some.close()
    return 0.0 if before is None or after is None else max(0, after - before) / PROBED
