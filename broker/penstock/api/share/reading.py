"""Reads a partition for a member of a share group: acquires records and cuts the read to the batches that have them.

Called by `share_fetch` for each partition of a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from penstock.log.scan import BadBatch, scan_headers
from penstock.log.types import LogError, LogSlice, OffsetOutOfRange
from penstock.replica.leader import Leader
from penstock.share.acquisition import AcquiredRange, AcquireRequest
from penstock.share.batches import deliverable_batches
from penstock.share.contents import BatchContents, ContentsQuery
from penstock.share.decoding import BatchDecoder
from penstock.share.leader import SharePartitionLeader
from penstock.share.led_partition import LedSharePartition
from penstock.share.partition import LogBatch
from penstock.wire.batch import BatchHeader
from penstock.wire.errors import ErrorCode

MAX_READ_BYTES = 1 << 20
"""Bytes of one read, unless a batch is larger. Kafka's default of `max.partition.fetch.bytes`."""
MAX_READS = 16
"""Reads of one partition in a turn of the event loop, if they have only control batches and aborted records."""


class ReadLimits(NamedTuple):
    """What the response still has room for. `at_least_one` returns a whole batch of any size."""

    max_bytes: int
    at_least_one: bool
    is_read_committed: bool


class AcquiredRecords(NamedTuple):
    """The result of a read: an error, or records and which of them the member holds.

    `is_unfinished` means that a further read may acquire records although this one has none.
    """

    error: ErrorCode = ErrorCode.NONE
    records: LogSlice | None = None
    ranges: Sequence[AcquiredRange] = ()
    is_unfinished: bool = False


NOTHING = AcquiredRecords()


class BatchScan:
    """Iterates over the headers of a read, and records where their batches are. Stops at a damaged batch."""

    __slots__ = ("ends", "error", "header", "last_offsets", "records", "starts")

    def __init__(self, records: LogSlice) -> None:
        self.records = records
        self.last_offsets: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.error: Exception | None = None
        self.header: BatchHeader | None = None
        """The header of the current batch."""

    def __iter__(self) -> Iterator[BatchHeader]:
        records = self.records
        try:
            for position, header, _ in scan_headers(records.file, records.position, records.position + records.size):
                self.last_offsets.append(header.last_offset)
                self.starts.append(position)
                self.ends.append(position + header.size_bytes)
                self.header = header
                yield header
        except (BadBatch, OSError) as e:
            self.error = e

    def with_contents(self, batches: Iterable[LogBatch], decoder: BatchDecoder) -> Iterator[LogBatch]:
        """Yield the batches that this scan has found, each with a function that decodes it until the next."""
        read_contents = partial(self.read_contents, decoder)
        for batch in batches:
            yield batch._replace(read_contents=read_contents)

    def read_contents(self, decoder: BatchDecoder) -> BatchContents | None:
        """Return the contents of the current batch; None if they are not known yet, or the file cannot be read."""
        assert self.header is not None, "contents are read during the scan"
        try:
            return decoder.contents(self.records, self.starts[-1], self.header)
        except OSError as e:
            self.error = e
            return None

    def position_of(self, offset: int) -> int | None:
        """Return where the batch that contains `offset`, or the next one, starts; None if the scan has not found it."""
        for last_offset, start, end in zip(self.last_offsets, self.starts, self.ends, strict=True):
            if offset <= last_offset:
                return start
            if offset == last_offset + 1:
                return end
        return None

    def cut(self, ranges: Sequence[AcquiredRange]) -> LogSlice:
        """Return the slice of the batches from the first to the last acquired record, which takes the read over."""
        first = next(i for i, offset in enumerate(self.last_offsets) if offset >= ranges[0].first)
        last = next(i for i, offset in enumerate(self.last_offsets) if offset >= ranges[-1].last)
        records, start = self.records, self.starts[first]
        return LogSlice(
            records.file, start, self.ends[last] - start, records.release, next_offset=self.last_offsets[last] + 1
        )


def acquire_records(led: LedSharePartition, request: AcquireRequest, limits: ReadLimits) -> AcquiredRecords:
    """Acquire records of a claimed share-partition for a member. The caller releases the slice of the result."""
    role, leader = led.role, led.leader
    assert leader is not None, f"{led.key} is not claimed"
    group = leader.partition.limits
    led.decoder.start_turn(ContentsQuery(group.is_ordered, group.filter))
    for _ in range(MAX_READS):
        offset = leader.partition.next_fetch_offset()
        limit = role.visible_stable_offset if limits.is_read_committed else role.visible_offset
        if offset is None or offset >= limit:
            return NOTHING
        try:
            found = acquire_once(led, leader, request, limits, offset, limit)
        except OffsetOutOfRange:
            leader.on_log_start(role.log.start_offset)
            return NOTHING
        except LogError:
            return AcquiredRecords(ErrorCode.KAFKA_STORAGE_ERROR)
        if found is None or found.error or found.ranges:
            return found or NOTHING
        if leader.partition.next_fetch_offset() == offset:
            return NOTHING
    return AcquiredRecords(is_unfinished=True)


def acquire_once(
    led: LedSharePartition,
    leader: SharePartitionLeader,
    request: AcquireRequest,
    limits: ReadLimits,
    offset: int,
    limit: int,
) -> AcquiredRecords | None:
    """Read once from an offset and acquire records of the read. Returns None if the response has no room for a batch.

    Raises LogError.
    """
    role = led.role
    records = role.read_visible(offset, min(limits.max_bytes, MAX_READ_BYTES), limits.at_least_one, limit)
    if records is None:
        return None
    scan = BatchScan(records)
    ranges: Sequence[AcquiredRange] = ()
    aborted: Sequence[tuple[int, int]] = ()
    try:
        if limits.is_read_committed:
            aborted = role.aborted_between(offset, min(limit, records.next_offset))
        batches = deliverable_batches(scan, aborted)
        if led.decoder.is_needed:
            batches = scan.with_contents(batches, led.decoder)
        ranges = leader.acquire(request, offset, batches)
    finally:
        if not ranges:
            records.release()
    if ranges:
        next_offset = ranges[-1].last + 1
        is_end = next_offset == leader.partition.window.end_offset
        if is_end and (position := scan.position_of(next_offset)) is not None:
            role.log.reader.move_location(offset, next_offset, position)
        return AcquiredRecords(records=scan.cut(ranges), ranges=ranges)
    return AcquiredRecords(ErrorCode.KAFKA_STORAGE_ERROR if scan.error is not None else ErrorCode.NONE)


def available_bytes(role: Leader, leader: SharePartitionLeader, limits: ReadLimits) -> int:
    """Return about how many bytes `acquire_records` would find: all that one read returns."""
    offset = leader.partition.next_fetch_offset()
    limit = role.visible_stable_offset if limits.is_read_committed else role.visible_offset
    if offset is None or offset >= limit:
        return 0
    try:
        records = role.read_visible(offset, limits.max_bytes, limits.at_least_one, limit)
    except LogError:
        return limits.max_bytes  # `acquire_records` finds the error
    if records is None:
        return 0
    records.release()
    return records.size
