"""DescribeGroups, ListGroups and DeleteGroups at every version, and the errors of all group APIs."""

from __future__ import annotations

import asyncio

import pytest

from penstock.group.phases import GroupState
from penstock.wire import codec
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import consumer_group_describe as cgd
from penstock.wire.messages import delete_groups as dg
from penstock.wire.messages import describe_groups as desc
from penstock.wire.messages import find_coordinator as fc
from penstock.wire.messages import list_groups as ls
from penstock.wire.messages import offset_commit as oc
from penstock.wire.messages import offset_fetch as of
from penstock.wire.messages import share_group_describe as sgd

E = ErrorCode


@pytest.mark.parametrize("version", range(7))
async def test_groups_are_described_in_every_version(broker, version):
    member = await broker.stable(group_instance_id="i")
    request = desc.DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=True)
    found, missing = (await broker.call(version, request)).groups
    assert (found.error_code, found.group_state, found.protocol_type, found.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    (described,) = found.members
    assert (described.member_id, described.client_id, described.client_host) == (member.member_id, "me", "/10.1.1.1")
    assert (described.member_assignment, described.group_instance_id) == (b"mine", "i" if version >= 4 else None)
    assert found.authorized_operations == (0b110101001000 if version >= 3 else -(1 << 31))
    assert (missing.group_state, missing.members) == ("Dead", [])
    assert missing.error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    assert missing.authorized_operations == (found.authorized_operations if version < 6 else -(1 << 31))


async def test_members_keep_their_assignment_in_a_description_while_the_group_rebalances(broker):
    await broker.stable()
    waiting = asyncio.ensure_future(broker.join(0))
    while broker.groups.find("g").phases.state is GroupState.STABLE:
        await asyncio.sleep(0)
    (found,) = (await broker.call(5, desc.DescribeGroupsRequest(groups=["g"]))).groups
    assert found.group_state == "PreparingRebalance"
    assert sorted((m.member_assignment, m.member_metadata) for m in found.members) == [(b"", b""), (b"mine", b"")]
    waiting.cancel()


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed_in_every_version(broker, version):
    await broker.stable()
    await broker.commit(5, group_id="simple")
    request = ls.ListGroupsRequest(states_filter=["empty"], types_filter=["classic"])
    groups = {g.group_id: g for g in (await broker.call(version, request)).groups}
    assert set(groups) == ({"simple"} if version >= 4 else {"g", "simple"})
    simple = groups["simple"]
    assert (simple.protocol_type, simple.group_state) == ("", "Empty" if version >= 4 else "")
    assert simple.group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize("version", range(3))
async def test_groups_are_deleted_in_every_version(broker, version):
    member = await broker.stable()
    await broker.commit(5, group_id="simple")
    request = dg.DeleteGroupsRequest(groups_names=["g", "simple", "none", "none"])
    results = {r.group_id: r.error_code for r in (await broker.call(version, request)).results}
    assert results == {"g": E.NON_EMPTY_GROUP, "simple": 0, "none": E.GROUP_ID_NOT_FOUND}
    await broker.leave(member.member_id)
    results = {r.group_id: r.error_code for r in (await broker.call(version, request)).results}
    assert results == {"g": 0, "simple": E.GROUP_ID_NOT_FOUND, "none": E.GROUP_ID_NOT_FOUND}


async def test_an_unexpected_failure_can_be_answered_in_every_version(broker):
    for request_class, route in broker.routes.items():
        for version in range(route.first, route.last + 1):
            request = codec.decode(request_class, version, bytes(codec.encode(full(request_class), version)))
            response = route.failure(request, E.UNKNOWN_SERVER_ERROR)
            text = repr(codec.decode(route.response, version, bytes(codec.encode(response, version))))
            assert "error_code=-1" in text, f"{request_class.__name__} v{version} does not tell"


def full(request_class):
    """Return a request with one of each resource."""
    part = [of.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    filled = {
        fc.FindCoordinatorRequest: {"coordinator_keys": ["g"]},
        desc.DescribeGroupsRequest: {"groups": ["g"]},
        dg.DeleteGroupsRequest: {"groups_names": ["g"]},
        cgd.ConsumerGroupDescribeRequest: {"group_ids": ["g"]},
        sgd.ShareGroupDescribeRequest: {"group_ids": ["g"]},
        oc.OffsetCommitRequest: {
            "topics": [oc.OffsetCommitRequestTopic(name="t", partitions=[oc.OffsetCommitRequestPartition()])]
        },
        of.OffsetFetchRequest: {
            "topics": [of.OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
            "groups": [of.OffsetFetchRequestGroup(group_id="g", topics=part)],
        },
    }
    return request_class(**filled.get(request_class, {}))
