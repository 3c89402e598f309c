"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup at every version, through the codec."""

from __future__ import annotations

import asyncio

import pytest

from penstock.wire.errors import ErrorCode
from penstock.wire.messages import find_coordinator as fc
from penstock.wire.messages import heartbeat as hb
from penstock.wire.messages import join_group as jg
from penstock.wire.messages import leave_group as lg
from penstock.wire.messages import sync_group as sg

E = ErrorCode


@pytest.mark.parametrize("version", range(7))
async def test_the_coordinator_is_told_at_the_listeners_address(broker, version):
    for listener, port in (("MAIN", 1), ("OTHER", 2)):
        request = fc.FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
        response = await broker.call(version, request, listener)
        found = response.coordinators if version >= 4 else [response]
        assert len(found) == (2 if version >= 4 else 1)
        for one in found:
            assert (one.error_code, one.node_id, one.host, one.port) == (0, 0, f"{listener.lower()}.example", port)


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_transaction_coordinator_is_told_too(broker, version):
    request = fc.FindCoordinatorRequest(key="tx", key_type=1, coordinator_keys=["tx"])
    response = await broker.call(version, request)
    one = response.coordinators[0] if version >= 4 else response
    assert (one.error_code, one.node_id, one.host) == (0, 0, "main.example")


async def test_an_unknown_kind_of_coordinator_or_a_missing_one_is_an_error(broker):
    request = fc.FindCoordinatorRequest(key_type=9, coordinator_keys=["x"])
    assert (await broker.call(4, request)).coordinators[0].error_code == E.INVALID_REQUEST
    request = fc.FindCoordinatorRequest(coordinator_keys=["x"])
    answer = (await broker.call(4, request, listener="NONE")).coordinators[0]
    assert (answer.error_code, answer.node_id) == (E.COORDINATOR_NOT_AVAILABLE, -1)
    broker.view.brokers.clear()
    assert (await broker.call(4, request)).coordinators[0].error_code == E.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", range(10))
async def test_a_member_joins_in_every_version(broker, version):
    joined = await broker.join(version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == joined.members[0].member_id
    assert joined.member_id.startswith("me-")
    assert joined.protocol_type == ("consumer" if version >= 7 else None)


@pytest.mark.parametrize(("version", "two_steps"), [(v, v >= 4) for v in range(10)])
async def test_an_id_is_required_first_from_version_4_on(broker, version, two_steps):
    request = jg.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, protocol_type="x", protocols=[jg.JoinGroupRequestProtocol(name="p")]
    )
    response = await broker.call(version, request)
    assert (response.error_code == E.MEMBER_ID_REQUIRED) is two_steps
    assert response.member_id


@pytest.mark.parametrize("version", range(10))
async def test_a_refused_join_can_be_written_in_every_version(broker, version):
    response = await broker.call(version, jg.JoinGroupRequest(group_id="g", session_timeout_ms=1))
    assert (response.error_code, response.generation_id) == (E.INVALID_SESSION_TIMEOUT, -1)
    assert response.protocol_name == (None if version >= 7 else "")


async def test_version_0_uses_the_session_timeout_for_rebalances(broker):
    await broker.join(0)
    (member,) = broker.groups.find("g").member_list
    assert member.rebalance_timeout_ms == 10_000
    assert member.client_host == "/10.1.1.1"


@pytest.mark.parametrize("version", range(6))
async def test_assignments_are_handed_out_in_every_version(broker, version):
    joined = await broker.join(7)
    plan = [sg.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"A")]
    request = sg.SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=plan,
    )
    response = await broker.call(version, request)
    assert (response.error_code, response.assignment) == (0, b"A")
    assert response.protocol_name == ("range" if version >= 5 else None)
    request.generation_id = 9
    assert (await broker.call(version, request)).error_code == E.ILLEGAL_GENERATION


@pytest.mark.parametrize("missing", [{"protocol_type": None}, {"protocol_name": None}])
async def test_version_5_of_sync_group_must_name_protocol_type_and_protocol(broker, missing):
    joined = await broker.join(7)
    names = {"protocol_type": "consumer", "protocol_name": "range", **missing}
    request = sg.SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id, **names)
    assert (await broker.call(5, request)).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert (await broker.call(4, request)).error_code == 0


@pytest.mark.parametrize("version", range(5))
async def test_heartbeats_in_every_version(broker, version):
    member = await broker.stable()
    request = hb.HeartbeatRequest(group_id="g", generation_id=1, member_id=member.member_id)
    assert (await broker.call(version, request)).error_code == 0
    request.generation_id = 2
    assert (await broker.call(version, request)).error_code == E.ILLEGAL_GENERATION
    request.member_id = "stranger"
    assert (await broker.call(version, request)).error_code == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(3))
async def test_one_member_leaves_in_the_old_versions(broker, version):
    member = await broker.stable()
    request = lg.LeaveGroupRequest(group_id="g", member_id=member.member_id)
    assert (await broker.call(version, request)).error_code == 0
    assert (await broker.call(version, request)).error_code == E.UNKNOWN_MEMBER_ID
    request.group_id = ""
    assert (await broker.call(version, request)).error_code == E.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(3, 6))
async def test_several_members_leave_in_the_new_versions(broker, version):
    member = await broker.stable(group_instance_id="i")
    identities = [
        lg.MemberIdentity(member_id="stranger"),
        lg.MemberIdentity(member_id="older", group_instance_id="i"),
        lg.MemberIdentity(member_id="", group_instance_id="i", reason="done"),
    ]
    response = await broker.call(version, lg.LeaveGroupRequest(group_id="g", members=identities))
    assert response.error_code == 0
    assert [m.error_code for m in response.members] == [E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, 0]
    assert [m.group_instance_id for m in response.members] == [None, "i", "i"]
    assert member.member_id not in broker.groups.find("g").member_list.members
    refused = await broker.call(version, lg.LeaveGroupRequest(group_id="", members=identities))
    assert (refused.error_code, refused.members) == (E.INVALID_GROUP_ID, [])


async def test_a_join_that_waits_ends_when_its_connection_is_lost(broker):
    broker.config.group_initial_rebalance_delay_ms = 60_000
    waiting = asyncio.ensure_future(broker.join(0))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    broker.exchange.lose()
    assert (await waiting).error_code == E.REBALANCE_IN_PROGRESS
    assert len(broker.groups.find("g").member_list) == 0
