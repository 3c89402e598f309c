"""The decoded rows of any log equal those of reading record by record."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock_spark_kit.raw import Row, answer, rows_of

from penstock.wire.batch import LOG_APPEND_TIME, TRANSACTIONAL
from penstock.wire.control_batch import Marker, build_marker
from penstock.wire.record import Record
from penstock.wire.records import BatchBuilder, build_batch
from penstock_spark.decode import decoder as decoder_module
from penstock_spark.decode import hops
from penstock_spark.decode.decoder import RangeDecoder
from penstock_spark.model.columns import SCHEMA, SCHEMA_WITH_HEADERS
from penstock_spark.model.ranges import READ_COMMITTED, READ_UNCOMMITTED, OffsetRange

octets = st.none() | st.binary(max_size=20) | st.sampled_from([b"\0" * 40, b"\0\x01" * 60, b"x" * 9000])
headers = st.lists(st.tuples(st.text(max_size=5), octets), max_size=3).map(tuple)
times = st.integers(0, 2**41) | st.sampled_from([-1, 0, 2**52])


class Given(NamedTuple):
    """One batch of a log. `hole` offsets are missing before it, `gaps` before its records, `tail` after them."""

    records: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]]
    codec: int
    hole: int
    tail: int
    appended_ms: int | None
    producer: int
    """0: no transaction; otherwise the producer of the transaction."""
    end: bool | None
    """Whether the following marker commits; None: no marker."""


records = st.lists(
    st.tuples(times, octets, octets, st.just(()) | headers, st.sampled_from([0, 0, 0, 1, 200])), max_size=12
)
logs = st.lists(
    st.builds(
        Given,
        records,
        st.integers(0, 4),
        st.sampled_from([0, 0, 0, 5, 70_000]),
        st.sampled_from([0, 0, 3]),
        st.none() | st.integers(0, 2**41),
        st.integers(0, 2),
        st.none() | st.booleans(),
    ),
    max_size=8,
)


class Log(NamedTuple):
    data: bytearray
    ends: list[int]
    """Size of the log after each batch."""
    rows: list[Row]
    committed: list[Row]
    aborted: list[tuple[int, int]]
    end: int


def build(log: list[Given]) -> Log:
    data, ends, rows = bytearray(), [], []
    offset = 0
    open_: dict[int, tuple[int, list[Row]]] = {}
    aborted: list[tuple[int, int]] = []
    lost: set[Row] = set()
    for given_ in log:
        offset += given_.hole
        builder = BatchBuilder()
        mine = []
        for time_ms, key, value, pairs, gap in given_.records:
            at = builder.append(key, value, pairs, time_ms, builder.next_offset_delta + gap)
            kind = int(given_.appended_ms is not None)
            seen_ms = time_ms if given_.appended_ms is None else given_.appended_ms
            mine.append(Row(offset + at, seen_ms, kind, key, value, pairs or None))
        last = max(builder.next_offset_delta - 1, 0) + given_.tail
        attributes = (LOG_APPEND_TIME if given_.appended_ms is not None else 0) | (
            TRANSACTIONAL if given_.producer else 0
        )
        data += builder.build(
            base_offset=offset,
            last_offset_delta=last,
            codec=given_.codec,
            producer_id=given_.producer or -1,
            producer_epoch=0 if given_.producer else -1,
            attributes=attributes,
            max_timestamp_ms=given_.appended_ms,
        )
        ends.append(len(data))
        rows += mine
        if given_.producer:
            open_.setdefault(given_.producer, (offset, []))[1].extend(mine)
        offset += last + 1
        if given_.end is not None and given_.producer:
            first, theirs = open_.pop(given_.producer)
            if not given_.end:
                aborted.append((given_.producer, first))
                lost.update(theirs)
            marker = build_marker(Marker(given_.producer, 0, given_.end, 0), 1)
            marker[:8] = offset.to_bytes(8, "big")
            data += marker
            ends.append(len(data))
            offset += 1
    aborted.sort(key=lambda pair: pair[1])
    return Log(data, ends, rows, [row for row in rows if row not in lost], aborted, offset)


def within(rows: list[Row], range_: OffsetRange) -> list[Row]:
    return [row for row in rows if range_.start <= row.offset < range_.end]


def without_headers(rows: list[Row]) -> list[Row]:
    return [row._replace(headers=None) for row in rows]


@pytest.fixture(scope="module", autouse=True, params=["in small pieces", "all at once"])
def pieces(request: pytest.FixtureRequest) -> object:
    """Run with default bounds, and with bounds so small that every log is split into groups and record batches."""
    patch = pytest.MonkeyPatch()
    if request.param == "in small pieces":
        patch.setattr(decoder_module, "GROUP_BYTES", 60)
        patch.setattr(decoder_module, "MAX_ROWS", 5)
        patch.setattr(decoder_module, "MAX_BATCH_BYTES", 100)
        patch.setattr(hops, "MIN_STRIDE_RECORDS", 4)
        patch.setattr(hops, "MIN_STRETCHES", 2)
        patch.setattr(hops, "RECORDS_PER_STRETCH", 2)
    yield
    patch.undo()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(logs, st.booleans(), st.booleans(), st.data())
def test_the_rows_are_those_of_reading_record_by_record(
    given_: list[Given], committed: bool, include_headers: bool, data: st.DataObject
) -> None:
    log = build(given_)
    start = data.draw(st.integers(0, log.end), "start")
    range_ = OffsetRange("t", 7, start, data.draw(st.integers(start, log.end), "end"))
    decoder = RangeDecoder(range_, READ_COMMITTED if committed else READ_UNCOMMITTED, include_headers)
    batches = list(decoder.feed(answer(log.data, log.aborted)))
    wanted = within(log.committed if committed else log.rows, range_)
    assert rows_of(batches) == (wanted if include_headers else without_headers(wanted))
    for batch in batches:
        assert batch.schema == (SCHEMA_WITH_HEADERS if include_headers else SCHEMA)
        assert 0 < batch.num_rows <= decoder_module.MAX_ROWS
        assert set(batch.column("topic").to_pylist()) == {"t"}
        assert set(batch.column("partition").to_pylist()) == {7}
    assert decoder.next_offset >= range_.end


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(logs, st.data())
def test_a_batch_that_is_cut_short_is_left_for_the_next_answer(given_: list[Given], data: st.DataObject) -> None:
    log = build(given_)
    cut = data.draw(st.integers(0, len(log.data)), "cut")
    decoder = RangeDecoder(OffsetRange("t", 0, 0, log.end), READ_UNCOMMITTED)
    found = rows_of(decoder.feed(answer(log.data[:cut])))
    whole = max((end for end in log.ends if end <= cut), default=0)
    assert decoder.next_offset <= log.end
    found += rows_of(decoder.feed(answer(log.data[whole:])))
    assert found == without_headers(log.rows)
    assert decoder.next_offset == log.end


def test_records_before_the_range_are_left_out_and_nothing_behind_it_is_looked_at() -> None:
    first = build_batch([Record(value=b"%d" % n) for n in range(5)])
    behind = bytearray(build_batch([Record(value=b"x")], base_offset=5))
    behind[-1] ^= 1
    decoder = RangeDecoder(OffsetRange("t", 0, 2, 5), READ_COMMITTED)
    assert [row.value for row in rows_of(decoder.feed(answer(first + behind)))] == [b"2", b"3", b"4"]
    assert decoder.next_offset == 5


def test_long_times_offsets_and_keys_are_read() -> None:
    """Their varints are longer than a word in total."""
    builder = BatchBuilder()
    builder.append(b"first", b"1", timestamp_ms=0)
    builder.append(b"k" * 9000, b"2", timestamp_ms=2**41, offset_delta=70_000)
    builder.append(b"last", b"3", timestamp_ms=2**52, offset_delta=70_001)
    found = rows_of(RangeDecoder(OffsetRange("t", 0, 0, 1 << 40), READ_COMMITTED).feed(answer(builder.build())))
    assert found == [
        Row(0, 0, 0, b"first", b"1"), Row(70_000, 2**41, 0, b"k" * 9000, b"2"), Row(70_001, 2**52, 0, b"last", b"3"),
    ]  # fmt: skip


def test_the_time_of_appending_stands_for_those_of_the_records() -> None:
    builder = BatchBuilder()
    builder.append(None, b"1", timestamp_ms=1000)
    builder.append(None, b"2", timestamp_ms=2000)
    log = builder.build(attributes=LOG_APPEND_TIME, max_timestamp_ms=7000) + builder.build(base_offset=2)
    found = rows_of(RangeDecoder(OffsetRange("t", 0, 0, 9), READ_COMMITTED).feed(answer(log)))
    assert [(row.timestamp_ms, row.timestamp_type) for row in found] == [(7000, 1), (7000, 1), (1000, 0), (2000, 0)]


def test_a_range_may_begin_and_end_within_a_batch() -> None:
    batch = build_batch([Record(value=b"%d" % n) for n in range(5)])
    decoder = RangeDecoder(OffsetRange("t", 0, 1, 3), READ_COMMITTED)
    assert [row.value for row in rows_of(decoder.feed(answer(batch)))] == [b"1", b"2"]
    assert decoder.next_offset >= 3


def test_an_aborted_transaction_ends_at_its_marker() -> None:
    lost = build_batch([Record(value=b"x")], producer_id=4, producer_epoch=0, attributes=TRANSACTIONAL)
    marker = build_marker(Marker(4, 0, False, 0), 1)
    marker[:8] = (1).to_bytes(8, "big")
    kept = build_batch([Record(value=b"y")], base_offset=2, producer_id=4, producer_epoch=0, attributes=TRANSACTIONAL)
    decoder = RangeDecoder(OffsetRange("t", 0, 0, 9), READ_COMMITTED)
    assert [row.value for row in rows_of(decoder.feed(answer(lost + marker + kept, [(4, 0)])))] == [b"y"]


def test_a_range_of_which_compaction_left_nothing_ends_all_the_same() -> None:
    decoder = RangeDecoder(OffsetRange("t", 0, 3, 10), READ_COMMITTED)
    later = build_batch([Record(value=b"x")], base_offset=12)
    assert list(decoder.feed(answer(later))) == []
    assert decoder.next_offset >= 10


def test_an_empty_answer_changes_nothing() -> None:
    decoder = RangeDecoder(OffsetRange("t", 0, 3, 10), READ_COMMITTED)
    assert list(decoder.feed(answer(b""))) == []
    assert decoder.next_offset == 3


def test_a_record_is_seen_whose_transaction_aborts_only_behind_the_answer() -> None:
    """Each response lists the aborted transactions; the marker may be in a later response."""
    batch = build_batch([Record(value=b"x")], producer_id=4, producer_epoch=0, attributes=TRANSACTIONAL)
    decoder = RangeDecoder(OffsetRange("t", 0, 0, 9), READ_COMMITTED)
    assert list(decoder.feed(answer(batch, [(4, 0)]))) == []
    assert decoder.next_offset == 1
    again = build_batch([Record(value=b"y")], base_offset=1, producer_id=4, producer_epoch=0, attributes=TRANSACTIONAL)
    assert [row.value for row in rows_of(decoder.feed(answer(again)))] == [b"y"], "each answer has a list of its own"
