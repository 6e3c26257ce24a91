"""Event files against TensorBoard's own messages and writer, byte for byte."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from phasegrad.runs.event_file import crc32c, event, first_event


def written(message: Event) -> bytes:
    file = io.BytesIO()
    RecordWriter(file).write(message.SerializeToString())
    return file.getvalue()


def test_the_beginning_of_a_file_is_that_of_tensorboard() -> None:
    assert first_event(1.7e9) == written(Event(wall_time=1.7e9, file_version="brain.Event:2"))


@given(
    st.floats(1, 4e9),
    st.integers(0, (1 << 63) - 1),
    st.dictionaries(st.text(min_size=1, max_size=200), st.floats(allow_nan=False, allow_infinity=False), max_size=5),
)
def test_an_event_is_that_of_tensorboard(wall_time: float, step: int, values: dict[str, float]) -> None:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
    assert event(wall_time, step, values) == written(Event(wall_time=wall_time, step=step, summary=summary))


@pytest.mark.parametrize(("data", "checksum"), [(b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA)])
def test_the_checksum_is_that_of_the_standard(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum  # RFC 3720, appendix B.4, and the usual check value
