"""Retries and dead letters for consumers of a group, by plain topics: `DeadLetterQueue`. Public API.

A record that fails goes to the topic of the first retry tier, then to the next ones, and at last to the dead-letter
topic, with the headers that share groups write (KIP-1191).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType

from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.client.types import ConsumerRecord, Headers, TopicPartition
from penstock.runtime.clock import SystemClock
from penstock.wire.letter_headers import DELIVERY_COUNT, GROUP, MESSAGE, OFFSET, PARTITION, PREFIX, TOPIC

TIER = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MAX_REASON_CHARS = 1_000


class DeadLetterQueue:
    """Moves failed records of a consumer to retry topics, and from the last one to the dead-letter topic.

    ```python
    async with DeadLetterQueue(consumer, producer, topic="orders.dlq", retry_tiers=["10s", "1m"]) as letters:
        letters.subscribe(["orders"])
        async for record in letters:
            try:
                await process(record)
            except Exception as e:
                await letters.fail(record, e)
    ```

    The retry topics are `<topic>.retry.<tier>`, here `orders.dlq.retry.10s`. Create them and the dead-letter topic, or
    let brokers create them (`auto.create.topics.enable`). A record of a retry topic comes when its tier's delay has
    passed; its partition waits until then, and others go on.

    `consumer` needs a group. Process the records of a partition in order: `fail` commits the offset after the record.
    If `producer` is transactional, that is one transaction: a crash neither loses nor repeats the move. Otherwise the
    record is written first, and a crash can repeat it. Both stay open at the end of the block.
    """

    def __init__(self, consumer: Consumer, producer: Producer, *, topic: str, retry_tiers: Iterable[str] = ()) -> None:
        self.consumer, self.producer, self.topic = consumer, producer, topic
        delays = {f"{topic}.retry.{tier}": tier_ms(tier) for tier in retry_tiers}
        self.retry_topics: Sequence[str] = tuple(delays)
        self._delays_ms = delays
        self._clock = SystemClock()
        self._timers: dict[TopicPartition, asyncio.TimerHandle] = {}

    async def __aenter__(self) -> DeadLetterQueue:
        self._group = self.consumer.group_metadata.group_id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe the consumer to topics and to the retry topics."""
        self.consumer.subscribe([*topics, *self.retry_topics])

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        async for record in self.consumer:
            wait_ms = self._wait_ms(record)
            if wait_ms > 0:
                self._postpone(record, wait_ms)
            else:
                yield record

    async def fail(self, record: ConsumerRecord, reason: str | BaseException) -> str:
        """Move a record to the next topic, and commit the offset after it. Returns that topic.

        Raises as `Producer.send` and `Consumer.commit`; then the record is not moved, or delivered again.
        """
        target = self._next_topic(record.topic)
        headers = failure_headers(record, self._group, describe(reason))
        offsets = {TopicPartition(record.topic, record.partition): record.offset + 1}
        if self.producer.is_transactional:
            async with self.producer.transaction():
                await self.producer.send(target, record.value, key=record.key, headers=headers)
                await self.producer.send_offsets(offsets, self.consumer.group_metadata)
        else:
            await (await self.producer.send(target, record.value, key=record.key, headers=headers))
            await self.consumer.commit(offsets)
        return target

    def _next_topic(self, topic: str) -> str:
        following = self.retry_topics.index(topic) + 1 if topic in self._delays_ms else 0
        return self.retry_topics[following] if following < len(self.retry_topics) else self.topic

    def _wait_ms(self, record: ConsumerRecord) -> int:
        """Return how long a record has to wait for its tier's delay; 0 or less if it is due."""
        delay_ms = self._delays_ms.get(record.topic)
        return 0 if delay_ms is None else record.timestamp_ms + delay_ms - self._clock.wall_ms()

    def _postpone(self, record: ConsumerRecord, wait_ms: int) -> None:
        """Read the record again when it is due; records behind it in the partition are due later."""
        tp = TopicPartition(record.topic, record.partition)
        self.consumer.pause(tp)
        self.consumer.seek(tp, record.offset)
        self._timers[tp] = asyncio.get_running_loop().call_later(wait_ms / 1000, self._resume, tp)

    def _resume(self, tp: TopicPartition) -> None:
        del self._timers[tp]
        if tp in self.consumer.assignment:  # otherwise its new owner reads the record
            self.consumer.resume(tp)


def tier_ms(tier: str) -> int:
    """Return the delay of a retry tier such as "10s" in ms. Raises ValueError."""
    found = TIER.fullmatch(tier)
    if found is None:
        raise ValueError(f'invalid retry tier "{tier}"; use a number and ms, s, m, h or d, such as 10s')
    return int(found[1]) * UNITS_MS[found[2]]


def describe(reason: str | BaseException) -> str:
    """Return the reason of a failure as text of a bounded length."""
    text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
    return text[:MAX_REASON_CHARS]


def failure_headers(record: ConsumerRecord, group: str, reason: str) -> Headers:
    """Return the record's headers with those of its failure. The place is that of its first delivery."""
    earlier = {name: value for name, value in record.headers if name.startswith(PREFIX) and value is not None}
    place = {TOPIC: record.topic, PARTITION: record.partition, OFFSET: record.offset}
    count = earlier.get(DELIVERY_COUNT, b"0")
    found = {name: earlier.get(name, str(value).encode()) for name, value in place.items()}
    found[GROUP] = group.encode()
    found[DELIVERY_COUNT] = b"%d" % (int(count) + 1 if count.isdigit() and len(count) < 10 else 1)
    found[MESSAGE] = reason.encode()
    return [*(header for header in record.headers if not header[0].startswith(PREFIX)), *found.items()]
