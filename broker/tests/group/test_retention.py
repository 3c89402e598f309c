"""Expiry of committed offsets (KIP-211)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.group.expiry import NEVER, ExpiryQueue, OffsetUsage, expires_ms
from penstock.group.offset_table import OffsetKey
from penstock.group.offsets import OffsetCommit
from penstock.state import keys
from penstock.state.records import OffsetRecord
from penstock.txn.offsets import TxnCommit, TxnOffsets
from penstock.txn.state_machine import ProducerIdentity
from penstock.txn.transaction_partitions import TransactionEnding
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode

DAY_S = 86_400
RETENTION = {"offsets_retention_minutes": 24 * 60}


@pytest.mark.parametrize(
    ("usage", "expire_ms", "ends_ms"),
    [
        (OffsetUsage(True, None, None), -1, 100 + 1000),
        (OffsetUsage(False, 500, None), -1, 500 + 1000),
        (OffsetUsage(False, 50, None), -1, 100 + 1000),
        (OffsetUsage(False, None, frozenset({"t"})), -1, NEVER),
        (OffsetUsage(False, None, frozenset({"u"})), -1, 100 + 1000),
        (OffsetUsage(False, None, None), -1, NEVER),
        (OffsetUsage(True, None, None), 300, 300),
        (OffsetUsage(False, 500, None), 300, 300),
        (OffsetUsage(False, None, frozenset({"t"})), 300, NEVER),
    ],
)
def test_when_an_offset_ends(usage, expire_ms, ends_ms):
    record = OffsetRecord(offset=1, commit_ms=100, expire_ms=expire_ms)
    assert expires_ms(record, "t", usage, 1000) == ends_ms


def test_the_queue_gives_groups_out_once_in_their_time():
    queue = ExpiryQueue()
    queue.schedule("a", 30)
    queue.schedule("b", 20)
    queue.schedule("a", 10)
    queue.schedule("a", 40)
    assert queue.pop_due(9) == []
    assert queue.pop_due(10) == ["a"]
    assert queue.pop_due(1000) == ["b"]
    assert queue.pop_due(1000) == []
    assert not queue


def test_offsets_without_a_group_end_after_their_last_commit(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, ""), OffsetCommit(t, 1, 1, -1, "")])
        await asyncio.sleep(DAY_S / 2)
        await world.groups.commit("g", [OffsetCommit(t, 0, 2, -1, "")])
        await asyncio.sleep(DAY_S / 2 + 1200)
        assert [c.partition for c in world.groups.committed()] == [0]
        await asyncio.sleep(DAY_S / 2)
        assert not world.groups.exists("g")

    run_world(scene, **RETENTION)


def test_offsets_of_a_group_are_kept_while_it_has_members_and_a_day_longer(run_world):
    async def scene(world):
        t = world.create_topic("t")
        member = await world.stable("g", session_timeout_ms=1_800_000)
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        for _ in range(3 * 48):
            await asyncio.sleep(1700)
            world.groups.heartbeat("g", member.member_id, None, 1)
        world.groups.leave("g", [(member.member_id, None)])
        await asyncio.sleep(DAY_S - 60)
        assert [c.offset for c in world.groups.committed()] == [1]
        await asyncio.sleep(1300)
        assert not world.groups.exists("g"), "with its last offset an empty group goes"
        await world.restart()
        assert not world.groups.exists("g")

    run_world(scene, **RETENTION)


def test_offsets_of_topics_that_members_no_longer_subscribe_to_end(run_world):
    async def scene(world):
        t, u = world.create_topic("t"), world.create_topic("u")
        member = await world.stable("g", session_timeout_ms=1_800_000)
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, ""), OffsetCommit(u, 0, 1, -1, "")])
        for _ in range(60):
            await asyncio.sleep(1700)
            world.groups.heartbeat("g", member.member_id, None, 1)
        assert [c.topic for c in world.groups.committed()] == ["t"]

    run_world(scene, **RETENTION)


def test_a_client_may_ask_for_another_retention(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")], retention_ms=3_600_000)
        await world.groups.commit("g", [OffsetCommit(t, 1, 1, -1, "")])
        await asyncio.sleep(3000)
        assert len(list(world.groups.committed())) == 2
        await asyncio.sleep(1300)
        assert [c.partition for c in world.groups.committed()] == [1]

    run_world(scene, **RETENTION)


@pytest.mark.parametrize("metadata_bytes", [100, 2_000_000])
def test_a_restart_does_not_end_offsets_of_a_group_that_had_members_for_long(run_world, metadata_bytes):
    async def scene(world):
        t = world.create_topic("t")
        protocols = {"range": b"x" * metadata_bytes}
        member = await world.stable("g", session_timeout_ms=1_800_000, protocols=protocols)
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        for _ in range(60):
            await asyncio.sleep(1700)
            world.groups.heartbeat("g", member.member_id, None, 1)
        await world.restart()
        await asyncio.sleep(3600)
        assert [c.offset for c in world.groups.committed()] == [1]

    run_world(scene, **RETENTION)


def test_a_restart_does_not_prolong_retention(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        await asyncio.sleep(DAY_S - 100)
        await world.restart()
        await asyncio.sleep(1300)
        assert not world.groups.exists("g")

    run_world(scene, **RETENTION)


def test_an_empty_group_without_offsets_goes_with_the_next_pass(run_world):
    async def scene(world):
        member = await world.stable("g")
        world.groups.leave("g", [(member.member_id, None)])
        assert world.groups.exists("g")
        await asyncio.sleep(700)
        assert not world.groups.exists("g")

    run_world(scene)


def test_a_commit_on_its_way_saves_an_offset_that_was_about_to_end(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        world.groups.retention.close()
        await asyncio.sleep(2 * DAY_S)
        commit = world.groups.commit("g", [OffsetCommit(t, 0, 2, -1, "")])
        world.groups.retention.run()
        assert await commit == []
        await asyncio.sleep(1)
        assert [c.offset for c in world.groups.committed()] == [2]

    run_world(scene, **RETENTION)


@pytest.mark.parametrize(("committed", "left"), [(True, [9]), (False, [])])
def test_a_group_for_which_a_transaction_has_brought_offsets_waits_for_its_end(run_world, committed, left):
    async def scene(world):
        t = world.create_topic("t")
        offsets = world.groups.offsets
        pending = offsets.pending = TxnOffsets(offsets, world.clock, world.groups.ownership.error, is_owned)
        for number in range(keys.SHARD_COUNT):
            pending.load_shard(number, [])
        member = await world.stable("g")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        who = TxnCommit("g", "x", ProducerIdentity(5, 0), 1)
        assert await pending.commit(pending.writer("g"), who, [OffsetCommit(t, 1, 9, -1, "")]) == []
        world.groups.leave("g", [(member.member_id, None)])
        await asyncio.sleep(2 * DAY_S)
        assert list(world.groups.committed()) == []
        assert world.groups.exists("g")
        assert (
            await pending.complete_transaction(keys.shard_of("g"), TransactionEnding(Marker(5, 0, committed, 0), 1))
            is ErrorCode.NONE
        )
        await asyncio.sleep(1)
        assert [c.offset for c in world.groups.committed()] == left
        await asyncio.sleep(3 * DAY_S)
        assert not world.groups.exists("g")

    run_world(scene, **RETENTION)


async def is_owned(number):
    return True


def test_nothing_ends_after_the_wall_clock_leaped_until_it_is_set_right(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        world.clock.leap_ms = 40 * DAY_S * 1000
        await asyncio.sleep(3600)
        assert world.groups.retention.paused
        assert world.groups.exists("g")
        world.clock.leap_ms = 0
        await asyncio.sleep(3600)
        assert not world.groups.retention.paused
        assert world.groups.exists("g")
        await asyncio.sleep(DAY_S)
        assert not world.groups.exists("g")

    run_world(scene, **RETENTION)


@pytest.mark.parametrize("retention_ms", [(1 << 63) - 1, 1 << 62, NEVER // 2])
@pytest.mark.parametrize("is_stored", [False, True])
def test_an_offset_that_is_to_stay_for_ever_does(run_world, retention_ms, is_stored):
    """The sum of commit time and retention may exceed the largest timestamp."""

    async def scene(world):
        t = world.create_topic("t")
        member = await world.stable("g", session_timeout_ms=1_800_000)
        if is_stored:
            forever = OffsetRecord(offset=7, commit_ms=world.clock.wall_ms(), expire_ms=retention_ms)
            world.groups.offsets._put(OffsetKey("g", t, 0), forever)
        else:
            assert not await world.groups.commit("g", [OffsetCommit(t, 0, 7, -1, "")], retention_ms=retention_ms)
        world.groups.leave("g", [(member.member_id, None)])
        await asyncio.sleep(40 * DAY_S)
        assert [c.offset for c in world.groups.committed()] == [7]
        assert world.groups.exists("g")

    run_world(scene, **RETENTION)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_of_groups_that_were_deleted_or_have_expired_nothing_stays_in_memory(run_world, is_deleted):
    async def scene(world):
        t = world.create_topic("t")
        for i in range(100):
            await world.groups.commit(f"g{i}", [OffsetCommit(t, 0, 7, -1, "")])
        if is_deleted:
            for i in range(100):
                assert await world.groups.delete(f"g{i}") == ErrorCode.NONE
        else:
            await asyncio.sleep(3 * DAY_S)
        assert world.groups.group_ids() == []
        assert len(world.groups.offsets.cache._cached) == 0

    run_world(scene, **RETENTION)


def test_a_commit_that_crosses_the_deletion_of_its_group_counts(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 7, -1, "")])
        deleting = asyncio.ensure_future(world.groups.delete("g"))
        while world.groups.exists("g"):
            await asyncio.sleep(0)
        assert not await world.groups.commit("g", [OffsetCommit(t, 0, 9, -1, "")])
        assert await deleting == ErrorCode.NONE
        assert await world.groups.reads.prepare(["g"]) == {"g": ErrorCode.NONE}
        assert [c.offset for c in world.groups.committed()] == [9]
        assert world.groups.exists("g")

    run_world(scene, **RETENTION)


def test_offsets_may_change_while_the_metrics_walk_through_them(run_world):
    async def scene(world):
        t = world.create_topic("t")
        for group in ("a", "b"):
            await world.groups.commit(group, [OffsetCommit(t, p, 7, -1, "") for p in range(3)])
        walk = world.groups.committed()
        found = [next(walk)]
        await world.groups.commit("a", [OffsetCommit(t, 3, 7, -1, "")])
        await world.groups.delete("b")
        found += list(walk)
        assert [(c.group_id, c.partition) for c in found] == [("a", 0), ("a", 1), ("a", 2)]

    run_world(scene, **RETENTION)
