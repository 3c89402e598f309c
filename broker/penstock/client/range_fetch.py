"""Fetches a range of one partition, as stored batches, from its current leader, one response at a time. Public API.

A range has one fetch in flight, because only its response says where the next starts. `FetchSizes.ahead` bounds the
responses that the caller has not consumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from penstock.client.batch_spans import BatchSpan, measure
from penstock.client.broker_answers import RESPONSE_TIMEOUT_MS, leader_of, query_all_brokers
from penstock.client.cluster import ClusterConnections
from penstock.client.connection import MAX_RESPONSE_BYTES, ClientConnection
from penstock.client.errors import BrokerError, ClientError, OffsetNotInLog, RetriesExhausted, TopicDeleted
from penstock.client.offsets import EARLIEST, LATEST, list_offsets_at
from penstock.client.topic_queries import query_topics
from penstock.client.types import (
    READ_UNCOMMITTED,
    Fetched,
    FetchSizes,
    OffsetRange,
    TopicInfo,
    TopicPartition,
    TopicPartitions,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

PURPOSE = "fetch"
"""Purpose of the connections: other requests do not wait behind a fetch."""
TOPIC_IDS_FROM, MAX_VERSION = 13, FetchRequest.VERSIONS[1]
MAX_WAIT_MS = 500
EMPTY_PAUSE_S = 0.02
"""Pause after an empty response: normally brokers wait themselves, and a broker that does not must not be flooded."""
REFUSED_PAUSE_S = 0.25
"""Pause after an immediate response to a fetch beyond the log end."""
END_OF_LOG_MS = 60_000
"""Time that a leader must keep reporting a log end before the range's end, whatever the caller's timeout: a newly
elected leader may not know its predecessor's log end yet, and one that is cut off may not know that it was deposed.
Callers may skip records that are reported lost, for good."""
LEADER_CHECK_MS = 5_000
"""Interval at which all brokers are asked for the leader during that time."""
GONE_CONFIRM_MS = 1_000
"""Time that a topic must be missing, or have another id: it is unknown which broker has the newest metadata."""
THROTTLED = "the broker throttles this client: it exceeds its quota (consumer_byte_rate)"
MIN_FETCH_BYTES = 64 * 1024
MAX_BATCH_BYTES = MAX_RESPONSE_BYTES - MIN_FETCH_BYTES
SIZE_MARGIN = 1.15
UNKNOWN_TOPIC = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)

Densities = dict[TopicPartition, float]
"""Bytes per offset, as last observed: determines the fetch size, so that a short range gets a short response."""


class RangeFetch:
    """Fetches one range. `run` acquires one of the `slots` for each response, then passes it to `deliver`; the caller
    releases the slot once it has consumed the response.

    `isolation` is READ_UNCOMMITTED or READ_COMMITTED. With a `topic_id` only that topic is read, else the topic that
    has the name at the first response. `densities` is shared by the fetches of a program.
    """

    def __init__(
        self,
        cluster: ClusterConnections,
        range_: OffsetRange,
        isolation: int,
        sizes: FetchSizes,
        topic_id: UUID | None,
        give_up_ms: int,
        densities: Densities,
        deliver: Callable[[Fetched], None],
    ) -> None:
        assert sizes.ahead > 0 and sizes.partition_bytes > 0, f"{sizes}: the sizes must be positive"  # noqa: PT018
        self.cluster, self.range_, self.isolation, self.sizes = cluster, range_, isolation, sizes
        self.give_up_ms, self.densities, self.deliver = give_up_ms, densities, deliver
        self.slots = asyncio.Semaphore(sizes.ahead)
        self._tp = TopicPartition(range_.topic, range_.partition)
        self._topic_id = topic_id
        self._next = range_.start
        self._min_bytes = 0
        self._obstacle: Exception | str | None = None
        self._end_since: float | None = None
        """Loop time of the first response in a row in which one leader reports that the log ends at the next offset."""
        self._end_leader: tuple[object, ...] | None = None
        self._gone_since: float | None = None
        """Loop time of the first response in a row that says that the topic is gone."""
        self._next_leader_check = 0.0

    async def run(self) -> None:
        """Return when the whole range is delivered.

        Retries retriable errors until `give_up_ms` after the last response, then raises `RetriesExhausted`. Raises
        `OffsetNotInLog`, `TopicDeleted`, `DamagedBatch`, and other `ClientError`s that are not retriable.
        """
        while self._next < self.range_.end:
            await self.slots.acquire()
            self._obstacle = self._end_since = self._gone_since = None
            self.deliver(await self._next_answer())

    async def _next_answer(self) -> Fetched:
        try:
            async with asyncio.timeout(self.give_up_ms / 1000):
                return await self._next_records()
        except TimeoutError:
            if self._end_since is None:
                raise self._gave_up() from None
        return await self._wait_past_end()

    async def _wait_past_end(self) -> Fetched:
        """Called when the leader responds but has no more records. Wait `END_OF_LOG_MS` as long as it responds; then
        the log was truncated. Raises `OffsetNotInLog`, and `RetriesExhausted` for other errors in between."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                async with asyncio.timeout(max(self.give_up_ms, 2 * MAX_WAIT_MS + RESPONSE_TIMEOUT_MS) / 1000):
                    fetched = await self._fetch_once()
                    if fetched is not None:
                        return fetched
                    if self._end_since is None:
                        break
                    if loop.time() >= self._end_since + END_OF_LOG_MS / 1000:
                        await self._confirm_end()
                    await self._wait_at_end()
        except TimeoutError:
            self._obstacle = "the leader has no more records and stopped responding"
        except RetriesExhausted:
            raise
        except ClientError as e:
            if not e.retriable:
                raise
            self._obstacle = e
        raise self._gave_up()

    @property
    def position(self) -> str:
        """Return partition and next offset, for messages."""
        return f"{self._tp} at offset {self._next}"

    def _gave_up(self) -> RetriesExhausted:
        why = self._obstacle or "no broker answered"
        return RetriesExhausted(f"{self.position}: gave up after {self.give_up_ms} ms; {why}")

    async def _next_records(self) -> Fetched:
        """Return the next response with records."""
        failures = 0
        while True:
            try:
                fetched = await self._fetch_once()
                if fetched is not None:
                    return fetched
                failures = 0
                if self._end_since is not None:
                    await self._wait_at_end()
                continue
            except ClientError as e:
                if not e.retriable:
                    raise
                self._obstacle, self._end_since = e, None
            await asyncio.sleep(self.cluster.backoff.delay_s(failures))
            failures += 1
            # If one broker's answer did not help, its metadata may be stale: ask all.
            await self._refresh_leader(all_brokers=failures > 1)

    async def _wait_at_end(self) -> None:
        await asyncio.sleep(EMPTY_PAUSE_S)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_leader_check:
            self._next_leader_check = now_s + LEADER_CHECK_MS / 1000
            await self._refresh_leader(all_brokers=True)

    async def _refresh_leader(self, *, all_brokers: bool = False) -> None:
        """Refresh the partition's leader. Raises `TopicDeleted` if the topic is deleted or recreated."""
        topic = self._tp.topic
        try:
            found = await query_topics(self.cluster, [topic], self._known(), all_brokers=all_brokers)
        except ClientError as e:
            if not e.retriable:
                raise
            self._obstacle = e
            return
        reason = self._why_gone(found.get(topic))
        now_s = asyncio.get_running_loop().time()
        if reason is None:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now_s
        elif now_s - self._gone_since >= min(GONE_CONFIRM_MS, self.give_up_ms / 2) / 1000:
            raise TopicDeleted(self._tp, reason)

    def _known(self) -> dict[str, TopicPartitions]:
        return {self._tp.topic: TopicPartitions(self._tp.topic, self._topic_id, self._tp.partition + 1)}

    def _why_gone(self, info: TopicInfo | None) -> str | None:
        if info is None:
            return "the topic was deleted"
        if self._is_recreated(info):
            return f"the topic was deleted and created again (its id was {self._topic_id} and is {info.topic_id})"
        if self._tp.partition not in info.partitions:
            return f"the partition does not exist; the topic has {len(info.partitions)} partitions"
        return None

    def _is_recreated(self, info: TopicInfo) -> bool:
        return self._topic_id is not None and info.topic_id.int != 0 and info.topic_id != self._topic_id

    async def _fetch_once(self) -> Fetched | None:
        """Send one request; None if it returned no records. Raises `ClientError`."""
        info = self.cluster.metadata.topics.get(self._tp.topic)
        leader = self.cluster.metadata.leader(*self._tp)
        if info is None or leader < 0 or self._is_recreated(info):
            await self._refresh_leader()
            leader = self.cluster.metadata.leader(*self._tp)
            info = self.cluster.metadata.topics.get(self._tp.topic)
        if info is None or leader < 0 or self._is_recreated(info):
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, str(self._tp))
        connection = await self.cluster.connection(leader, PURPOSE)
        if connection.throttled:
            self._obstacle = THROTTLED
        request, newest = self._request(connection, info.topic_id)
        timeout_ms = self.cluster.request_timeout_ms + MAX_WAIT_MS
        answer = await connection.call(request, FetchResponse, newest=newest, timeout_ms=timeout_ms)
        if answer.throttle_time_ms > 0 and not answer.error_code and not answer.responses:
            await self._wait_for_quota(answer.throttle_time_ms)
            return None
        data = self._partition_data(answer)
        if data.error_code:
            await self._handle_error(data.error_code)
            return None
        if self._topic_id is None and info.topic_id.int:
            self._topic_id = info.topic_id  # from the first response on, the range is bound to this topic
        return self._accept(data)

    def _request(self, connection: ClientConnection, topic_id: UUID) -> tuple[FetchRequest, int]:
        """Build a request with the topic id if the broker has ids, so that a recreated topic is never read instead."""
        newest = MAX_VERSION if topic_id.int else TOPIC_IDS_FROM - 1
        by_id = connection.version(FetchRequest, newest) >= TOPIC_IDS_FROM
        max_bytes = self._fetch_bytes()
        partition = FetchPartition(partition=self._tp.partition, fetch_offset=self._next, partition_max_bytes=max_bytes)
        topic = FetchTopic(partitions=[partition])
        if by_id:
            topic.topic_id = topic_id
        else:
            topic.topic = self._tp.topic
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS, min_bytes=1, max_bytes=max_bytes, isolation_level=self.isolation, topics=[topic]
        )
        return request, newest

    def _fetch_bytes(self) -> int:
        if self._min_bytes:
            return self._min_bytes
        most = min(self.sizes.partition_bytes, MAX_BATCH_BYTES)
        density = self.densities.get(self._tp)
        if density is None:
            return most
        return min(int((self.range_.end - self._next) * density * SIZE_MARGIN) + MIN_FETCH_BYTES, most)

    async def _wait_for_quota(self, throttle_time_ms: int) -> None:
        """Wait for the throttle time (KIP-219): to a client over its quota Kafka responds at once, without partitions,
        and reads no further request before that time. Such a response says nothing about the log."""
        self._obstacle = THROTTLED
        await asyncio.sleep(throttle_time_ms / 1000)

    def _partition_data(self, answer: FetchResponse) -> PartitionData:
        if answer.error_code:
            return PartitionData(error_code=answer.error_code)
        for topic in answer.responses:
            for data in topic.partitions:
                if data.partition_index == self._tp.partition:
                    return data
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(self._tp), "the response lacks the partition")

    async def _handle_error(self, code: int) -> None:
        """Return if the same request may be sent again at once. Raises `ClientError` or what ends the range."""
        error = BrokerError(code, str(self._tp))
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._check_out_of_range()
        elif error.code in UNKNOWN_TOPIC:
            await self._refresh_leader()
            # The topic exists: the leader does not know it yet, or another broker leads.
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(self._tp))
        else:
            raise error

    async def _check_out_of_range(self) -> None:
        """Raise `OffsetNotInLog` if the offset is before the log start, which only grows. The log end may be wrong."""
        log_start, end = await self._log_bounds()
        if self._next < log_start:
            log_start, end = await self._confirmed_log_bounds()
        if self._next < log_start:
            raise OffsetNotInLog(self.range_, log_start, end, self._next)
        if self._next <= end:
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, str(self._tp), "the offset was out of range, but no longer is"
            )
        self._record_end(end)
        await asyncio.sleep(REFUSED_PAUSE_S)

    async def _log_bounds(self) -> tuple[int, int]:
        """Return the leader's log start and log end. Raises `ClientError`."""
        leader = self.cluster.metadata.leader(*self._tp)
        first, last = await asyncio.gather(
            *(list_offsets_at(self.cluster, leader, {self._tp: what}, READ_UNCOMMITTED) for what in (EARLIEST, LATEST))
        )
        for _, error in (first, last):
            if error is not None:
                raise error
        return first[0][self._tp].offset, last[0][self._tp].offset

    async def _confirmed_log_bounds(self) -> tuple[int, int]:
        """Return the log bounds of the leader that most brokers name. Raises `ClientError` if they name none."""
        answered = await query_all_brokers(self.cluster, self._known(), self._known())
        reason = self._why_gone(self.cluster.metadata.topics.get(self._tp.topic))
        if reason is not None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(self._tp), reason)
        answered.require_confirmed_leaders(self.cluster.metadata, [self._tp])
        return await self._log_bounds()

    def _leader(self) -> tuple[object, ...] | None:
        return leader_of(self.cluster.metadata.topics.get(self._tp.topic), self._tp)

    def _record_end(self, end: int) -> None:
        self._obstacle = f"the leader has records up to offset {end}"
        if self._end_since is None or self._end_leader != self._leader():
            self._end_leader = self._leader()
            self._end_since = asyncio.get_running_loop().time()
            self._next_leader_check = self._end_since + LEADER_CHECK_MS / 1000

    async def _confirm_end(self) -> None:
        """Raise `OffsetNotInLog` if most brokers still name this leader and its log still ends at the next offset.

        Raises `ClientError`, and `RetriesExhausted` if the leader has more records. A new leader gets its own waiting
        time.
        """
        log_start, end = await self._confirmed_log_bounds()
        if self._leader() != self._end_leader:
            return
        if not log_start <= self._next < end:
            raise OffsetNotInLog(self.range_, log_start, end, self._next)
        self._obstacle = f"the leader has records up to offset {end}, but returns none"
        raise self._gave_up()

    def _accept(self, data: PartitionData) -> Fetched | None:
        records = memoryview(data.records or b"")
        span = measure(records, self.range_, self._next)
        if span.next_offset == self._next:
            self._handle_empty(span, data)
            return None
        self._update_density(span)
        self._next, self._min_bytes = span.next_offset, 0
        aborted = [(t.producer_id, t.first_offset) for t in data.aborted_transactions or ()]
        aborted.sort(key=lambda transaction: transaction[1])
        return Fetched(
            records[: span.size_bytes], aborted, data.high_watermark, data.last_stable_offset, data.log_start_offset
        )

    def _handle_empty(self, span: BatchSpan, data: PartitionData) -> None:
        """Handle a response without a complete batch: the first batch exceeds the fetch size, or there is none."""
        if not data.records:
            if data.high_watermark < 0:  # a newly elected leader
                error = ErrorCode.OFFSET_NOT_AVAILABLE
                raise BrokerError(error, str(self._tp), "the leader does not know its log end yet")
            self._record_end(data.high_watermark)
            return
        self._end_since = None
        if span.batch_bytes > MAX_BATCH_BYTES:
            raise ClientError(
                f"{self.position}: the batch has {span.batch_bytes} bytes; at most {MAX_BATCH_BYTES} can be read"
            )
        self._min_bytes = max(span.batch_bytes, min(2 * self._fetch_bytes(), MAX_BATCH_BYTES))

    def _update_density(self, span: BatchSpan) -> None:
        observed = span.size_bytes / (span.next_offset - self._next)
        known = self.densities.get(self._tp, observed)
        self.densities[self._tp] = (known + observed) / 2
