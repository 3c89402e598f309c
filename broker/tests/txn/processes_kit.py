"""Broker processes and an etcd, for transactions whose coordinators are killed. Clients run in threads of the test."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster_processes import Cluster
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.state import keys
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.state.records import ShardRecord, TransactionRecord, decode


class Brokers(Cluster):
    """Three brokers, 1 to 3."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)

    async def entry(self, key: str) -> bytes | None:
        """Return a key's value in etcd."""
        store = EtcdStore(EtcdOptions(endpoints=self.etcd.endpoints))
        try:
            entry = await store.get(key)
        finally:
            await store.close()
        return None if entry is None else entry.value

    def coordinator(self, name: str) -> int:
        """Return the broker that coordinates a transactional id or a group."""
        key = keys.shard(keys.shard_of(name))
        value = asyncio.run(self.entry(key))
        assert value is not None, "all shards are assigned"
        return decode(ShardRecord, key, value).broker_id

    def state(self, transactional_id: str) -> str:
        key = keys.transaction(transactional_id)
        value = asyncio.run(self.entry(key))
        assert value is not None, f"{transactional_id} does not exist"
        return decode(TransactionRecord, key, value).state

    def create(self, *names: str, partitions: int = 3) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for made in admin.create_topics([NewTopic(name, partitions, 3) for name in names]).values():
            made.result(30)
