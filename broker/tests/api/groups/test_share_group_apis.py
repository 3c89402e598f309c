"""ShareGroupHeartbeat and ShareGroupDescribe, and what the other APIs say of share groups."""

from __future__ import annotations

import pytest

from penstock.wire.errors import ErrorCode as E
from penstock.wire.messages import consumer_group_describe as cgd
from penstock.wire.messages import consumer_group_heartbeat as cgh
from penstock.wire.messages import delete_groups as dlg
from penstock.wire.messages import describe_groups as dg
from penstock.wire.messages import find_coordinator as fc
from penstock.wire.messages import list_groups as lgs
from penstock.wire.messages import offset_commit as oc
from penstock.wire.messages import share_group_describe as sgd
from penstock.wire.messages import share_group_heartbeat as sgh


async def beat(broker, member_id: str = "a", epoch: int = 0, group_id: str = "g", **fields):
    request = sgh.ShareGroupHeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch, **fields)
    return await broker.call(1, request)


async def join(broker, member_id: str = "a", topics=("t",), **fields):
    return await beat(broker, member_id, subscribed_topic_names=list(topics), **fields)


async def describe(broker, group_id: str = "g"):
    request = sgd.ShareGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=True)
    (group,) = (await broker.call(1, request)).groups
    return group


async def test_a_member_gets_partitions_by_topic_id(broker) -> None:
    joined = await join(broker)
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (E.NONE, "a", 1)
    assert joined.heartbeat_interval_ms == 5000
    (topic,) = joined.assignment.topic_partitions
    assert (topic.topic_id, topic.partitions) == (broker.topic_ids["t"], [0, 1, 2])
    again = await beat(broker, epoch=1)
    assert (again.error_code, again.assignment) == (E.NONE, None)


async def test_a_group_is_described_with_its_members(broker) -> None:
    await join(broker, rack_id="r")
    group = await describe(broker)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 1, 1)
    assert group.assignor_name == "simple"
    assert group.authorized_operations > 0
    (member,) = group.members
    assert (member.member_id, member.rack_id, member.member_epoch) == ("a", "r", 1)
    assert (member.client_id, member.client_host, member.subscribed_topic_names) == ("me", "/10.1.1.1", ["t"])
    assert [(t.topic_name, t.partitions) for t in member.assignment.topic_partitions] == [("t", [0, 1, 2])]
    await beat(broker, epoch=-1)
    emptied = await describe(broker)
    assert (emptied.group_state, emptied.members, emptied.group_epoch) == ("Empty", [], 2)


async def test_other_groups_are_not_found(broker) -> None:
    await broker.stable()
    for group_id, message in (("g", "Group g is not a share group."), ("x", "Group x not found.")):
        group = await describe(broker, group_id)
        assert (group.error_code, group.error_message) == (E.GROUP_ID_NOT_FOUND, message)
        assert group.group_state == ""


async def test_an_empty_group_id_is_invalid(broker) -> None:
    assert (await describe(broker, "")).error_code == E.INVALID_GROUP_ID
    (consumer,) = (await broker.call(1, cgd.ConsumerGroupDescribeRequest(group_ids=[""]))).groups
    assert consumer.error_code == E.INVALID_GROUP_ID


async def test_the_other_apis_name_the_type_or_call_the_group_missing(broker) -> None:
    await join(broker)
    (listed,) = (await broker.call(5, lgs.ListGroupsRequest(types_filter=["Share"]))).groups
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        "g",
        "share",
        "Stable",
        "share",
    )
    (classic,) = (await broker.call(6, dg.DescribeGroupsRequest(groups=["g"]))).groups
    assert (classic.error_code, classic.group_state) == (E.GROUP_ID_NOT_FOUND, "Dead")
    (consumer,) = (await broker.call(1, cgd.ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
    assert (consumer.error_code, consumer.error_message) == (E.GROUP_ID_NOT_FOUND, "Group g is not a consumer group.")


async def commit(broker, group_id: str = "g") -> int:
    partition = oc.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = oc.OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = oc.OffsetCommitRequest(group_id=group_id, topics=[topic])
    return (await broker.call(8, request)).topics[0].partitions[0].error_code


@pytest.mark.parametrize("is_empty", [False, True])
async def test_a_share_group_has_no_committed_offsets_and_no_members_of_other_protocols(broker, is_empty) -> None:
    await join(broker)
    if is_empty:
        await beat(broker, epoch=-1)
    assert await commit(broker) == E.GROUP_ID_NOT_FOUND
    given = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 1000, "topic_partitions": []}
    consumer = await broker.call(1, cgh.ConsumerGroupHeartbeatRequest(group_id="g", member_id="c", **given))
    assert (consumer.error_code, consumer.error_message) == (
        E.INCONSISTENT_GROUP_PROTOCOL,
        "Group g is not a consumer group.",
    )
    assert (await broker.join(7)).error_code == E.INCONSISTENT_GROUP_PROTOCOL


async def test_a_group_of_another_type_never_becomes_a_share_group(broker) -> None:
    await commit(broker, "simple")
    refused = await join(broker, group_id="simple")
    assert (refused.error_code, refused.error_message) == (E.GROUP_ID_NOT_FOUND, "Group simple is not a share group.")


@pytest.mark.parametrize("member_id", ["", "x" * 37])
async def test_a_member_id_is_no_longer_than_a_uuid(broker, member_id) -> None:
    for epoch in (0, 1, -1):
        assert (await beat(broker, member_id, epoch, subscribed_topic_names=["t"])).error_code == E.INVALID_REQUEST
    assert (await join(broker, "x" * 36)).error_code == E.NONE


async def test_a_heartbeat_of_a_missing_group_is_an_error(broker) -> None:
    refused = await beat(broker, epoch=1)
    assert (refused.error_code, refused.error_message) == (E.GROUP_ID_NOT_FOUND, "Share group g not found.")


async def test_the_coordinator_of_a_share_partition_is_that_of_its_group(broker) -> None:
    keys = ["g:x:c94c07d9-84b3-4cce-ad48-3ef13cb4fe22:0", "g:c94c07d9:x", "g"]
    request = fc.FindCoordinatorRequest(key_type=2, coordinator_keys=keys)
    found, *invalid = (await broker.call(6, request)).coordinators
    assert (found.key, found.error_code, found.node_id, found.host) == (keys[0], E.NONE, 0, "main.example")
    assert [each.error_code for each in invalid] == [E.INVALID_REQUEST] * 2
    assert {each.error_code for each in (await broker.call(5, request)).coordinators} == {E.INVALID_REQUEST}


async def test_only_an_empty_group_is_deleted(broker) -> None:
    await join(broker)
    for epoch, expected in ((1, E.NON_EMPTY_GROUP), (-1, E.NONE), (1, E.GROUP_ID_NOT_FOUND)):
        await beat(broker, epoch=epoch)
        (deleted,) = (await broker.call(2, dlg.DeleteGroupsRequest(groups_names=["g"]))).results
        assert deleted.error_code == expected
