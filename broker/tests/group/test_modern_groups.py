"""Consumer and share groups in the coordinator: durability before responses, restarts, types, settings, deletion."""

from __future__ import annotations

import asyncio
import inspect
from uuid import UUID

from penstock.group import admin, settings_refresh
from penstock.group.modern.consumer import HeartbeatResult, MemberHeartbeat
from penstock.group.modern.group import MAX_INLINE_SIZE, GroupType
from penstock.group.modern.share import share_heartbeat
from penstock.group.offsets import OffsetCommit
from penstock.state import keys
from penstock.state.records import GroupSettingsRecord, encode
from penstock.state.store import PutOp, StoreUnavailable
from penstock.wire.errors import ErrorCode as E

REBALANCE_MS = 60_000


async def beat(world, member_id: str, epoch: int, group_id: str = "g", **fields) -> HeartbeatResult:
    result = world.groups.modern.heartbeat(GroupType.CONSUMER, group_id, MemberHeartbeat(member_id, epoch, **fields))
    return await result if inspect.isawaitable(result) else result


async def join(world, member_id: str, group_id: str = "g", topics=("t",), **fields) -> HeartbeatResult:
    first = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": topics, "owned": {}, **fields}
    return await beat(world, member_id, 0, group_id, **first)


def stored_members(entries) -> list[str]:
    return [keys.parse_group_member(entry.key)[1] for entry in entries]


async def members_in_store(world) -> list[str]:
    return stored_members((await world.store.range(keys.GROUP_MEMBERS)).entries)


def test_a_member_is_durable_before_its_response(run_world):
    async def scene(world):
        topic = world.create_topic("t")
        result = world.groups.modern.heartbeat(
            GroupType.CONSUMER, "g", MemberHeartbeat("a", 0, rebalance_timeout_ms=1, topic_names=("t",), owned={})
        )
        assert inspect.isawaitable(result), "the response does not wait for the write"
        joined = await result
        assert (joined.epoch, joined.assigned) == (1, {topic: frozenset(range(4))})
        assert await members_in_store(world) == ["a"]
        assert not inspect.isawaitable(world.groups.modern.heartbeat(GroupType.CONSUMER, "g", MemberHeartbeat("a", 1)))

    run_world(scene)


def test_members_go_on_after_a_restart_with_their_epochs_and_partitions(run_world):
    async def scene(world):
        world.create_topic("t")
        joined = await join(world, "a")
        await world.restart()
        again = await beat(world, "a", 1, rebalance_timeout_ms=1, topic_names=("t",), owned=joined.assigned)
        assert (again.error, again.epoch, again.assigned) == (E.NONE, 1, joined.assigned)

    run_world(scene)


def test_a_failed_write_is_an_error_that_clients_retry_and_the_next_heartbeat_stores_it(run_world):
    async def scene(world):
        world.create_topic("t")
        await join(world, "a")
        world.store.failure = StoreUnavailable("the disk is full")
        assert (await join(world, "b")).error is E.COORDINATOR_NOT_AVAILABLE
        assert (await beat(world, "a", 1)).error is E.COORDINATOR_NOT_AVAILABLE
        world.store.failure = None
        assert (await beat(world, "a", 1)).error is E.NONE
        assert sorted(await members_in_store(world)) == ["a", "b"]

    run_world(scene)


def test_a_member_without_heartbeats_is_removed_by_the_timer(run_world):
    async def scene(world):
        world.create_topic("t")
        await join(world, "a")
        await asyncio.sleep(46)
        assert (await beat(world, "a", 1)).error is E.UNKNOWN_MEMBER_ID
        assert await members_in_store(world) == []
        (summary,) = admin.list_groups(world.groups, ["empty"], ["consumer"])
        assert summary == ("g", "consumer", "Empty", "consumer")

    run_world(scene)


def test_a_group_that_went_is_an_unknown_member_and_never_a_missing_group(run_world):
    async def scene(world):
        assert (await beat(world, "a", 3)).error is E.UNKNOWN_MEMBER_ID
        for group_id in ("", " "):
            refused = await beat(world, "a", 3, group_id)
            assert refused.error is E.INVALID_REQUEST
            assert refused.message == "GroupId must have 1 to 1024 characters, not all of them spaces."
        assert not world.groups.exists("g")

    run_world(scene)


def test_a_classic_group_with_members_stays_one_if_migration_is_disabled(run_world):
    async def scene(world):
        world.create_topic("t")
        world.config.group_consumer_migration_policy = "disabled"
        await world.stable("classic")
        assert (await join(world, "a", "classic")).error is E.INCONSISTENT_GROUP_PROTOCOL
        await join(world, "a")
        listed = {(each.group_id, each.group_type.value) for each in admin.list_groups(world.groups, [], [])}
        assert listed == {("classic", "classic"), ("g", "consumer")}
        assert admin.describe(world.groups, "g") is None

    run_world(scene)


def test_an_empty_group_changes_its_protocol_and_keeps_counting(run_world):
    async def scene(world):
        world.create_topic("t")
        joined = await world.stable("g")
        world.groups.leave("g", [(joined.member_id, None)])
        first = await join(world, "a")
        assert first.epoch > joined.generation
        await beat(world, "a", -1)
        back = await world.stable("g")
        assert back.generation > first.epoch
        await world.restart()
        assert world.groups.find("g") is not None
        assert world.groups.find_modern("g") is None

    run_world(scene)


