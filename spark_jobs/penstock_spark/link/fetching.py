"""Reads a range of one partition from its leader, wherever that goes, an answer at a time. Runs on the link's loop.

One fetch is under way at a time for each range, since only its answer tells where the next begins; answers that the
caller has not taken yet are bounded by `FetchSizes.ahead`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from penstock.client import BrokerError, ClientError, ErrorCode, TopicPartition
from penstock.client.cluster import ClusterConnections
from penstock.client.connection import MAX_RESPONSE_BYTES, ClientConnection
from penstock.client.offsets import EARLIEST, LATEST, ask_leader
from penstock.client.types import TopicInfo
from penstock.wire.errors import RETRIABLE
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock_spark.link.batches import BatchSpan, measure
from penstock_spark.link.broker_answers import ANSWER_MS, leader_of, look_up_everywhere
from penstock_spark.link.patience import given_up, refused
from penstock_spark.link.ports import FetchSizes, TopicPartitions
from penstock_spark.link.queries import look_up
from penstock_spark.model.errors import OffsetGone, Refused, TopicGone
from penstock_spark.model.ranges import READ_UNCOMMITTED, Fetched, OffsetRange

PURPOSE = "fetch"
"""Of connections: what is asked beside a fetch does not wait behind it."""
TOPIC_IDS_FROM, NEWEST = 13, FetchRequest.VERSIONS[1]
MAX_WAIT_MS = 500
EMPTY_PAUSE_S = 0.02
"""After an answer without records: brokers wait themselves, and one that does not is not to be flooded."""
REFUSED_PAUSE_S = 0.25
"""After an answer that came at once, to a fetch beyond the end."""
END_OF_LOG_MS = 60_000
"""For so long a leader must go on saying that its log ends before the range does, however short the caller's patience:
one that was elected a moment ago may not know yet how far the one before had come, and one that was cut off may not
know that it leads no more. What is called gone is skipped for good where `failOnDataLoss` is false."""
LOOK_MS = 5_000
"""While a leader says so, all brokers are asked so often who leads."""
DOUBT_MS = 1_000
"""For so long a topic must be missing, or another one: not every cluster says which of its brokers knows best."""
LEAST_BYTES = 64 * 1024
MAX_BATCH_BYTES = MAX_RESPONSE_BYTES - LEAST_BYTES
MARGIN = 1.15
UNKNOWN_TOPIC = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)

Densities = dict[TopicPartition, float]
"""Bytes for each offset, as last seen: how much to ask for so that a short range brings no long answer."""


class RangeFetch:
    """`run` hands each answer to `deliver`, after it got one of the `slots`, which the caller gives back."""

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
        assert sizes.ahead > 0 and sizes.partition_bytes > 0, f"{sizes}: nothing could ever be fetched"  # noqa: PT018
        self.cluster, self.range_, self.isolation, self.sizes = cluster, range_, isolation, sizes
        self.give_up_ms, self.densities, self.deliver = give_up_ms, densities, deliver
        self.slots = asyncio.Semaphore(sizes.ahead)
        self._tp = TopicPartition(range_.topic, range_.partition)
        self._topic_id = topic_id
        self._next = range_.start
        self._least_bytes = 0
        self._obstacle: Exception | str | None = None
        self._ended_since: float | None = None
        """By the loop's time, the first of one leader's answers in an unbroken row that say that the log ends here."""
        self._ended_by: tuple[object, ...] | None = None
        self._gone_since: float | None = None
        """The same of the answers that say that the topic is no longer the same."""
        self._look_at = 0.0

    async def run(self) -> None:
        """Returns when all of the range was delivered. Raises what `Link.fetch` says."""
        while self._next < self.range_.end:
            await self.slots.acquire()
            self._obstacle = self._ended_since = self._gone_since = None
            self.deliver(await self._next_answer())

    async def _next_answer(self) -> Fetched:
        try:
            async with asyncio.timeout(self.give_up_ms / 1000):
                return await self._some()
        except TimeoutError:
            if self._ended_since is None:
                raise self._given_up() from None
        return await self._past_the_end()

    async def _past_the_end(self) -> Fetched:
        """The leader answers, and has no more. It is given `END_OF_LOG_MS`, as long as it goes on answering; then the
        log was cut off. Raises `OffsetGone`, and `Unavailable` where anything else comes between."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                async with asyncio.timeout(max(self.give_up_ms, 2 * MAX_WAIT_MS + ANSWER_MS) / 1000):
                    fetched = await self._once()
                    if fetched is not None:
                        return fetched
                    if self._ended_since is None:
                        break
                    if loop.time() >= self._ended_since + END_OF_LOG_MS / 1000:
                        await self._confirm_end()
                    await self._wait_at_the_end()
        except TimeoutError:
            self._obstacle = "the leader, which had no more, no longer answers"
        except ClientError as e:
            if not e.retriable:
                raise refused(f"{self._tp} at offset {self._next}", e) from e
            self._obstacle = e
        raise self._given_up()

    def _given_up(self) -> Exception:
        return given_up(f"{self._tp} at offset {self._next}", self.give_up_ms, self._obstacle)

    async def _some(self) -> Fetched:
        """The next answer that holds records."""
        failures = 0
        while True:
            try:
                fetched = await self._once()
                if fetched is not None:
                    return fetched
                failures = 0
                if self._ended_since is not None:
                    await self._wait_at_the_end()
                continue
            except ClientError as e:
                if not e.retriable:
                    raise refused(f"{self._tp} at offset {self._next}", e) from e
                self._obstacle, self._ended_since = e, None
            await asyncio.sleep(self.cluster.backoff.delay_s(failures))
            failures += 1
            # One broker was asked who leads, and that did not help: it may not know.
            await self._look_again(doubt=failures > 1)

    async def _wait_at_the_end(self) -> None:
        await asyncio.sleep(EMPTY_PAUSE_S)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._look_at:
            self._look_at = now_s + LOOK_MS / 1000
            await self._look_again(doubt=True)

    async def _look_again(self, *, doubt: bool = False) -> None:
        """Learns who leads the partition now, where it is told. Raises `TopicGone` where it is not the same."""
        topic = self._tp.topic
        try:
            found = await look_up(self.cluster, [topic], self._known(), doubt=doubt)
        except ClientError as e:
            if not e.retriable:
                raise refused(f"topic {topic!r}", e) from e
            self._obstacle = e
            return
        reason = self._why_gone(found.get(topic))
        now_s = asyncio.get_running_loop().time()
        if reason is None:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now_s
        elif now_s - self._gone_since >= min(DOUBT_MS, self.give_up_ms / 2) / 1000:
            raise TopicGone(*self._tp, reason)

    def _known(self) -> dict[str, TopicPartitions]:
        return {self._tp.topic: TopicPartitions(self._tp.topic, self._topic_id, self._tp.partition + 1)}

    def _why_gone(self, info: TopicInfo | None) -> str | None:
        if info is None:
            return "the topic does not exist; it was deleted"
        if self._is_another(info):
            return f"the topic was deleted and created again (its id was {self._topic_id}, it is {info.topic_id})"
        if self._tp.partition not in info.partitions:
            return f"the topic has {len(info.partitions)} partitions; this one is not among them"
        return None

    def _is_another(self, info: TopicInfo) -> bool:
        return self._topic_id is not None and info.topic_id.int != 0 and info.topic_id != self._topic_id

    async def _once(self) -> Fetched | None:
        """One request; None where it brought no records. Raises `ClientError`."""
        info = self.cluster.metadata.topics.get(self._tp.topic)
        leader = self.cluster.metadata.leader(*self._tp)
        if info is None or leader < 0 or self._is_another(info):
            await self._look_again()
            leader = self.cluster.metadata.leader(*self._tp)
            info = self.cluster.metadata.topics.get(self._tp.topic)
        if info is None or leader < 0 or self._is_another(info):
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, str(self._tp))
        connection = await self.cluster.connection(leader, PURPOSE)
        request, newest = self._request(connection, info.topic_id)
        timeout_ms = self.cluster.request_timeout_ms + MAX_WAIT_MS
        answer = await connection.call(request, FetchResponse, newest=newest, timeout_ms=timeout_ms)
        if answer.throttle_time_ms > 0 and not answer.error_code and not answer.responses:
            await self._held_back(answer.throttle_time_ms)
            return None
        data = self._own_part(answer)
        if data.error_code:
            await self._failed(data.error_code)
            return None
        if self._topic_id is None and info.topic_id.int:
            self._topic_id = info.topic_id  # from its first answer on, the range is this topic's
        return self._taken(data)

    def _request(self, connection: ClientConnection, topic_id: UUID) -> tuple[FetchRequest, int]:
        """By topic id where the broker has them, so that a topic of the same name is never taken for this one."""
        newest = NEWEST if topic_id.int else TOPIC_IDS_FROM - 1
        by_id = connection.version(FetchRequest, newest) >= TOPIC_IDS_FROM
        wanted = self._wanted_bytes()
        partition = FetchPartition(partition=self._tp.partition, fetch_offset=self._next, partition_max_bytes=wanted)
        topic = FetchTopic(partitions=[partition])
        if by_id:
            topic.topic_id = topic_id
        else:
            topic.topic = self._tp.topic
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS, min_bytes=1, max_bytes=wanted, isolation_level=self.isolation, topics=[topic]
        )
        return request, newest

    def _wanted_bytes(self) -> int:
        if self._least_bytes:
            return self._least_bytes
        most = min(self.sizes.partition_bytes, MAX_BATCH_BYTES)
        density = self.densities.get(self._tp)
        if density is None:
            return most
        return min(int((self.range_.end - self._next) * density * MARGIN) + LEAST_BYTES, most)

    async def _held_back(self, throttle_time_ms: int) -> None:
        """To a client that is over its quota Kafka answers at once, without partitions, and does not read its next
        request before this time is over (KIP-219). Of the log such an answer says nothing."""
        self._obstacle = "the broker holds answers back, since this client is over its quota (consumer_byte_rate)"
        await asyncio.sleep(throttle_time_ms / 1000)

    def _own_part(self, answer: FetchResponse) -> PartitionData:
        if answer.error_code:
            return PartitionData(error_code=answer.error_code)
        for topic in answer.responses:
            for data in topic.partitions:
                if data.partition_index == self._tp.partition:
                    return data
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(self._tp), "the answer lacks the partition")

    async def _failed(self, code: int) -> None:
        """Returns where the same request may be sent again at once. Raises `ClientError` or what ends the range."""
        error = BrokerError(code, str(self._tp))
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._out_of_range()
        elif error.code in UNKNOWN_TOPIC:
            await self._look_again()
            # It exists: the leader has not heard of it yet, or another one leads.
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(self._tp))
        elif error.code in RETRIABLE:
            raise error
        else:
            raise refused(f"{self._tp} at offset {self._next}", error)

    async def _out_of_range(self) -> None:
        """Where a log begins only grows, so what lies before it is gone. Of its end a leader may be wrong."""
        log_start, end = await self._bounds()
        if self._next < log_start:
            log_start, end = await self._confirmed_bounds()
        if self._next < log_start:
            raise OffsetGone(self.range_, log_start, end, self._next)
        if self._next <= end:
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, str(self._tp), "the offset was, and is not, out of range"
            )
        self._ended(end)
        await asyncio.sleep(REFUSED_PAUSE_S)

    async def _bounds(self) -> tuple[int, int]:
        """Where the log begins and ends, as its leader says. Raises `ClientError`."""
        leader = self.cluster.metadata.leader(*self._tp)
        first, last = await asyncio.gather(
            *(ask_leader(self.cluster, leader, {self._tp: what}, READ_UNCOMMITTED) for what in (EARLIEST, LATEST))
        )
        for _, error in (first, last):
            if error is not None:
                raise error
        return first[0][self._tp].offset, last[0][self._tp].offset

    async def _confirmed_bounds(self) -> tuple[int, int]:
        """As `_bounds`, of the leader that most of the brokers name. Raises `ClientError` where they do not."""
        heard = await look_up_everywhere(self.cluster, self._known(), self._known())
        reason = self._why_gone(self.cluster.metadata.topics.get(self._tp.topic))
        if reason is not None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(self._tp), reason)
        heard.insist(self.cluster.metadata, [self._tp])
        return await self._bounds()

    def _led(self) -> tuple[object, ...] | None:
        return leader_of(self.cluster.metadata.topics.get(self._tp.topic), self._tp)

    def _ended(self, end: int) -> None:
        self._obstacle = f"the leader has records up to offset {end}"
        if self._ended_since is None or self._ended_by != self._led():
            self._ended_by = self._led()
            self._ended_since = asyncio.get_running_loop().time()
            self._look_at = self._ended_since + LOOK_MS / 1000

    async def _confirm_end(self) -> None:
        """Raises `OffsetGone` where most of the brokers still name the leader that had no more, and it says again that
        the log ends here; `ClientError`, and `Unavailable` where it has more. Another leader is given its time too."""
        log_start, end = await self._confirmed_bounds()
        if self._led() != self._ended_by:
            return
        if not log_start <= self._next < end:
            raise OffsetGone(self.range_, log_start, end, self._next)
        self._obstacle = f"the leader has records up to offset {end}, and sends none"
        raise self._given_up()

    def _taken(self, data: PartitionData) -> Fetched | None:
        records = memoryview(data.records or b"")
        stretch = measure(records, self.range_, self._next)
        if stretch.next_offset == self._next:
            self._ask_for_more(stretch, data)
            return None
        self._learn(stretch)
        self._next, self._least_bytes = stretch.next_offset, 0
        aborted = [(t.producer_id, t.first_offset) for t in data.aborted_transactions or ()]
        aborted.sort(key=lambda transaction: transaction[1])
        return Fetched(
            records[: stretch.size_bytes], aborted, data.high_watermark, data.last_stable_offset, data.log_start_offset
        )

    def _ask_for_more(self, stretch: BatchSpan, data: PartitionData) -> None:
        """Nothing came whole: a batch that is larger than what was asked for, or there is nothing yet."""
        if not data.records:
            if data.high_watermark < 0:  # one that was elected a moment ago
                error = ErrorCode.OFFSET_NOT_AVAILABLE
                raise BrokerError(error, str(self._tp), "the leader does not know yet where the log ends")
            self._ended(data.high_watermark)
            return
        self._ended_since = None
        if stretch.batch_bytes > MAX_BATCH_BYTES:
            raise Refused(
                f"{self._tp} at offset {self._next}: a batch of {stretch.batch_bytes} bytes; at most {MAX_BATCH_BYTES} "
                "can be read"
            )
        self._least_bytes = max(stretch.batch_bytes, min(2 * self._wanted_bytes(), MAX_BATCH_BYTES))

    def _learn(self, stretch: BatchSpan) -> None:
        seen = stretch.size_bytes / (stretch.next_offset - self._next)
        known = self.densities.get(self._tp, seen)
        self.densities[self._tp] = (known + seen) / 2
