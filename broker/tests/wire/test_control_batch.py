"""Control batches: encoded markers are decoded unchanged, and invalid markers are rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.batch import CONTROL, TRANSACTIONAL, checksum, read_header
from penstock.wire.batch_builder import BatchBuilder
from penstock.wire.control_batch import Marker, build_marker, parse_marker
from penstock.wire.schema import MalformedMessage

MARKERS = st.builds(
    Marker,
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 15) - 1),
    st.booleans(),
    st.integers(0, (1 << 31) - 1),
)


@given(MARKERS, st.integers(0, 1 << 42))
def test_a_marker_is_read_as_it_was_written(marker: Marker, now_ms: int) -> None:
    batch = build_marker(marker, now_ms)
    header = read_header(batch)
    assert parse_marker(header, batch) == marker
    assert header.is_control
    assert header.is_transactional
    assert (header.base_sequence, header.record_count, header.max_timestamp_ms) == (-1, 1, now_ms)
    assert checksum(memoryview(batch), 0, len(batch)) == header.crc


def test_the_bytes_of_a_commit_are_the_protocols() -> None:
    batch = build_marker(Marker(1, 2, True, 5), 0)
    assert bytes(batch[61:]) == bytes.fromhex("20 00 00 00 08 0000 0001 0c 0000 00000005 00")


def control(key: bytes | None, value: bytes | None) -> bytes:
    builder = BatchBuilder()
    builder.append(key, value, timestamp_ms=0)
    return builder.build(producer_id=1, producer_epoch=0, attributes=TRANSACTIONAL | CONTROL)


def test_a_control_batch_of_another_kind_is_no_marker() -> None:
    batch = control(b"\0\0\0\x02", b"")
    assert parse_marker(read_header(batch), batch) is None


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"\0\0", b""), (b"\0\0\0\1", None), (b"\0\0\0\1", b"\0\0\0"), (b"", b"x" * 2000)]
)
def test_a_marker_that_is_cut_short_is_malformed(key: bytes | None, value: bytes | None) -> None:
    batch = control(key, value)
    with pytest.raises(MalformedMessage):
        parse_marker(read_header(batch), batch)
