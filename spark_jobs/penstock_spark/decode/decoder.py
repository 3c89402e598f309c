"""Decodes a range of a partition to Arrow record batches, response by response. Called by `source`.

The records of many batches are concatenated and decoded together, so that the work per batch is small even for small
batches. Record batches own their memory: the arena is reused.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.client.batches import LOG_APPEND_TIME as LOG_APPEND_TIME_BIT
from penstock_spark.decode.arena import Arena
from penstock_spark.decode.fields import DamagedRecord, Fields, check, read_fields
from penstock_spark.decode.gather import gather
from penstock_spark.decode.headers import read_headers
from penstock_spark.decode.hops import DamagedOffsets, record_starts, walk
from penstock_spark.decode.sections import Section, SectionScanner
from penstock_spark.decode.varints import Bytes, Ints
from penstock_spark.model.columns import CREATE_TIME, LOG_APPEND_TIME, SCHEMA, SCHEMA_WITH_HEADERS
from penstock_spark.model.errors import CorruptBatch
from penstock_spark.model.ranges import Fetched, OffsetRange

GROUP_BYTES = 4 << 20
"""Bytes of records that are decoded together; the last batch may exceed it."""
MAX_ROWS = 32_768
MAX_BATCH_BYTES = 32 << 20
"""Limits of a record batch: rows, and bytes of records (exceeded only by a single row)."""
LARGEST_MS = (2**63 - 1) // 1000


class RangeDecoder:
    """Implements `ports.Decoder`. `isolation` is `READ_COMMITTED` or `READ_UNCOMMITTED` of `model.ranges`."""

    def __init__(self, range_: OffsetRange, isolation: int, include_headers: bool = False) -> None:
        self.range = range_
        self.include_headers = include_headers
        self._arena = Arena()
        self._walk = SectionScanner(range_, isolation, self._arena)
        self._topic = pa.repeat(pa.scalar(range_.topic, pa.string()), MAX_ROWS)
        self._partition = pa.repeat(pa.scalar(range_.partition, pa.int32()), MAX_ROWS)

    @property
    def next_offset(self) -> int:
        """Next offset to fetch; valid once the iterator of `feed` is exhausted."""
        return self._walk.next_offset

    def feed(self, fetched: Fetched) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range in a response. Raises `CorruptBatch`."""
        arena, group = self._arena, list[Section]()
        arena.clear()
        for section in self._walk.sections(fetched):
            group.append(section)
            if arena.size >= GROUP_BYTES:
                yield from self._decode(group)
                group.clear()
                arena.clear()
        if group:
            yield from self._decode(group)

    def _decode(self, group: list[Section]) -> Iterator[pa.RecordBatch]:
        source = self._arena.source()
        batches = Batches(group)
        count = int(batches.firsts[-1])
        try:
            starts = record_starts(source, count, batches.sections[:-1])
        except DamagedOffsets:
            raise self._find_corrupt_batch(source, group, batches) from None
        if not np.array_equal(starts[batches.firsts], batches.sections):
            raise self._find_corrupt_batch(source, group, batches)
        buffer = pa.py_buffer(source.data)
        first = 0
        while first < count:
            end = min(first + MAX_ROWS, count)
            if starts[end] - starts[first] > MAX_BATCH_BYTES:
                end = max(first + 1, int(np.searchsorted(starts, starts[first] + MAX_BATCH_BYTES, "right")) - 1)
            batch = self._rows(source, buffer, batches, starts, first, end)
            if batch.num_rows:
                yield batch
            first = end

    def _rows(
        self, source: Bytes, buffer: pa.Buffer, batches: Batches, starts: Ints, first: int, end: int
    ) -> pa.RecordBatch:
        """Decode records `first` to `end` of the group, without those outside the range."""
        ends = starts[first + 1 : end + 1]
        low, repeats = batches.covering(first, end)
        try:
            fields = read_fields(source, starts[first:end], ends)
            offsets = self._offsets(batches, fields, low, repeats)
            timestamps, kinds = self._times(batches, fields, low, repeats)
            low_row, high_row = np.searchsorted(offsets, (self.range.start, self.range.end)).tolist()
            selected = slice(low_row, high_row)
            rows = high_row - low_row
            columns = [
                gather(buffer, fields.key_at[selected], fields.key_size[selected]),
                gather(buffer, fields.value_at[selected], fields.value_size[selected]),
                self._topic.slice(0, rows),
                self._partition.slice(0, rows),
                pa.array(offsets[selected]),
                pa.array(timestamps[selected]).cast(SCHEMA.field("timestamp").type),
                pa.array(kinds[selected]),
            ]
            if self.include_headers:
                lists = read_headers(source, buffer, ends, fields.headers_at, fields.header_count)
                columns.append(lists.slice(low_row, rows))
        except DamagedRecord as e:
            at = int(np.searchsorted(batches.firsts, first + e.index, "right")) - 1
            record = first + e.index - int(batches.firsts[at])
            base_offset = int(batches.base_offsets[at])
            last_offset = base_offset + int(batches.last_offset_deltas[at])
            raise self._walk.corrupt(base_offset, f"record {record}: {e.reason}", last_offset) from None
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS if self.include_headers else SCHEMA)

    @staticmethod
    def _offsets(batches: Batches, fields: Fields, low: int, repeats: Ints) -> Ints:
        high = low + len(repeats)
        deltas = fields.offset_delta
        last = np.repeat(batches.last_offset_deltas[low:high], repeats)
        check((deltas >= 0) & (deltas <= last), "its offset is outside the batch")
        offsets = np.repeat(batches.base_offsets[low:high], repeats)
        offsets += deltas
        rising = np.empty(len(offsets), np.bool_)
        rising[:1] = True
        np.greater(offsets[1:], offsets[:-1], out=rising[1:])
        check(rising, "its offset is not greater than the previous one")
        return offsets

    @staticmethod
    def _times(batches: Batches, fields: Fields, low: int, repeats: Ints) -> tuple[Ints, np.ndarray]:
        """Return microseconds since the epoch, and values of timestampType."""
        high = low + len(repeats)
        times = np.repeat(batches.base_timestamps[low:high], repeats)
        appended = batches.log_append_time[low:high]
        if appended.any():
            times += np.where(np.repeat(appended, repeats), 0, fields.timestamp_delta_ms)
        else:
            times += fields.timestamp_delta_ms
        check((times >= -LARGEST_MS) & (times <= LARGEST_MS), "its timestamp is out of range")
        times *= 1000
        kinds = np.repeat(np.where(appended, LOG_APPEND_TIME, CREATE_TIME).astype(np.int32), repeats)
        return times, kinds

    def _find_corrupt_batch(self, source: Bytes, group: list[Section], batches: Batches) -> CorruptBatch:
        """Find the batch in which the records do not follow one another, and return the error for it."""
        edges = batches.sections.tolist()
        for index, section in enumerate(group):
            try:
                walk(source, edges[index], edges[index + 1], section.record_count)
            except DamagedOffsets as e:
                last_offset = section.base_offset + section.last_offset_delta
                return self._walk.corrupt(section.base_offset, e.reason, last_offset)
        raise AssertionError("records do not add up, but each batch is valid")


