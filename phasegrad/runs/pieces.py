"""Data that outlives an iteration (PPG's buffer inside a phase, a replay memory) on disk, in numbered pieces written once.

A checkpoint lists the files it needs with their checksums and holds none of the data itself, so that a large buffer
costs each checkpoint only what is new. Files that no checkpoint lists any more are removed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.errors import DamagedError
from phasegrad.runs.below import make_folder, names_in, open_own, remove_empty_in, remove_file
from phasegrad.runs.files import checked_header, read_limited, reading, replace_synced, require_checksum, writing
from phasegrad.runs.replacing import SEGMENT, SEGMENTS, current, is_unfinished, staged

MOST_BYTES_A_FILE = 1 << 26  # pieces are joined up to this size: many small ones cost one file, a large one its own

Pieces = Mapping[int, Mapping[str, Tensor]]


class PieceStore:
    """The folder RUN_DIR/segments, or that of a saved agent; `stage`: its files are those of a save not yet in force."""

    def __init__(self, run_dir: Path, stage: bool = False) -> None:
        self.path, self.stage = run_dir / SEGMENTS, stage
        self._entries: list[dict[str, Any]] = []  # of the files written or read so far, as checkpoints list them

    def missing(self, numbers: Collection[int]) -> list[int]:
        """Those of the pieces that are not on disk yet."""
        known = {number for entry in self._entries for number in entry["numbers"]}
        return [number for number in sorted(numbers) if number not in known]

    def write(self, pieces: Pieces) -> list[dict[str, Any]]:
        """Put on disk what is not there yet; the entries of all files that hold some of `pieces`."""
        for group in _groups({number: pieces[number] for number in self.missing(pieces.keys())}):
            self._write_file(group)
        return self.entries(pieces.keys())

    def entries(self, numbers: Collection[int]) -> list[dict[str, Any]]:
        """Of all files that hold some of the pieces."""
        return [entry for entry in self._entries if not set(numbers).isdisjoint(entry["numbers"])]

    def _write_file(self, pieces: Pieces) -> None:
        named = {
            f"{number}.{name}": tensor.detach().cpu().contiguous()
            for number, piece in pieces.items()
            for name, tensor in piece.items()
        }
        payload = safetensors.torch.save(named)
        name = f"{min(pieces):012d}-{max(pieces):012d}.safetensors"
        digest = hashlib.sha256(payload).hexdigest()
        with writing(self.path / name):
            make_folder(self.path.parent, SEGMENTS)
            replace_synced(staged(self.path / name, digest) if self.stage else self.path / name, payload)
        self._entries.append({"file": name, "numbers": list(pieces), "bytes": len(payload), "sha256": digest})

    def read(self, entries: Iterable[Any], most_bytes: int, ranks: Ranks = ALONE) -> dict[int, dict[str, Tensor]]:
        """All pieces of a checkpoint's entries; refuses more than `most_bytes`, and what is missing or damaged.

        Of several processes each keeps the part [T, N, ...] of its own environments.
        """
        pieces: dict[int, dict[str, Tensor]] = {}
        for entry, path in self._checked(entries, most_bytes):
            payload = read_limited(path, entry["bytes"])
            if hashlib.sha256(payload).hexdigest() != entry["sha256"]:
                raise DamagedError(f"{path} is damaged: its checksum does not match.")
            checked_header(path, payload)
            try:
                tensors = safetensors.torch.load(payload)
            except safetensors.SafetensorError as error:
                raise DamagedError(f"{path} is damaged: {error}.") from None
            for name, tensor in tensors.items():
                number, _, part = name.partition(".")
                if not number.isdigit() or int(number) not in entry["numbers"]:
                    raise DamagedError(f"{path} is damaged: it holds a tensor {name[:40]!r}.")
                if ranks.size > 1 and tensor.dim() > 1:
                    tensor = ranks.own(tensor, 1).clone()
                pieces.setdefault(int(number), {})[part] = tensor
            self._entries.append(entry)
        return pieces

    def require_sound(self, entries: Iterable[Any], most_bytes: int) -> None:
        """Refuse entries whose files are missing or damaged, without keeping what is read."""
        for entry, path in self._checked(entries, most_bytes):
            require_checksum(path, entry["sha256"], entry["bytes"])

    def _checked(self, entries: Iterable[Any], most_bytes: int) -> Iterator[tuple[dict[str, Any], Path]]:
        total = 0
        for entry in entries:
            if (
                not isinstance(entry, dict)
                or not SEGMENT.fullmatch(str(entry.get("file")))
                or not isinstance(entry.get("bytes"), int)
                or not isinstance(entry.get("sha256"), str)
                or not isinstance(entry.get("numbers"), list)
                or not all(isinstance(number, int) for number in entry["numbers"])
            ):
                raise DamagedError(f"The list of segments is damaged at {str(entry)[:60]!r}.")
            path = current(self.path / entry["file"], entry["sha256"])
            size = _size(path)
            if size != entry["bytes"]:
                raise DamagedError(f"{path} is damaged: it has {size} bytes in place of {entry['bytes']}.")
            total += entry["bytes"]
            if total > most_bytes:
                raise DamagedError(f"The segments in {self.path} are larger than this agent's storage.")
            yield entry, path

    def keep(self, names: set[str]) -> None:
        """Remove every segment but those of `names`, and the folder when none is left."""
        self._entries = [entry for entry in self._entries if entry["file"] in names]
        for name in names_in(self.path.parent, SEGMENTS):
            if name not in names and (SEGMENT.fullmatch(name) or is_unfinished(name, top=False)):
                remove_file(self.path / name)
        remove_empty_in(self.path.parent, SEGMENTS)


def _size(path: Path) -> int:
    with reading(path):
        try:
            handle = open_own(path)
        except FileNotFoundError:
            raise DamagedError(f"{path}, which the checkpoint needs, is missing.") from None
        with open(handle, "rb"):
            return os.fstat(handle).st_size


def _groups(pieces: Pieces) -> Iterator[dict[int, Mapping[str, Tensor]]]:
    group: dict[int, Mapping[str, Tensor]] = {}
    size = 0
    for number, piece in pieces.items():
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in piece.values())
        if group and size + nbytes > MOST_BYTES_A_FILE:
            yield group
            group, size = {}, 0
        group[number] = piece
        size += nbytes
    if group:
        yield group
