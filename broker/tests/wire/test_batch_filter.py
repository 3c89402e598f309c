"""A batch from which records are left out keeps offsets, timestamps and the fields of its producer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.batch import TRANSACTIONAL, checksum, read_header
from penstock.wire.batch_filter import FilteredBatch, filter_batch, rebuild_batch
from penstock.wire.compression import Codec, DecompressedTooLarge
from penstock.wire.records import Record, build_batch, iterate_batches, iterate_records
from penstock.wire.schema import MalformedMessage

MUCH = 1 << 20


def batch_of(count: int, codec: int = Codec.NONE, *, base_offset: int = 100, producer_id: int = 7) -> bytes:
    records = [
        Record(base_offset + n, 1000 + n * 3, b"k%d" % n, b"v" * n, (("n", b"%d" % n), ("null", None)))
        for n in range(count)
    ]
    return build_batch(
        records,
        base_offset=base_offset,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=3,
        base_sequence=55,
        leader_epoch=4,
        attributes=TRANSACTIONAL,
    )


def filtered(batch: bytes, kept: set[int], max_bytes: int = MUCH) -> FilteredBatch:
    header = read_header(batch)
    return filter_batch(memoryview(batch), header, lambda record: record.offset - 100 in kept, max_bytes)


def records_of(batch: bytes) -> list[Record]:
    ((header, view),) = iterate_batches(batch)
    return list(iterate_records(view, header, MUCH))


@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.sampled_from(list(Codec)))
def test_the_records_that_match_are_left_as_they_were(count: int, kept: set[int], codec: Codec) -> None:
    batch = batch_of(count, codec)
    found = filtered(batch, kept)
    assert records_of(bytes(found.data)) == [record for record in records_of(batch) if record.offset - 100 in kept]
    assert found.record_count == len(kept & set(range(count)))
    before, after = read_header(batch), read_header(found.data)
    changed = {name for name in before._fields if getattr(before, name) != getattr(after, name)}
    assert changed <= {"batch_length", "crc", "record_count", "attributes"}
    assert after.is_transactional
    assert after.codec in (codec, Codec.NONE if not found.record_count else codec)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_whose_records_all_match_is_not_copied(codec: Codec) -> None:
    batch = batch_of(5, codec)
    found = filtered(batch, set(range(5)))
    assert isinstance(found.data, memoryview)
    assert found.data.obj is batch


def test_a_batch_without_records_is_a_header() -> None:
    batch = rebuild_batch(read_header(batch_of(5, Codec.ZSTD)), [])
    header = read_header(batch)
    assert (len(batch), header.size_bytes, header.record_count, header.codec) == (61, 61, 0, 0)
    assert (header.base_offset, header.last_offset, header.producer_id) == (100, 104, 7)
    assert header.crc == checksum(memoryview(batch), 0, len(batch))


def test_a_batch_that_decompresses_to_more_than_the_limit_is_refused() -> None:
    with pytest.raises(DecompressedTooLarge):
        filtered(batch_of(200, Codec.GZIP), set(), max_bytes=1000)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:57] + b"\0\0\xff\xff" + b[61:],
        lambda b: b[:-4],
        lambda b: b + b"\0",
        lambda b: b[:61] + b"\xff" * (len(b) - 61),
    ],
)
def test_a_damaged_batch_is_refused(damage) -> None:
    with pytest.raises(MalformedMessage):
        filtered(damage(batch_of(5)), {1})
