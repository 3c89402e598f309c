"""Retry tiers and dead letters of consumers in a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from penstock.client import (
    Admin,
    Consumer,
    ConsumerRecord,
    DeadLetterQueue,
    IllegalState,
    NewTopic,
    Producer,
    TopicPartition,
    UnknownTopic,
)
from penstock.client.dead_letter_queue import MAX_REASON_CHARS, describe, failure_headers, tier_ms
from penstock.runtime.clock import SystemClock

PLACE = TopicPartition("orders", 0)


def headers_of(record: ConsumerRecord) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers}


@asynccontextmanager
async def letters_of(
    bootstrap: str, name: str, tiers: Iterable[str], *, transactional: bool
) -> AsyncIterator[DeadLetterQueue]:
    """Yield the dead-letter queue of a group that reads the topic `name`."""
    async with (
        Consumer(bootstrap, group_id=name, offset_reset="earliest", isolation="read_committed") as consumer,
        Producer(bootstrap, transactional_id=name if transactional else None, auto_create_topics=False) as producer,
        DeadLetterQueue(consumer, producer, topic=f"{name}.dlq", retry_tiers=tiers) as letters,
    ):
        letters.subscribe([name])
        yield letters


@pytest.mark.integration
@pytest.mark.parametrize("transactional", [True, False])
async def test_a_record_that_keeps_failing_passes_each_tier_and_ends_as_one_dead_letter(
    bootstrap: str, admin: Admin, name: str, transactional: bool
) -> None:
    tiers = ("50ms", "100ms")
    topics = [name, *(f"{name}.dlq.retry.{tier}" for tier in tiers), f"{name}.dlq"]
    await admin.create_topics([NewTopic(each, 1) for each in topics])
    async with Producer(bootstrap) as producer:
        await producer.send(name, b"good")
        await producer.send(name, b"bad", key=b"k", headers=[("h", b"v")])
    clock, path = SystemClock(), []
    async with letters_of(bootstrap, name, tiers, transactional=transactional) as letters:
        async for record in letters:
            if record.value == b"good":
                continue
            if record.topic != name:
                assert clock.wall_ms() >= record.timestamp_ms + tier_ms(record.topic.rpartition(".")[2])
            path.append(await letters.fail(record, ValueError(f"attempt {len(path) + 1}")))
            if path[-1] == f"{name}.dlq":
                break
    assert path == topics[1:]
    async with Consumer(bootstrap, offset_reset="earliest", isolation="read_committed") as consumer:
        place = TopicPartition(f"{name}.dlq", 0)
        consumer.assign([place])
        letter = await consumer.getone()
        assert (letter.key, letter.value) == (b"k", b"bad")
        assert headers_of(letter) == {
            "h": "v",
            "__dlq.errors.topic": name,
            "__dlq.errors.partition": "0",
            "__dlq.errors.offset": "1",
            "__dlq.errors.group": name,
            "__dlq.errors.delivery.count": "3",
            "__dlq.errors.message": "ValueError: attempt 3",
        }
        assert await consumer.getmany(timeout_ms=0) == {}
    committed = await admin.committed(name, [TopicPartition(topic, 0) for topic in topics[:-1]])
    assert [committed[TopicPartition(topic, 0)].offset for topic in topics[:-1]] == [2, 1, 1]


@pytest.mark.integration
@pytest.mark.parametrize("transactional", [True, False])
async def test_a_record_that_cannot_be_moved_keeps_its_offset(
    bootstrap: str, admin: Admin, topic: str, transactional: bool
) -> None:
    async with Producer(bootstrap) as producer:
        await producer.send(topic, b"bad", partition=0)
    async with letters_of(bootstrap, topic, (), transactional=transactional) as letters:
        async for record in letters:
            with pytest.raises(UnknownTopic, match=rf"{topic}\.dlq"):
                await letters.fail(record, "no")
            break
        assert await admin.committed(topic, [TopicPartition(topic, 0)]) == {}


@pytest.mark.integration
async def test_a_record_that_is_not_due_holds_up_no_other_partition(bootstrap: str, admin: Admin, topic: str) -> None:
    await admin.create_topics([NewTopic(f"{topic}.dlq.retry.1h", 1)])
    seen: list[bytes | None] = []
    async with Producer(bootstrap) as producer, letters_of(bootstrap, topic, ["1h"], transactional=False) as letters:
        await producer.send(topic, b"bad", partition=0)
        async for record in letters:
            seen.append(record.value)
            if record.value == b"bad":
                assert await letters.fail(record, "no") == f"{topic}.dlq.retry.1h"
                await producer.send(topic, b"next", partition=0)
            elif not letters.consumer.paused():
                await producer.send(topic, b"next", partition=0)  # until the retry has been read and postponed
            else:
                break
        assert letters.consumer.paused() == {TopicPartition(f"{topic}.dlq.retry.1h", 0)}
    assert set(seen) == {b"bad", b"next"}


@pytest.mark.integration
async def test_a_consumer_without_a_group_is_refused(bootstrap: str) -> None:
    async with Consumer(bootstrap) as consumer, Producer(bootstrap) as producer:
        with pytest.raises(IllegalState, match="group_id"):
            async with DeadLetterQueue(consumer, producer, topic="t"):
                pass


@pytest.mark.parametrize(("tier", "ms"), [("5ms", 5), ("10s", 10_000), ("1m", 60_000), ("2h", 7_200_000)])
def test_a_tier_is_a_number_with_a_unit(tier: str, ms: int) -> None:
    assert tier_ms(tier) == ms


@pytest.mark.parametrize("tier", ["", "10", "s", "-1s", "1.5s", "10 s", "9999999999s"])
def test_an_invalid_tier_is_refused(tier: str) -> None:
    with pytest.raises(ValueError, match="invalid retry tier"):
        tier_ms(tier)


def test_damaged_headers_of_an_earlier_failure_start_the_count_again() -> None:
    record = ConsumerRecord(*PLACE, 7, 1, None, None, [("__dlq.errors.delivery.count", b"x"), ("a", None)])
    found = dict(failure_headers(record, "g", "why"))
    assert (found["__dlq.errors.delivery.count"], found["a"]) == (b"1", None)
    assert len(describe("x" * 5000)) == MAX_REASON_CHARS
