"""Share consumers of a group that starts with the first record, and what they get."""

from __future__ import annotations

import asyncio

from penstock.client import Admin, AlterConfig, Producer, ShareConsumer, ShareRecord


async def start_with_the_first_record(admin: Admin, group: str, **settings: str) -> None:
    """Set the group's start, before it has members."""
    changes = [AlterConfig("share.auto.offset.reset", "earliest")]
    changes += [AlterConfig(f"share.{name.replace('_', '.')}", value) for name, value in settings.items()]
    await admin.alter_group_configs({group: changes})


async def send_jobs(bootstrap: str, topic: str, first: int, count: int) -> None:
    """Produce numbers."""
    async with Producer(bootstrap) as producer:
        for number in range(first, first + count):
            await producer.send(topic, b"%d" % number)


def number_of(record: ShareRecord) -> int:
    return int(record.value or b"")


async def take(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    """Poll until there are this many records, without an acknowledgement: for explicit mode."""
    found: list[ShareRecord] = []
    while len(found) < count:
        found += await consumer.getmany(timeout_ms=1000)
    return found


async def backlog(admin: Admin, group: str) -> int:
    """Return how many records of the group are not done; -1 while a partition's start is unknown."""
    lags = [offset.lag for offset in (await admin.share_offsets(group)).values()]
    return -1 if not lags or any(lag is None or lag < 0 for lag in lags) else sum(lag for lag in lags if lag)


async def until_backlog(admin: Admin, group: str, expected: int) -> None:
    """Wait without a deadline; the test's timeout ends the wait."""
    while await backlog(admin, group) != expected:
        await asyncio.sleep(0.02)
