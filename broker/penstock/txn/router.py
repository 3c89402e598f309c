"""Carries the end of a transaction to who leads its partitions and coordinates its groups, here or at other brokers.

Used by `completion`. What goes to one broker while a request to it is under way leaves together in the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import Store, StoreError
from penstock.state.view import ClusterView
from penstock.txn.markers import WAIT_S, LocalMarkers, settle, settled_within
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

NOBODY = -1


class MarkerSender(Protocol):
    """What a completion needs."""

    async def send(
        self, ending: TransactionEnding, places: Sequence[TransactionPartition]
    ) -> dict[TransactionPartition, ErrorCode]:
        """Tells each place; NONE where that is durable, or the topic is gone for good. Does not raise: what cannot be
        reached has a retriable error."""


class MarkerChannel(Protocol):
    """A way to other brokers; handed in by `node`."""

    async def write_markers(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Raises OSError or TimeoutError where the broker cannot be reached."""


class PendingMarker(NamedTuple):
    ending: TransactionEnding
    topic: str
    place: TransactionPartition
    leader_epoch: int
    settled: asyncio.Future[int]


class MarkerRouter:
    """Implements `MarkerSender`: finds the leaders by the view, and the groups' coordinators by `owner_of` (the broker
    that has a shard, or -1). Without a channel there are no other brokers."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        broker_id: int,
        local: LocalMarkers,
        owner_of: Callable[[int], int],
        channel: MarkerChannel | None = None,
    ) -> None:
        self._store, self._view, self._broker_id = store, view, broker_id
        self._local, self._owner_of, self._channel = local, owner_of, channel
        self._queues: dict[int, list[PendingMarker]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    async def send(
        self, ending: TransactionEnding, places: Sequence[TransactionPartition]
    ) -> dict[TransactionPartition, ErrorCode]:
        loop = asyncio.get_running_loop()
        waiting: dict[TransactionPartition, asyncio.Future[int]] = {}
        here: list[asyncio.Future[int]] = []
        for place in places:
            settled = waiting[place] = loop.create_future()
            if place.topic_id == OFFSETS_TOPIC_ID:
                broker_id, name, leader_epoch = self._owner_of(place.partition), OFFSETS_TOPIC, -1
            else:
                topic = self._view.topics_by_id.get(place.topic_id)
                if topic is None or place.partition >= len(topic.partitions):
                    gone = topic is None and await self._is_gone(place.topic_id)
                    settled.set_result(ErrorCode.NONE if gone else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    continue
                placed = topic.partitions[place.partition]
                broker_id, name, leader_epoch = placed.leader, topic.name, placed.leader_epoch
            if broker_id == self._broker_id:
                self._local.write(ending, MarkerTarget(*place, leader_epoch), settle(settled))
                here.append(settled)
            elif broker_id == NOBODY or self._channel is None:
                settled.set_result(ErrorCode.BROKER_NOT_AVAILABLE)
            else:
                self._enqueue(self._channel, broker_id, PendingMarker(ending, name, place, leader_epoch, settled))
        await settled_within(WAIT_S, here)
        errors = await asyncio.gather(*waiting.values())
        return {place: ErrorCode(error) for place, error in zip(waiting, errors, strict=True)}

    async def _is_gone(self, topic_id: UUID) -> bool:
        """Whether a topic that the view lacks is deleted: one whose record cannot be read is not."""
        if topic_id in self._view.deleting:
            return True
        try:
            return await self._store.get(keys.topic(topic_id)) is None
        except StoreError:
            return False

    def _enqueue(self, channel: MarkerChannel, broker_id: int, pending: PendingMarker) -> None:
        self._queues.setdefault(broker_id, []).append(pending)
        if broker_id not in self._senders:
            self._senders[broker_id] = asyncio.get_running_loop().create_task(self._drain(channel, broker_id))

    async def _drain(self, channel: MarkerChannel, broker_id: int) -> None:
        try:
            while batch := self._queues.pop(broker_id, None):
                await exchange(channel, broker_id, batch)
        finally:
            del self._senders[broker_id]

    async def close(self) -> None:
        senders = list(self._senders.values())
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)


async def exchange(channel: MarkerChannel, broker_id: int, batch: list[PendingMarker]) -> None:
    """One request with all of `batch`; settles each."""
    by_ending: dict[TransactionEnding, list[PendingMarker]] = {}
    for one in batch:
        by_ending.setdefault(one.ending, []).append(one)
    request = WriteTxnMarkersRequest(markers=[writable(ending, those) for ending, those in by_ending.items()])
    found: dict[tuple[TransactionEnding, str, int], int] = {}
    try:
        response = await channel.write_markers(broker_id, request)
        if len(response.markers) == len(by_ending):
            for ending, result in zip(by_ending, response.markers, strict=True):
                for topic in result.topics:
                    for p in topic.partitions:
                        found[ending, topic.name, p.partition_index] = ErrorCode(p.error_code)
    except (OSError, TimeoutError) as e:
        log.info("markers did not reach a broker", broker=broker_id, places=len(batch), reason=str(e))
    except Exception:
        log.exception("markers could not be sent", broker=broker_id)
    finally:
        for one in batch:
            error = found.get((one.ending, one.topic, one.place.partition), ErrorCode.NETWORK_EXCEPTION)
            settle(one.settled)(error)


def writable(ending: TransactionEnding, those: list[PendingMarker]) -> WritableTxnMarker:
    topics: dict[UUID, WritableTxnMarkerTopic] = {}
    for one in those:
        topic = topics.get(one.place.topic_id)
        if topic is None:
            topic = topics[one.place.topic_id] = WritableTxnMarkerTopic(name=one.topic, topic_id=one.place.topic_id)
        topic.partition_indexes.append(one.place.partition)
        topic.leader_epochs.append(one.leader_epoch)
    marker = ending.marker
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.committed,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_number=ending.number,
        topics=list(topics.values()),
    )
