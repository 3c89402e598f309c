"""Groups that change their protocol while they have members: both directions, policies and restarts."""

from __future__ import annotations

import asyncio
import struct

import pytest
from test_modern_groups import beat, join, members_in_store

from penstock.group.calls import JoinResult, SyncRequest
from penstock.group.offsets import OffsetCommit
from penstock.group.phases import GroupState
from penstock.group.subscription import encode_assignment, parse_assignment
from penstock.wire import codec
from penstock.wire.errors import ErrorCode as E
from penstock.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription, TopicPartition


def metadata(*owned: int) -> dict[str, bytes]:
    parts = [TopicPartition(topic="t", partitions=list(owned))] if owned else []
    message = ConsumerProtocolSubscription(topics=["t"], owned_partitions=parts)
    return {"range": struct.pack(">h", 1) + bytes(codec.encode(message, 1))}


async def classic_group(world, *shares: set[int], group_id: str = "g") -> list[JoinResult]:
    """Form a stable classic group whose members have these partitions."""
    world.config.group_initial_rebalance_delay_ms = 5
    joins = [world.groups.join(group_id, world.request(protocols=metadata())) for _ in shares]
    joined = [await each for each in joins]
    plan = {
        result.member_id: encode_assignment([("t", share)], 1) for result, share in zip(joined, shares, strict=True)
    }
    world.config.group_initial_rebalance_delay_ms = 0
    syncs = [
        world.groups.sync(
            group_id, SyncRequest(j.member_id, j.generation, assignments=plan if j.leader == j.member_id else {})
        )
        for j in joined
    ]
    for each in syncs:
        assert (await each).error is E.NONE
    return joined


async def rejoin(world, member: JoinResult, *owned: int) -> tuple[JoinResult, set[int]]:
    joined = await world.groups.join("g", world.request(member.member_id, protocols=metadata(*owned)))
    assert joined.error is E.NONE
    result = await world.groups.sync("g", SyncRequest(joined.member_id, joined.generation))
    assert result.error is E.NONE
    named, _ = parse_assignment(result.assignment)
    return joined, {index for _, indexes in named for index in indexes}


def heartbeat(world, member: JoinResult) -> E:
    return world.groups.heartbeat("g", member.member_id, None, member.generation)


def test_the_first_modern_member_upgrades_a_group_and_gets_what_classic_members_release(run_world):
    async def scene(world):
        topic = world.create_topic("t")
        [one] = await classic_group(world, {0, 1, 2, 3})
        joined = await join(world, "m")
        assert (joined.error, joined.epoch, joined.assigned) == (E.NONE, one.generation + 1, {})
        assert heartbeat(world, one) is E.REBALANCE_IN_PROGRESS
        commit = [OffsetCommit(topic, 0, 7, -1, "")]
        assert world.groups.check_commit("g", one.member_id, None, one.generation, [(topic, 0)]) is E.NONE
        assert await world.groups.commit("g", commit) == []
        one, kept = await rejoin(world, one, 0, 1, 2, 3)
        assert len(kept) == 2
        assert (await beat(world, "m", joined.epoch, owned={})).assigned is None
        one, kept = await rejoin(world, one, *kept)
        second = await beat(world, "m", joined.epoch, owned={})
        assert second.assigned == {topic: frozenset({0, 1, 2, 3} - kept)}
        assert heartbeat(world, one) is E.NONE

    run_world(scene)


def test_a_group_is_upgraded_again_after_a_restart_where_its_classic_members_go_on(run_world):
    async def scene(world):
        world.create_topic("t")
        [one] = await classic_group(world, {0, 1, 2, 3})
        await join(world, "m")
        one, kept = await rejoin(world, one)
        await world.restart()
        group = world.groups.find_modern("g")
        assert group is not None
        assert {m.member_id: m.classic is not None for m in group.members.values()} == {one.member_id: True, "m": False}
        assert heartbeat(world, one) is E.NONE
        one, again = await rejoin(world, one, *kept)
        assert again == kept

    run_world(scene)


def test_an_upgrade_stores_the_classic_members_with_what_they_use(run_world):
    async def scene(world):
        topic = world.create_topic("t")
        [one] = await classic_group(world, {0, 1, 2, 3})
        await join(world, "m")
        assert sorted(await members_in_store(world)) == sorted(["m", one.member_id])
        await world.restart()
        group = world.groups.find_modern("g")
        assert group.members[one.member_id].assigned == {topic: frozenset(range(4))}
        assert heartbeat(world, one) is E.REBALANCE_IN_PROGRESS

    run_world(scene)


