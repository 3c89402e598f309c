"""A store with a watcher, and the records of topics."""

from __future__ import annotations

import asyncio
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.state import keys
from penstock.state.records import PartitionRecord, TopicNameRecord, TopicRecord, encode
from penstock.state.store import DeleteOp, Operation, PutOp, Store
from penstock.state.view import ClusterView, TopicChange
from penstock.state.watcher import Watcher

A, B = UUID(int=10), UUID(int=11)


class Followed:
    """A store, its view, and every reported change."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.view = ClusterView()
        self.config = BrokerConfig()
        self.watcher = Watcher(store, self.view, self.config)
        self.changes: list[TopicChange] = []
        self.view.subscribe(self.changes.extend)

    async def write(self, *operations: Operation) -> None:
        result = await self.store.txn([], operations)
        async with asyncio.timeout(60):
            await self.watcher.applied(result.revision)


def partition(leader: int = 0, epoch: int = 0) -> bytes:
    return encode(PartitionRecord(replicas=[0], leader=leader, leader_epoch=epoch, isr=[0]))


def topic(topic_id: UUID, name: str, count: int = 1, **more: object) -> list[Operation]:
    record = TopicRecord(name=name, topic_id=topic_id, partition_count=count, **more)  # type: ignore[arg-type]
    puts: list[Operation] = [PutOp(keys.partition(topic_id, i), partition()) for i in range(count)]
    return [
        *puts,
        PutOp(keys.topic(topic_id), encode(record)),
        PutOp(keys.topic_name(name), encode(TopicNameRecord(topic_id=topic_id))),
    ]


def gone(topic_id: UUID, name: str) -> list[Operation]:
    return [
        DeleteOp(keys.topic(topic_id)),
        DeleteOp(keys.topic_name(name)),
        DeleteOp(keys.partitions(topic_id), prefix=True),
    ]
