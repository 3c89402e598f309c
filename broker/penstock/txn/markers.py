"""Writes the markers that end a transaction in its partitions: here, or by asking the brokers that lead them.

Used by `coordinator`, and by the WriteTxnMarkers handler for what other coordinators ask of this broker. Markers that
go to one broker while a request to it is under way leave together in the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.replica.manager import ReplicaManager
from penstock.state import keys
from penstock.state.store import Store, StoreError
from penstock.state.view import ClusterView
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


class Place(NamedTuple):
    """A partition."""

    topic_id: UUID
    partition: int


class MarkerSender(Protocol):
    """What the coordinator needs."""

    async def send(self, marker: Marker, places: Sequence[Place]) -> dict[Place, ErrorCode]:
        """Has a marker written to each place; NONE where it is below the high watermark, or the topic is gone for
        good. Does not raise: what cannot be reached has a retriable error."""


class MarkerChannel(Protocol):
    """A way to other brokers; handed in by `node`."""

    async def write_markers(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Raises OSError or TimeoutError where the broker cannot be reached."""


class LocalMarkers:
    """Writes to partitions that this broker leads."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def write(self, marker: Marker, topic: str | UUID, index: int, done: Callable[[int], None]) -> None:
        """Calls back with an error code; NONE when the marker is below the high watermark."""
        partition = self._replicas.find(topic, index)
        if partition is None:
            done(self._replicas.absence(topic, index)[0])
            return
        written = partition.write_marker(marker)
        if written.error:
            done(written.error)
        elif partition.high_watermark >= written.required_offset:
            done(ErrorCode.NONE)
        else:
            partition.when_committed(written.required_offset, done)

    async def send(self, marker: Marker, places: Iterable[tuple[str | UUID, int]]) -> list[ErrorCode]:
        """One error for each place, when all are settled."""
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[int]] = []
        for topic, index in places:
            settled: asyncio.Future[int] = loop.create_future()
            self.write(marker, topic, index, settle(settled))
            waiting.append(settled)
        return [ErrorCode(error) for error in await asyncio.gather(*waiting)]


def settle(future: asyncio.Future[int]) -> Callable[[int], None]:
    def done(error: int) -> None:
        if not future.done():
            future.set_result(error)

    return done


class Pending(NamedTuple):
    marker: Marker
    topic: str
    place: Place
    settled: asyncio.Future[int]


class MarkerRouter:
    """Implements `MarkerSender`: finds the leaders by the view. Without a channel there are no other brokers."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        broker_id: int,
        local: LocalMarkers,
        channel: MarkerChannel | None = None,
    ) -> None:
        self._store, self._view, self._broker_id = store, view, broker_id
        self._local, self._channel = local, channel
        self._queues: dict[int, list[Pending]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    async def send(self, marker: Marker, places: Sequence[Place]) -> dict[Place, ErrorCode]:
        loop = asyncio.get_running_loop()
        waiting: dict[Place, asyncio.Future[int]] = {}
        for place in places:
            settled = waiting[place] = loop.create_future()
            topic = self._view.topics_by_id.get(place.topic_id)
            if topic is None:
                gone = await self._is_gone(place.topic_id)
                settled.set_result(ErrorCode.NONE if gone else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            leader = topic.partitions[place.partition].leader if place.partition < len(topic.partitions) else -1
            if leader == self._broker_id:
                self._local.write(marker, place.topic_id, place.partition, settle(settled))
            elif leader < 0 or self._channel is None:
                settled.set_result(ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                self._enqueue(self._channel, leader, Pending(marker, topic.name, place, settled))
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

    def _enqueue(self, channel: MarkerChannel, broker_id: int, pending: Pending) -> None:
        self._queues.setdefault(broker_id, []).append(pending)
        if broker_id not in self._senders:
            self._senders[broker_id] = asyncio.ensure_future(self._drain(channel, broker_id))

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


async def exchange(channel: MarkerChannel, broker_id: int, batch: list[Pending]) -> None:
    """One request with all of `batch`; settles each."""
    by_marker: dict[Marker, list[Pending]] = {}
    for one in batch:
        by_marker.setdefault(one.marker, []).append(one)
    request = WriteTxnMarkersRequest(markers=[writable(m, pending) for m, pending in by_marker.items()])
    found: dict[tuple[int, str, int], int] = {}
    try:
        response = await channel.write_markers(broker_id, request)
        for result in response.markers:
            for topic in result.topics:
                for p in topic.partitions:
                    found[result.producer_id, topic.name, p.partition_index] = p.error_code
    except (OSError, TimeoutError):
        pass  # all are told to try again
    finally:
        for one in batch:
            key = one.marker.producer_id, one.topic, one.place.partition
            if not one.settled.done():
                one.settled.set_result(found.get(key, ErrorCode.NETWORK_EXCEPTION))


def writable(marker: Marker, pending: list[Pending]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for one in pending:
        topics.setdefault(one.topic, []).append(one.place.partition)
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.committed,
        coordinator_epoch=marker.coordinator_epoch,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
    )