def test_members_that_wait_in_a_rebalance_join_again_and_keep_what_they_report(run_world):
    async def scene(world):
        topic = world.create_topic("t")
        one, two = await classic_group(world, {0, 1}, {2, 3})
        waiting = [
            world.groups.join("g", world.request(one.member_id, protocols=metadata(0, 1))),
            world.groups.join("g", world.request(two.member_id, protocols=metadata(2, 3))),
        ]
        one, two = [await each for each in waiting]
        syncing = world.groups.sync("g", SyncRequest(two.member_id, two.generation))
        if two.leader == two.member_id:
            syncing = world.groups.sync("g", SyncRequest(one.member_id, one.generation))
        joined = await join(world, "m")
        assert (await syncing).error is E.REBALANCE_IN_PROGRESS
        assert joined.assigned == {}, "the classic members use all partitions"
        group = world.groups.find_modern("g")
        assert group.members[one.member_id].assigned == {topic: frozenset({0, 1})}
        assert group.members[two.member_id].assigned == {topic: frozenset({2, 3})}

    run_world(scene)


def test_a_group_is_downgraded_when_its_last_modern_member_leaves(run_world):
    async def scene(world):
        world.create_topic("t")
        await join(world, "m")
        one = await world.groups.join("g", world.request(protocols=metadata()))
        await asyncio.sleep(1)  # the interval between assignments
        await beat(world, "m", 1, owned={})
        one, kept = await rejoin(world, one)
        assert len(kept) == 2
        await beat(world, "m", -1)
        group = world.groups.find("g")
        assert group is not None
        assert group.phases.state is GroupState.PREPARING_REBALANCE
        assert world.groups.find_modern("g") is None
        assert heartbeat(world, one) is E.REBALANCE_IN_PROGRESS, "the member keeps its generation until it rejoins"
        after = await world.groups.join("g", world.request(one.member_id, protocols=metadata(*kept)))
        assert (after.error, after.leader) == (E.NONE, one.member_id)
        assert after.generation > one.generation
        await world.groups.offsets.writers.drain()
        assert await members_in_store(world) == []

    run_world(scene)


def test_a_downgraded_group_stays_one_after_a_restart(run_world):
    async def scene(world):
        world.create_topic("t")
        await join(world, "m")
        one = await world.groups.join("g", world.request(protocols=metadata()))
        await beat(world, "m", -1)
        await world.groups.offsets.writers.drain()
        await world.restart()
        assert world.groups.find_modern("g") is None
        assert heartbeat(world, one) is E.UNKNOWN_MEMBER_ID
        again = await world.groups.join("g", world.request(protocols=metadata()))
        assert again.generation > one.generation

    run_world(scene)


def test_a_modern_member_without_heartbeats_leaves_a_classic_group(run_world):
    async def scene(world):
        world.create_topic("t")
        await join(world, "m")
        one = await world.groups.join("g", world.request(protocols=metadata(), session_timeout_ms=300_000))
        await asyncio.sleep(50)
        assert world.groups.find("g") is not None
        assert heartbeat(world, one) is E.REBALANCE_IN_PROGRESS

    run_world(scene)


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [("bidirectional", True, True), ("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_the_policy_says_in_which_direction_a_group_changes(run_world, policy, upgrades, downgrades):
    async def scene(world):
        world.config.group_consumer_migration_policy = policy
        world.create_topic("t")
        await classic_group(world, {0, 1, 2, 3}, group_id="classic")
        upgraded = await join(world, "m", "classic")
        assert upgraded.error is (E.NONE if upgrades else E.INCONSISTENT_GROUP_PROTOCOL)
        await join(world, "m")
        assert (await world.groups.join("g", world.request(protocols=metadata()))).error is E.NONE
        await beat(world, "m", -1)
        assert (world.groups.find("g") is not None) == downgrades

    run_world(scene)


def test_a_group_with_members_that_are_no_consumers_is_not_upgraded(run_world):
    async def scene(world):
        world.create_topic("t")
        await world.groups.join("connect", world.request(protocols={"range": b"?"}))
        assert (await join(world, "m", "connect")).error is E.INCONSISTENT_GROUP_PROTOCOL
        [one] = await classic_group(world, {0})
        joined = await world.groups.join("g", world.request(one.member_id, protocols=metadata()))
        own_data = encode_assignment([("t", {0})], 1)[:-4] + b"\0\0\0\1x"
        plan = {joined.member_id: own_data}
        await world.groups.sync("g", SyncRequest(joined.member_id, joined.generation, assignments=plan))
        assert (await join(world, "m")).error is E.INCONSISTENT_GROUP_PROTOCOL
        assert world.groups.find("g") is not None

    run_world(scene)


def test_a_classic_member_that_leaves_frees_its_partitions(run_world):
    async def scene(world):
        topic = world.create_topic("t")
        [one] = await classic_group(world, {0, 1, 2, 3})
        await join(world, "m")
        assert world.groups.leave("g", [(one.member_id, None), ("gone", None)]) == (
            E.NONE,
            [E.NONE, E.UNKNOWN_MEMBER_ID],
        )
        await asyncio.sleep(1)
        assert (await beat(world, "m", 2, owned={})).assigned == {topic: frozenset(range(4))}

    run_world(scene)
