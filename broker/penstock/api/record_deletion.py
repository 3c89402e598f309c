"""DeleteRecords: this broker deletes as leader, and the answer waits for the replicas that may lead after it.

One that has not deleted yet would bring back, as the next leader, what clients were told is gone. Nothing is polled:
followers say where their logs start when that has changed. Made by `log_queries` for each request.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.api.exchange import RequestExchange
from penstock.log.types import LogError, OffsetOutOfRange
from penstock.replica.deletions import Deletion
from penstock.replica.leader import Leader
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.delete_records import DeleteRecordsPartitionResult

HIGH_WATERMARK = -1
"""As an offset: all that readers may see."""
MAX_WAIT_MS = 300_000
"""Clients may ask for 24 days."""
NOTHING = -1


class RecordDeletion:
    """One request: `delete` for each partition, `replicated` once, and `end` whatever happens."""

    def __init__(self, exchange: RequestExchange, timeout_ms: int) -> None:
        self.exchange = exchange
        self.deadline_s = asyncio.get_running_loop().time() + min(max(timeout_ms, 0), MAX_WAIT_MS) / 1000
        self.waits: list[tuple[Leader, Deletion]] = []
        self.remaining = 0
        self.over = asyncio.Event()

    @property
    def remaining_s(self) -> float:
        """The time left until the request's timeout, in seconds; 0 where it has passed."""
        return max(self.deadline_s - asyncio.get_running_loop().time(), 0.0)

    async def delete(self, partition: Leader, offset: int, result: DeleteRecordsPartitionResult) -> None:
        """Deletes at this broker. `result` says what came of it; that time ran out, until all replicas have too."""
        result.low_watermark = NOTHING
        target = partition.high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= target <= partition.high_watermark:
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
        deletion = Deletion(target, partial(self.settle, partition, result))
        self.waits.append((partition, deletion))
        self.remaining += 1
        partition.when_deleted(deletion)

    def settle(self, partition: Leader, result: DeleteRecordsPartitionResult, error: int) -> None:
        result.error_code = error
        result.low_watermark = NOTHING if error else partition.low_watermark
        self.remaining -= 1
        if not self.remaining:
            self.over.set()

    async def replicated(self) -> None:
        """Returns when the replicas have deleted too, time is up, or nobody waits for the answer any more."""
        if not self.remaining:
            return
        self.over.clear()
        self.exchange.on_disconnect(self.over.set)
        try:
            async with asyncio.timeout_at(self.deadline_s):
                await self.over.wait()
        except TimeoutError:
            pass  # the results say so

    def end(self) -> None:
        """Leaves nothing behind at the partitions."""
        for partition, deletion in self.waits:
            partition.deletions.forget(deletion)
