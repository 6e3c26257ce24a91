"""An agent saved to a folder of the user's choice, with all that continuing its training needs."""

from __future__ import annotations

from pathlib import Path

from phasegrad.runs.carried import carried_pieces, take_up_carried, whole_pieces
from phasegrad.runs.checkpoint import saved_legs, write_checkpoint
from phasegrad.runs.contract import Trainer
from phasegrad.runs.replacing import require_place


def save(trainer: Trainer, folder: Path) -> None:
    """Write the folder, in place of a save that is there; every process must call this."""
    with trainer.ranks.in_step():
        trainer.ranks.from_first(lambda: require_place(folder))
        take_up_carried(trainer)  # a loaded agent reads what it carries only when it is needed
        legs, pieces = saved_legs(trainer), whole_pieces(trainer, carried_pieces(trainer))
        trainer.ranks.from_first(lambda: write_checkpoint(folder, trainer, legs, pieces=pieces))
