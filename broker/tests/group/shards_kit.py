"""Group coordinators of several brokers on one store, in virtual time."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from penstock.config.broker import BrokerConfig
from penstock.control.shard_plan import assign
from penstock.group.assigned_shards import AssignedShardOwnership
from penstock.group.calls import JoinRequest, SyncRequest
from penstock.group.coordinator import GroupCoordinator
from penstock.group.offset_loading import LazyOffsetLoader
from penstock.group.offset_table import OffsetKey
from penstock.group.offsets import OffsetCommit
from penstock.share.coordinator import ShareStates
from penstock.state import keys, records
from penstock.state.embedded import EmbeddedStore
from penstock.state.store import DeleteOp, PutOp, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode


class Line:
    """A broker's connection to the store. It can be cut, and can delay writes without answering them."""

    def __init__(self, store):
        self.store = store
        self.is_cut = self.delays = False
        self.delayed = []
        self.error = None
        """What all requests fail with."""

    def check(self):
        if self.error is not None:
            raise self.error
        if self.is_cut:
            raise StoreUnavailable("cut off")

    async def get(self, key):
        self.check()
        return await self.store.get(key)

    async def range(self, prefix, revision=0):
        self.check()
        await asyncio.sleep(0.001)
        return await self.store.range(prefix, revision)

    async def txn(self, compares, then, otherwise=()):
        self.check()
        if self.delays:
            self.delayed.append((compares, then, otherwise))
            raise StoreUnavailable("no answer")
        return await self.store.txn(compares, then, otherwise)

    def watch(self, prefix, from_revision):
        return self.store.watch(prefix, from_revision)

    async def deliver(self):
        """Send the delayed writes to the store. Returns whether each succeeded."""
        delayed, self.delayed = self.delayed, []
        return [(await self.store.txn(*txn)).succeeded for txn in delayed]


class Membership:
    def __init__(self, epoch):
        self.epoch = epoch
        self.has_lease = True

    def may_serve(self):
        return self.has_lease


class Broker:
    def __init__(self, cluster, broker_id):
        self.cluster, self.broker_id = cluster, broker_id
        self.line = Line(cluster.store)
        self.config = BrokerConfig()
        self.config.node_id = broker_id
        self.config.group_initial_rebalance_delay_ms = 0
        self.view = ClusterView()
        self.watcher = Watcher(cluster.store, self.view, BrokerConfig())

    async def start(self):
        record = records.BrokerRecord(broker_id=self.broker_id, incarnation=uuid4(), endpoints=[])
        result = await self.cluster.store.txn((), [PutOp(keys.broker(self.broker_id), records.encode(record))])
        self.membership = Membership(result.revision)
        await self.watcher.start()
        owned = AssignedShardOwnership(self.line, self.view, self.broker_id, self.membership)
        self.groups = GroupCoordinator(
            self.line, self.view, self.cluster.clock, self.config, lambda: str(uuid4()), owned, LazyOffsetLoader
        )
        self.share_states = ShareStates(self.line, self.groups, self.view)
        await self.groups.start()

    async def kill(self):
        """Stop as by `kill -9`: without notifications and without later writes."""
        await self.freeze()
        self.line.is_cut = True
        self.groups.offsets.cache.close()
        await self.cluster.store.txn((), [DeleteOp(keys.broker(self.broker_id))])
        self.cluster.brokers.pop(self.broker_id)
        self.cluster.dead.append(self)

    async def freeze(self):
        """Stop updating the broker's view."""
        await self.watcher.stop()

    async def offset(self, group_id, topic_id, index=0):
        """Return the committed offset that the broker reports, or its error."""
        error = (await self.groups.reads.prepare([group_id]))[group_id]
        if error:
            return error
        record = self.groups.offsets.table.get(OffsetKey(group_id, topic_id, index))
        return None if record is None else record.offset

    async def commit(self, group_id, topic_id, offset, index=0):
        """Return the error of a commit."""
        error = self.groups.check_commit(group_id, "", None, -1, ())
        if not error and await self.groups.commit(group_id, [OffsetCommit(topic_id, index, offset, -1, "")]):
            error = self.groups.commit_failure(group_id)
        return error

    async def commit_unanswered(self, group_id, topic_id, offset):
        """Commit an offset whose write gets no response and reaches the store at `line.deliver`."""
        self.line.delays = True
        assert await self.commit(group_id, topic_id, offset) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.line.delays = False


class Cluster:
    def __init__(self, clock):
        self.clock = clock
        self.store = EmbeddedStore(":memory:")
        self.brokers, self.dead = {}, []

    async def start(self, count):
        for broker_id in range(1, count + 1):
            await self.add(broker_id)
        await self.assign()

    async def add(self, broker_id):
        broker = self.brokers[broker_id] = Broker(self, broker_id)
        await broker.start()
        return broker

    async def stop(self):
        for broker in [*self.dead, *self.brokers.values()]:
            await broker.groups.close()
            await broker.watcher.stop()
        await asyncio.sleep(0.1)  # pending reads complete before the store closes
        await self.store.close()

    async def assign(self, draining=(), only=None):
        """Assign shards to brokers, as the controller does."""
        view = ClusterView()
        watcher = Watcher(self.store, view, BrokerConfig())
        await watcher.start()
        await watcher.stop()
        alive = {b.broker_id: b.epoch for b in view.brokers.values() if only is None or b.broker_id == only}
        changes = assign(view.shards, alive, draining)
        result = await self.store.txn([c.condition() for c in changes], [c.put() for c in changes])
        assert result.succeeded
        await asyncio.sleep(2)

    def owner(self, group_id):
        any_view = next(iter(self.brokers.values())).view
        return self.brokers[any_view.shard_owner(keys.shard_of(group_id)).broker_id]

    def others(self, broker):
        return [b for b in self.brokers.values() if b is not broker]

    async def stored_offset(self, group_id, topic_id):
        entry = await self.store.get(keys.offset(group_id, topic_id, 0))
        return records.decode(records.OffsetRecord, entry.key, entry.value).offset

    async def create_topic(self, name, topic_id=None):
        topic_id = topic_id or uuid4()
        part = records.PartitionRecord(replicas=[1], leader=1, isr=[1])
        topic = records.TopicRecord(name=name, topic_id=topic_id, partition_count=1)
        named = records.TopicNameRecord(topic_id=topic_id)
        puts = {keys.topic(topic_id): topic, keys.partition(topic_id, 0): part, keys.topic_name(name): named}
        await self.store.txn((), [PutOp(key, records.encode(record)) for key, record in puts.items()])
        await asyncio.sleep(0.1)
        return topic_id

    async def delete_topic(self, name, topic_id):
        topic = records.TopicRecord(name=name, topic_id=topic_id, partition_count=1, deleting=True)
        await self.store.txn((), [PutOp(keys.topic(topic_id), records.encode(topic)), DeleteOp(keys.topic_name(name))])
        await asyncio.sleep(0.1)


def request(member_id="", **more):
    return JoinRequest("consumer", {"range": b""}, 10_000, 60_000, member_id=member_id, two_step=False, **more)


async def stable(broker, group_id, **more):
    joined = await broker.groups.join(group_id, request(**more))
    assert not joined.error
    plan = {joined.member_id: b"mine"}
    synced = await broker.groups.sync(group_id, SyncRequest(joined.member_id, joined.generation, assignments=plan))
    assert not synced.error
    return joined
