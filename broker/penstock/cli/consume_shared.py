"""`penstock consume --share-group`: prints messages as a member of a share group, and accepts what it printed."""

from __future__ import annotations

import sys
from collections.abc import Callable

from penstock.cli.connection import Connection
from penstock.client import Admin, Record, ShareConsumer, TopicPartition

MAX_BATCH_RECORDS = 500
Write = Callable[[TopicPartition, list[Record]], None]


async def consume_shared(
    connection: Connection, topics: list[str], group: str, *, count: int | None, follow: bool, write: Write
) -> None:
    """Print messages up to the count or, without `follow`, until the group has nothing left to deliver."""
    async with (
        Admin(connection.bootstrap, security=connection.security) as admin,
        ShareConsumer(
            connection.bootstrap,
            security=connection.security,
            group_id=group,
            acquire_mode="record_limit",
            max_records=MAX_BATCH_RECORDS if count is None else min(count, MAX_BATCH_RECORDS),
        ) as consumer,
    ):
        partitions = {
            TopicPartition(name, index)
            for name, topic in (await admin.describe_topics(topics)).items()
            for index in topic.partitions
        }
        consumer.subscribe(topics)
        written = 0
        while count is None or written < count:
            jobs = await consumer.getmany(timeout_ms=200)
            left = len(jobs) if count is None else count - written
            for job in jobs[:left]:
                record = Record(job.offset, job.timestamp_ms, job.key, job.value, tuple(job.headers))
                write(TopicPartition(job.topic, job.partition), [record])
            for job in jobs[left:]:
                consumer.release(job)
            written += min(left, len(jobs))
            if jobs:
                sys.stdout.flush()
                for failed, error in (await consumer.commit()).items():
                    print(f"{failed}: messages will be delivered again: {error}", file=sys.stderr)
            elif not follow and await consumer.is_settled() and not await has_backlog(admin, group, partitions):
                return


async def has_backlog(admin: Admin, group: str, partitions: set[TopicPartition]) -> bool:
    """Return whether the group has messages in these partitions that are not done, or may have some."""
    offsets = await admin.share_offsets(group)
    found = [offsets.get(partition) for partition in partitions]
    return any(offset is None or offset.lag != 0 for offset in found)
