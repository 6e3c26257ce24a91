"""The format of TensorBoard's event files, as far as curves need it: records with checksums, each a message of protobuf.

TensorBoard's own writer would be a quarter of a second of imports in every run. Knows bytes; nothing of metrics or folders.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping

VERSION = "brain.Event:2"
_POLYNOMIAL = 0x82F63B78  # CRC-32C, its bits reversed
_MASK = 0xA282EAD8  # added to a rotated checksum, so that one of data with checksums in it is still good
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # how a field of protobuf is stored


def first_event(wall_time: float) -> bytes:
    """What a file begins with."""
    return _record(_double(1, wall_time) + _bytes(3, VERSION.encode()))


def event(wall_time: float, step: int, values: Mapping[str, float]) -> bytes:
    """The values of curves, by their tags, at a step of at least 0."""
    summary = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
    return _record(_double(1, wall_time) + (_integer(2, step) if step else b"") + _bytes(5, summary))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


def _table() -> list[int]:
    table: Iterable[int] = range(256)
    for _ in range(8):
        table = [value >> 1 ^ (_POLYNOMIAL if value & 1 else 0) for value in table]
    return list(table)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The checksum of Castagnoli, byte by byte."""
    checksum, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        checksum = table[(checksum ^ byte) & 0xFF] ^ checksum >> 8
    return checksum ^ 0xFFFFFFFF


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _integer(field: int, number: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(number)


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | _DOUBLE) + struct.pack("<d", number)


def _float(field: int, number: float) -> bytes:
    try:
        stored = struct.pack("<f", number)
    except OverflowError:  # beyond what has 4 bytes
        stored = struct.pack("<f", math.copysign(math.inf, number))
    return _varint(field << 3 | _FLOAT) + stored


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content
