"""Applies the filter of a Fetch request to the records that were read. Used by `fetch`.

Batches are decoded in a thread, within bounds; what exceeds them is sent whole, and the client filters all records
itself. The last batch of a partition is always sent, if need be without records, so that its reader moves on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.api.fetch_results import FetchedPartitions
from penstock.filter import FilterError, RecordFilter, compile_filter
from penstock.log.types import LogSlice
from penstock.wire.batch import BatchHeader
from penstock.wire.batch_filter import filter_batch, rebuild_batch
from penstock.wire.compression import DecompressedTooLarge
from penstock.wire.fetch_frame import StoredRecords
from penstock.wire.primitives import Buffer
from penstock.wire.records import iterate_batches
from penstock.wire.schema import MalformedMessage

MAX_FILTERED_BYTES = 4 << 20
"""Bytes of a response that are filtered, as they are stored; they are copied to memory."""
MAX_DECODED_BYTES = 16 << 20
"""Decompressed bytes of a response that are filtered."""
MAX_BATCH_BYTES = 4 << 20
"""Decompressed size of a batch that is filtered."""
MAX_FILTERED_RECORDS = 50_000
"""Records of a response that are filtered: some 400 ms of a thread."""


class FilteredRecords:
    """The records of a partition that are left, in memory."""

    __slots__ = ("data", "size")

    def __init__(self, data: Buffer) -> None:
        self.data, self.size = data, len(data)


def is_valid_filter(text: str) -> bool:
    """Return whether the filter of a request can be parsed."""
    try:
        compile_filter(text)
    except FilterError:
        return False
    return True


async def filter_fetched(result: FetchedPartitions, record_filter: RecordFilter) -> FetchedPartitions:
    """Replace the slices of a result by the records that pass, as far as the bounds permit. Takes the result over."""
    chosen: dict[int, LogSlice] = {}
    left = MAX_FILTERED_BYTES
    for number, (_, fetched) in enumerate(result.partitions):
        records = fetched.records
        if isinstance(records, LogSlice) and records.size <= left:
            chosen[number] = records
            left -= records.size
    run = asyncio.get_running_loop().run_in_executor(None, filter_slices, list(chosen.values()), record_filter)
    try:
        outcomes = await asyncio.shield(run)
    except asyncio.CancelledError:
        run.add_done_callback(lambda _: result.release())
        raise
    for (number, records), data in zip(chosen.items(), outcomes, strict=True):
        if data is not None:
            target, fetched = result.partitions[number]
            result.partitions[number] = target, fetched._replace(records=FilteredRecords(data))
            result.bytes -= records.size - len(data)
            records.release()
    return result


def filter_slices(slices: Sequence[LogSlice], record_filter: RecordFilter) -> list[Buffer | None]:
    """Return the filtered records of each slice, None for one that is sent whole. Runs in a thread."""
    work = FilterWork(record_filter)
    return [work.apply(records) for records in slices]


class FilterWork:
    """The work of one response, and what is left of its bounds."""

    def __init__(self, record_filter: RecordFilter) -> None:
        self._matches = record_filter.matches
        self._bytes, self._records = MAX_DECODED_BYTES, MAX_FILTERED_RECORDS

    def apply(self, records: LogSlice) -> Buffer | None:
        """Return the filtered records of a slice; None if it cannot be read or is damaged, which the client finds."""
        kept: list[Buffer] = []
        dropped: BatchHeader | None = None
        try:
            for header, batch in iterate_batches(records.file.read_at(records.position, records.size)):
                left = self._filter(header, batch)
                dropped = header if left is None else None
                if left is not None:
                    kept.append(left)
        except (OSError, MalformedMessage):
            return None
        if dropped is not None:
            kept.append(rebuild_batch(dropped, []))
        return b"".join(kept)

    def _filter(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        """Return what is left of a batch, None if that is nothing. Raises MalformedMessage."""
        if header.is_control or header.record_count > self._records or self._bytes <= 0:
            return batch
        try:
            found = filter_batch(batch, header, self._matches, min(self._bytes, MAX_BATCH_BYTES))
        except DecompressedTooLarge:
            return batch
        self._records -= header.record_count
        self._bytes -= found.decoded_bytes
        return found.data if found.record_count else None


def parts_with_filtered(parts: Sequence[StoredRecords | bytearray]) -> list[Buffer | StoredRecords]:
    """Return the parts of a response with the bytes of filtered records."""
    return [part.data if isinstance(part, FilteredRecords) else part for part in parts]
