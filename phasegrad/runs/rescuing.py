"""What is kept of a run that something breaks off, and the sentence that says so: environments, numbers, signals.

The session knows when; this knows what was good by then. Nothing here decides whether a run goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import safetensors.torch
import torch

from phasegrad.distributed import joining
from phasegrad.errors import EnvError, NonFiniteError, PhasegradError
from phasegrad.machine.descriptors import hold_standard
from phasegrad.runs.contents import BAD_BATCH
from phasegrad.runs.contract import Trainer
from phasegrad.runs.directory import RunDirectory, step_of
from phasegrad.tree import named_leaves


class Rescue:
    """Of one session: `directory` is where it saves, if anywhere, and is called `shown` in sentences."""

    def __init__(self, trainer: Trainer, directory: RunDirectory | None, save: Callable[[], None]) -> None:
        self.trainer, self.directory, self._save = trainer, directory, save
        self.shown: Path | None = trainer.run.run_dir
        self.last_checkpoint: int | None = None  # its step

    @contextlib.contextmanager
    def explained(self, before: int) -> Iterator[None]:
        """Adds to the sentence of what went wrong in an iteration what was saved of it, and saves what was good.

        `before` is the step at which the iteration began.
        """
        trainer = self.trainer
        try:
            yield
        except (EnvError, NonFiniteError) as error:
            if isinstance(error, EnvError):
                trainer.drop_environments()
            if self.directory is None:
                raise
            told = [str(error)]
            hold_standard()  # an environment may have closed them
            with contextlib.suppress(PhasegradError):  # the first error is the one to tell
                if isinstance(error, NonFiniteError) and trainer.rollout is not None:
                    if joining.first_to_say(f"{BAD_BATCH} {before}"):  # the process that saw it, or one of all
                        self.directory.write(BAD_BATCH, rollout_bytes(trainer))
                    told.append(f"The rollout is in {self.shown}/{BAD_BATCH}.")
                alone = trainer.ranks.size == 1  # other processes cannot know of the error now
                if isinstance(error, EnvError) and alone and trainer.run.progress.step == before > 0:
                    self._save()  # the environments failed before anything was learnt from them
            if isinstance(error, EnvError):
                trainer.close()  # after what was good is safe: they may not be willing to
            told.append(self.where())
            raise type(error)(" ".join(told)) from error
        except BaseException:
            trainer.drop_environments()  # they are in the middle of a rollout: learning again brings them back
            raise

    def where(self) -> str:
        """What there is to go on from."""
        if self.last_checkpoint is None or self.directory is None:
            return "There is no checkpoint yet."
        return f"The last good checkpoint is that of step {self.last_checkpoint} in {self.shown}."

    def stopped(self) -> str:
        """The sentence of a stop between two iterations."""
        step = self.trainer.run.progress.step
        kept = "with a checkpoint" if self.last_checkpoint == step else "without a new checkpoint"
        return f"stopped at step {step} {kept}; `phasegrad resume {self.shown}` continues as if it had never stopped."

    def stopped_at_once(self) -> str:
        """The sentence of a stop in the middle of whatever it was; a checkpoint may just have been completed."""
        with contextlib.suppress(OSError, PhasegradError):
            if self.directory is not None:
                found = map(step_of, self.directory.checkpoints())
                self.last_checkpoint = max(found, default=self.last_checkpoint)
        return f"stopped at once. {self.where()} `phasegrad resume {self.shown}` continues."


def rollout_bytes(trainer: Trainer) -> bytes:
    """The latest rollout as a safetensors file."""
    named: dict[str, torch.Tensor] = {}
    assert trainer.rollout is not None
    for field, tree in trainer.rollout.tensors().items():
        if tree is not None:  # copied: what is seen of a stack lies among its frames
            named |= {
                f"{field}.{name}" if name else field: leaf.cpu().clone().contiguous()
                for name, leaf in named_leaves(tree)
            }
    return safetensors.torch.save(named)
