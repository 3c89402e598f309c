"""Routes transaction markers to partition leaders and group coordinators, local or remote.

Used by `completion`. Markers for a broker that has a request in flight are batched into the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report, spawn
from penstock.state import keys
from penstock.state.store import Store, StoreError
from penstock.state.view import ClusterView
from penstock.txn.markers import MARKER_TIMEOUT_S, LocalMarkers, resolver, wait_or_time_out
from penstock.txn.transaction_partitions import (
    OFFSETS_TOPIC,
    OFFSETS_TOPIC_ID,
    MarkerTarget,
    TransactionEnding,
    TransactionPartition,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = get_logger(__name__)

NO_BROKER = -1


class MarkerSender(Protocol):
    """Sends the outcome of a transaction."""

    async def send(
        self, ending: TransactionEnding, partitions: Sequence[TransactionPartition]
    ) -> dict[TransactionPartition, ErrorCode]:
        """Send a marker to each partition. Returns an error each: NONE once it is durable or the topic is deleted, a
        retriable error if the broker is unreachable. Does not raise."""


class MarkerChannel(Protocol):
    """Connections to other brokers. Provided by `node`."""

    async def write_markers(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Send a request. Raises OSError or TimeoutError if the broker is unreachable."""


class PendingMarker(NamedTuple):
    """A marker that waits for a request to its broker."""

    ending: TransactionEnding
    topic: str
    partition: TransactionPartition
    leader_epoch: int
    result: asyncio.Future[int]


class MarkerRouter:
    """Finds leaders in the view, and group coordinators by `owner_of`, which returns a shard's broker or -1. Implements
    `MarkerSender`."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        broker_id: int,
        local: LocalMarkers,
        owner_of: Callable[[int], int],
        channel: MarkerChannel,
    ) -> None:
        self._store, self._view, self._broker_id = store, view, broker_id
        self._local, self._owner_of, self._channel = local, owner_of, channel
        self._queues: dict[int, list[PendingMarker]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    async def send(
        self, ending: TransactionEnding, partitions: Sequence[TransactionPartition]
    ) -> dict[TransactionPartition, ErrorCode]:
        """Send a marker to each partition; see `MarkerSender.send`."""
        loop = asyncio.get_running_loop()
        waiting: dict[TransactionPartition, asyncio.Future[int]] = {}
        local: list[asyncio.Future[int]] = []
        for partition in partitions:
            result = waiting[partition] = loop.create_future()
            if partition.topic_id == OFFSETS_TOPIC_ID:
                broker_id, name, leader_epoch = self._owner_of(partition.partition), OFFSETS_TOPIC, -1
            else:
                topic = self._view.topics_by_id.get(partition.topic_id)
                if topic is None or partition.partition >= len(topic.partitions):
                    deleted = topic is None and await self._is_deleted(partition.topic_id)
                    result.set_result(ErrorCode.NONE if deleted else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    continue
                placed = topic.partitions[partition.partition]
                broker_id, name, leader_epoch = placed.leader, topic.name, placed.leader_epoch
            if broker_id == self._broker_id:
                self._local.write(ending, MarkerTarget(*partition, leader_epoch), resolver(result))
                local.append(result)
            elif broker_id == NO_BROKER:
                result.set_result(ErrorCode.BROKER_NOT_AVAILABLE)
            else:
                self._enqueue(broker_id, PendingMarker(ending, name, partition, leader_epoch, result))
        await wait_or_time_out(MARKER_TIMEOUT_S, local)
        errors = await asyncio.gather(*waiting.values())
        return {partition: ErrorCode(error) for partition, error in zip(waiting, errors, strict=True)}

    async def _is_deleted(self, topic_id: UUID) -> bool:
        """Return whether a topic that the view lacks is deleted, rather than unreadable."""
        if topic_id in self._view.deleting:
            return True
        try:
            return await self._store.get(keys.topic(topic_id)) is None
        except StoreError:
            return False

    def _enqueue(self, broker_id: int, pending: PendingMarker) -> None:
        self._queues.setdefault(broker_id, []).append(pending)
        if broker_id not in self._senders:
            self._senders[broker_id] = spawn(self._drain(broker_id), f"markers for broker {broker_id}")

    async def _drain(self, broker_id: int) -> None:
        try:
            while batch := self._queues.pop(broker_id, None):
                await send_batch(self._channel, broker_id, batch)
        finally:
            del self._senders[broker_id]

    async def close(self) -> None:
        """Cancel all requests."""
        senders = list(self._senders.values())
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)


async def send_batch(channel: MarkerChannel, broker_id: int, batch: list[PendingMarker]) -> None:
    """Send one request with all of `batch`, and resolve each marker."""
    by_ending: dict[TransactionEnding, list[PendingMarker]] = {}
    for pending in batch:
        by_ending.setdefault(pending.ending, []).append(pending)
    request = WriteTxnMarkersRequest(markers=[encode_marker(ending, batch) for ending, batch in by_ending.items()])
    found: dict[tuple[TransactionEnding, str, int], int] = {}
    try:
        response = await channel.write_markers(broker_id, request)
        if len(response.markers) == len(by_ending):
            for ending, result in zip(by_ending, response.markers, strict=True):
                for topic in result.topics:
                    for p in topic.partitions:
                        found[ending, topic.name, p.partition_index] = ErrorCode(p.error_code)
    except (OSError, TimeoutError) as e:
        log.info("cannot send transaction markers to a broker", broker=broker_id, places=len(batch), reason=str(e))
    except Exception as e:
        report("cannot send transaction markers to a broker", e, broker=broker_id)
    finally:
        for pending in batch:
            error = found.get((pending.ending, pending.topic, pending.partition.partition), ErrorCode.NETWORK_EXCEPTION)
            resolver(pending.result)(error)


def encode_marker(ending: TransactionEnding, batch: list[PendingMarker]) -> WritableTxnMarker:
    """Return the request's element for one transaction."""
    topics: dict[UUID, WritableTxnMarkerTopic] = {}
    for pending in batch:
        topic = topics.get(pending.partition.topic_id)
        if topic is None:
            topic = topics[pending.partition.topic_id] = WritableTxnMarkerTopic(
                name=pending.topic, topic_id=pending.partition.topic_id
            )
        topic.partition_indexes.append(pending.partition.partition)
        topic.leader_epochs.append(pending.leader_epoch)
    marker = ending.marker
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.committed,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_number=ending.number,
        topics=list(topics.values()),
    )
