"""Ends transactions on this broker: writes markers to partitions that it leads, and completes pending offsets of groups
that it coordinates.

Used by `router` for transactions that this broker coordinates, and by the WriteTxnMarkers handler for those of other
brokers and of administrators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.replica.manager import ReplicaManager
from penstock.runtime.tasks import spawn
from penstock.txn.latest_transactions import LatestTransactions
from penstock.txn.transaction_partitions import OFFSETS_TOPIC_ID, UNNUMBERED, MarkerTarget, TransactionEnding
from penstock.wire.errors import ErrorCode

MARKER_TIMEOUT_S = 1.0
"""How long a marker may take to reach the high watermark before the coordinator must retry. Responses leave in request
order, so one slow partition must not delay the results of others."""

Callback = Callable[[int], None]


class OffsetCompleter(Protocol):
    """The pending offsets: `offsets.TxnOffsets`."""

    async def complete_transaction(self, shard: int, ending: TransactionEnding) -> ErrorCode:
        """Commit or drop the producer's pending offsets in a shard. Returns NONE once durable."""


class LocalMarkers:
    """The local part of a transaction's end. No method raises."""

    def __init__(self, replicas: ReplicaManager, offsets: OffsetCompleter, latest: LatestTransactions) -> None:
        self._replicas, self._offsets, self._latest = replicas, offsets, latest
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, ending: TransactionEnding, target: MarkerTarget, callback: Callback) -> None:
        """Write a marker, or complete offsets. Passes an error code to `callback`: NONE once the marker is below the
        high watermark, or the offsets are durable."""
        if not self._latest.observe_ended(ending.marker.producer_id, ending.number):
            callback(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        elif target.topic == OFFSETS_TOPIC_ID:
            task = spawn(self._decide(ending, target.partition, callback), "offsets of a transaction")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._write_marker(ending, target, callback)

    def _write_marker(self, ending: TransactionEnding, target: MarkerTarget, callback: Callback) -> None:
        partition = self._replicas.find(target.topic, target.partition)
        if partition is None:
            callback(self._replicas.absence(target.topic, target.partition)[0])
            return
        if target.leader_epoch not in (-1, partition.leader_epoch):
            is_old = target.leader_epoch < partition.leader_epoch
            callback(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
            return
        written = partition.write_marker(ending.marker, is_administrative=ending.number == UNNUMBERED)
        if written.error:
            callback(written.error)
        elif partition.high_watermark >= written.required_offset:
            callback(ErrorCode.NONE)
        else:
            partition.when_committed(written.required_offset, callback)

    async def _decide(self, ending: TransactionEnding, shard: int, callback: Callback) -> None:
        error = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            error = await self._offsets.complete_transaction(shard, ending)
        finally:
            callback(error)

    async def send(self, ending: TransactionEnding, targets: Iterable[MarkerTarget]) -> list[ErrorCode]:
        """Return one error per target, once all are known. Requests of coordinators wait at most `MARKER_TIMEOUT_S`."""
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[int]] = []
        for target in targets:
            result: asyncio.Future[int] = loop.create_future()
            self.write(ending, target, resolver(result))
            waiting.append(result)
        await wait_or_time_out(None if ending.number == UNNUMBERED else MARKER_TIMEOUT_S, waiting)
        return [ErrorCode(future.result()) for future in waiting]

    async def close(self) -> None:
        """Cancel the offset completions in progress."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def resolver(future: asyncio.Future[int]) -> Callback:
    """Return a callback that resolves the future, unless it is done."""

    def resolve(error: int) -> None:
        if not future.done():
            future.set_result(error)

    return resolve


async def wait_or_time_out(wait_s: float | None, waiting: list[asyncio.Future[int]]) -> None:
    """Wait for all futures. Resolves those that are late with REQUEST_TIMED_OUT."""
    if all(future.done() for future in waiting):
        return
    _, late = await asyncio.wait(waiting, timeout=wait_s)
    for future in late:
        future.set_result(ErrorCode.REQUEST_TIMED_OUT)
