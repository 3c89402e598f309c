"""A consumer against a real broker: positions, seeking, pausing, offsets."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client import (
    Admin,
    Closed,
    Consumer,
    FilterError,
    IllegalState,
    NoOffset,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)

pytestmark = pytest.mark.integration


async def send(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    """Send records "0", "1", ... with timestamps 1000, 2000, ... ms."""
    async with Producer(bootstrap) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=1000 * (number + 1))


async def test_iteration_gives_one_record_after_the_other(bootstrap: str, topic: str) -> None:
    await send(bootstrap, topic, 5)
    async with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found = []
        async for record in consumer:
            found.append((record.topic, record.partition, record.offset, record.value))
            if len(found) == 5:
                break
        assert found == [(topic, 0, n, b"%d" % n) for n in range(5)]
        assert await consumer.position(TopicPartition(topic, 0)) == 5


async def test_getmany_gives_no_more_than_asked_for_and_loses_nothing(bootstrap: str, topic: str) -> None:
    await send(bootstrap, topic, 50)
    async with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found: list[int] = []
        while len(found) < 50:
            for records in (await consumer.getmany(max_records=7)).values():
                assert len(records) <= 7
                found += [r.offset for r in records]
        assert found == list(range(50))


async def test_a_filter_leaves_records_out_and_moves_past_them(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap, linger_ms=50) as producer:
        for number in range(60):
            headers = (("n", b"%d" % number),)
            await producer.send(topic, b"%d" % number, headers=headers, partition=0)
    async with Consumer(bootstrap, offset_reset="earliest", filter="n >= 10 and n < 12 or n in (30)") as consumer:
        consumer.assign([(topic, 0)])
        found: list[int] = []
        while await consumer.position(TopicPartition(topic, 0)) < 60:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += [record.offset for record in records]
        assert found == [10, 11, 30]


def test_a_filter_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(FilterError, match='found "b" at character 5'):
        Consumer(filter="a = b")


async def test_getmany_returns_empty_when_its_time_is_over(bootstrap: str, topic: str) -> None:
    async with Consumer(bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        assert await consumer.getmany(timeout_ms=1) == {}


async def test_a_cancelled_call_loses_no_record(bootstrap: str, topic: str) -> None:
    async with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        waiting = asyncio.create_task(consumer.getmany(timeout_ms=60_000))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await send(bootstrap, topic, 3)
        found: list[int] = []
        while len(found) < 3:
            found += [r.offset for rs in (await consumer.getmany()).values() for r in rs]
        assert found == [0, 1, 2]


async def test_seeking_goes_to_offsets_times_and_ends(bootstrap: str, topic: str) -> None:
    await send(bootstrap, topic, 10)
    tp = TopicPartition(topic, 0)
    async with Consumer(bootstrap) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 7)
        assert (await consumer.getone()).offset == 7
        await consumer.seek_to_time(3000, tp)
        assert (await consumer.getone()).offset == 2
        await consumer.seek_to_time(10_001, tp)
        assert await consumer.position(tp) == 10
        await consumer.seek_to_beginning()
        assert (await consumer.getone()).offset == 0
        await consumer.seek_to_end(tp)
        assert await consumer.position(tp) == 10
        found = (await consumer.offsets_for_times({tp: 5000}))[tp]
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (4, 5000)
        assert await consumer.offsets_for_times({tp: 10_001}) == {tp: None}


async def test_a_paused_partition_is_not_read_until_it_is_resumed(bootstrap: str, topic: str) -> None:
    await send(bootstrap, topic, 3, 0)
    await send(bootstrap, topic, 3, 1)
    paused, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([paused, other])
        consumer.pause(paused)
        assert consumer.paused() == {paused}
        found: list[int] = []
        while len(found) < 3:
            for tp, records in (await consumer.getmany()).items():
                found += [tp.partition] * len(records)
        assert await consumer.getmany(timeout_ms=50) == {}
        consumer.resume(paused)
        while len(found) < 6:
            for tp, records in (await consumer.getmany()).items():
                found += [tp.partition] * len(records)
        assert found == [1, 1, 1, 0, 0, 0]


async def test_without_an_offset_reading_begins_where_the_policy_says(bootstrap: str, topic: str) -> None:
    await send(bootstrap, topic, 3)
    tp = TopicPartition(topic, 0)
    for policy, position in (("earliest", 0), ("latest", 3)):
        async with Consumer(bootstrap, offset_reset=policy) as consumer:  # type: ignore[arg-type]
            consumer.assign([tp])
            assert await consumer.position(tp) == position
    async with Consumer(bootstrap, offset_reset="error") as consumer:
        consumer.assign([tp])
        with pytest.raises(NoOffset, match="no committed offset"):
            await consumer.getmany()
        consumer.seek(tp, 1)
        assert (await consumer.getone()).offset == 1


async def test_an_offset_that_is_out_of_range_goes_by_the_policy(bootstrap: str, admin: Admin, topic: str) -> None:
    await send(bootstrap, topic, 5)
    tp = TopicPartition(topic, 0)
    await admin.delete_records({tp: 3})
    async with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 1)
        assert (await consumer.getone()).offset == 3
    async with Consumer(bootstrap, offset_reset="error") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 1)
        with pytest.raises(NoOffset, match="OFFSET_OUT_OF_RANGE"):
            await consumer.getmany()


async def test_commits_are_kept_with_their_notes(bootstrap: str, topic: str, name: str) -> None:
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Consumer(bootstrap, group_id=name) as consumer:
        consumer.assign([tp, other])
        await consumer.commit({tp: OffsetAndMetadata(3, "a note"), other: 5})
        assert (await consumer.commit_async({other: 6})) == {other: OffsetAndMetadata(6)}
        found = await consumer.committed(tp, other, TopicPartition(topic, 2))
        assert {p: (at.offset, at.metadata) for p, at in found.items()} == {tp: (3, "a note"), other: (6, "")}
    async with Consumer(bootstrap, group_id=name) as consumer:
        consumer.assign([tp])
        assert await consumer.position(tp) == 3


async def test_a_large_batch_is_read_though_it_exceeds_what_a_fetch_asks_for(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap, batch_size=500_000) as producer:
        for _ in range(4):
            await producer.send(topic, b"x" * 100_000, partition=0)
    options = {"partition_fetch_bytes": 1_000, "fetch_max_bytes": 1_000}
    async with Consumer(bootstrap, offset_reset="earliest", **options) as consumer:  # type: ignore[arg-type]
        consumer.assign([(topic, 0)])
        assert [(await consumer.getone()).offset for _ in range(4)] == [0, 1, 2, 3]


async def test_calls_that_make_no_sense_say_why(bootstrap: str, topic: str) -> None:
    async with Consumer(bootstrap) as consumer:
        with pytest.raises(IllegalState, match="group_id"):
            consumer.subscribe([topic])
        with pytest.raises(IllegalState, match="not assigned"):
            consumer.seek(TopicPartition(topic, 0), 1)
        with pytest.raises(IllegalState, match="group"):
            await consumer.commit({TopicPartition(topic, 0): 1})
    with pytest.raises(Closed):
        consumer.assign([(topic, 0)])
