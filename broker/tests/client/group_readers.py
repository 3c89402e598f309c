"""Consumers of a group that poll continuously, and predicates on what they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from penstock.client import Consumer, RebalanceListener, TopicPartition

SESSION_MS = 60_000
"""Longer than the pauses of a busy machine, so that no live member is removed."""


def consumer_of(bootstrap: str, group: str, **options: object) -> Consumer:
    """Return a consumer of a group with short intervals."""
    settings: dict[str, object] = {"offset_reset": "earliest", "metadata_max_age_ms": 100}
    if options.get("group_protocol") != "consumer":
        settings |= {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 100}
    settings |= options
    return Consumer(bootstrap, group_id=group, **settings)  # type: ignore[arg-type]


class Reader:
    """A member that polls continuously, and the records that it reads."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.read: list[tuple[int, int]] = []
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        while True:
            for tp, records in (await self.consumer.getmany(timeout_ms=100)).items():
                self.read += [(tp.partition, r.offset) for r in records]

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def partitions(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment}


@asynccontextmanager
async def reading(consumer: Consumer, topic: str, listener: RebalanceListener | None = None) -> AsyncIterator[Reader]:
    async with consumer:
        consumer.subscribe([topic], listener=listener)
        reader = Reader(consumer)
        reader.task = asyncio.create_task(reader.run())
        try:
            yield reader
        finally:
            await reader.stop()


class Notes(RebalanceListener):
    """Records the partitions of each assignment, revocation and loss."""

    def __init__(self) -> None:
        self.assigned: list[set[TopicPartition]] = []
        self.revoked: list[set[TopicPartition]] = []
        self.lost: list[set[TopicPartition]] = []

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        self.assigned.append(partitions)

    async def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        self.lost.append(partitions)

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        self.revoked.append(partitions)


class CallingListener(RebalanceListener):
    """Runs a coroutine function with the partitions that are revoked."""

    def __init__(self, call: Callable[[set[TopicPartition]], Awaitable[object]]) -> None:
        self.call = call

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        await self.call(partitions)


async def until(condition: Callable[[], bool]) -> None:
    """Wait without a deadline; the test's timeout ends the wait."""
    while not condition():
        await asyncio.sleep(0.01)


def shared(readers: Sequence[Reader], count: int = 4) -> Callable[[], bool]:
    """Return a predicate: each reader has at least one of the `count` partitions, and together they have all."""

    def holds() -> bool:
        found = [p for reader in readers for p in reader.partitions]
        return sorted(found) == list(range(count)) and all(reader.partitions for reader in readers)

    return holds
