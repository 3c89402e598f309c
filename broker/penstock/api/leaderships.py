"""Confirms with linearizable reads of the store that this broker still leads a partition.

`fetch` calls it before it returns OFFSET_OUT_OF_RANGE, and `produce_wait` before OUT_OF_ORDER_SEQUENCE_NUMBER. A
partitioned leader, or one with a stale view, may be deposed without knowing it. A consumer that comes from the
successor is past this log's end; on OFFSET_OUT_OF_RANGE it would reset its offset, and read records twice or skip some.
Clients that send their leader epoch (KIP-320) are safe, but not all do. An idempotent producer would fail on a sequence
gap that the successor has filled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from penstock.replica.manager import ReplicaManager
from penstock.replica.partition import Partition
from penstock.state import keys
from penstock.state.records import PartitionRecord, decode
from penstock.state.store import Store, StoreError

MAX_CONFIRMATIONS = 100
"""Partitions confirmed per request; the others are confirmed for the next request."""
MAX_CONCURRENT_READS = 8

LeadershipKey = tuple[tuple[UUID, int], int]
"""A partition's key and the leader epoch in which this broker leads it."""


class Leaderships:
    """Reads this broker's leaderships from the store."""

    def __init__(self, store: Store, replicas: ReplicaManager) -> None:
        self.store, self.replicas = store, replicas
        self.slots = asyncio.Semaphore(MAX_CONCURRENT_READS)

    async def confirm(self, partitions: Iterable[Partition]) -> frozenset[LeadershipKey]:
        """Return the leaderships that held at some moment after the call; unconfirmed ones are left out."""
        queried = list({leadership_key(partition): None for partition in partitions})[:MAX_CONFIRMATIONS]
        found = await asyncio.gather(*[self._is_leader(*one) for one in queried])
        return frozenset(one for one, is_leader in zip(queried, found, strict=True) if is_leader)

    async def _is_leader(self, key: tuple[UUID, int], leader_epoch: int) -> bool:
        async with self.slots:
            if not self.replicas.may_serve():
                return False  # without the lease, the store is unreachable too
            try:
                entry = await self.store.get(keys.partition(*key))
                if entry is None:
                    return False
                record = decode(PartitionRecord, entry.key, entry.value)
            except (StoreError, OSError):
                return False
        return record.leader == self.replicas.broker_id and record.leader_epoch == leader_epoch


class LocalLeaderships(Leaderships):
    """The leaderships of a single broker, which no other can take over."""

    async def confirm(self, partitions: Iterable[Partition]) -> frozenset[LeadershipKey]:
        """Return all leaderships."""
        return frozenset(map(leadership_key, partitions))


def leadership_key(partition: Partition) -> LeadershipKey:
    """Return the key of a leadership in its current leader epoch."""
    return partition.key, partition.leader_epoch
