"""Committed offsets of coordinator shards: store outages, cache eviction, deleted topics."""

from __future__ import annotations

import asyncio

import pytest
from shards_kit import stable

from penstock.control.group_settings import MAX_GROUP_ID_CHARS
from penstock.group.offsets import OffsetCommit
from penstock.group.reads import MAX_CONCURRENT_READS, MAX_GROUPS
from penstock.group.request_queue import QUEUE_COUNT
from penstock.group.shard_writer import MAX_PENDING
from penstock.state import keys, records
from penstock.state.records import OffsetRecord
from penstock.state.store import PutOp, StoreUnavailable
from penstock.wire.errors import ErrorCode

E = ErrorCode


# --- store outages


def test_a_write_without_an_answer_cannot_undo_what_was_acknowledged_later(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        await broker.commit("g", t, 1)
        await broker.commit_unanswered("g", t, 2)
        assert await broker.commit("g", t, 3) is E.NONE
        assert await broker.line.deliver() == [False]
        assert await broker.offset("g", t) == 3
        assert await cluster.stored_offset("g", t) == 3

    run_cluster(scene, brokers=1)


def test_after_a_write_that_got_no_answer_the_store_is_asked_what_is_committed(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        await broker.commit("g", t, 1)
        await broker.commit_unanswered("g", t, 2)
        assert await broker.line.deliver() == [True]
        assert await broker.offset("g", t) == 2

    run_cluster(scene, brokers=1)


def test_a_write_without_an_answer_cannot_undo_what_came_while_another_shards_fence_was_renewed(run_cluster):
    first, second = two_of_a_queue()

    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        for turns in range(12):
            await broker.commit_unanswered(first, t, 1)
            await broker.commit_unanswered(second, t, 2)
            renewing = asyncio.ensure_future(broker.commit(first, t, 3))
            for _ in range(turns):
                await asyncio.sleep(0)
            assert await broker.commit(second, t, 3) is E.NONE
            assert await renewing is E.NONE
            assert await broker.line.deliver() == [False, False]
            assert await cluster.stored_offset(second, t) == 3

    run_cluster(scene, brokers=1)


def two_of_a_queue():
    """Return two groups whose shards share a queue."""
    names = [f"g{n}" for n in range(200)]
    shard = keys.shard_of(names[0])
    return names[0], next(
        g for g in names if keys.shard_of(g) != shard and (keys.shard_of(g) - shard) % QUEUE_COUNT == 0
    )


def test_while_the_store_is_away_all_is_refused_to_be_tried_again_and_afterwards_goes_on(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        member = await stable(broker, "g")
        await broker.commit("s", t, 1)
        broker.line.is_cut = True
        errors = await asyncio.gather(*[broker.commit("s", t, n) for n in range(2, 200)])
        assert set(errors) == {E.COORDINATOR_NOT_AVAILABLE}
        assert await broker.offset("s", t) is E.NOT_COORDINATOR
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
        commits = [OffsetCommit(t, n, 1, -1, "") for n in range(MAX_PENDING - 1)]
        accepted = broker.groups.commit("g", commits)
        refused = broker.groups.commit("g", [OffsetCommit(t, MAX_PENDING, 1, -1, "")])
        assert refused.result() == [0], "at once"
        assert await accepted == []

    run_cluster(scene, brokers=1)


# --- cache limit


def test_offsets_of_idle_groups_are_left_to_the_store_beyond_a_limit_and_read_when_asked_for(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (old,) = cluster.brokers.values()
        for n in range(100):
            assert await old.commit(f"g{n}", t, n) is E.NONE
        await old.kill()
        new = await cluster.add(2)
        new.groups.offsets.cache.limit = 20
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
            broker.groups.offsets.cache.evict("g")
            reading = asyncio.ensure_future(broker.offset("g", t))
            for _ in range(offset % 12):
                await asyncio.sleep(0)
            assert await broker.commit("g", t, offset) is E.NONE
            assert await reading in (offset - 1, offset)
            assert await broker.offset("g", t) == offset

    run_cluster(scene, brokers=1)


# --- offsets without a group record


def count_reads(broker):
    """Return a list to which each later range that the broker reads appends its prefix."""
    real, read = broker.line.range, []

    async def counting(prefix, revision=0):
        read.append(prefix)
        return await real(prefix, revision)

    broker.line.range = counting
    return read


async def no_record(store):
    """Delete the group's record, as if the last coordinator had only written a transaction's offsets."""


async def unreadable_record(store):
    await store.txn((), [PutOp(keys.group("g"), b"?")])


@pytest.mark.parametrize("left", [no_record, unreadable_record])
def test_what_a_group_without_a_record_had_committed_is_told_also_after_it_commits_more(run_cluster, left):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (old,) = cluster.brokers.values()
        await old.kill()
        stored = records.encode(OffsetRecord(offset=7, commit_ms=cluster.clock.wall_ms()))
        await cluster.store.txn((), [PutOp(keys.offset("g", t, 0), stored)])
        await left(cluster.store)
        new = await cluster.add(2)
        await cluster.assign()
        assert not new.groups.exists("g")
        assert await new.commit("g", t, 5, index=1) is E.NONE
        assert await new.offset("g", t) == 7
        assert await new.offset("g", t, index=1) == 5

    run_cluster(scene, brokers=1)


def test_a_new_group_is_read_once_however_much_it_commits(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        read = count_reads(broker)
        names = [f"g{n}" for n in range(20)]
        for offset in range(50):
            errors = await asyncio.gather(*[broker.commit(name, t, offset) for name in names])
            assert set(errors) == {E.NONE}
        await asyncio.sleep(1)
        assert sorted(read) == sorted(map(keys.group_offsets, names))
        assert {(c.group_id, c.offset) for c in broker.groups.committed()} == {(name, 49) for name in names}

    run_cluster(scene, brokers=1)


def test_offsets_of_a_new_group_end_also_where_memory_is_full(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        broker.config.offsets_retention_minutes = 60
        broker.groups.offsets.cache.limit = 0
        for n in range(20):
            assert await broker.commit(f"g{n}", t, n) is E.NONE
        await asyncio.sleep(3 * 3600)
        assert broker.groups.group_ids() == []
        assert (await cluster.store.range(keys.OFFSETS)).entries == []

    run_cluster(scene, brokers=1)


# --- cached state from before a shard moved


async def asked_for(broker, topic_id):
    assert await broker.offset("g", topic_id) is None


async def deleted(broker, topic_id):
    assert await broker.commit("g", topic_id, 1) is E.NONE
    assert await broker.groups.delete("g") is E.NONE


async def being_read(broker, topic_id):
    """Start a read whose response arrives after the shard has moved."""
    real = broker.line.range

    async def slow(prefix, revision=0):
        found = await real(prefix, revision)
        if prefix == keys.group_offsets("g"):
            broker.line.range = real
            await asyncio.sleep(1)
        return found

    broker.line.range = slow
    reading = asyncio.ensure_future(broker.offset("g", topic_id))
    await asyncio.sleep(0.1)
    assert not reading.done()


@pytest.mark.parametrize("known", [asked_for, deleted, being_read])
def test_when_a_shard_comes_back_what_another_broker_committed_there_is_told(run_cluster, known):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        await known(broker, t)
        other = await cluster.add(2)
        await cluster.assign(draining={broker.broker_id})
        assert await other.commit("g", t, 7) is E.NONE
        await other.kill()
        await cluster.assign()
        assert await broker.offset("g", t) == 7

    run_cluster(scene, brokers=1)


def test_a_group_without_offsets_is_read_once_however_often_it_is_asked_for(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        read = count_reads(broker)
        for _ in range(5):
            assert await broker.offset("g", t) is None
        assert read.count(keys.group_offsets("g")) == 1
        assert await broker.commit("g", t, 7) is E.NONE
        assert await broker.offset("g", t) == 7
        assert read.count(keys.group_offsets("g")) == 1

    run_cluster(scene, brokers=1)


def test_a_group_is_read_while_its_shard_is_confirmed(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        is_confirming, real = asyncio.Event(), broker.line.range

        async def reading(prefix, revision=0):
            if prefix == keys.SHARDS:
                is_confirming.set()
            else:
                await is_confirming.wait()
            return await real(prefix, revision)

        broker.line.range = reading
        async with asyncio.timeout(60):
            assert await broker.offset("g", t) is None

    run_cluster(scene, brokers=1)


def test_a_shard_that_came_back_during_a_request_is_kept(run_cluster):
    """The request confirmed the record by which this broker owned the shard before."""

    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        number = keys.shard_of("g")
        assert number != keys.shard_of("slow")
        may_read, real = asyncio.Event(), broker.line.range

        async def reading(prefix, revision=0):
            if prefix == keys.group_offsets("slow"):
                await may_read.wait()
            return await real(prefix, revision)

        broker.line.range = reading
        asked = asyncio.ensure_future(broker.groups.reads.prepare(["g", "slow"]))
        await asyncio.sleep(1)
        epoch = broker.view.shards[number].epoch + 1
        record = records.ShardRecord(broker_id=broker.broker_id, broker_epoch=broker.membership.epoch, epoch=epoch)
        await cluster.store.txn((), [PutOp(keys.shard(number), records.encode(record))])
        await asyncio.sleep(1)
        shard = broker.groups.ownership.get(number)
        may_read.set()
        assert await asked == {"g": E.NOT_COORDINATOR, "slow": E.NONE}
        assert broker.groups.ownership.get(number) is shard
        assert await broker.commit("g", t, 7) is E.NONE

    run_cluster(scene, brokers=1)


def test_of_groups_that_do_not_exist_the_last_ones_asked_for_are_kept(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        broker.groups.reads.limit = 10
        names = [f"g{n % 50}" for n in range(200)]
        assert await asyncio.gather(*(broker.offset(name, t) for name in names)) == [None] * 200
        for name in [*names[:50], "g40"]:
            assert await broker.offset(name, t) is None
        cached = {name for name in names if name in broker.groups.offsets.cache}
        assert cached == {f"g{n}" for n in range(40, 50)}
        assert await broker.offset("new", t) is None
        assert "g40" in broker.groups.offsets.cache
        assert "g41" not in broker.groups.offsets.cache

    run_cluster(scene, brokers=1)


@pytest.mark.parametrize("name", ["", "g" * (MAX_GROUP_ID_CHARS + 1)], ids=["empty", "long"])
def test_of_a_name_that_no_group_can_have_nothing_is_kept(run_cluster, name):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        assert await broker.offset(name, t) is None
        assert name not in broker.groups.offsets.cache

    run_cluster(scene, brokers=1)


def test_a_group_that_was_asked_for_before_it_had_members_stays_in_memory(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        broker.groups.reads.limit = 2
        assert await broker.offset("g", t) is None
        await stable(broker, "g")
        for n in range(5):
            assert await broker.offset(f"h{n}", t) is None
        assert "g" in broker.groups.offsets.cache

    run_cluster(scene, brokers=1)


def test_nothing_is_told_of_a_shard_that_went_while_others_of_the_same_request_were_read(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        assert await broker.commit("g", t, 7) is E.NONE
        others = [f"h{n}" for n in range(3 * MAX_CONCURRENT_READS) if keys.shard_of(f"h{n}") != keys.shard_of("g")]
        real = broker.line.range

        async def losing(prefix, revision=0):
            if prefix == keys.group_offsets(others[-1]):
                broker.groups.ownership.handle_lost(keys.shard_of("g"))
            return await real(prefix, revision)

        broker.line.range = losing
        errors = await broker.groups.reads.prepare(["g", *others])
        assert errors == {"g": E.NOT_COORDINATOR, **dict.fromkeys(others, E.NONE)}

    run_cluster(scene, brokers=1)


def test_a_request_for_more_groups_than_may_be_is_refused_and_reads_nothing(run_cluster):
    async def scene(cluster):
        (broker,) = cluster.brokers.values()
        broker.line.is_cut = True
        names = [f"g{n}" for n in range(MAX_GROUPS + 1)]
        assert set((await broker.groups.reads.prepare(names)).values()) == {E.INVALID_REQUEST}

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
                owner.groups.offsets.cache.evict(f"g{n}")
        controller = cluster.brokers[1].groups
        late = cluster.brokers[2]
        late.line.is_cut = True
        await cluster.delete_topic("t", t)
        await asyncio.sleep(3)
        with pytest.raises(StoreUnavailable, match="32 shards"):
            await controller.delete_topic_offsets(t)
        late.line.is_cut = False
        await asyncio.sleep(30)
        await controller.delete_topic_offsets(t)
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
        await next(iter(cluster.brokers.values())).groups.delete_topic_offsets(t)
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
        new.groups.offsets.cache.limit = 0
        await cluster.assign()
        await asyncio.sleep(26 * 3600)
        assert new.groups.group_ids() == []
        assert (await cluster.store.range(keys.OFFSETS)).entries == []
        assert (await cluster.store.range(keys.GROUPS)).entries == []

    run_cluster(scene, brokers=1)
