"""The share consumer with a real broker: each record is done once, whatever happens to its members."""

from __future__ import annotations

import asyncio

import pytest
from group_readers import until
from share_members import backlog, number_of, send_jobs, start_with_the_first_record, take, until_backlog

from penstock.client import (
    AcknowledgementResult,
    Admin,
    AlterConfig,
    BrokerError,
    Closed,
    Consumer,
    ErrorCode,
    IllegalState,
    NewTopic,
    Producer,
    ShareConsumer,
    ShareRecord,
)
from penstock.client.cluster import ClusterConnections
from penstock.client.heartbeat_membership import LEAVE_EPOCH
from penstock.client.share.broker_reader import SHARE
from penstock.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

pytestmark = pytest.mark.integration


@pytest.fixture
async def group(admin: Admin, name: str) -> str:
    """Return a group that starts with the first record."""
    await start_with_the_first_record(admin, name)
    return name


def explicit(bootstrap: str, group: str, **options: object) -> ShareConsumer:
    return ShareConsumer(bootstrap, group_id=group, acknowledgement_mode="explicit", **options)  # type: ignore[arg-type]


async def cut_connections(consumer: ShareConsumer) -> None:
    """Cut the connections of the share sessions, as a network failure does."""
    for (_, purpose), connection in list(consumer._cluster._connections.items()):
        if purpose == SHARE:
            await connection.close()


