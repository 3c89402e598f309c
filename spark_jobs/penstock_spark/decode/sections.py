"""Walks the batches of a response: selects those with requested records and appends them, decompressed, to an arena.

This is the only work per batch; `decoder` does the rest for many batches at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from penstock.client.batches import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    SMALLEST_RECORD,
    TRANSACTIONAL,
    BatchHeader,
    MalformedMessage,
    parse_marker,
    read_header,
)
from penstock_spark.decode.arena import Arena
from penstock_spark.model.errors import CorruptBatch
from penstock_spark.model.ranges import READ_COMMITTED, Fetched, OffsetRange

MAGIC = 2
MAGIC_OFFSET = 16
MAX_DECOMPRESSED_BYTES = 256 << 20
"""Maximum size of a decompressed batch; producers send at most the topic's max.message.bytes, compressed."""
LARGEST_OFFSET = (1 << 62) - 1
"""Maximum offset, so that sums of offsets and deltas do not overflow."""


class Section(NamedTuple):
    """The records of one batch, `size` bytes in the arena after those of the previous batch; times in ms."""

    size: int
    record_count: int
    base_offset: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    attributes: int


class SectionScanner:
    """Walks responses; `next_offset` follows the last batch that was seen."""

    def __init__(self, range_: OffsetRange, isolation: int, arena: Arena) -> None:
        self.range, self.arena = range_, arena
        self.committed_only = isolation == READ_COMMITTED
        self.next_offset = range_.start

    def sections(self, fetched: Fetched) -> Iterator[Section]:
        """Yield the batches with requested records, in order. Raises `CorruptBatch`.

        One long function for speed: there may be hundreds of thousands of small batches a second.
        """
        view, arena = fetched.records, self.arena
        pending = sorted(fetched.aborted, key=lambda pair: pair[1], reverse=True) if self.committed_only else []
        aborted: set[int] = set()
        start, end = self.range.start, self.range.end
        at, size = 0, len(view)
        seen = -1
        while size - at >= HEADER_SIZE or self.is_of_format_2(view, at):
            (
                base_offset,
                length,
                _,
                magic,
                crc,
                attributes,
                last_offset_delta,
                base_timestamp_ms,
                max_timestamp_ms,
                producer_id,
                _,
                _,
                count,
            ) = HEADER.unpack_from(view, at)
            behind = at + length + LENGTH_OVERHEAD
            last = base_offset + last_offset_delta
            if (
                magic != MAGIC
                or not 0 <= base_offset <= LARGEST_OFFSET
                or length < HEADER_SIZE - LENGTH_OVERHEAD
                or last_offset_delta < 0
                or not 0 <= count <= last_offset_delta + 1
                or base_offset <= seen
            ):
                raise self.corrupt(base_offset, why_unsound(read_header(view, at), seen))
            if behind > size:
                return
            if base_offset >= end:
                self.next_offset = max(self.next_offset, base_offset)
                return
            if crc32c(view[at + CRC_START : behind]) != crc:
                raise self.corrupt(base_offset, "its CRC is wrong")
            while pending and pending[-1][1] <= last:
                aborted.add(pending.pop()[0])
            if attributes & CONTROL:
                if aborted and self.is_abort(read_header(view, at), view[at:behind]):
                    aborted.discard(producer_id)
            elif last >= start and count and not (attributes & TRANSACTIONAL and producer_id in aborted):
                records = view[at + HEADER_SIZE : behind]
                if attributes & CODEC_MASK:
                    taken = self.decompressed(records, base_offset, last, attributes & CODEC_MASK)
                else:
                    taken = len(records)
                    arena.put(records)
                if count * SMALLEST_RECORD > taken:
                    raise self.corrupt(base_offset, f"it claims {count} records in {taken} bytes", last)
                yield Section(
                    taken, count, base_offset, last_offset_delta, base_timestamp_ms, max_timestamp_ms, attributes
                )
            at, seen = behind, last
            if last >= self.next_offset:
                self.next_offset = last + 1

    def is_of_format_2(self, view: memoryview, at: int) -> bool:
        """Return False for an incomplete batch at the end of a response. Raises `CorruptBatch` for an older format,
        whose messages may be shorter than a header."""
        if len(view) - at > MAGIC_OFFSET and view[at + MAGIC_OFFSET] != MAGIC:
            base_offset = int.from_bytes(view[at : at + 8], "big", signed=True)
            raise self.corrupt(base_offset, wrong_format(view[at + MAGIC_OFFSET]))
        return False

    def is_abort(self, header: BatchHeader, batch: memoryview) -> bool:
        """Return whether a control batch aborts its producer's transaction."""
        try:
            marker = parse_marker(header, batch)
        except MalformedMessage as e:
            raise self.corrupt(header.base_offset, f"its control record is damaged: {e}") from None
        return marker is not None and not marker.committed

    def decompressed(self, records: memoryview, base_offset: int, last_offset: int, codec: int) -> int:
        """Decompress records into the arena and return their size. Raises `CorruptBatch`."""
        try:
            return self.arena.put_decompressed(codec, records, MAX_DECOMPRESSED_BYTES)
        except MalformedMessage as e:
            raise self.corrupt(base_offset, str(e), last_offset) from None

    def corrupt(self, base_offset: int, reason: str, last_offset: int | None = None) -> CorruptBatch:
        """Return the error for a batch. `last_offset` is given if the header is valid according to the CRC."""
        where = f"{self.range.topic}-{self.range.partition}"
        message = f"{where}: cannot read the batch at offset {base_offset}: {reason}"
        if last_offset is None:
            return CorruptBatch(message)
        return CorruptBatch(f'{message}; set onCorruptBatch to "skip" to skip it', (base_offset, last_offset))


def wrong_format(magic: int) -> str:
    """Return the reason for an unsupported message format."""
    return f"it has message format {magic & 0xFF}; only format {MAGIC} can be read"


def why_unsound(header: BatchHeader, seen: int) -> str:
    """Return what is wrong with a header; `seen` is the last offset of the previous batch."""
    if header.magic != MAGIC:
        return wrong_format(header.magic)
    if not 0 <= header.base_offset <= LARGEST_OFFSET:
        return "its offset is out of range"
    if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD:
        return f"it claims a length of {header.batch_length}"
    if header.base_offset <= seen:
        return f"it follows a batch that ends at offset {seen}"
    return f"it claims {header.record_count} records in {header.last_offset_delta + 1} offsets"
