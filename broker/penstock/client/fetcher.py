"""Prefetches records: one long poll per leader, for all partitions with free buffer space.

`consumer` pokes it when a partition becomes fetchable; it calls `available` when records have arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, ClientError, ConnectionFailed, error_code
from penstock.client.offsets import EARLIEST, LATEST
from penstock.client.positions import PartitionState, Positions
from penstock.client.types import TopicPartition
from penstock.filter import RecordFilter
from penstock.runtime.tasks import spawn
from penstock.wire.errors import RETRIABLE, ErrorCode
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock.wire.schema import MalformedMessage

FULL_BUFFER_WAIT_S = 0.1
"""Poll interval for partitions without data while others on the same broker have full buffers."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Fetch settings, sizes in bytes. `partition_buffer_bytes` limits buffered data per partition, `buffer_bytes` in
    total.
    """

    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    max_wait_ms: int = 500
    partition_max_bytes: int = 1024 * 1024
    partition_buffer_bytes: int = 1024 * 1024
    buffer_bytes: int = 64 * 1024 * 1024
    isolation_level: int = 0
    rack_id: str = ""
    record_filter: RecordFilter | None = None


class Fetcher:
    """Fetches in background tasks until `close`."""

    def __init__(
        self, cluster: ClusterConnections, positions: Positions, options: FetchOptions, available: Callable[[], None]
    ) -> None:
        self.cluster, self.positions, self.options = cluster, positions, options
        self._available = available
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._room: dict[int, asyncio.Event] = {}
        self._backoff_timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._closed = False

    def poke(self) -> None:
        """Start fetching partitions that have become fetchable."""
        if self._closed:
            return
        for event in self._room.values():
            event.set()
        for state in self.positions.states.values():
            if not self._fetchable(state):
                continue
            node_id = self._source(state)
            if node_id < 0:
                self.cluster.follow([state.tp.topic])
                self.cluster.invalidate()
                self._poke_later()
            elif node_id not in self._tasks:
                self._start(node_id)

    async def close(self) -> None:
        """Stop all fetches."""
        self._closed = True
        if self._backoff_timer is not None:
            self._backoff_timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_full(self, state: PartitionState) -> bool:
        """Return whether the partition's buffer is full."""
        return state.buffered_bytes >= self.options.partition_buffer_bytes

    def _source(self, state: PartitionState) -> int:
        """Return the broker to read from: the leader, or the replica that the leader has named."""
        return state.read_from if state.read_from >= 0 else self.cluster.metadata.leader(*state.tp)

    def _start(self, node_id: int) -> None:
        self._room[node_id] = asyncio.Event()
        self._tasks[node_id] = spawn(self._run(node_id), f"penstock-fetch-{node_id}")

    def _fetchable(self, state: PartitionState) -> bool:
        return (
            state.fetch_offset >= 0
            and not state.paused
            and state.error is None
            and not self.is_full(state)
            and state.retry_at <= self._loop.time()
        )

    async def _run(self, node_id: int) -> None:
        """Fetch from one broker while there are fetchable partitions."""
        try:
            await self._fetch_loop(node_id)
        finally:
            # Without an await after the last fetch, so that a later `poke` starts a new task.
            del self._tasks[node_id], self._room[node_id]

    async def _fetch_loop(self, node_id: int) -> None:
        while not self._closed:
            self._room[node_id].clear()
            states = [s for s in self.positions.rotated() if self._source(s) == node_id]
            fetchable = [state for state in states if self._fetchable(state)]
            if not fetchable or self._buffered_bytes() >= self.options.buffer_bytes:
                return
            full = any(self.is_full(state) for state in states)
            try:
                has_records = await self._fetch(node_id, fetchable, 0 if full else self.options.max_wait_ms)
                self._failures = 0
            except ClientError as e:
                self._failed(fetchable, e)
                return
            if full and not has_records:
                # A long poll would delay partitions whose buffers drain in the meantime.
                try:
                    async with asyncio.timeout(FULL_BUFFER_WAIT_S):
                        await self._room[node_id].wait()
                except TimeoutError:
                    pass

    def _buffered_bytes(self) -> int:
        return sum(state.buffered_bytes for state in self.positions.states.values())

    async def _fetch(self, node_id: int, fetchable: list[PartitionState], max_wait_ms: int) -> bool:
        """Send one request. Returns whether it brought records."""
        requested = {state.tp: (state, state.version) for state in fetchable}
        topics: dict[str, FetchTopic] = {}
        for state in fetchable:
            topic = topics.setdefault(state.tp.topic, FetchTopic(topic=state.tp.topic, partitions=[]))
            topic.partitions.append(
                FetchPartition(
                    partition=state.tp.partition,
                    fetch_offset=state.fetch_offset,
                    partition_max_bytes=self.options.partition_max_bytes,
                )
            )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=self.options.min_bytes,
            max_bytes=self.options.max_bytes,
            isolation_level=self.options.isolation_level,
            topics=list(topics.values()),
            rack_id=self.options.rack_id,
            filter="" if self.options.record_filter is None else self.options.record_filter.text,
        )
        timeout_ms = self.cluster.request_timeout_ms + max_wait_ms
        response = await self.cluster.call(node_id, request, FetchResponse, timeout_ms=timeout_ms)
        if response.error_code:
            raise BrokerError(response.error_code, "fetch")
        has_records = has_moved = False
        for topic_response in response.responses:
            for data in topic_response.partitions:
                found = requested.get(TopicPartition(topic_response.topic, data.partition_index))
                if found is not None and found[0].version == found[1]:
                    has_records |= self._store(found[0], data)
                    has_moved |= self._update_source(node_id, found[0], data)
        if has_records:
            self._available()
        if has_moved:
            self.poke()
        return has_records

    def _update_source(self, node_id: int, state: PartitionState, data: PartitionData) -> bool:
        """Return whether the partition's source changes: to the replica that the leader prefers for this consumer's
        rack, or back to the leader once that preference has expired.
        """
        now = self._loop.time()
        if data.preferred_read_replica not in (-1, node_id):
            state.read_from = data.preferred_read_replica
            state.read_from_until = now + self.cluster.metadata_max_age_ms / 1000
            return True
        if state.read_from >= 0 and now >= state.read_from_until:
            state.read_from = -1
            return True
        return False

    def _store(self, state: PartitionState, data: PartitionData) -> bool:
        if data.error_code:
            self._partition_failed(state, data.error_code)
            return False
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        state.log_start_offset = data.log_start_offset
        if not data.records:
            return False
        try:
            committed_only = self.options.isolation_level == 1
            state.append_batches(memoryview(data.records), data.aborted_transactions, committed_only)
        except MalformedMessage as e:
            state.error = ConnectionFailed(f"{state.tp}: {e}")
            self._available()
        return bool(state.batches)

    def _partition_failed(self, state: PartitionState, code: int) -> None:
        error = error_code(code)
        was_near, state.read_from = state.read_from >= 0, -1
        if error in RETRIABLE or was_near:  # an error of a follower must be confirmed by the leader
            self.cluster.invalidate()
            state.retry_at = self._loop.time() + self.cluster.backoff.delay_s(1)
            self._poke_later()
            return
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            state.error = OutOfRange(code, f"{state.tp} at offset {state.fetch_offset}")
        else:
            state.error = BrokerError(code, str(state.tp))
        self._available()

    def _failed(self, fetchable: list[PartitionState], error: ClientError) -> None:
        """Handle a failed request: retry later at the leaders, or pass a fatal error to the consumer."""
        for state in fetchable:
            state.read_from = -1
        if error.retriable:
            self.cluster.invalidate()
            until = self._loop.time() + self.cluster.backoff.delay_s(self._failures)
            for state in fetchable:
                state.retry_at = until
        else:
            for state in fetchable:
                state.error = error
            self._available()
        self._poke_later()

    def _poke_later(self) -> None:
        if self._backoff_timer is None and not self._closed:
            self._backoff_timer = self._loop.call_later(
                self.cluster.backoff.delay_s(self._failures) + 0.01, self._poke_after_backoff
            )
            self._failures += 1

    def _poke_after_backoff(self) -> None:
        self._backoff_timer = None
        self.poke()
        if any(state.retry_at > self._loop.time() for state in self.positions.states.values()):
            self._poke_later()


class OutOfRange(BrokerError):
    """The position is outside the log; the consumer applies its reset policy."""


RESET_POLICIES = {"earliest": EARLIEST, "latest": LATEST}
