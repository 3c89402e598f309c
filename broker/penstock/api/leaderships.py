"""Whether this broker is still the leader, read linearizably. Asked by `fetch` before it calls an offset out of range,
and by `produce` before it calls a batch out of order.

A leader that was cut off, or whose view lags, may have been replaced without knowing. A reader that comes to it from
its successor is past the end of its log; told that its offset is out of range it would begin anew somewhere else, and
read everything again, or leave something out. Clients that name their leader epoch (KIP-320) would be safe; not all do.
A producer that comes back likewise would be told of a gap, which the successor has filled, and give up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from uuid import UUID

from penstock.replica.acceptance import Appended
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.replica.partition import Partition
from penstock.state import keys
from penstock.state.records import PartitionRecord, decode
from penstock.state.store import Store, StoreError
from penstock.wire.errors import ErrorCode

MAX_ASKED = 100
"""Partitions that are looked up for one request; the others are for the next one."""
READS_AT_ONCE = 8

Tenure = tuple[tuple[UUID, int], int]
"""A partition's key and the leader epoch in which this broker leads it."""


class Leaderships:
    """What the store says of this broker's leaderships."""

    def __init__(self, store: Store, replicas: ReplicaManager) -> None:
        self.store, self.replicas = store, replicas
        self.slots = asyncio.Semaphore(READS_AT_ONCE)

    async def held(self, partitions: Iterable[Partition]) -> frozenset[Tenure]:
        """Those that this broker leads as of a moment after the call; none of which that cannot be told."""
        asked = list({tenure(partition): None for partition in partitions})[:MAX_ASKED]
        found = await asyncio.gather(*[self._is_held(*one) for one in asked])
        return frozenset(one for one, is_held in zip(asked, found, strict=True) if is_held)

    async def _is_held(self, key: tuple[UUID, int], leader_epoch: int) -> bool:
        async with self.slots:
            if not self.replicas.may_serve():
                return False  # the store would not answer either
            try:
                entry = await self.store.get(keys.partition(*key))
                if entry is None:
                    return False
                record = decode(PartitionRecord, entry.key, entry.value)
            except (StoreError, OSError):
                return False
        return record.leader == self.replicas.broker_id and record.leader_epoch == leader_epoch


class UnconfirmedLeadership:
    """A refusal that is the leader's to give: told once the store says that this broker is it. As
    `transactional_produce.DeferredBatch`, one waits for what came of the batch."""

    def __init__(self, leaderships: Leaderships, partition: Leader, done: Appended) -> None:
        self.leaderships, self.partition, self.done = leaderships, partition, done

    def when_appended(self, callback: Callable[[Appended], None]) -> None:
        self.leaderships.replicas.spawn(self._ask(callback))

    async def _ask(self, callback: Callable[[Appended], None]) -> None:
        if await self.leaderships.held([self.partition]):
            callback(self.done)
        else:
            callback(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER, message="another broker may lead the partition now"))


def tenure(partition: Partition) -> Tenure:
    return partition.key, partition.leader_epoch
