"""Share consumers of three brokers: leaders that die, and partitions that move."""

from __future__ import annotations

import pytest
from cluster_processes import Cluster, in_sync, partitions, write

from penstock.client import (
    AcknowledgementResult,
    Admin,
    AlterConfig,
    NewTopic,
    Producer,
    ShareConsumer,
    TopicPartition,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


class Worker:
    """A member that counts how often a record was delivered, and which are done according to the brokers."""

    def __init__(self) -> None:
        self.values: dict[tuple[TopicPartition, int], int] = {}
        self.done: set[tuple[TopicPartition, int]] = set()
        self.again: set[tuple[TopicPartition, int]] = set()

    def record(self, result: AcknowledgementResult) -> None:
        if result.error is None:
            self.done.update((result.partition, offset) for offset in result.offsets)

    async def work(self, consumer: ShareConsumer, count: int) -> None:
        """Poll and commit until this many records are done."""
        while len(self.done) < count:
            for job in await consumer.getmany(timeout_ms=1000):
                place = (TopicPartition(job.topic, job.partition), job.offset)
                self.again |= {place} & self.done
                self.values[place] = int(job.value or b"")
            await consumer.commit(timeout_ms=60_000)


async def test_records_that_are_done_stay_done_and_all_others_come_when_a_leader_dies(cluster: Cluster) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("jobs", 3)])
        await admin.alter_group_configs({"workers": [AlterConfig("share.auto.offset.reset", "earliest")]})
        worker = Worker()
        sent = await write(producer, "jobs", 0, 300)
        consumer = ShareConsumer(cluster.bootstrap, group_id="workers", max_records=20, on_acknowledged=worker.record)
        async with consumer:
            consumer.subscribe(["jobs"])
            await worker.work(consumer, 100)
            victim = (await partitions(admin, "jobs"))[0].leader
            cluster.brokers[victim].kill()
            sent += await write(producer, "jobs", len(sent), 300)
            await worker.work(consumer, len(sent))
            cluster.start(victim)
            await in_sync(admin, "jobs", 1, 2, 3)
            sent += await write(producer, "jobs", len(sent), 300)
            await worker.work(consumer, len(sent))
        assert sorted(worker.values[place] for place in worker.done) == sent
        assert worker.again == set()
