"""DeleteRecords: the leader deletes, and the response waits for the replicas that may become leader.

A replica that lags could bring deleted records back after an election. There is no polling: followers report their log
start offset when it changes. `log_queries` creates one object per request.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.api.exchange import RequestExchange
from penstock.log.types import LogError, OffsetOutOfRange
from penstock.replica.deletions import DeletionWaiter
from penstock.replica.leader import Leader
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.delete_records import DeleteRecordsPartitionResult

LATEST_OFFSET = -1
"""Offset that stands for the end for consumers: the high watermark, or less if records wait for their delivery."""
MAX_WAIT_MS = 300_000
"""Upper bound of a request's `timeout_ms`, which may be 24 days."""
NO_OFFSET = -1


class RecordDeletion:
    """The deletions of one request. Call `delete` per partition, then `wait_for_replicas`, and always `close`."""

    def __init__(self, exchange: RequestExchange, timeout_ms: int) -> None:
        self.exchange = exchange
        self.deadline_s = asyncio.get_running_loop().time() + min(max(timeout_ms, 0), MAX_WAIT_MS) / 1000
        self.waits: list[tuple[Leader, DeletionWaiter]] = []
        self.remaining = 0
        self.finished = asyncio.Event()

    @property
    def remaining_s(self) -> float:
        """Seconds until the request's timeout, at least 0."""
        return max(self.deadline_s - asyncio.get_running_loop().time(), 0.0)

    async def delete(self, partition: Leader, offset: int, result: DeleteRecordsPartitionResult) -> None:
        """Delete at this broker. `result` gets an error, or REQUEST_TIMED_OUT until all replicas have deleted too."""
        result.low_watermark = NO_OFFSET
        target = partition.visible_offset if offset == LATEST_OFFSET else offset
        end = partition.high_watermark if partition.seal_offset < 0 else partition.visible_offset
        if not 0 <= target <= end:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return
        try:
            await partition.log.delete_records_before(target)
        except OffsetOutOfRange:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return
        except LogError:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return
        result.error_code = ErrorCode.REQUEST_TIMED_OUT
        deletion = DeletionWaiter(target, partial(self.on_replicated, partition, result))
        self.waits.append((partition, deletion))
        self.remaining += 1
        partition.when_deleted(deletion)

    def on_replicated(self, partition: Leader, result: DeleteRecordsPartitionResult, error: int) -> None:
        """Write the outcome of a partition into its result."""
        result.error_code = error
        result.low_watermark = NO_OFFSET if error else partition.low_watermark
        self.remaining -= 1
        if not self.remaining:
            self.finished.set()

    async def wait_for_replicas(self) -> None:
        """Return when the replicas have deleted, the timeout has passed or the client has disconnected."""
        if not self.remaining:
            return
        self.finished.clear()
        self.exchange.on_disconnect(self.finished.set)
        try:
            async with asyncio.timeout_at(self.deadline_s):
                await self.finished.wait()
        except TimeoutError:
            pass  # the results hold REQUEST_TIMED_OUT

    def close(self) -> None:
        """Remove the waits from the partitions."""
        for partition, deletion in self.waits:
            partition.deletions.cancel(deletion)
