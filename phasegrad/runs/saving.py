"""An agent saved to a folder or a .zip of the user's choice, with its card and all that continuing its training needs."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasegrad.runs.archive import is_archive, pack, require_archive_place
from phasegrad.runs.card import Card, card_of
from phasegrad.runs.carried import carried_pieces, take_up_carried, whole_pieces
from phasegrad.runs.checkpoint import saved_legs, write_checkpoint
from phasegrad.runs.contract import Trainer
from phasegrad.runs.evaluation import run_evaluation
from phasegrad.runs.files import MOST_JSON_BYTES, read_json_object, writing
from phasegrad.runs.pieces import Pieces
from phasegrad.runs.replacing import STATE, card_places, is_save_place, remove_old_card, require_place, settle


def save(trainer: Trainer, path: Path, *, training: bool = True, episodes: int | None = None) -> None:
    """Write the folder or .zip, in place of a save that is there; every process must call this.

    Without `training` it is the agent alone, small enough to be mailed. `episodes` are played first, for its card.
    """
    with trainer.ranks.in_step():
        trainer.ranks.from_first(lambda: (require_archive_place if is_archive(path) else require_place)(path))
        found = None if episodes is None else trainer.ranks.from_first(lambda: evaluated(trainer, episodes))
        if not training:
            trainer.ranks.from_first(lambda: _write(path, trainer, None, None, found))
            return
        take_up_carried(trainer)  # a loaded agent reads what it carries only when it is needed
        legs, pieces = saved_legs(trainer), whole_pieces(trainer, carried_pieces(trainer))
        trainer.ranks.from_first(lambda: _write(path, trainer, legs, pieces, found))


def evaluated(trainer: Trainer, episodes: int) -> dict[str, Any]:
    """What so many greedy episodes come to, and how they were played."""
    how: dict[str, Any] = {"deterministic": True, "seed": None, "levels": "train"}
    result = run_evaluation(trainer.agent, episodes, **how)
    return {
        "step": trainer.run.progress.step,
        **how,
        "seed": trainer.config.seed,
        **result.summary(),
    }


def _write(
    path: Path,
    trainer: Trainer,
    legs: Mapping[str, Any] | None,
    pieces: Pieces | None,
    found: Mapping[str, Any] | None,
) -> None:
    card = card_of(trainer, found)
    if not is_archive(path):
        with writing(path):
            if is_save_place(path):
                settle(path)  # a kill may have left the card of the save that is there under its first name
        before = read_json_object(path / STATE, MOST_JSON_BYTES)
        write_checkpoint(path, trainer, legs, pieces=pieces, card=_where_free(card, path))
        remove_old_card(path, before)
        return
    folder = Path(tempfile.mkdtemp(prefix="phasegrad-"))
    try:
        write_checkpoint(folder / "agent", trainer, legs, pieces=pieces, card=card)
        pack(folder / "agent", path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _where_free(card: Card, folder: Path) -> Card:
    """The card without the files whose names the user's have: those stay."""
    free = card_places(folder)
    return dataclasses.replace(card, files={name: payload for name, payload in card.files.items() if name in free})
