"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, and what the other APIs say of consumer groups."""

from __future__ import annotations

import pytest

from penstock.wire.errors import ErrorCode as E
from penstock.wire.messages import consumer_group_describe as cgd
from penstock.wire.messages import consumer_group_heartbeat as cgh
from penstock.wire.messages import describe_groups as dg
from penstock.wire.messages import list_groups as lgs
from penstock.wire.messages import offset_fetch as of
from penstock.wire.messages import sync_group as sg


async def join(broker, member_id: str = "a", version: int = 1, **fields):
    given = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 1000, "topic_partitions": [], **fields}
    request = cgh.ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, **given)
    return await broker.call(version, request)


async def describe(broker, group_id: str = "g"):
    request = cgd.ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=True)
    (group,) = (await broker.call(1, request)).groups
    return group


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_gets_partitions_by_topic_id(broker, version: int) -> None:
    joined = await join(broker, version=version)
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (E.NONE, "a", 1)
    assert joined.heartbeat_interval_ms == 5000
    (topic,) = joined.assignment.topic_partitions
    assert (topic.topic_id, topic.partitions) == (broker.topic_ids["t"], [0, 1, 2])
    again = await broker.call(version, cgh.ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=1))
    assert (again.error_code, again.assignment) == (E.NONE, None)


async def test_only_members_of_version_0_get_an_id(broker) -> None:
    assert (await join(broker, "", version=1)).error_code == E.INVALID_REQUEST
    assert (await join(broker, "", version=0)).member_id


async def test_an_expression_is_resolved_by_the_broker(broker) -> None:
    joined = await join(broker, subscribed_topic_names=None, subscribed_topic_regex="[tu]")
    assert {t.topic_id for t in joined.assignment.topic_partitions} == set(broker.topic_ids.values())
    refused = await join(broker, "b", subscribed_topic_names=None, subscribed_topic_regex="(")
    assert refused.error_code == E.INVALID_REGULAR_EXPRESSION
    assert refused.error_message


async def test_a_group_is_described_with_epochs_assignments_and_targets(broker) -> None:
    await join(broker, rack_id="r", instance_id="i")
    group = await describe(broker)
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        "Stable",
        1,
        1,
        "uniform",
    )
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("a", "i", "r", 1)
    assert (member.client_id, member.client_host, member.member_type) == ("me", "/10.1.1.1", 1)
    for assignment in (member.assignment, member.target_assignment):
        assert [(t.topic_name, t.partitions) for t in assignment.topic_partitions] == [("t", [0, 1, 2])]
    await broker.call(
        1, cgh.ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=-1, instance_id="i")
    )
    assert (await describe(broker)).group_state == "Empty"


async def test_a_classic_member_is_described_by_its_type_and_served_by_the_classic_apis(broker) -> None:
    await join(broker)
    joined = await broker.join(5)
    assert (joined.error_code, joined.leader, joined.protocol_name) == (E.NONE, "", "range")
    synced = await broker.call(
        3, sg.SyncGroupRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
    )
    assert synced.error_code == E.NONE
    assert synced.assignment == b"\0\0" + b"\0\0\0\0" + b"\xff" * 4, "the other member has all partitions"
    group = await describe(broker)
    assert {member.member_id: member.member_type for member in group.members} == {"a": 1, joined.member_id: 0}
    await broker.leave(joined.member_id)
    assert [member.member_id for member in (await describe(broker)).members] == ["a"]


async def test_other_groups_are_not_found(broker) -> None:
    await broker.stable()
    for group_id, message in (("g", "Group g is not a consumer group."), ("x", "Group x not found.")):
        group = await describe(broker, group_id)
        assert (group.error_code, group.error_message) == (E.GROUP_ID_NOT_FOUND, message)


async def test_the_older_apis_name_the_type_or_call_the_group_dead(broker) -> None:
    await join(broker)
    (listed,) = (await broker.call(5, lgs.ListGroupsRequest(types_filter=["Consumer"]))).groups
    assert (listed.group_id, listed.group_type, listed.group_state) == ("g", "consumer", "Stable")
    assert not (await broker.call(5, lgs.ListGroupsRequest(types_filter=["classic"]))).groups
    (old,) = (await broker.call(5, dg.DescribeGroupsRequest(groups=["g"]))).groups
    assert (old.error_code, old.group_state) == (E.NONE, "Dead")
    (new,) = (await broker.call(6, dg.DescribeGroupsRequest(groups=["g"]))).groups
    assert new.error_code == E.GROUP_ID_NOT_FOUND


async def test_a_member_that_leaves_while_its_offsets_are_read_gets_them(broker) -> None:
    await join(broker)
    broker.owned.is_shared = True  # the read is confirmed by the store
    requested = of.OffsetFetchRequestGroup(group_id="g", member_id="a", member_epoch=1, topics=None)
    request = of.OffsetFetchRequest(groups=[requested])
    reading = broker.start(9, request)
    left = await broker.call(1, cgh.ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=-1))
    assert left.error_code == E.NONE
    assert (await reading).groups[0].error_code == E.NONE
    assert (await broker.call(9, request)).groups[0].error_code == E.UNKNOWN_MEMBER_ID


async def test_commits_and_reads_of_offsets_are_fenced_by_epoch(broker) -> None:
    await join(broker)
    epoch = {"member_id": "a", "generation_id_or_member_epoch": 1}
    assert await broker.commit(9, **epoch) == E.NONE
    assert await broker.commit(9, **{**epoch, "generation_id_or_member_epoch": 2}) == E.STALE_MEMBER_EPOCH
    assert await broker.commit(8, **{**epoch, "generation_id_or_member_epoch": 2}) == E.UNSUPPORTED_VERSION
    for member_epoch, error in ((1, E.NONE), (3, E.STALE_MEMBER_EPOCH)):
        group = of.OffsetFetchRequestGroup(group_id="g", member_id="a", member_epoch=member_epoch, topics=None)
        (answer,) = (await broker.call(9, of.OffsetFetchRequest(groups=[group]))).groups
        assert answer.error_code == error