class Batches:
    """Header fields of the batches of a group, as columns."""

    def __init__(self, group: list[Section]) -> None:
        columns = zip(*group, strict=True)
        sizes, counts, base_offsets, last_deltas, base_times, max_times, attributes = columns
        self.firsts = np.concatenate(([0], np.cumsum(np.array(counts, np.int64))))
        """Index of each batch's first record, and the number of records."""
        self.sections = np.concatenate(([0], np.cumsum(np.array(sizes, np.int64))))
        """Start of each batch's records, and the end of the last."""
        self.base_offsets = np.array(base_offsets, np.int64)
        self.last_offset_deltas = np.array(last_deltas, np.int64)
        self.log_append_time = (np.array(attributes, np.int64) & LOG_APPEND_TIME_BIT) != 0
        self.base_timestamps = np.where(
            self.log_append_time, np.array(max_times, np.int64), np.array(base_times, np.int64)
        )

    def covering(self, first: int, end: int) -> tuple[int, Ints]:
        """Return the first batch with records from `first` to `end`, and the number of these records in each batch."""
        low = int(np.searchsorted(self.firsts, first, "right")) - 1
        high = int(np.searchsorted(self.firsts, end, "left"))
        edges = self.firsts[low : high + 1].clip(first, end)
        return low, np.diff(edges)
