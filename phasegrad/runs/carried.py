"""What outlives an iteration beside tensors and numbers (PPG's buffer, ACER's memory), between training and the disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasegrad.data.restored import DamagedPieceError
from phasegrad.errors import DamagedError
from phasegrad.runs.contract import Trainer
from phasegrad.runs.pieces import Pieces, PieceStore
from phasegrad.runs.replacing import SEGMENTS, STATE

ROOM_FOR_HEADERS = 1 << 20


def carried_pieces(trainer: Trainer) -> Pieces:
    """This process's part of the pieces."""
    return {} if trainer.carries is None else trainer.carries.pieces()


def whole_pieces(trainer: Trainer, pieces: Pieces) -> Pieces:
    """On the first process carried data [T, N, ...] of all environments; every process must call this."""
    if trainer.ranks.size == 1:
        return pieces
    return {
        number: {name: trainer.ranks.whole(tensor, 1) for name, tensor in sorted(pieces[number].items())}
        for number in sorted(pieces)
    }


def piece_files(noted: Mapping[str, Any]) -> list[str]:
    """The names of the files in segments/ that a checkpoint needs, by what the run `noted` in it."""
    carried = noted.get("carried")
    files = carried.get("files") if isinstance(carried, dict) else None
    return [str(entry.get("file")) for entry in files if isinstance(entry, dict)] if isinstance(files, list) else []


def carried_by(state: dict[str, Any], checkpoint: Path) -> dict[str, Any] | None:
    """What a checkpoint lists of pieces, in a form that is safe to follow."""
    carried = state.get("extra", {}).get("carried")
    if carried is None:
        return None
    if (
        not isinstance(carried, dict)
        or not isinstance(carried.get("files"), list)
        or not isinstance(carried.get("state"), dict)
    ):
        raise DamagedError(f"{checkpoint / STATE} is damaged: what it says of segments is no list.")
    is_inside = os.path.lexists(
        checkpoint / SEGMENTS
    )  # of a saved agent; a checkpoint's are beside it, shared with others
    return {**carried, "store": PieceStore(checkpoint if is_inside else checkpoint.parents[1])}


def carried_limit(trainer: Trainer) -> int:
    """The most that the pieces of all processes can take on disk."""
    most = 0 if trainer.carries is None else trainer.carries.most_bytes
    return most * trainer.ranks.size + ROOM_FOR_HEADERS


def take_up_carried(trainer: Trainer, store_in_use: PieceStore | None = None) -> None:
    """Read what a checkpoint listed, now that training needs it; by the run directory's own store if it lies there."""
    listed = trainer.run.carried_from
    if listed is None:
        return
    store: PieceStore = listed["store"]
    if store_in_use is not None and store.path.resolve() == store_in_use.path.resolve():
        store = store_in_use
    pieces = store.read(listed["files"], carried_limit(trainer), trainer.ranks)
    try:
        if trainer.carries is not None:
            trainer.carries.restore(listed["state"], pieces)
        elif pieces:
            raise DamagedError(f"The checkpoint carries data that {trainer.name} has no use for.")
    except DamagedPieceError as error:
        file = next((entry["file"] for entry in listed["files"] if error.number in entry["numbers"]), "")
        raise DamagedError(f"{store.path / file} is damaged: of rollout {error.number}, {error.what}.") from None
    except DamagedError as error:
        raise DamagedError(f"What {store.path} holds does not fit this agent: {error}") from None
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RuntimeError) as error:
        raise DamagedError(f"What {store.path} holds does not fit this agent ({type(error).__name__}).") from None
    trainer.run.carried_from = None
