"""Group coordinators of several brokers over one store: shards change hands, and nothing is lost or answered twice."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from penstock.config.broker import BrokerConfig
from penstock.control.shard_plan import assign
from penstock.group.calls import JoinRequest, SyncRequest
from penstock.group.coordinator import GroupCoordinator
from penstock.group.offset_table import OffsetKey
from penstock.group.offsets import Commit
from penstock.group.shard_writer import MAX_PENDING
from penstock.state import keys, records
from penstock.state.embedded import EmbeddedStore
from penstock.state.store import Delete, Put, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

E = ErrorCode


class Line:
    """A broker's connection to the store. It can be cut, and it can delay a write of which nobody then hears."""

    def __init__(self, store):
        self.store = store
        self.is_cut = self.delays = False
        self.delayed = []
        self.ranges = []
        self.txns = 0

    def check(self):
        if self.is_cut:
            raise StoreUnavailable("cut off")

    async def get(self, key):
        self.check()
        return await self.store.get(key)

    async def range(self, prefix, revision=0):
        self.check()
        self.ranges.append(prefix)
        await asyncio.sleep(0.001)
        return await self.store.range(prefix, revision)

    async def txn(self, compares, then, otherwise=()):
        self.check()
        self.txns += 1
        if self.delays:
            self.delayed.append((compares, then, otherwise))
            raise StoreUnavailable("no answer")
        return await self.store.txn(compares, then, otherwise)

    def watch(self, prefix, from_revision):
        return self.store.watch(prefix, from_revision)

    async def deliver(self):
        """What was delayed reaches the store now; whether each was done."""
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
        result = await self.cluster.store.txn((), [Put(keys.broker(self.broker_id), records.encode(record))])
        self.membership = Membership(result.revision)
        await self.watcher.start()
        self.groups = GroupCoordinator(
            self.line, self.view, self.cluster.clock, self.config, membership=self.membership
        )
        await self.groups.start()

    async def kill(self):
        """As by kill -9: nobody is told anything, and what it would do later it does not."""
        await self.freeze()
        self.line.is_cut = True
        await self.cluster.store.txn((), [Delete(keys.broker(self.broker_id))])
        self.cluster.brokers.pop(self.broker_id)
        self.cluster.dead.append(self)

    async def freeze(self):
        """It learns nothing more of the cluster."""
        await self.watcher.stop()

    async def offset(self, group_id, topic_id, index=0):
        """What the broker tells, or its error."""
        error = (await self.groups.reads.prepare([group_id]))[group_id]
        if error:
            return error
        record = self.groups.offsets.table.get(OffsetKey(group_id, topic_id, index))
        return None if record is None else record.offset

    async def commit(self, group_id, topic_id, offset, index=0):
        """The error of a commit."""
        error = self.groups.check_commit(group_id, "", None, -1)
        if not error and await self.groups.commit(group_id, [Commit(topic_id, index, offset, -1, "")]):
            error = self.groups.commit_failure(group_id)
        return error


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
        await self.store.close()

    async def assign(self, draining=(), only=None):
        """What the controller does."""
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

    async def create_topic(self, name):
        topic_id = uuid4()
        part = records.PartitionRecord(replicas=[1], leader=1, isr=[1])
        topic = records.TopicRecord(name=name, topic_id=topic_id, partition_count=1)
        named = records.TopicNameRecord(topic_id=topic_id)
        puts = {keys.topic(topic_id): topic, keys.partition(topic_id, 0): part, keys.topic_name(name): named}
        await self.store.txn((), [Put(key, records.encode(record)) for key, record in puts.items()])
        await asyncio.sleep(0.1)
        return topic_id

    async def delete_topic(self, name, topic_id):
        topic = records.TopicRecord(name=name, topic_id=topic_id, partition_count=1, deleting=True)
        await self.store.txn((), [Put(keys.topic(topic_id), records.encode(topic)), Delete(keys.topic_name(name))])
        await asyncio.sleep(0.1)


