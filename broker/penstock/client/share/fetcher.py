"""Acquires records for a share consumer: one reader per broker that leads assigned partitions.

Records are acquired only while the application waits for some and none are buffered, as their locks count from then on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import ClientError, RequestTimedOut
from penstock.client.metadata import MetadataCache
from penstock.client.share.broker_reader import BrokerReader
from penstock.client.share.requests import RECORD_LIMIT, ShareFetchOptions, ShareMemberKey
from penstock.client.share.types import AcknowledgementResult, ShareRecord, TopicIdPartition
from penstock.client.types import TopicPartition

CLOSE_TIMEOUT_S = 5.0
NOTHING: Mapping[TopicIdPartition, TopicPartition] = MappingProxyType({})


class ShareFetcher:
    """Implements `broker_reader.ReaderHost`. `wake` is called when a poll may have something to do."""

    def __init__(
        self,
        cluster: ClusterConnections,
        options: ShareFetchOptions,
        member: ShareMemberKey,
        wake: Callable[[], None],
        on_result: Callable[[AcknowledgementResult], None],
    ) -> None:
        self.cluster, self.options = cluster, options
        self.partitions = NOTHING
        self._member = member
        self._wake, self._report = wake, on_result
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[ShareRecord] = deque()
        self._errors: deque[ClientError] = deque()
        self._readers: dict[int, BrokerReader] = {}
        self._by_node: dict[int, dict[TopicIdPartition, TopicPartition]] = {}
        self._leaders: dict[TopicIdPartition, tuple[int, int]] = {}
        """(broker id, leader epoch) from responses, which may be newer than the metadata."""
        self._is_polled = False
        self._last_node = -1
        self._progress = asyncio.Event()
        cluster.on_metadata.append(self._metadata_changed)

    # --- calls of the consumer

    def assign(self, partitions: Mapping[TopicIdPartition, TopicPartition]) -> None:
        """Read these partitions from now on."""
        self.partitions = dict(partitions)
        self._leaders = {key: leader for key, leader in self._leaders.items() if key in partitions}
        self._place()

    def set_polled(self, is_polled: bool) -> None:
        """Acquire records while the application waits for some."""
        self._is_polled = is_polled
        if is_polled:
            self._poke()

    def pop_records(self, max_records: int) -> list[ShareRecord]:
        """Return up to `max_records` buffered records that are still locked for this member."""
        for reader in self._readers.values():
            reader.check_connection()
        found: list[ShareRecord] = []
        now_s = self._loop.time()
        while self._buffer and len(found) < max_records:
            record = self._buffer.popleft()
            if record.owner.is_deliverable(record.offset, now_s):
                found.append(record)
        return found

    def raise_error(self) -> None:
        """Raise the next error that a retry does not solve."""
        if self._errors:
            raise self._errors.popleft()

    async def flush(self, timeout_s: float) -> None:
        """Send all acknowledgements, and return once they are answered. Raises `RequestTimedOut`."""
        targets = [(reader, reader.flush()) for reader in self._readers.values()]
        try:
            async with asyncio.timeout(timeout_s):
                while any(reader.answered < queued for reader, queued in targets):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            raise RequestTimedOut(f"acknowledgements were not answered within {timeout_s * 1000:.0f} ms") from None

    async def close(self) -> None:
        """Send the last acknowledgements, and release all other records."""
        self._is_polled = False
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.gather(*(reader.close() for reader in self._readers.values()))
        except TimeoutError:
            for reader in self._readers.values():
                reader.cancel()

    # --- where to read

    def _metadata_changed(self, metadata: MetadataCache) -> None:
        self._place()

    def _place(self) -> None:
        """Find the leader of each partition."""
        by_node: dict[int, dict[TopicIdPartition, TopicPartition]] = {}
        for key, tp in self.partitions.items():
            node_id = self._leader(key, tp)
            if node_id >= 0:
                by_node.setdefault(node_id, {})[key] = tp
            else:
                self.cluster.follow([tp.topic])
                self.cluster.invalidate()
        self._by_node = by_node
        self._poke()

    def _leader(self, key: TopicIdPartition, tp: TopicPartition) -> int:
        """Return the broker that leads a partition; -1 if unknown."""
        metadata = self.cluster.metadata
        topic = metadata.topics.get(tp.topic)
        known = topic.partitions.get(tp.partition) if topic is not None and topic.topic_id == key[0] else None
        leader_id, leader_epoch = self._leaders.get(key, (-1, -1))
        if known is not None and known.leader_epoch >= leader_epoch:
            leader_id = known.leader
        return leader_id if leader_id in metadata.brokers else -1

    def _poke(self) -> None:
        for node_id in self._by_node.keys() - self._readers.keys():
            self._readers[node_id] = BrokerReader(self, node_id)
        for reader in self._readers.values():
            reader.poke()

    # --- implementation of `ReaderHost`

    @property
    def member(self) -> ShareMemberKey:
        """The member for which to read."""
        return self._member

    def wait_ms(self, node_id: int) -> int | None:
        """Return how long the broker may wait for records; None if nothing is to be fetched from it now.

        With a limit of records, one broker at a time is asked: several together could exceed it.
        """
        if not self._is_polled or self._buffer or node_id not in self._by_node or self._is_full():
            return None
        if self.options.acquire_mode != RECORD_LIMIT or len(self._by_node) == 1:
            return self.options.max_wait_ms
        if any(reader.is_fetching for reader in self._readers.values()) or node_id != self._next_node():
            return None
        return self.options.max_wait_ms // len(self._by_node)

    def _is_full(self) -> bool:
        now_s = self._loop.time()
        return sum(reader.count_held(now_s) for reader in self._readers.values()) >= self.options.max_held_records

    def _next_node(self) -> int:
        ready = sorted(node_id for node_id in self._by_node if self._readers[node_id].is_ready)
        return next((node_id for node_id in ready if node_id > self._last_node), ready[0] if ready else -1)

    def partitions_of(self, node_id: int) -> Mapping[TopicIdPartition, TopicPartition]:
        """Return the partitions to read from a broker."""
        return self._by_node.get(node_id, NOTHING)

    def on_records(self, records: list[ShareRecord]) -> None:
        """Buffer acquired records."""
        self._buffer.extend(records)
        self._wake()

    def on_result(self, result: AcknowledgementResult) -> None:
        """Report the result of acknowledgements."""
        self._report(result)
        self._wake()

    def on_error(self, error: ClientError) -> None:
        """Raise the error in the next poll."""
        if len(self._errors) < len(self._by_node) + 1:
            self._errors.append(error)
        self._wake()

    def on_moved(self, partition: TopicIdPartition, leader_id: int, leader_epoch: int) -> None:
        """Read from another broker."""
        if partition in self.partitions and leader_id >= 0:
            self._leaders[partition] = (leader_id, leader_epoch)
            self._place()
        self.cluster.invalidate()

    def on_fetched(self, node_id: int) -> None:
        """Let the next broker be asked."""
        self._last_node = node_id
        if self.options.acquire_mode == RECORD_LIMIT:
            self._loop.call_soon(self._poke)

    def on_answered(self) -> None:
        """Let `flush` check for answers."""
        self._progress.set()
