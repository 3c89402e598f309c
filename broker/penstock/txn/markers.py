"""Ends transactions in this broker: markers in the partitions that it leads, offsets in the groups that it coordinates.

Used by `router` for transactions that this broker coordinates, and by the WriteTxnMarkers handler for those of others
and for people who end what hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.replica.manager import ReplicaManager
from penstock.txn.acknowledged_markers import AcknowledgedMarkers
from penstock.txn.transaction_partitions import OFFSETS_TOPIC_ID, UNNUMBERED, MarkerTarget, TransactionEnding
from penstock.wire.errors import ErrorCode

WAIT_S = 1.0
"""For a marker to be below the high watermark, after which a coordinator is told to ask again: answers leave in the
order of the requests, and one partition is not to hold up what is said of the others."""

Callback = Callable[[int], None]


class OffsetDecider(Protocol):
    """Where pending offsets are: `offsets.TxnOffsets`."""

    async def decide(self, shard: int, ending: TransactionEnding) -> ErrorCode:
        """Folds in, or drops, what a producer has pending in the groups of a shard; NONE when that is durable."""


class LocalMarkers:
    """What this broker has of transactions' ends. Nothing here raises."""

    def __init__(self, replicas: ReplicaManager, offsets: OffsetDecider, heard: AcknowledgedMarkers) -> None:
        self._replicas, self._offsets, self._heard = replicas, offsets, heard
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, ending: TransactionEnding, target: MarkerTarget, done: Callback) -> None:
        """Calls back with an error code; NONE when the marker is below the high watermark, or offsets are decided."""
        if not self._heard.ended(ending.marker.producer_id, ending.number):
            done(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        elif target.topic == OFFSETS_TOPIC_ID:
            task = asyncio.get_running_loop().create_task(self._decide(ending, target.partition, done))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._write_marker(ending, target, done)

    def _write_marker(self, ending: TransactionEnding, target: MarkerTarget, done: Callback) -> None:
        partition = self._replicas.find(target.topic, target.partition)
        if partition is None:
            done(self._replicas.absence(target.topic, target.partition)[0])
            return
        if target.leader_epoch not in (-1, partition.leader_epoch):
            is_old = target.leader_epoch < partition.leader_epoch
            done(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
            return
        written = partition.write_marker(ending.marker, by_hand=ending.number == UNNUMBERED)
        if written.error:
            done(written.error)
        elif partition.high_watermark >= written.required_offset:
            done(ErrorCode.NONE)
        else:
            partition.when_committed(written.required_offset, done)

    async def _decide(self, ending: TransactionEnding, shard: int, done: Callback) -> None:
        error = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            error = await self._offsets.decide(shard, ending)
        finally:
            done(error)

    async def send(self, ending: TransactionEnding, targets: Iterable[MarkerTarget]) -> list[ErrorCode]:
        """One error for each target: when all are settled, or for a coordinator after `WAIT_S` at the latest."""
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[int]] = []
        for target in targets:
            settled: asyncio.Future[int] = loop.create_future()
            self.write(ending, target, settle(settled))
            waiting.append(settled)
        await settled_within(None if ending.number == UNNUMBERED else WAIT_S, waiting)
        return [ErrorCode(future.result()) for future in waiting]

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def settle(future: asyncio.Future[int]) -> Callback:
    def done(error: int) -> None:
        if not future.done():
            future.set_result(error)

    return done


async def settled_within(wait_s: float | None, waiting: list[asyncio.Future[int]]) -> None:
    """Returns when all are settled; those that are not in time are settled by that."""
    if all(future.done() for future in waiting):
        return
    _, late = await asyncio.wait(waiting, timeout=wait_s)
    for future in late:
        future.set_result(ErrorCode.REQUEST_TIMED_OUT)
