"""A consumer that closes or unsubscribes while another task waits for records, against a real broker."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client import Closed, Consumer, TopicPartition
from penstock.client.cluster import ClusterConnections

pytestmark = [pytest.mark.integration, pytest.mark.timeout(30)]


async def iterate(consumer: Consumer) -> None:
    async for _ in consumer:
        pass


async def poll(consumer: Consumer) -> None:
    while True:
        await consumer.getmany(timeout_ms=3_600_000)


async def test_iteration_ends_when_the_consumer_is_closed(bootstrap: str, topic: str) -> None:
    async with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        reading = asyncio.create_task(iterate(consumer))
        while consumer.high_watermark(TopicPartition(topic, 0)) < 0:
            await asyncio.sleep(0.01)
        await consumer.close()
        await reading


async def test_getmany_says_that_the_consumer_was_closed_meanwhile(bootstrap: str, topic: str) -> None:
    async with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        reading = asyncio.create_task(poll(consumer))
        while consumer.high_watermark(TopicPartition(topic, 0)) < 0:
            await asyncio.sleep(0.01)
        await consumer.close()
        with pytest.raises(Closed):
            await reading


@pytest.mark.parametrize("turns", [*range(1, 8), 20, 100])
async def test_who_waits_for_a_group_or_a_position_hears_of_closing_as_an_error_not_as_a_cancellation(
    bootstrap: str, topic: str, name: str, turns: int
) -> None:
    for subscribes in (True, False):
        consumer = Consumer(bootstrap, group_id=name, offset_reset="earliest")
        await consumer.start()
        if subscribes:
            consumer.subscribe([topic])
        else:
            consumer.assign([(topic, 0)])
        reading = asyncio.create_task(poll(consumer))
        for _ in range(turns):
            await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(Closed):
            await reading


async def test_unsubscribing_lets_a_waiting_call_go_on_without_partitions(
    bootstrap: str, topic: str, name: str
) -> None:
    async with Consumer(bootstrap, group_id=name) as consumer:
        consumer.subscribe([topic])
        reading = asyncio.create_task(consumer.getmany(timeout_ms=500))
        await asyncio.sleep(0)
        await consumer.unsubscribe()
        assert await reading == {}


async def test_a_cluster_that_is_closed_says_so_to_who_waits_for_it_and_connects_no_more(bootstrap: str) -> None:
    cluster = ClusterConnections(bootstrap)
    await cluster.start()
    work = [cluster.refresh(), cluster.connection(cluster.metadata.controller_id)]
    waiting = [asyncio.ensure_future(one) for one in work]
    await asyncio.sleep(0)
    await cluster.close()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, Closed)
    with pytest.raises(Closed):
        await cluster.all_metadata()
