"""Fetches ahead of the consumer: one long poll for each leader, over the partitions that have room in their buffers.

`consumer` pokes it when something became fetchable; it sets `available` when there is something to take.
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
from penstock.wire.errors import RETRIABLE, ErrorCode
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock.wire.schema import MalformedMessage

FULL_BUFFER_WAIT_S = 0.1
"""How often partitions without data are asked for while others on the same broker have full buffers."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Sizes in bytes. `partition_buffer_bytes` is what may wait for one partition, `buffer_bytes` for all."""

    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    max_wait_ms: int = 500
    partition_max_bytes: int = 1024 * 1024
    partition_buffer_bytes: int = 1024 * 1024
    buffer_bytes: int = 64 * 1024 * 1024
    isolation_level: int = 0
    rack_id: str = ""


class Fetcher:
    """Runs while there is something to fetch; `close` ends it."""

    def __init__(
        self, cluster: ClusterConnections, positions: Positions, options: FetchOptions, available: Callable[[], None]
    ) -> None:
        self.cluster, self.positions, self.options = cluster, positions, options
        self._available = available
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._room: dict[int, asyncio.Event] = {}
        self._again: asyncio.TimerHandle | None = None
        self._failures = 0
        self._closed = False

    def poke(self) -> None:
        """Something may have become fetchable."""
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
                self._later()
            elif node_id not in self._tasks:
                self._start(node_id)

    async def close(self) -> None:
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_full(self, state: PartitionState) -> bool:
        """Whether nothing is fetched for a partition because enough is buffered."""
        return state.buffered_bytes >= self.options.partition_buffer_bytes

    def _source(self, state: PartitionState) -> int:
        """The broker that a partition is read from: its leader, or the replica that the leader named."""
        return state.read_from if state.read_from >= 0 else self.cluster.metadata.leader(*state.tp)

    def _start(self, node_id: int) -> None:
        self._room[node_id] = asyncio.Event()
        self._tasks[node_id] = self._loop.create_task(self._run(node_id), name=f"penstock-fetch-{node_id}")

    def _fetchable(self, state: PartitionState) -> bool:
        return (
            state.fetch_offset >= 0
            and not state.paused
            and state.error is None
            and not self.is_full(state)
            and state.retry_at <= self._loop.time()
        )

    async def _run(self, node_id: int) -> None:
        """Fetches from one broker for as long as there is something to fetch from it."""
        try:
            await self._fetch_while_wanted(node_id)
        finally:
            # In the step in which fetching ends: whoever pokes after it has to see that nobody fetches.
            del self._tasks[node_id], self._room[node_id]

    async def _fetch_while_wanted(self, node_id: int) -> None:
        while not self._closed:
            self._room[node_id].clear()
            mine = [s for s in self.positions.in_turn() if self._source(s) == node_id]
            wanted = [state for state in mine if self._fetchable(state)]
            if not wanted or self._buffered_bytes() >= self.options.buffer_bytes:
                return
            full = any(self.is_full(state) for state in mine)
            try:
                got = await self._fetch(node_id, wanted, 0 if full else self.options.max_wait_ms)
                self._failures = 0
            except ClientError as e:
                self._failed(wanted, e)
                return
            if full and not got:
                # A long poll now would hold up those whose buffers empty meanwhile.
                try:
                    async with asyncio.timeout(FULL_BUFFER_WAIT_S):
                        await self._room[node_id].wait()
                except TimeoutError:
                    pass

    def _buffered_bytes(self) -> int:
        return sum(state.buffered_bytes for state in self.positions.states.values())

    async def _fetch(self, node_id: int, wanted: list[PartitionState], max_wait_ms: int) -> bool:
        """One request; True where it brought records."""
        asked = {state.tp: (state, state.version) for state in wanted}
        topics: dict[str, FetchTopic] = {}
        for state in wanted:
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
        )
        timeout_ms = self.cluster.request_timeout_ms + max_wait_ms
        answer = await self.cluster.call(node_id, request, FetchResponse, timeout_ms=timeout_ms)
        if answer.error_code:
            raise BrokerError(answer.error_code, "fetch")
        got = moved = False
        for answered in answer.responses:
            for data in answered.partitions:
                found = asked.get(TopicPartition(answered.topic, data.partition_index))
                if found is not None and found[0].version == found[1]:
                    got |= self._take_in(found[0], data)
                    moved |= self._redirected(node_id, found[0], data)
        if got:
            self._available()
        if moved:
            self.poke()
        return got

    def _redirected(self, node_id: int, state: PartitionState, data: PartitionData) -> bool:
        """Whether a partition is to be read from another broker now: from the replica that the leader prefers for this
        consumer's rack, or from the leader again, whose advice is old.
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

    def _take_in(self, state: PartitionState, data: PartitionData) -> bool:
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
            state.fill(memoryview(data.records), data.aborted_transactions, committed_only)
        except MalformedMessage as e:
            state.error = ConnectionFailed(f"{state.tp}: {e}")
            self._available()
        return bool(state.batches)

    def _partition_failed(self, state: PartitionState, code: int) -> None:
        error = error_code(code)
        was_near, state.read_from = state.read_from >= 0, -1
        if error in RETRIABLE or was_near:  # what another replica says is the leader's to confirm
            self.cluster.invalidate()
            state.retry_at = self._loop.time() + self.cluster.backoff.delay_s(1)
            self._later()
            return
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            state.error = OutOfRange(code, f"{state.tp} at offset {state.fetch_offset}")
        else:
            state.error = BrokerError(code, str(state.tp))
        self._available()

    def _failed(self, wanted: list[PartitionState], error: ClientError) -> None:
        """A whole request failed: later again where that can help, at the leaders, else the consumer is told."""
        for state in wanted:
            state.read_from = -1
        if error.retriable:
            self.cluster.invalidate()
            until = self._loop.time() + self.cluster.backoff.delay_s(self._failures)
            for state in wanted:
                state.retry_at = until
        else:
            for state in wanted:
                state.error = error
            self._available()
        self._later()

    def _later(self) -> None:
        if self._again is None and not self._closed:
            self._again = self._loop.call_later(self.cluster.backoff.delay_s(self._failures) + 0.01, self._now)
            self._failures += 1

    def _now(self) -> None:
        self._again = None
        self.poke()
        if any(state.retry_at > self._loop.time() for state in self.positions.states.values()):
            self._later()


class OutOfRange(BrokerError):
    """The position is not in the log; the consumer's reset policy says what follows."""


RESET_POLICIES = {"earliest": EARLIEST, "latest": LATEST}
