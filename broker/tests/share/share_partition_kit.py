"""A share-partition as its leader uses it, on virtual time and with writes that the test completes."""

from __future__ import annotations

from array import array

from penstock.filter import RecordFilter
from penstock.share.acknowledgement import AckBatch, AckType
from penstock.share.acquisition import AcquiredRange, AcquireMode, AcquireRequest
from penstock.share.contents import BatchContents, BatchKeys, adjacent
from penstock.share.partition import LogBatch, ShareLimits, SharePartition, ShareSnapshot
from penstock.share.redelivery import GROUP_BACKOFF, NO_BACKOFF, Delay, DeliveryLimit, RedeliveryBackoff
from penstock.share.window import RecordState, StateRun
from penstock.wire.errors import ErrorCode

LOCK_MS = 30_000
OK, INVALID_STATE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST
A, Q, K, R = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED


class Driver:
    """A share-partition whose log has `batches`, as its leader would use it."""

    def __init__(
        self,
        *batches: LogBatch,
        start: int = 0,
        runs: list[StateRun] | None = None,
        max_locks: int = 2_000,
        limit: int = 5,
        backoff: RedeliveryBackoff = NO_BACKOFF,
        is_ordered: bool = False,
        filter: RecordFilter | None = None,
        delays: list[Delay] | None = None,
    ) -> None:
        self.batches = list(batches)
        self.now_ms = 0.0
        limits = ShareLimits(LOCK_MS, max_locks, DeliveryLimit(limit, backoff), is_ordered=is_ordered, filter=filter)
        self.partition = SharePartition(ShareSnapshot(start, runs or []), limits, self.now_ms, delays)

    def acquire(
        self, member: str = "a", max_records: int = 500, mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    ) -> list[AcquiredRange]:
        self.partition.expire(self.now_ms)
        offset = self.partition.next_fetch_offset()
        if offset is None:
            return []
        read = [batch for batch in self.batches if batch.last >= offset]
        found = self.partition.acquire(AcquireRequest(member, max_records, mode), offset, read, self.now_ms)
        self.partition.window.verify()
        return found

    def exact(self, member: str = "a", max_records: int = 500) -> list[AcquiredRange]:
        return self.acquire(member, max_records, AcquireMode.RECORD_LIMIT)

    def ack(
        self, first: int, last: int, *types: AckType, member: str = "a", delay_ms: int = GROUP_BACKOFF
    ) -> ErrorCode:
        return self.partition.acknowledge(member, [AckBatch(first, last, types, delay_ms)], self.now_ms).error

    def write(self, is_durable: bool = True) -> ShareSnapshot:
        snapshot = self.partition.begin_write()
        assert snapshot is not None, "nothing to write"
        self.partition.complete_write(is_durable)
        self.partition.window.verify()
        return snapshot

    def settle(self, first: int, last: int, *types: AckType, member: str = "a", delay_ms: int = GROUP_BACKOFF) -> None:
        assert self.ack(first, last, *types, member=member, delay_ms=delay_ms) is OK
        self.write()

    def pass_time(self, ms: float) -> None:
        self.now_ms += ms

    @property
    def states(self) -> list[tuple[int, int, RecordState, int]]:
        return [(run.first, run.last, run.state, run.delivery_count) for run in self.partition.window]


TEN = LogBatch(0, 9)


def keyed(first: int, keys: str) -> LogBatch:
    """Return a batch with a record for each letter, which is its key; "-" stands for a record without a key."""
    known = [(offset, ord(key)) for offset, key in enumerate(keys, first) if key != "-"]
    found = BatchKeys(array("q", [offset for offset, _ in known]), array("q", [key for _, key in known]))
    return LogBatch(first, first + len(keys) - 1, read_contents=lambda: BatchContents(found))


def filtered(first: int, keys: str) -> LogBatch:
    """Return a batch as `keyed` does, in which a capital letter is the key of a record that the filter leaves out."""
    batch = keyed(first, keys.lower())
    matching = list(adjacent([offset for offset, key in enumerate(keys, first) if not key.isupper()]))
    keyed_contents = batch.read_contents()
    assert keyed_contents is not None
    contents = keyed_contents._replace(matching=matching)
    return batch._replace(read_contents=lambda: contents)