async def test_a_poll_accepts_the_records_of_the_previous_one(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    await send_jobs(bootstrap, topic, 0, 200)
    results: list[AcknowledgementResult] = []
    async with ShareConsumer(bootstrap, group_id=group, max_records=20, on_acknowledged=results.append) as consumer:
        consumer.subscribe([topic])
        found: list[ShareRecord] = []
        while len(found) < 200:
            found += await consumer.getmany()
        assert sorted(map(number_of, found)) == list(range(200))
        assert {record.delivery_count for record in found} == {1}
        assert await consumer.getmany(timeout_ms=0) == []
        assert await consumer.commit() == {}
        assert await backlog(admin, group) == 0
    assert sum(len(result.offsets) for result in results) == 200
    assert not any(result.error for result in results)


async def test_iteration_accepts_each_record_with_the_next_one_and_close_releases_the_last(
    bootstrap: str, topic: str, group: str
) -> None:
    await send_jobs(bootstrap, topic, 0, 10)
    first: list[int] = []
    async with ShareConsumer(bootstrap, group_id=group) as consumer:
        consumer.subscribe(topic)
        async for job in consumer:
            first.append(number_of(job))
            if len(first) == 4:
                break
    async with ShareConsumer(bootstrap, group_id=group) as consumer:
        consumer.subscribe(topic)
        again = await take(consumer, 7)
    assert sorted(first[:3] + [number_of(job) for job in again]) == list(range(10))
    assert first[3] in {number_of(job) for job in again if job.delivery_count == 2}


async def test_released_records_come_again_and_rejected_and_accepted_ones_do_not(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    await send_jobs(bootstrap, topic, 0, 30)
    async with explicit(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        for job in await take(consumer, 30):
            (consumer.accept, consumer.release, consumer.reject)[number_of(job) % 3](job)
        again = await take(consumer, 10)
        assert sorted(map(number_of, again)) == list(range(1, 30, 3))
        assert {job.delivery_count for job in again} == {2}
        for job in again:
            consumer.accept(job)
        assert await consumer.commit() == {}
        assert await backlog(admin, group) == 0


async def test_a_dead_letter_has_the_reason_of_its_rejection(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    letters = f"dlq.{topic}"
    await admin.create_topics([NewTopic(letters, 1, 1, {"errors.deadletterqueue.group.enable": "true"})])
    settings = {"errors.deadletterqueue.topic.name": letters, "share.auto.offset.reset": "earliest"}
    await admin.alter_group_configs({group: [AlterConfig(name, value) for name, value in settings.items()]})
    await send_jobs(bootstrap, topic, 0, 2)
    async with explicit(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        for job in await take(consumer, 2):
            consumer.reject(job, reason=f"job {number_of(job)} is invalid, {'x' * 300}")
        assert await consumer.commit() == {}
    async with Consumer(bootstrap, offset_reset="earliest") as reader:
        reader.assign([(letters, 0)])
        found = [dict((await reader.getone()).headers)["__dlq.errors.message"] for _ in range(2)]
    assert sorted(message[:53] for message in found) == [
        b"rejected by a member of the group: job %d is invalid, " % n for n in range(2)
    ]
    await admin.delete_topics([letters])


async def test_in_implicit_mode_a_released_record_is_not_accepted(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    await send_jobs(bootstrap, topic, 0, 1)
    async with ShareConsumer(bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        job = await consumer.getone()
        consumer.release(job)
        assert (await consumer.getone()).delivery_count == 2
        await consumer.commit()
        assert await backlog(admin, group) == 0


async def test_a_renewed_record_is_still_held_and_can_be_accepted(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    await send_jobs(bootstrap, topic, 0, 1)
    results: list[AcknowledgementResult] = []
    async with explicit(bootstrap, group, on_acknowledged=results.append) as consumer:
        consumer.subscribe([topic])
        [job] = await take(consumer, 1)
        consumer.renew(job)
        await until(lambda: len(results) == 1)
        assert (results[0].offsets, results[0].error) == ([job.offset], None)
        assert await backlog(admin, group) == 1
        consumer.accept(job)
        assert await consumer.commit() == {}
        assert await backlog(admin, group) == 0


async def test_acknowledgements_are_sent_although_nothing_is_polled(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    await send_jobs(bootstrap, topic, 0, 5)
    async with explicit(bootstrap, group, acknowledge_interval_ms=1) as consumer:
        consumer.subscribe([topic])
        for job in await take(consumer, 5):
            consumer.accept(job)
        await until_backlog(admin, group, 0)


async def test_several_members_share_one_partition_and_each_record_is_done_once(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    done: list[int] = []

    async def work() -> None:
        async with ShareConsumer(bootstrap, group_id=group, max_records=10, acquire_mode="record_limit") as consumer:
            consumer.subscribe([topic])
            while True:
                jobs = await consumer.getmany(timeout_ms=100)
                assert len(jobs) <= 10
                assert await consumer.commit() == {}
                done.extend(map(number_of, jobs))

    workers = [asyncio.create_task(work()) for _ in range(3)]
    await send_jobs(bootstrap, topic, 0, 300)
    await until(lambda: len(done) >= 300 or any(worker.done() for worker in workers))
    for worker in workers:
        worker.cancel()
    assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*workers, return_exceptions=True))
    assert sorted(done) == list(range(300))


async def test_no_more_records_are_acquired_while_too_many_are_held(bootstrap: str, topic: str, group: str) -> None:
    await send_jobs(bootstrap, topic, 0, 10)
    limits = {"max_records": 2, "max_held_records": 4, "acquire_mode": "record_limit", "fetch_max_wait_ms": 1}
    async with explicit(bootstrap, group, **limits) as consumer:
        consumer.subscribe([topic])
        held = await take(consumer, 4)
        assert len(held) == 4
        assert await consumer.getmany(timeout_ms=200) == []
        consumer.accept(held[0])
        assert await take(consumer, 1)


async def test_tasks_that_process_records_acknowledge_while_another_one_polls(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    await send_jobs(bootstrap, topic, 0, 50)
    async with explicit(bootstrap, group, max_records=5, acquire_mode="record_limit") as consumer:
        consumer.subscribe([topic])
        async with asyncio.TaskGroup() as tasks:

            async def process(job: ShareRecord) -> None:
                await asyncio.sleep(0)
                consumer.accept(job)

            count = 0
            async for job in consumer:
                tasks.create_task(process(job))
                count += 1
                if count == 50:
                    break
        assert await consumer.commit() == {}
        assert await backlog(admin, group) == 0


async def test_a_cut_connection_fails_what_is_held_and_the_records_come_again(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    await send_jobs(bootstrap, topic, 0, 20)
    results: list[AcknowledgementResult] = []
    async with explicit(bootstrap, group, on_acknowledged=results.append, max_records=100) as consumer:
        consumer.subscribe([topic])
        jobs = await take(consumer, 20)
        await cut_connections(consumer)
        again = await take(consumer, 20)
        assert {job.delivery_count for job in again} == {2}
        for job in jobs:
            consumer.accept(job)
        errors = [result.error for result in results]
        assert {isinstance(e, BrokerError) and e.code for e in errors} == {ErrorCode.INVALID_RECORD_STATE}
        assert {tp.topic for tp in await consumer.commit()} == {topic}
        for job in again:
            consumer.accept(job)
        assert await consumer.commit() == {}
        assert await backlog(admin, group) == 0


async def test_a_member_that_was_removed_joins_again_and_loses_nothing(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    async with ShareConsumer(bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        while not await consumer.is_settled():
            await consumer.getmany(timeout_ms=20)
        request = ShareGroupHeartbeatRequest(group_id=group, member_id=consumer.member_id, member_epoch=LEAVE_EPOCH)
        cluster = ClusterConnections(bootstrap)
        await cluster.start()
        await cluster.call_coordinator(group, request, ShareGroupHeartbeatResponse)
        await cluster.close()
        await send_jobs(bootstrap, topic, 0, 20)
        assert sorted(map(number_of, await take(consumer, 20))) == list(range(20))
        while not await consumer.is_settled():
            await consumer.getmany(timeout_ms=20)
        assert {tp.partition for tp in consumer.assignment} == {0, 1, 2, 3}


async def test_a_member_that_does_not_poll_leaves_and_comes_back(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    async with ShareConsumer(bootstrap, group_id=group, max_poll_interval_ms=300) as consumer:
        consumer.subscribe([topic])
        while not await consumer.is_settled():
            await consumer.getmany(timeout_ms=20)
        while (await admin.describe_group(group)).members:
            await asyncio.sleep(0.02)
        await send_jobs(bootstrap, topic, 0, 5)
        assert sorted(map(number_of, await take(consumer, 5))) == list(range(5))


async def test_a_topic_that_is_created_later_is_read(bootstrap: str, admin: Admin, name: str, group: str) -> None:
    async with ShareConsumer(bootstrap, group_id=group) as consumer:
        consumer.subscribe([name])
        assert await consumer.getmany(timeout_ms=100) == []
        await admin.create_topics([NewTopic(name, 1)])
        await send_jobs(bootstrap, name, 0, 3)
        assert sorted(map(number_of, await take(consumer, 3))) == [0, 1, 2]
    await admin.delete_topics([name])


async def test_aborted_records_and_markers_are_gaps_and_leave_no_backlog(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    async with Producer(bootstrap, transactional_id=group) as producer:
        for number, ends in enumerate((producer.commit, producer.abort, producer.commit)):
            producer.begin()
            await (await producer.send(topic, b"%d" % number, partition=0))
            await ends()
    async with ShareConsumer(bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        found = {number_of(job) for job in await take(consumer, 2)}
        assert found <= {0, 1, 2}
        while await backlog(admin, group):
            await consumer.getmany(timeout_ms=50)


async def test_close_ends_a_poll_and_sends_the_acknowledgements(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    await send_jobs(bootstrap, topic, 0, 2)
    consumer = explicit(bootstrap, group, acknowledge_interval_ms=1_000_000)
    await consumer.start()
    consumer.subscribe([topic])
    first, _ = await take(consumer, 2)
    consumer.accept(first)
    poll = asyncio.create_task(consumer.getone())
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(Closed):
        await poll
    await until_backlog(admin, group, 1)
    assert not (await admin.describe_group(group)).members


async def test_invalid_use_is_refused_with_the_reason(bootstrap: str, topic: str, group: str) -> None:
    await send_jobs(bootstrap, topic, 0, 1)
    async with explicit(bootstrap, group) as consumer:
        with pytest.raises(IllegalState, match="no subscription"):
            await consumer.getmany()
        consumer.subscribe([topic])
        [job] = await take(consumer, 1)
        with pytest.raises(ValueError, match=r"30 days"):
            consumer.release(job, delay_ms=31 * 86_400_000)
        consumer.accept(job)
        await consumer.commit()
        with pytest.raises(IllegalState, match="acknowledged before"):
            consumer.accept(job)
        poll = asyncio.create_task(consumer.getmany(timeout_ms=60_000))
        await asyncio.sleep(0)
        with pytest.raises(IllegalState, match="another task polls"):
            await consumer.getmany()
        poll.cancel()
    for options in ({"max_records": 0}, {"acquire_mode": "x"}, {"acknowledgement_mode": "x"}, {"group_id": ""}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ShareConsumer(bootstrap, **({"group_id": "g"} | options))  # type: ignore[arg-type]
