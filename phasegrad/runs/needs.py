"""What a run will take of memory, said before it begins, and the sentence for one that did not get it.

Counted is what is known beforehand and large: stored rollouts, gradients, environments. What is allocated already, such as
parameters, is not; it is no longer free.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from phasegrad.errors import RunError
from phasegrad.machine.memory import gigabytes, is_lack_of_memory, require_room
from phasegrad.runs.contract import Trainer

BYTES_OF_A_GAME = (
    1 << 20
)  # of an environment that shows images, as 32 of Breakout and of CoinRun had it; others have less
BYTES_A_WORKER = 10 << 20  # of an environment's own process, at the least


def require_memory(trainer: Trainer) -> None:
    """Refuse a run that does not fit into what is free on this machine; on a GPU, see `pick_storage`."""
    config, share = trainer.config, trainer.ranks.local_size
    environments = trainer.ranks.share(config.num_envs)
    each = BYTES_A_WORKER if config.vectorization == "async" else BYTES_OF_A_GAME if trainer.agent.is_large else 0
    weights = sum(tensor.nbytes for name, tensor in trainer.tensors().items() if name.startswith("model."))
    on_host = trainer.agent.device.type == "cpu"
    needed = {
        "stored rollouts": trainer.host_bytes(),
        "gradients": weights if on_host else 0,
        "environments": environments * each,
    }
    require_room({name: count * share for name, count in needed.items()}, trainer.smaller_storage)


@contextlib.contextmanager
def memory_explained(trainer: Trainer, where: Callable[[], str]) -> Iterator[None]:
    """One sentence where memory runs out all the same; `where` says what is left of the run."""
    try:
        yield
        return
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_lack_of_memory(error):
            raise
        rollouts = gigabytes(trainer.storage_bytes())
        may_move = trainer.agent.device.type != "cpu" and trainer.config.storage != "host"
        elsewhere = "set storage host, or " if may_move else ""
        message = (
            f"There was not enough memory at step {trainer.run.progress.step}: {elsewhere}{trainer.smaller_storage} (stored "
            f"rollouts take {rollouts}), or close other programs that need memory. {where()}"
        )
    raise RunError(message)  # out here: the traceback of the other holds on to what it could not use