def test_an_empty_consumer_group_stays_one_after_a_restart(run_world):
    async def scene(world):
        world.create_topic("t")
        await join(world, "a")
        await beat(world, "a", -1)
        await world.restart()
        assert [each.group_type.value for each in admin.list_groups(world.groups, [], [])] == ["consumer"]
        assert (await join(world, "b")).epoch == 3

    run_world(scene)


def test_a_group_with_members_is_not_deleted_and_an_empty_one_leaves_nothing(run_world):
    async def scene(world):
        topic = world.create_topic("t")
        await join(world, "a")
        assert not await world.groups.commit("g", [OffsetCommit(topic, 0, 1, -1, "")])
        assert await world.groups.delete("g") is E.NON_EMPTY_GROUP
        await beat(world, "a", -1)
        assert await world.groups.delete("g") is E.NONE
        for prefix in (keys.GROUPS, keys.GROUP_MEMBERS, keys.OFFSETS):
            assert not (await world.store.range(prefix)).entries

    run_world(scene)


def test_commits_are_fenced_by_the_members_epoch(run_world):
    async def scene(world):
        topic = world.create_topic("t")
        await join(world, "a")
        assert world.groups.check_commit("g", "a", None, 1, [(topic, 0)]) is E.NONE
        assert world.groups.check_commit("g", "a", None, 2, [(topic, 0)]) is E.STALE_MEMBER_EPOCH
        assert world.groups.check_commit("g", "b", None, 1, [(topic, 0)]) is E.UNKNOWN_MEMBER_ID
        assert world.groups.check_commit("g", "", None, -1, [(topic, 0)]) is E.UNKNOWN_MEMBER_ID

    run_world(scene)


def test_a_new_topic_is_assigned_at_the_next_heartbeat(run_world):
    async def scene(world):
        world.create_topic("t")
        await join(world, "a", topics=("t", "u"))
        await asyncio.sleep(2)
        created: UUID = world.create_topic("u")
        assert created in (await beat(world, "a", 1)).assigned

    run_world(scene)


def test_changed_settings_of_a_group_take_effect_while_it_runs(run_world):
    async def scene(world):
        world.create_topic("t")
        assert (await join(world, "a")).interval_ms == 5000
        changed = encode(GroupSettingsRecord(settings={"consumer.heartbeat.interval.ms": "7000"}, changed_ms=1))
        await world.store.txn([], [PutOp(keys.group_settings("g"), changed)])
        await asyncio.sleep(settings_refresh.REFRESH_S + 1)
        assert (await beat(world, "a", 1)).interval_ms == 7000
        await world.restart()
        assert (await beat(world, "a", 1)).interval_ms == 7000

    run_world(scene)


def test_a_large_group_is_assigned_in_a_thread(run_world):
    async def scene(world):
        world.create_topic("t", MAX_INLINE_SIZE + 1)
        await join(world, "a")
        await join(world, "b")
        await asyncio.sleep(2)
        reduced = await beat(world, "a", 1)
        assert sum(map(len, reduced.assigned.values())) in (MAX_INLINE_SIZE // 2, MAX_INLINE_SIZE // 2 + 1)

    run_world(scene)


async def share_beat(world, member_id: str, epoch: int, topics=None) -> HeartbeatResult:
    request = share_heartbeat(member_id, epoch, topic_names=topics)
    result = world.groups.modern.heartbeat(GroupType.SHARE, "g", request)
    return await result if inspect.isawaitable(result) else result


def test_the_members_of_a_share_group_go_on_after_a_restart(run_world):
    async def scene(world):
        topic = world.create_topic("t")
        for member_id in ("a", "b"):
            await share_beat(world, member_id, 0, ("t",))
        await asyncio.sleep(1)
        for member_id, epoch in (("a", 1), ("b", world.groups.find_modern("g").members["b"].epoch)):
            await share_beat(world, member_id, epoch)
        before = {m.member_id: m.assigned[topic] for m in world.groups.find_modern("g").members.values()}
        await world.restart()
        assert world.groups.find_modern("g").group_type is GroupType.SHARE
        again = await share_beat(world, "a", 2, ("t",))
        assert (again.error, again.epoch, again.assigned) == (E.NONE, 2, {topic: before["a"]})

    run_world(scene)


def test_an_empty_share_group_stays_after_a_restart_and_never_expires(run_world):
    async def scene(world):
        world.create_topic("t")
        await share_beat(world, "a", 0, ("t",))
        await share_beat(world, "a", -1)
        world.config.offsets_retention_minutes = 1
        await asyncio.sleep(120)
        world.groups.retention.run()
        await asyncio.sleep(1)
        await world.restart()
        assert admin.list_groups(world.groups, ["empty"], ["share"]) == [("g", "share", "Empty", "share")]
        assert (await share_beat(world, "a", 1)).error is E.UNKNOWN_MEMBER_ID
        assert (await share_beat(world, "a", 0, ("t",))).epoch == 3

    run_world(scene)