@pytest.fixture
def run_cluster(virtual_loop, clock):
    def run(scene, brokers=2):
        async def play():
            cluster = Cluster(clock)
            virtual_loop.stores.append(cluster.store)
            await cluster.start(brokers)
            try:
                await scene(cluster)
            finally:
                await cluster.stop()

        virtual_loop.run_until_complete(play())

    return run


def request(member_id="", **more):
    return JoinRequest("consumer", {"range": b""}, 10_000, 60_000, member_id=member_id, two_step=False, **more)


async def stable(broker, group_id, **more):
    joined = await broker.groups.join(group_id, request(**more))
    assert not joined.error
    plan = {joined.member_id: b"mine"}
    synced = await broker.groups.sync(group_id, SyncRequest(joined.member_id, joined.generation, assignments=plan))
    assert not synced.error
    return joined


# --- who serves whom


def test_a_group_is_served_by_the_owner_of_its_shard_and_by_nobody_else(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        owners = set()
        for n in range(20):
            group_id = f"g{n}"
            owner = cluster.owner(group_id)
            owners.add(owner.broker_id)
            assert await owner.commit(group_id, t, n) is E.NONE
            assert await owner.offset(group_id, t) == n
            for other in cluster.others(owner):
                assert other.groups.coordinator_of(group_id) == owner.broker_id
                assert await other.commit(group_id, t, 99) is E.NOT_COORDINATOR
                assert await other.offset(group_id, t) is E.NOT_COORDINATOR
                assert (await other.groups.join(group_id, request())).error is E.NOT_COORDINATOR
                assert other.groups.heartbeat(group_id, "m", None, 1) is E.NOT_COORDINATOR
                assert other.groups.leave(group_id, [("m", None)])[0] is E.NOT_COORDINATOR
        assert owners == {1, 2}

    run_cluster(scene)


def test_while_a_shard_has_no_living_owner_there_is_no_coordinator(run_cluster):
    async def scene(cluster):
        owner = cluster.owner("g")
        await owner.kill()
        await asyncio.sleep(0.1)
        (other,) = cluster.brokers.values()
        assert other.groups.coordinator_of("g") == -1
        await cluster.assign()
        assert other.groups.coordinator_of("g") == other.broker_id

    run_cluster(scene)


def test_a_new_incarnation_of_a_broker_does_not_own_what_the_last_one_did(run_cluster):
    async def scene(cluster):
        await cluster.brokers[1].kill()
        again = await cluster.add(1)
        assert again.groups.coordinator_of("g") == -1
        assert again.groups.heartbeat("g", "m", None, 1) is E.NOT_COORDINATOR
        await cluster.assign()
        assert again.groups.coordinator_of("g") == 1

    run_cluster(scene, brokers=1)


def test_until_a_shard_is_loaded_clients_are_told_to_wait(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        member = await stable(old, "g")
        (new,) = cluster.others(old)
        new.line.is_cut = True
        await cluster.assign(draining={old.broker_id})
        assert new.groups.heartbeat("g", member.member_id, None, 1) is E.COORDINATOR_LOAD_IN_PROGRESS
        assert (await new.groups.join("g", request())).error is E.COORDINATOR_LOAD_IN_PROGRESS
        assert new.groups.unavailable is E.COORDINATOR_LOAD_IN_PROGRESS
        new.line.is_cut = False
        await asyncio.sleep(2)
        assert new.groups.heartbeat("g", member.member_id, None, 1) is E.NONE
        assert new.groups.unavailable is E.NONE

    run_cluster(scene)


# --- a coordinator ends


@pytest.mark.parametrize("instance_id", [None, "static"])
def test_a_group_survives_its_coordinators_kill_without_a_rebalance_or_a_lost_commit(run_cluster, instance_id):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        old = cluster.owner("g")
        member = await stable(old, "g", instance_id=instance_id)
        assert not await old.groups.commit("g", [Commit(t, 0, 7, -1, "")])
        await old.kill()
        await cluster.assign()
        new = cluster.owner("g")
        assert new is not old
        for _ in range(10):  # longer than a session
            assert new.groups.heartbeat("g", member.member_id, instance_id, member.generation) is E.NONE
            await asyncio.sleep(5)
        assert new.groups.check_commit("g", member.member_id, instance_id, member.generation) is E.NONE
        synced = await new.groups.sync("g", SyncRequest(member.member_id, member.generation, instance_id))
        assert (synced.error, synced.assignment) == (E.NONE, b"mine")
        assert await new.offset("g", t) == 7
        assert new.groups.find("g").generation == member.generation

    run_cluster(scene)


def test_members_that_died_with_their_coordinator_expire_under_the_new_one(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        await stable(old, "g")
        await old.kill()
        await cluster.assign()
        new = cluster.owner("g")
        assert len(new.groups.find("g").roster) == 1
        await asyncio.sleep(11)
        assert len(new.groups.find("g").roster) == 0

    run_cluster(scene)


def test_who_waits_at_a_coordinator_that_loses_the_shard_is_sent_away_and_its_timers_end(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        await stable(old, "g")
        waiting = old.groups.join("g", request())
        await asyncio.sleep(0.1)
        running = old.groups._groups.running("g")
        assert not waiting.done()
        await cluster.assign(draining={old.broker_id})
        assert waiting.result().error is E.NOT_COORDINATOR
        assert running.timer is None
        assert old.groups.group_ids() == []
        assert not old.groups.exists("g")
        assert cluster.owner("g").groups.find("g") is not None

    run_cluster(scene)


def test_generations_of_an_empty_group_go_on_under_the_new_coordinator(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        member = await stable(old, "g")
        old.groups.leave("g", [(member.member_id, None)])
        await asyncio.sleep(0.1)
        await old.kill()
        await cluster.assign()
        joined = await cluster.owner("g").groups.join("g", request())
        assert joined.generation == 3

    run_cluster(scene)


# --- a coordinator that does not know


def test_a_coordinator_that_lost_its_shard_cannot_commit(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        old = cluster.owner("g")
        await old.commit("g", t, 1)
        await old.freeze()
        await cluster.assign(only=cluster.others(old)[0].broker_id)
        (new,) = cluster.others(old)
        assert await new.commit("g", t, 5) is E.NONE
        assert old.groups.error("g") is E.NONE, "it does not know yet"
        assert await old.commit("g", t, 3) is E.NOT_COORDINATOR
        assert old.groups.error("g") is E.NOT_COORDINATOR, "now it does"
        entry = await cluster.store.get(keys.offset("g", t, 0))
        assert records.decode(records.OffsetRecord, entry.key, entry.value).offset == 5

    run_cluster(scene)


def test_a_coordinator_that_lost_its_shard_hands_out_no_assignment(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        await old.freeze()
        await cluster.assign(only=cluster.others(old)[0].broker_id)
        joined = await old.groups.join("g", request())
        plan = {joined.member_id: b"mine"}
        synced = await old.groups.sync("g", SyncRequest(joined.member_id, joined.generation, assignments=plan))
        assert synced.error in (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE)
        assert synced.assignment == b""
        assert await cluster.store.get(keys.group("g")) is None

    run_cluster(scene)


def test_a_coordinator_that_lost_its_shard_tells_no_offsets(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        old = cluster.owner("g")
        await old.commit("g", t, 1)
        await old.freeze()
        (new,) = cluster.others(old)
        await cluster.assign(only=new.broker_id)
        await new.commit("g", t, 5)
        assert await old.offset("g", t) is E.NOT_COORDINATOR
        assert await new.offset("g", t) == 5

    run_cluster(scene)


def test_a_lost_shard_takes_no_other_down_with_it(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        await broker.freeze()
        shard = broker.view.shards[keys.shard_of("g")]
        record = records.ShardRecord(broker_id=9, broker_epoch=1, epoch=shard.epoch + 1)
        await cluster.store.txn((), [Put(keys.shard(keys.shard_of("g")), records.encode(record))])
        names = ["g", *(f"h{n}" for n in range(300) if keys.shard_of(f"h{n}") != keys.shard_of("g"))]
        errors = await asyncio.gather(*[broker.commit(name, t, 1) for name in names])
        assert errors[0] is E.NOT_COORDINATOR
        assert set(errors[1:]) == {E.NONE}

    run_cluster(scene, brokers=1)


def test_many_who_ask_for_offsets_share_a_read_that_begins_after_they_asked(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        for n in range(50):
            await broker.commit(f"g{n}", t, n)
        first = asyncio.ensure_future(broker.offset("g0", t))
        while broker.groups.reads.confirmation.reads == 0:
            await asyncio.sleep(0)
        answers = await asyncio.gather(*[broker.offset(f"g{n}", t) for n in range(50)])
        assert answers == list(range(50))
        assert await first == 0
        assert broker.groups.reads.confirmation.reads == 2

    run_cluster(scene, brokers=1)


def test_without_its_lease_a_coordinator_answers_nothing_but_counts_who_is_alive(run_cluster):
    async def scene(cluster):
        (broker,) = cluster.brokers.values()
        member = await stable(broker, "g")
        broker.membership.has_lease = False
        for _ in range(6):
            await asyncio.sleep(5)
            assert broker.groups.heartbeat("g", member.member_id, None, 1) is E.NOT_COORDINATOR
        assert await broker.offset("g", uuid4()) is E.NOT_COORDINATOR
        broker.membership.has_lease = True
        assert broker.groups.heartbeat("g", member.member_id, None, 1) is E.NONE

    run_cluster(scene, brokers=1)


# --- the store is away


def test_a_write_that_got_no_answer_cannot_undo_what_was_acknowledged_after_it(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        await broker.commit("g", t, 1)
        broker.line.delays = True
        assert await broker.commit("g", t, 2) is E.COORDINATOR_NOT_AVAILABLE
        broker.line.delays = False
        assert await broker.commit("g", t, 3) is E.NONE
        assert await broker.line.deliver() == [False]
        assert await broker.offset("g", t) == 3
        entry = await cluster.store.get(keys.offset("g", t, 0))
        assert records.decode(records.OffsetRecord, entry.key, entry.value).offset == 3

    run_cluster(scene, brokers=1)


def test_after_a_write_that_got_no_answer_the_store_is_asked_what_is_committed(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        await broker.commit("g", t, 1)
        broker.line.delays = True
        assert await broker.commit("g", t, 2) is E.COORDINATOR_NOT_AVAILABLE
        broker.line.delays = False
        assert await broker.line.deliver() == [True]
        assert await broker.offset("g", t) == 2

    run_cluster(scene, brokers=1)


def test_while_the_store_is_away_all_is_refused_to_be_tried_again_and_afterwards_goes_on(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        member = await stable(broker, "g")
        await broker.commit("s", t, 1)
        broker.line.is_cut = True
        errors = await asyncio.gather(*[broker.commit("s", t, n) for n in range(2, 200)])
        assert set(errors) == {E.COORDINATOR_NOT_AVAILABLE}
        assert await broker.offset("s", t) is E.COORDINATOR_LOAD_IN_PROGRESS
        for _ in range(6):
            assert broker.groups.heartbeat("g", member.member_id, None, 1) is E.NONE
            await asyncio.sleep(5)
        broker.line.is_cut = False
        assert await broker.commit("s", t, 500) is E.NONE
        assert await broker.offset("s", t) == 500
        assert broker.groups.heartbeat("g", member.member_id, None, 1) is E.NONE

    run_cluster(scene, brokers=1)


def test_a_group_whose_first_commit_failed_is_known_to_the_next_coordinator_all_the_same(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        old = cluster.owner("g")
        old.line.is_cut = True
        assert await old.commit("g", t, 1) is E.COORDINATOR_NOT_AVAILABLE
        old.line.is_cut = False
        assert await old.commit("g", t, 2) is E.NONE
        await old.kill()
        await cluster.assign()
        new = cluster.owner("g")
        assert new.groups.group_ids() == ["g"]
        assert await new.offset("g", t) == 2

    run_cluster(scene)


def test_what_waits_for_the_store_is_bounded(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        commits = [Commit(t, n, 1, -1, "") for n in range(MAX_PENDING - 1)]
        accepted = broker.groups.commit("g", commits)
        refused = broker.groups.commit("g", [Commit(t, MAX_PENDING, 1, -1, "")])
        assert refused.result() == [0], "at once"
        assert await accepted == []

    run_cluster(scene, brokers=1)


# --- memory


def test_offsets_of_idle_groups_are_left_to_the_store_beyond_a_limit_and_read_when_asked_for(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (old,) = cluster.brokers.values()
        for n in range(100):
            assert await old.commit(f"g{n}", t, n) is E.NONE
        await old.kill()
        new = await cluster.add(2)
        new.groups.offsets.residence.limit = 20
        await cluster.assign()
        assert len(new.groups.group_ids()) == 100
        assert len(new.groups.offsets.table) == 10, "half of the limit is read ahead"
        assert [await new.offset(f"g{n}", t) for n in range(100)] == list(range(100))
        assert len(new.groups.offsets.table) <= 20

    run_cluster(scene, brokers=1)


def test_a_commit_for_a_group_that_is_being_read_is_not_overwritten_by_what_is_read(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        await broker.commit("g", t, 1)
        for offset in range(2, 60):
            broker.groups.offsets.residence.drop("g")
            reading = asyncio.ensure_future(broker.offset("g", t))
            for _ in range(offset % 12):
                await asyncio.sleep(0)
            assert await broker.commit("g", t, offset) is E.NONE
            assert await reading in (offset - 1, offset)
            assert await broker.offset("g", t) == offset

    run_cluster(scene, brokers=1)


# --- topics


def test_a_deleted_topic_is_forgotten_when_the_owners_of_all_shards_have_deleted_its_offsets(run_cluster):
    async def scene(cluster):
        t, u = await cluster.create_topic("t"), await cluster.create_topic("u")
        for n in range(30):
            owner = cluster.owner(f"g{n}")
            assert await owner.commit(f"g{n}", t, n) is E.NONE
            assert await owner.commit(f"g{n}", u, n) is E.NONE
            if n % 2:
                owner.groups.offsets.residence.drop(f"g{n}")
        controller = cluster.brokers[1].groups
        late = cluster.brokers[2]
        late.line.is_cut = True
        await cluster.delete_topic("t", t)
        await asyncio.sleep(3)
        with pytest.raises(StoreUnavailable, match="32 shards"):
            await controller.forget_topic(t)
        late.line.is_cut = False
        await asyncio.sleep(30)
        await controller.forget_topic(t)
        left = [keys.parse_offset(e.key)[1] for e in (await cluster.store.range(keys.OFFSETS)).entries]
        assert left == [u] * 30

    run_cluster(scene)


def test_a_shard_that_changes_hands_is_cleaned_by_its_new_owner(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        old = cluster.owner("g")
        await old.commit("g", t, 1)
        await old.kill()
        await cluster.delete_topic("t", t)
        await cluster.assign()
        await asyncio.sleep(3)
        await next(iter(cluster.brokers.values())).groups.forget_topic(t)
        assert (await cluster.store.range(keys.OFFSETS)).entries == []

    run_cluster(scene)


def test_offsets_of_idle_groups_end_under_a_coordinator_that_never_had_them_in_memory(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (old,) = cluster.brokers.values()
        for n in range(20):
            assert await old.commit(f"g{n}", t, n) is E.NONE
        await old.kill()
        new = await cluster.add(2)
        new.config.offsets_retention_minutes = 60
        new.groups.offsets.residence.limit = 0
        await cluster.assign()
        await asyncio.sleep(26 * 3600)
        assert new.groups.group_ids() == []
        assert (await cluster.store.range(keys.OFFSETS)).entries == []
        assert (await cluster.store.range(keys.GROUPS)).entries == []

    run_cluster(scene, brokers=1)
