"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets on a broker with records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from authorized_broker import ANA, ROOT, AuthorizedBroker
from share_kit import ACCEPT, REJECT, ShareMember, ack_error, acquired, append, leader_of, opened_share_broker

from penstock.replica.isr import InSyncReplicas
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode as E
from penstock.wire.messages import alter_share_group_offsets as alt
from penstock.wire.messages import delete_share_group_offsets as dlt
from penstock.wire.messages import describe_share_group_offsets as dsc
from penstock.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

pytestmark = pytest.mark.integration


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_share_broker(tmp_path) as opened:
        await append(opened, 10)
        yield opened


async def leave(broker: AuthorizedBroker, member: str = "m1", group: str = "g") -> None:
    request = ShareGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=-1)
    assert not (await broker.client(ROOT).ask(request, ShareGroupHeartbeatResponse, 1)).error_code


async def worked(broker: AuthorizedBroker) -> None:
    """Let a member accept two of ten records, reject a later one, and leave."""
    member = ShareMember(broker)
    await member.fetch("t")
    assert ack_error(await member.acknowledge({"t": [(0, 1, [ACCEPT]), (5, 5, [REJECT])]})) == E.NONE
    await member.close()
    await leave(broker)


async def describe(broker, topics=None, version=1, principal=ROOT, group="g"):
    named = None if topics is None else [dsc.DescribeShareGroupOffsetsRequestTopic(t, [0]) for t in topics]
    groups = [dsc.DescribeShareGroupOffsetsRequestGroup(group, named)]
    request = dsc.DescribeShareGroupOffsetsRequest(groups)
    (found,) = (await broker.client(principal).ask(request, dsc.DescribeShareGroupOffsetsResponse, version)).groups
    assert not found.error_code, found
    return {t.topic_name: t.partitions[0] for t in found.topics}


async def alter(broker, offset: int, topic="t", index=0, group="g", principal=ROOT):
    partition = alt.AlterShareGroupOffsetsRequestPartition(index, offset)
    request = alt.AlterShareGroupOffsetsRequest(group, [alt.AlterShareGroupOffsetsRequestTopic(topic, [partition])])
    response = await broker.client(principal).ask(request, alt.AlterShareGroupOffsetsResponse, 0)
    return response.error_code or response.responses[0].partitions[0].error_code


async def delete(broker, topic="t", group="g", principal=ROOT):
    request = dlt.DeleteShareGroupOffsetsRequest(group, [dlt.DeleteShareGroupOffsetsRequestTopic(topic)])
    response = await broker.client(principal).ask(request, dlt.DeleteShareGroupOffsetsResponse, 0)
    return response.error_code or response.responses[0].error_code


async def test_start_offset_and_lag_of_a_group_are_described(broker) -> None:
    await worked(broker)
    assert set(await describe(broker)) == {"t"}
    found = (await describe(broker, ["t"]))["t"]
    assert (found.start_offset, found.lag, found.error_code) == (2, 10 - 2 - 1, E.NONE)
    assert (await describe(broker, ["t"], version=0))["t"].start_offset == 2


async def test_a_new_leader_that_does_not_know_the_end_describes_no_lag(broker) -> None:
    await worked(broker)
    role, placed = leader_of(broker), broker.view.topics["t"].partitions[0]
    role.isr = InSyncReplicas(placed.leader, placed, role.high_watermark + 1, 0)
    assert (await describe(broker))["t"].lag == -1
    role.isr = None
    assert (await describe(broker))["t"].lag == 10 - 2 - 1


async def test_partitions_that_are_unknown_or_have_no_state_have_no_offset(broker) -> None:
    found = await describe(broker, ["u", "x"])
    for name in ("u", "x"):
        assert (found[name].start_offset, found[name].lag, found[name].error_code) == (-1, -1, E.NONE)
    assert await describe(broker, group="other") == {}


async def test_subscribed_partitions_are_described_before_a_member_fetches(broker) -> None:
    request = ShareGroupHeartbeatRequest(group_id="g", member_id="m1", subscribed_topic_names=["t", "missing"])
    assert not (await broker.client(ROOT).ask(request, ShareGroupHeartbeatResponse, 1)).error_code
    assert {name: found.start_offset for name, found in (await describe(broker)).items()} == {"t": -1}


async def test_a_new_start_offset_counts_for_the_next_delivery(broker) -> None:
    await worked(broker)
    assert await alter(broker, 7) == E.NONE
    found = (await describe(broker))["t"]
    assert (found.start_offset, found.lag) == (7, 3)
    assert acquired(await ShareMember(broker).fetch("t")) == [(7, 9, 1)]


async def test_offsets_of_a_group_that_does_not_exist_create_it(broker) -> None:
    assert await alter(broker, 4, group="new") == E.NONE
    listed = await broker.client(ROOT).ask(ListGroupsRequest(types_filter=["share"]), ListGroupsResponse, 5)
    assert [(g.group_id, g.group_state) for g in listed.groups] == [("new", "Empty")]
    assert (await describe(broker, group="new"))["t"].start_offset == 4
    assert acquired(await ShareMember(broker, group="new").fetch("t")) == [(4, 9, 1)]


async def test_a_change_in_an_unknown_topic_creates_no_group(broker) -> None:
    assert await alter(broker, 1, topic="x", group="new") == E.UNKNOWN_TOPIC_OR_PARTITION
    assert await delete(broker, group="new") == E.GROUP_ID_NOT_FOUND


async def test_invalid_changes_are_refused(broker) -> None:
    await worked(broker)
    assert await alter(broker, -1) == E.INVALID_REQUEST
    assert await alter(broker, 1, index=1) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert await alter(broker, 1, topic="x") == E.UNKNOWN_TOPIC_OR_PARTITION
    assert await alter(broker, 1, group="") == E.INVALID_GROUP_ID
    assert await delete(broker, group="") == E.INVALID_GROUP_ID
    assert await delete(broker, group="other") == E.GROUP_ID_NOT_FOUND
    assert await delete(broker, "u") == await delete(broker, "x") == E.UNKNOWN_TOPIC_OR_PARTITION
    assert (await describe(broker))["t"].start_offset == 2


async def test_offsets_of_a_group_with_members_do_not_change(broker) -> None:
    member = ShareMember(broker)
    await member.fetch("t")
    assert await alter(broker, 1) == await delete(broker) == E.NON_EMPTY_GROUP


async def test_deleted_offsets_start_again_and_go_with_their_group(broker) -> None:
    await worked(broker)
    assert await delete(broker) == E.NONE
    assert await describe(broker) == {}
    assert acquired(await ShareMember(broker).fetch("t")) == [(0, 9, 1)]
    await leave(broker)
    answer = await broker.client(ROOT).ask(DeleteGroupsRequest(groups_names=["g"]), DeleteGroupsResponse, 2)
    assert [result.error_code for result in answer.results] == [E.NONE]
    assert await describe(broker) == {}


async def test_rights_on_topics_hide_and_protect_their_offsets(broker) -> None:
    await worked(broker)
    await broker.allow(AclOperation.ALL, ResourceType.GROUP, "g")
    assert await describe(broker, principal=ANA) == {}
    assert (await describe(broker, ["t"], principal=ANA))["t"].error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert await alter(broker, 1, principal=ANA) == await delete(broker, principal=ANA) == E.TOPIC_AUTHORIZATION_FAILED
    await broker.allow(AclOperation.READ, ResourceType.TOPIC, "t")
    assert (await describe(broker, principal=ANA))["t"].start_offset == 2
    assert await delete(broker, principal=ANA) == E.NONE
